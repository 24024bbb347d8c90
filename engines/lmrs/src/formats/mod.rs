//! The formats of weights: their layout in memory, their packing, and the kernels that read them.
//!
//! A new format is a file in this folder (or a folder, if it is long), its `mod` line and its entry in `FORMATS`. The file
//! has the layout, the packing and the implementation of a trait of the kernels: `PanelFormat` for panels, `Float` for rows,
//! `PackedBf16` for packed rows. Loads, products, sidecars and `lmrs-bench` find the format in the table.
//!
//! Floats are stored row by row as in files, so a matrix of a mapped file is used in place. Rows of bf16 may be packed into
//! fewer bits. Quantized weights are stored in panels of 16 outputs, so that one register holds a number of each output.
//!
//! ```text
//! a group: 64 inputs of 16 outputs: a line of scales, then lines of numbers
//! a line:  64 bytes; a line of numbers has four bytes of each output
//! ```
//!
//! Scales precede their numbers, so that a product reads memory sequentially, which is fastest. (Measured: `MEASURED.md`.)
//! Outputs are padded to whole panels and inputs to whole groups, with numbers whose scale is 0.

use std::fmt;

use model_files::Dtype;

use crate::kernels::panels::{PanelFormat, PanelKernels};
use crate::kernels::rows::{PackedBf16, RowKernels, TileKernel};
use crate::matrix::PANEL_OUTPUTS;
pub use bf16z::BF16Z;
pub use floats::{BF16, F16, F32};

pub mod bf16z;
pub mod floats;
pub mod q4_0;
pub mod q4_k;
pub mod q6_k;
pub mod q8_0;

/// All formats, in the order in which this engine lists their names. The first is the format of most published models.
pub static FORMATS: &[&Format] =
    &[&BF16, &BF16Z, &F32, &F16, &q8_0::Q8_0, &q4_0::Q4_0, &q4_k::Q4_K, &q6_k::Q6_K];

/// The layout of a matrix, and the kernels that read it.
pub struct Format {
    /// The dtype name of the protocol.
    pub name: &'static str,
    /// The encoding of rows in files, before they are packed.
    pub dtype: Dtype,
    /// Whether a load can request the format by name. Otherwise only a file of this dtype selects it.
    pub is_requestable: bool,
    pub storage: Storage,
    /// Products of many tokens through tiles of bf16; `None` if rounding to bf16 would lose too much.
    pub tile: Option<TileKernel>,
    /// For the test of `sidecar`: the `LAYOUT_VERSION` that introduced this packing, and the digest of some packed rows.
    pub packed: Option<(u32, &'static str)>,
}

pub enum Storage {
    /// Row by row as in files.
    Rows(RowKernels),
    /// Row by row in fewer bits.
    PackedRows(PackedRows, RowKernels),
    /// Panels: 16 outputs side by side.
    Panels(PanelKernels),
}

/// The packing of rows, one at a time or several together.
pub struct PackedRows {
    /// The number of rows that are packed together.
    pub block_rows: usize,
    /// Whether rows with this number of inputs can be packed.
    pub can_pack: fn(usize) -> bool,
    /// Bytes of a packed row for this number of inputs.
    pub row_bytes: fn(usize) -> usize,
    /// Packs the rows of a block. The arguments: inputs of a row, rows in the layout of files, destination.
    pub pack: Pack,
}

type Pack = fn(usize, &[u8], &mut [u8]) -> Result<(), Unfit>;

/// An error: the format cannot hold these rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfit;

impl Storage {
    pub(crate) const fn packed_rows<P: PackedBf16>() -> Self {
        let rows = PackedRows {
            block_rows: P::BLOCK_ROWS,
            can_pack: P::can_pack,
            row_bytes: P::row_bytes,
            pack: P::pack,
        };
        Self::PackedRows(rows, RowKernels::of_packed::<P>())
    }
}

impl Format {
    /// A format in panels.
    pub(crate) const fn of_panels<N: PanelFormat>(
        name: &'static str,
        dtype: Dtype,
        is_requestable: bool,
        packed: (u32, &'static str),
    ) -> Self {
        let storage = Storage::Panels(PanelKernels::of::<N>());
        Self {
            name,
            dtype,
            is_requestable,
            storage,
            tile: Some(TileKernel::of_panels::<N>()),
            packed: Some(packed),
        }
    }

    /// The format that holds this dtype unchanged. `None` for a dtype without kernels, which is widened during the load.
    pub fn of(dtype: Dtype) -> Option<&'static Self> {
        let is_unpacked = |format: &&&Self| format.dtype == dtype && format.packed_rows().is_none();
        FORMATS.iter().find(is_unpacked).copied()
    }

