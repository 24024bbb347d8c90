//! The x86 levels.
#![expect(unsafe_code, reason = "instructions of a level")]

use super::{Group, Place, avx2, avx512, unpack_plainly};
use crate::kernels::{Instructions, Level};

pub fn unpack<const ROWS: usize>(
    level: Level,
    heads: [&[u8]; ROWS],
    group: &Group,
    first: usize,
    into: &mut Place,
) {
    match level.instructions() {
        Instructions::Portable => unpack_plainly(heads, group, first, into),
        // SAFETY: a `Level` value exists only on a machine that has the level.
        Instructions::Avx2 => unsafe { avx2::unpack(heads, group, first, into) },
        // SAFETY: as above.
        Instructions::Avx512 | Instructions::Amx => unsafe { avx512::unpack(heads, group, first, into) },
    }
}
