//! A weight matrix as the kernels read it.
//!
//! Floats lie row by row, as files have them: a matrix of a mapped file is used where it is. Blocks of narrow numbers lie in
//! panels of 16 outputs, so that one register holds a number of each of them, and are packed when they are loaded.
//!
//! ```text
//! a group: 16 outputs x 64 inputs, two blocks of 32 for each output
//!
//! Q8_0   a line of 64 bytes with scales: f16 of block 0 for 16 outputs, f16 of block 1 for 16 outputs. Then 16 lines: line j
//!        has inputs 4j .. 4j+4 of output 0, then of output 1, ... 15; as u8, 128 more than the number.
//!        1,088 bytes: 8.5 bits a number
//! Q4_0   the line of scales. Then 8 lines: byte for byte as in Q8_0, block 0 in the low half of each byte and block 1 in the
//!        high half; 8 more than the number. 576 bytes: 4.5 bits a number
//! Q4_K   for four groups (256 inputs) a line of f16: `d` for 16 outputs, `dmin` for 16 outputs. Then of each group a line of
//!        u8: scales of block 0 for 16 outputs, of block 1, minima of block 0, of block 1; and 8 lines as Q4_0, nothing added.
//!        2,368 bytes for 4 groups: 4.625 bits a number
//! Q6_K   for four groups a line: f16 `d` for 16 outputs, 32 bytes unused. Then of each group a line of i8 scales: for each 16
//!        inputs, 16 outputs; 8 lines as Q4_0 for the low four bits; and 4 lines for the high two (byte i of line j has those
//!        of byte i of lines j, j+4 of the low halves in bits 0-1 and 2-3, and of the high halves in bits 4-5 and 6-7); 32 more
//!        than the number. 3,392 bytes for 4 groups: 6.625 bits a number
//! ```
//!
//! What scales a line stands before it, so that whoever multiplies goes through memory without a step ahead or back: that is
//! how memory is read fastest. (Measured: `MEASURED.md`.)
//!
//! Rows of bf16 may be zipped, 12 bits and a little a number: `kernels::zipped` says how.
//!
//! Outputs are filled up to whole panels, and inputs to whole groups, with numbers whose scale is 0.

use std::ops::Range;

use model_files::Dtype;

use crate::kernels::zipped;
use crate::region::Region;

/// Outputs side by side in a panel.
pub const PANEL: usize = 16;
/// Inputs of a group.
pub const GROUP: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    F32,
    F16,
    Bf16,
    Bf16z,
    Q8_0,
    Q4_0,
    Q4K,
    Q6K,
}

impl Format {
    /// `None` for blocks that are widened when they are loaded, because no kernel here reads them.
    pub fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::F32),
            Dtype::F16 => Some(Self::F16),
            Dtype::BF16 => Some(Self::Bf16),
            Dtype::Q8_0 => Some(Self::Q8_0),
            Dtype::Q4_0 => Some(Self::Q4_0),
            Dtype::Q4K => Some(Self::Q4K),
            Dtype::Q6K => Some(Self::Q6K),
            _ => None,
        }
    }

    /// As the protocol spells the dtype.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Bf16z => "bf16z",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4K => "q4_k",
            Self::Q6K => "q6_k",
        }
    }

    pub fn is_panels(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16 | Self::Bf16z)
    }

    /// Inputs whose numbers stand together, scales and all.
    pub fn stretch(self) -> usize {
        match self {
            Self::Q4K | Self::Q6K => 4 * GROUP,
            _ => GROUP,
        }
    }

    /// Bytes of 16 outputs over one stretch.
    pub fn stretch_bytes(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 | Self::Bf16z => panic!("floats lie in rows"),
            Self::Q8_0 => 17 * 64,
            Self::Q4_0 => 9 * 64,
            Self::Q4K => (4 * 9 + 1) * 64,
            Self::Q6K => (4 * 13 + 1) * 64,
        }
    }
}

