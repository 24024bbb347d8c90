//! The embedding: rows are looked up where weights are anyway, in the output's panels or where the file has them, so that no second
//! copy of it is ever made, nor pages of the file stay in memory beside the panels.

use model_files::{Dtype, blocks};

use crate::kernels::panels;
use crate::matrix::Matrix;
use crate::region::Region;

#[derive(Debug)]
pub enum Table {
    Filed(Filed),
    /// The output's matrix too.
    Panels(Matrix),
}

/// Rows as the file has them.
#[derive(Debug)]
pub struct Filed {
    region: Region,
    stored: Dtype,
    /// What the weights were asked for in, where that holds less: a row is rounded as the matrix is.
    rounded: Option<Dtype>,
    width: usize,
}

impl Table {
    pub fn width(&self) -> usize {
        match self {
            Self::Filed(filed) => filed.width,
            Self::Panels(matrix) => matrix.inputs,
        }
    }

    /// The numbers of one row, which is there, into `row`, which has its width.
    pub fn row(&self, index: usize, row: &mut [f32]) {
        match self {
            Self::Filed(filed) => filed.row(index, row),
            Self::Panels(matrix) => panels::row(matrix, index, row),
        }
    }
}

impl Filed {
    pub fn new(region: Region, stored: Dtype, rounded: Option<Dtype>, width: usize) -> Self {
        Self { region, stored, rounded: rounded.filter(|dtype| *dtype != stored), width }
    }

    fn row(&self, index: usize, row: &mut [f32]) {
        let bytes = self.stored.bytes(self.width as u64) as usize;
        let stored = &self.region.bytes()[index * bytes..][..bytes];
        // Lengths agree, which is all that widening asks for.
        blocks::widen(self.stored, stored, row).unwrap_or_default();
        let Some(dtype) = self.rounded else { return };
        let mut rounded = vec![0; dtype.bytes(self.width as u64) as usize];
        // What the format cannot hold stays as it is; the matrix was refused for it, where there is one.
        if blocks::narrow(dtype, row, &mut rounded).is_ok() {
            blocks::widen(dtype, &rounded, row).unwrap_or_default();
        }
    }
}