    pub fn from_name(name: &str) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.name == name).copied()
    }

    /// The names that a load can request.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FORMATS.iter().filter(|format| format.is_requestable).map(|format| format.name)
    }

    pub fn is_panels(&self) -> bool {
        matches!(self.storage, Storage::Panels(_))
    }

    pub fn panels(&self) -> Option<&PanelKernels> {
        if let Storage::Panels(panels) = &self.storage { Some(panels) } else { None }
    }

    pub fn packed_rows(&self) -> Option<&PackedRows> {
        if let Storage::PackedRows(rows, _) = &self.storage { Some(rows) } else { None }
    }

    pub fn rows(&self) -> Option<&RowKernels> {
        match &self.storage {
            Storage::Rows(rows) | Storage::PackedRows(_, rows) => Some(rows),
            Storage::Panels(_) => None,
        }
    }

    /// Whether the format can hold rows with this number of inputs.
    pub fn can_hold(&self, inputs: usize) -> bool {
        match &self.storage {
            Storage::PackedRows(rows, _) => (rows.can_pack)(inputs),
            Storage::Rows(_) | Storage::Panels(_) => inputs.is_multiple_of(self.dtype.block().0),
        }
    }

    /// The number of rows that are stored together as a block. Blocks are independent in memory.
    pub fn block_rows(&self) -> usize {
        match &self.storage {
            Storage::Rows(_) => 1,
            Storage::PackedRows(rows, _) => rows.block_rows,
            Storage::Panels(_) => PANEL_OUTPUTS,
        }
    }

    /// Bytes for this number of outputs, padded to whole panels if the format has panels.
    pub fn bytes(&self, outputs: usize, inputs: usize) -> usize {
        match &self.storage {
            Storage::Rows(rows) => outputs * inputs * rows.number_bytes,
            Storage::PackedRows(rows, _) => outputs * (rows.row_bytes)(inputs),
            Storage::Panels(panels) => outputs.div_ceil(PANEL_OUTPUTS) * panels.panel_bytes(inputs),
        }
    }

    /// Packs whole rows, which are in the layout of files. Panics if a size is wrong: the caller has checked the file's sizes.
    pub fn pack(&self, inputs: usize, rows: &[u8], destination: &mut [u8]) -> Result<(), Unfit> {
        let row_bytes = self.dtype.bytes(inputs as u64) as usize;
        let (block, packed_block) = (self.block_rows() * row_bytes, self.bytes(self.block_rows(), inputs));
        match &self.storage {
            Storage::Rows(_) => destination.copy_from_slice(rows),
            Storage::PackedRows(packing, _) => {
                let mut blocks = rows.chunks(block).zip(destination.chunks_mut(packed_block));
                blocks.try_for_each(|(rows, destination)| (packing.pack)(inputs, rows, destination))?;
            }
            Storage::Panels(panels) => {
                for (rows, panel) in rows.chunks(block).zip(destination.chunks_exact_mut(packed_block)) {
                    panels.pack(inputs, &rows.chunks_exact(row_bytes).collect::<Vec<_>>(), panel);
                }
            }
        }
        Ok(())
    }
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Format {}

impl fmt::Debug for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}