/// `outputs` rows of `inputs` numbers.
#[derive(Debug, Clone)]
pub struct Matrix {
    pub outputs: usize,
    pub inputs: usize,
    pub format: Format,
    region: Region,
}

impl Matrix {
    /// Panics where the region has not just the size that `bytes_for` says.
    pub fn new(format: Format, outputs: usize, inputs: usize, region: Region) -> Self {
        assert_eq!(region.bytes().len(), Self::bytes_for(format, outputs, inputs), "a matrix and its memory");
        Self { outputs, inputs, format, region }
    }

    pub fn bytes_for(format: Format, outputs: usize, inputs: usize) -> usize {
        match format {
            Format::F32 => outputs * inputs * 4,
            Format::F16 | Format::Bf16 => outputs * inputs * 2,
            Format::Bf16z => outputs * zipped::row_bytes(inputs),
            _ => outputs.div_ceil(PANEL) * Self::panel_bytes_for(format, inputs),
        }
    }

    fn panel_bytes_for(format: Format, inputs: usize) -> usize {
        inputs.div_ceil(format.stretch()) * format.stretch_bytes()
    }

    pub fn bytes(&self) -> usize {
        self.region.bytes().len()
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Of floats that are not zipped: these outputs, row by row.
    pub fn rows(&self, outputs: Range<usize>) -> &[u8] {
        let row = Self::bytes_for(self.format, 1, self.inputs);
        assert!(!self.format.is_panels() && self.format != Format::Bf16z, "rows as files have them");
        &self.region.bytes()[outputs.start * row..outputs.end * row]
    }

    /// Of zipped rows: the block with this output.
    pub fn zipped(&self, output: usize) -> zipped::Block<'_> {
        let first = output / zipped::BLOCK * zipped::BLOCK;
        let rows = zipped::BLOCK.min(self.outputs - first);
        zipped::Block::new(self.zipped_bytes(first..first + rows), rows, self.inputs)
    }

    /// Of zipped rows: as many bytes as these outputs have, which are theirs where they are whole blocks.
    pub fn zipped_bytes(&self, outputs: Range<usize>) -> &[u8] {
        assert_eq!(self.format, Format::Bf16z, "zipped rows");
        let row = zipped::row_bytes(self.inputs);
        &self.region.bytes()[outputs.start * row..outputs.end * row]
    }

    /// Of blocks: all panels, one behind the other.
    pub fn panels(&self) -> &[u8] {
        assert!(self.format.is_panels(), "floats lie in rows");
        self.region.bytes()
    }

    /// Of blocks: the outputs from `16 * panel` on.
    pub fn panel(&self, panel: usize) -> &[u8] {
        let bytes = Self::panel_bytes_for(self.format, self.inputs);
        &self.panels()[panel * bytes..][..bytes]
    }

    /// Rows that kernels read where they lie: of floats that are not zipped.
    pub fn floats(&self) -> Floats<'_> {
        Floats::new(self.format, self.inputs, 0..self.outputs, self.region.bytes())
    }
}

/// Rows of floats one after the other, of some outputs of a matrix: where it lies, or somewhere else.
#[derive(Debug, Clone)]
pub struct Floats<'a> {
    pub format: Format,
    pub inputs: usize,
    pub outputs: Range<usize>,
    bytes: &'a [u8],
}

impl<'a> Floats<'a> {
    pub fn new(format: Format, inputs: usize, outputs: Range<usize>, bytes: &'a [u8]) -> Self {
        assert!(!format.is_panels() && format != Format::Bf16z, "floats as files have them");
        assert_eq!(bytes.len(), Matrix::bytes_for(format, outputs.len(), inputs), "rows and their memory");
        Self { format, inputs, outputs, bytes }
    }

    pub fn rows(&self, outputs: Range<usize>) -> &'a [u8] {
        let row = Matrix::bytes_for(self.format, 1, self.inputs);
        let first = self.outputs.start;
        &self.bytes[(outputs.start - first) * row..(outputs.end - first) * row]
    }
}
