//! The formats of weights: how the numbers of a matrix lie in memory, how they are packed and which kernels read them.
//!
//! A new format is a file in this folder (or a folder, where it is long) and its line in `FORMATS`, where the file is named too.
//! The file has the layout, the packing and what kernels of each level must know of it: `Numbers` of a format in panels, `Float` of
//! one in rows, `PackedBf16` of one in packed rows. Everything else looks the format up in the table.
//!
//! Floats lie row by row, as files have them: a matrix of a mapped file is used where it is. Rows of bf16 may be packed into
//! fewer bits. Blocks of narrow numbers lie in panels of 16 outputs, so that one register holds a number of each of them.
//!
//! ```text
//! a group: 16 outputs x 64 inputs, two blocks of 32 for each output
//! a line:  64 bytes, four of each output
//! ```
//!
//! The scales of a line stand before it, so that a product reads memory in one direction: that is how memory is read fastest.
//! (Measured: `MEASURED.md`.) Outputs are filled up to whole panels, and inputs to whole groups, with
//! numbers whose scale is 0.

use std::fmt;

use model_files::Dtype;

use crate::kernels::panels::PanelKernels;
use crate::kernels::rows::{PackedBf16, RowKernels, Tile};
use crate::matrix::PANEL;
pub use bf16z::BF16Z;
pub use floats::{BF16, F16, F32};

pub mod bf16z;
pub mod floats;
pub mod q4_0;
pub mod q4_k;
pub mod q6_k;
pub mod q8_0;

/// Those that a load can ask for by name are offered in this order: the first is what most models are published in.
pub static FORMATS: &[&Format] =
    &[&BF16, &BF16Z, &F32, &F16, &q8_0::Q8_0, &q4_0::Q4_0, &q4_k::Q4_K, &q6_k::Q6_K];

/// How the numbers of a matrix lie, and what reads them.
pub struct Format {
    /// As the protocol spells the dtype.
    pub name: &'static str,
    /// The encoding of rows in files, before they are packed.
    pub dtype: Dtype,
    /// Whether a load can ask for it by name. Else it is what a file has.
    pub by_name: bool,
    pub storage: Storage,
    /// Products of many tokens where a level has tiles of bf16: of every format whose numbers bf16 holds nearly.
    pub tile: Option<Tile>,
    /// The `LAYOUT` of the sidecar since which it is packed so, and a digest of what the sidecar's test packs.
    #[cfg(test)]
    pub packed: Option<(u32, &'static str)>,
}

pub enum Storage {
    /// Row by row, as files have them.
    Rows(RowKernels),
    /// Row by row in fewer bits.
    PackedRows(PackedRows, RowKernels),
    /// 16 outputs side by side.
    Panels(PanelKernels),
}

/// How rows are packed one by one, or some of them together.
pub struct PackedRows {
    /// Rows that stand together.
    pub together: usize,
    /// Whether rows of so many inputs can be packed.
    pub takes: fn(usize) -> bool,
    /// Bytes of a row of so many inputs.
    pub row_bytes: fn(usize) -> usize,
    /// So many inputs a row; rows that stand together, as files have them; their memory.
    pub pack: Pack,
}

type Pack = fn(usize, &[u8], &mut [u8]) -> Result<(), Unfit>;

/// The format cannot hold these rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfit;

impl Storage {
    pub(crate) const fn packed_rows<P: PackedBf16>() -> Self {
        let rows = PackedRows { together: P::BLOCK, takes: P::takes, row_bytes: P::row_bytes, pack: P::pack };
        Self::PackedRows(rows, RowKernels::of_packed::<P>())
    }
}

impl Format {
    /// The format that holds the numbers of a file in this dtype unchanged. `None` for blocks that are widened when they are loaded,
    /// because no kernel here reads them.
    pub fn of(dtype: Dtype) -> Option<&'static Self> {
        let is_own = |format: &&&Self| format.dtype == dtype && format.packed_rows().is_none();
        FORMATS.iter().find(is_own).copied()
    }

    pub fn named(name: &str) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.name == name).copied()
    }

    /// The names that a load can ask for.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FORMATS.iter().filter(|format| format.by_name).map(|format| format.name)
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

    /// Whether rows of so many inputs can be held in it.
    pub fn takes(&self, inputs: usize) -> bool {
        match &self.storage {
            Storage::PackedRows(rows, _) => (rows.takes)(inputs),
            Storage::Rows(_) | Storage::Panels(_) => inputs.is_multiple_of(self.dtype.block().0),
        }
    }

    /// Rows that are packed together, at least; other ranges of rows lie apart too.
    pub fn together(&self) -> usize {
        match &self.storage {
            Storage::Rows(_) => 1,
            Storage::PackedRows(rows, _) => rows.together,
            Storage::Panels(_) => PANEL,
        }
    }

    /// Of so many outputs, filled up to whole panels where they lie in panels.
    pub fn bytes(&self, outputs: usize, inputs: usize) -> usize {
        match &self.storage {
            Storage::Rows(rows) => outputs * inputs * rows.number_bytes,
            Storage::PackedRows(rows, _) => outputs * (rows.row_bytes)(inputs),
            Storage::Panels(panels) => outputs.div_ceil(PANEL) * panels.bytes(inputs),
        }
    }

    /// Whole rows, as files have them in the format's dtype, into the memory of so many. Panics where either has not its size:
    /// the caller has checked the file's own figures.
    pub fn pack(&self, inputs: usize, rows: &[u8], into: &mut [u8]) -> Result<(), Unfit> {
        let row_bytes = self.dtype.bytes(inputs as u64) as usize;
        let (own, packed) = (self.together() * row_bytes, self.bytes(self.together(), inputs));
        match &self.storage {
            Storage::Rows(_) => into.copy_from_slice(rows),
            Storage::PackedRows(packing, _) => {
                let mut each = rows.chunks(own).zip(into.chunks_mut(packed));
                each.try_for_each(|(rows, into)| (packing.pack)(inputs, rows, into))?;
            }
            Storage::Panels(panels) => {
                for (rows, panel) in rows.chunks(own).zip(into.chunks_exact_mut(packed)) {
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
