//! Tiles of Intel's matrix unit. The intrinsics are not stable in Rust, and no tile keeps its data between two `asm!` blocks, so
//! the whole loop is one block.
//!
//! Four independent results are in progress, from two tiles of A and two of B, as in a blocked matrix product. A product takes
//! the unit for sixteen cycles and has a latency of 52. Tiles are full (16 rows of 64 bytes), and results stay in tiles. The
//! kernels with loads read the four operands from the nearest cache in every round: a blocked product cannot load fewer.
#![expect(unsafe_code, reason = "assembly")]

use std::arch::asm;

use system::amx::{FULL_TILES, Products, ROW_BYTES, TILE_ROWS};

use super::Unit;
use crate::names;

const PRODUCTS_PER_ROUND: u64 = 4;
/// Rows of a tile, and columns of a result.
const ROWS: u64 = TILE_ROWS as u64;
/// The inner dimension of one product, in numbers.
const DEPTH_BF16: u64 = ROW_BYTES as u64 / 2;
const DEPTH_INT8: u64 = ROW_BYTES as u64;

/// The units that this machine has and that the operating system permits to this process.
pub fn supported() -> impl Iterator<Item = Unit> {
    let products = Products::request();
    let unit = |name, loads, depth, run| Unit {
        name,
        loads,
        operations_per_round: operations_per_round(depth),
        run,
    };
    let units = [
        (products.bf16, unit(names::AMX_BF16, false, DEPTH_BF16, bf16 as unsafe fn(u64))),
        (products.bf16, unit(names::AMX_BF16, true, DEPTH_BF16, bf16_with_loads)),
        (products.int8, unit(names::AMX_INT8, false, DEPTH_INT8, int8)),
        (products.int8, unit(names::AMX_INT8, true, DEPTH_INT8, int8_with_loads)),
    ];
    units.into_iter().filter_map(|(is_supported, unit)| is_supported.then_some(unit))
}

const fn operations_per_round(depth: u64) -> u64 {
    2 * PRODUCTS_PER_ROUND * ROWS * ROWS * depth
}

/// Two tiles of A and two of B, 4 KiB together. As bf16 every number is about 0.75: zeros would draw less power.
#[repr(C, align(64))]
struct Tiles([u8; 4 * ROW_BYTES * TILE_ROWS]);

static TILES: Tiles = Tiles([0x3f; 4 * ROW_BYTES * TILE_ROWS]);

/// A loop around the loads `$load` and four products. tmm0 to tmm3 are results, tmm4 and tmm5 are A, tmm6 and tmm7 are B.
macro_rules! kernel {
    ($name:ident, $product:literal, [$($load:literal),*]) => {
        /// # Safety
        ///
        /// The machine has tiles and this product, and the operating system has permitted their use.
        unsafe fn $name(rounds: u64) {
            if rounds == 0 {
                return;
            }
            // SAFETY: the code reads `FULL_TILES` and the four tiles of `TILES`, writes no memory, and leaves the tiles released;
            // the caller guarantees the instructions.
            unsafe {
                asm!(
                    "ldtilecfg [{shape}]",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "tileloadd tmm4, [{tiles} + {row}*1]",
                    "tileloadd tmm5, [{tiles} + {row}*1 + 1024]",
                    "tileloadd tmm6, [{tiles} + {row}*1 + 2048]",
                    "tileloadd tmm7, [{tiles} + {row}*1 + 3072]",
                    "2:",
                    $($load,)*
                    concat!($product, " tmm0, tmm4, tmm6"),
                    concat!($product, " tmm1, tmm4, tmm7"),
                    concat!($product, " tmm2, tmm5, tmm6"),
                    concat!($product, " tmm3, tmm5, tmm7"),
                    "dec {rounds}",
                    "jnz 2b",
                    "tilerelease",
                    shape = in(reg) &raw const FULL_TILES,
                    tiles = in(reg) TILES.0.as_ptr(),
                    row = in(reg) ROW_BYTES,
                    rounds = inout(reg) rounds => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, readonly),
                );
            }
        }
    };
}

kernel!(bf16, "tdpbf16ps", []);
kernel!(
    bf16_with_loads,
    "tdpbf16ps",
    [
        "tileloadd tmm4, [{tiles} + {row}*1]",
        "tileloadd tmm5, [{tiles} + {row}*1 + 1024]",
        "tileloadd tmm6, [{tiles} + {row}*1 + 2048]",
        "tileloadd tmm7, [{tiles} + {row}*1 + 3072]"
    ]
);
kernel!(int8, "tdpbssd", []);
kernel!(
    int8_with_loads,
    "tdpbssd",
    [
        "tileloadd tmm4, [{tiles} + {row}*1]",
        "tileloadd tmm5, [{tiles} + {row}*1 + 1024]",
        "tileloadd tmm6, [{tiles} + {row}*1 + 2048]",
        "tileloadd tmm7, [{tiles} + {row}*1 + 3072]"
    ]
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_per_round_counts_four_products_of_full_tiles() {
        // 16 x 16 results, each of 32 multiplications in bf16 or 64 in eight bits, four times. A multiplication with its
        // addition counts as two operations.
        assert_eq!(operations_per_round(DEPTH_BF16), 65_536);
        assert_eq!(operations_per_round(DEPTH_INT8), 131_072);
    }

    #[test]
    fn each_permitted_product_is_listed_with_loads_and_without() {
        let products = Products::request();
        assert_eq!(supported().count(), 2 * (usize::from(products.bf16) + usize::from(products.int8)));
    }
}
