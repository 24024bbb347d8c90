//! The levels of x86.
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
        // SAFETY: whoever holds a level is on a machine that has it.
        Instructions::Avx2 => unsafe { avx2::unpack(heads, group, first, into) },
        // SAFETY: as above.
        Instructions::Avx512 | Instructions::Amx => unsafe { avx512::unpack(heads, group, first, into) },
    }
}
