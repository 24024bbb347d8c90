//! bf16 to the bit in twelve bits and a little: `kernels::zipped` has its layout and its packing, and unpacks it at every level.
//! A token or two are multiplied out of registers; more of them by rows that were unpacked into a cache.

use model_files::Dtype;

use super::{Format, PackedRows, Storage};
use crate::kernels::rows::{RowKernels, Tile};
use crate::kernels::zipped;

pub static BF16Z: Format = Format {
    name: "bf16z",
    dtype: Dtype::BF16,
    by_name: true,
    storage: Storage::PackedRows(
        PackedRows {
            together: zipped::BLOCK,
            takes: zipped::takes,
            row_bytes: zipped::row_bytes,
            pack: zipped::pack,
        },
        RowKernels::ZIPPED,
    ),
    tile: Some(Tile::OF_ZIPPED_ROWS),
};
