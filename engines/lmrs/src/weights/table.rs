//! The embedding. Rows are looked up in the output's panels or in the mapped file, so there is never a second copy in memory.

use model_files::{Dtype, blocks};

use crate::kernels::panels;
use crate::matrix::Matrix;
use crate::region::Region;

#[derive(Debug)]
pub enum Table {
    Filed(Filed),
    /// Panels that are also the output matrix.
    Panels(Matrix),
}

#[derive(Debug)]
pub struct Filed {
    region: Region,
    stored: Dtype,
    /// The requested dtype, if it is narrower: rows are rounded like the matrix.
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

    /// Writes one existing row into `row`, which has the right width.
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
        // Widening fails only if lengths disagree, and these agree.
        blocks::widen(self.stored, stored, row).unwrap_or_default();
        let Some(dtype) = self.rounded else { return };
        let mut rounded = vec![0; dtype.bytes(self.width as u64) as usize];
        // Numbers that the dtype cannot hold stay unchanged; the same matrix as output would have been refused.
        if blocks::narrow(dtype, row, &mut rounded).is_ok() {
            blocks::widen(dtype, &rounded, row).unwrap_or_default();
        }
    }
}
