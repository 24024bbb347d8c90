//! The matrices of a product: weights in a format (`crate::formats` defines the layouts), and activations as rows of f32.

use std::ops::Range;

use crate::formats::{Format, Storage};
use crate::region::Region;

/// Outputs of a panel: their weights are stored side by side.
pub const PANEL_OUTPUTS: usize = 16;
/// Inputs of a group, a part of a panel.
pub const GROUP_INPUTS: usize = 64;

/// `outputs` rows of `inputs` numbers.
#[derive(Debug, Clone)]
pub struct Matrix {
    pub outputs: usize,
    pub inputs: usize,
    pub format: &'static Format,
    region: Region,
}

impl Matrix {
    /// Panics if the region does not have exactly the bytes of such a matrix in this format.
    pub fn new(format: &'static Format, outputs: usize, inputs: usize, region: Region) -> Self {
        assert_eq!(region.bytes().len(), format.bytes(outputs, inputs), "the bytes of a matrix");
        Self { outputs, inputs, format, region }
    }

    pub fn bytes(&self) -> usize {
        self.region.bytes().len()
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    /// For unpacked floats: the bytes of the rows of these outputs.
    pub fn rows(&self, outputs: Range<usize>) -> &[u8] {
        self.floats().rows(outputs)
    }

    /// For packed rows: the block with this output, where a block has `block_rows` rows of `row_bytes` bytes.
    pub fn block(&self, block_rows: usize, row_bytes: usize, output: usize) -> Block<'_> {
        let first = output / block_rows * block_rows;
        let rows = block_rows.min(self.outputs - first);
        let bytes = self.packed_rows(row_bytes, first..first + rows);
        Block { bytes, rows, inputs: self.inputs }
    }

    /// For packed rows: the bytes of these outputs. Only the bytes of whole blocks can be unpacked.
    pub fn packed_rows(&self, row_bytes: usize, outputs: Range<usize>) -> &[u8] {
        assert!(self.format.packed_rows().is_some(), "packed rows");
        &self.region.bytes()[outputs.start * row_bytes..outputs.end * row_bytes]
    }

    /// For formats in panels: all panels, one after the other.
    pub fn panels(&self) -> &[u8] {
        assert!(self.format.is_panels(), "a format in panels");
        self.region.bytes()
    }

    /// The panel with the outputs from `16 * panel` on.
    pub fn panel(&self, panel: usize) -> &[u8] {
        let bytes = self.format.bytes(PANEL_OUTPUTS, self.inputs);
        &self.panels()[panel * bytes..][..bytes]
    }

    /// For unpacked floats: all rows.
    pub fn floats(&self) -> Floats<'_> {
        Floats::new(self.format, self.inputs, 0..self.outputs, self.region.bytes())
    }
}

/// A block of packed rows.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    pub bytes: &'a [u8],
    pub rows: usize,
    pub inputs: usize,
}

/// Rows of floats for consecutive outputs of a matrix: in the matrix's memory, or unpacked into other memory.
#[derive(Debug, Clone)]
pub struct Floats<'a> {
    pub inputs: usize,
    pub outputs: Range<usize>,
    row_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> Floats<'a> {
    pub fn new(format: &Format, inputs: usize, outputs: Range<usize>, bytes: &'a [u8]) -> Self {
        assert!(matches!(format.storage, Storage::Rows(_)), "unpacked floats");
        assert_eq!(bytes.len(), format.bytes(outputs.len(), inputs), "the bytes of the rows");
        Self { inputs, outputs, row_bytes: format.bytes(1, inputs), bytes }
    }

    pub fn rows(&self, outputs: Range<usize>) -> &'a [u8] {
        let first = self.outputs.start;
        &self.bytes[(outputs.start - first) * self.row_bytes..(outputs.end - first) * self.row_bytes]
    }
}

/// Activations: a row of f32 for each token. `[tokens, width]`, row after row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rows {
    pub width: usize,
    numbers: Vec<f32>,
}

impl Rows {
    pub fn new(tokens: usize, width: usize) -> Self {
        Self { width, numbers: vec![0.0; tokens * width] }
    }

    /// Changes the shape and keeps the memory. The contents are unspecified afterwards.
    pub fn reshape(&mut self, tokens: usize, width: usize) {
        self.width = width;
        self.numbers.resize(tokens * width, 0.0);
    }

    pub fn append(&mut self, rows: &[f32]) {
        assert!(rows.len().is_multiple_of(self.width), "whole rows");
        self.numbers.extend_from_slice(rows);
    }

    pub fn tokens(&self) -> usize {
        self.numbers.len().checked_div(self.width).unwrap_or(0)
    }

    pub fn row(&self, token: usize) -> &[f32] {
        &self.numbers[token * self.width..][..self.width]
    }

    pub fn row_mut(&mut self, token: usize) -> &mut [f32] {
        &mut self.numbers[token * self.width..][..self.width]
    }

    pub fn all(&self) -> &[f32] {
        &self.numbers
    }

    pub fn all_mut(&mut self) -> &mut [f32] {
        &mut self.numbers
    }
}
