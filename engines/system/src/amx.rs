//! Intel's matrix unit (AMX), which multiplies tiles: the permission to use it, and the configuration of full tiles.
#![expect(unsafe_code, reason = "a system call that no safe crate has")]

use std::arch::x86_64::{__cpuid, __cpuid_count};

/// The products of tiles that this process may use, by the dtype of their numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Products {
    pub bf16: bool,
    pub int8: bool,
}

impl Products {
    /// Reads the products of this processor. If there are any, requests permission for tiles. Without permission, returns no
    /// products.
    pub fn request() -> Self {
        // Leaf 7 exists if the highest leaf is at least 7.
        if __cpuid(0).eax < 7 {
            return Self::default();
        }
        let products = Self::from_cpuid(__cpuid_count(7, 0).edx);
        if products == Self::default() || request_tiles() { products } else { Self::default() }
    }

    /// Decodes CPUID leaf 7: bit 24 is tiles, 22 products of bf16, 25 of int8.
    fn from_cpuid(edx: u32) -> Self {
        let is_set = |bit: u32| edx >> bit & 1 == 1;
        Self { bf16: is_set(24) && is_set(22), int8: is_set(24) && is_set(25) }
    }
}

/// Requests permission for tiles, and returns whether Linux gives it. Tiles enlarge the saved state of a thread by 8 KiB, so a
/// process needs permission before any of its threads uses them.
#[cfg(target_os = "linux")]
fn request_tiles() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    /// The number of the tiles' data among the parts of the saved state.
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and accesses no memory of this process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Returns false: no request is known for other systems.
#[cfg(not(target_os = "linux"))]
fn request_tiles() -> bool {
    false
}

pub const TILE_ROWS: usize = 16;
/// Bytes of a tile's row.
pub const ROW_BYTES: usize = 64;

/// The operand of `ldtilecfg`: the number of rows of each tile, and the bytes of a row.
#[repr(C, align(64))]
pub struct TileShape {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// All eight tiles at full size.
pub static FULL_TILES: TileShape = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut tile = 0;
    while tile < 8 {
        (row_bytes[tile], rows[tile]) = (ROW_BYTES as u16, TILE_ROWS as u8);
        tile += 1;
    }
    TileShape { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_supported_only_together_with_tiles() {
        let (bf16, tile, int8) = (1 << 22, 1 << 24, 1 << 25);
        assert_eq!(Products::from_cpuid(bf16 | int8), Products::default());
        assert_eq!(Products::from_cpuid(tile | bf16), Products { bf16: true, int8: false });
        assert_eq!(Products::from_cpuid(tile | bf16 | int8), Products { bf16: true, int8: true });
    }

    #[test]
    fn the_shape_has_the_layout_that_the_instruction_reads() {
        assert_eq!((size_of::<TileShape>(), align_of::<TileShape>()), (64, 64));
        assert_eq!(std::mem::offset_of!(TileShape, row_bytes), 16);
        assert_eq!(std::mem::offset_of!(TileShape, rows), 48);
        let shape = &FULL_TILES;
        assert_eq!((shape.palette, shape.start_row, shape.reserved), (1, 0, [0; 14]));
        assert_eq!((&shape.row_bytes[..8], &shape.row_bytes[8..]), (&[64; 8][..], &[0; 8][..]));
        assert_eq!(shape.rows[..8], [16; 8]);
        assert_eq!(shape.rows[8..], [0; 8]);
    }
}
