//! A weight matrix as the kernels read it: its size, its format and its memory. `crate::formats` says how its numbers lie.

use std::ops::Range;

use crate::formats::{Format, Storage};
use crate::region::Region;

/// Outputs side by side in a panel.
pub const PANEL: usize = 16;
/// Inputs of a group.
pub const GROUP: usize = 64;

/// `outputs` rows of `inputs` numbers.
#[derive(Debug, Clone)]
pub struct Matrix {
    pub outputs: usize,
    pub inputs: usize,
    pub format: &'static Format,
    region: Region,
}

impl Matrix {
    /// Panics where the region has not just the size that the format says.
    pub fn new(format: &'static Format, outputs: usize, inputs: usize, region: Region) -> Self {
        assert_eq!(region.bytes().len(), format.bytes(outputs, inputs), "a matrix and its memory");
        Self { outputs, inputs, format, region }
    }

    pub fn bytes(&self) -> usize {
        self.region.bytes().len()
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Of floats that are not packed: these outputs, row by row.
    pub fn rows(&self, outputs: Range<usize>) -> &[u8] {
        self.floats().rows(outputs)
    }

    /// Of packed rows: the block with this output, where so many rows of so many bytes stand together.
    pub fn block(&self, together: usize, row_bytes: usize, output: usize) -> Block<'_> {
        let first = output / together * together;
        let rows = together.min(self.outputs - first);
        let bytes = self.packed_rows(row_bytes, first..first + rows);
        Block { bytes, rows, inputs: self.inputs }
    }

    /// Of packed rows: as many bytes as these outputs have, which are theirs where they are whole blocks.
    pub fn packed_rows(&self, row_bytes: usize, outputs: Range<usize>) -> &[u8] {
        assert!(self.format.packed_rows().is_some(), "packed rows");
        &self.region.bytes()[outputs.start * row_bytes..outputs.end * row_bytes]
    }

    /// Of blocks: all panels, one behind the other.
    pub fn panels(&self) -> &[u8] {
        assert!(self.format.is_panels(), "floats lie in rows");
        self.region.bytes()
    }

    /// Of blocks: the outputs from `16 * panel` on.
    pub fn panel(&self, panel: usize) -> &[u8] {
        let bytes = self.format.bytes(PANEL, self.inputs);
        &self.panels()[panel * bytes..][..bytes]
    }

    /// Rows that kernels read where they lie: of floats that are not packed.
    pub fn floats(&self) -> Floats<'_> {
        Floats::new(self.format, self.inputs, 0..self.outputs, self.region.bytes())
    }
}

/// Packed rows that stand together.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    pub bytes: &'a [u8],
    pub rows: usize,
    pub inputs: usize,
}

/// Rows of floats one after the other, of some outputs of a matrix: where it lies, or somewhere else.
#[derive(Debug, Clone)]
pub struct Floats<'a> {
    pub inputs: usize,
    pub outputs: Range<usize>,
    row_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> Floats<'a> {
    pub fn new(format: &Format, inputs: usize, outputs: Range<usize>, bytes: &'a [u8]) -> Self {
        assert!(matches!(format.storage, Storage::Rows(_)), "floats as files have them");
        assert_eq!(bytes.len(), format.bytes(outputs.len(), inputs), "rows and their memory");
        Self { inputs, outputs, row_bytes: format.bytes(1, inputs), bytes }
    }

    pub fn rows(&self, outputs: Range<usize>) -> &'a [u8] {
        let first = self.outputs.start;
        &self.bytes[(outputs.start - first) * self.row_bytes..(outputs.end - first) * self.row_bytes]
    }
}
