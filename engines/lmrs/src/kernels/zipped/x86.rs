//! The levels of x86.
#![expect(unsafe_code, reason = "instructions of a level")]

use super::{avx2, avx512, unpack_plainly};
use crate::kernels::{Instructions, Level};

pub fn unpack<const ROWS: usize>(
    level: Level,
    heads: [&[u8]; ROWS],
    stretches: &[u8],
    step: usize,
    into: &mut [u16],
) {
    match level.instructions() {
        Instructions::Portable => unpack_plainly(heads, stretches, step, into),
        // SAFETY: whoever holds a level is on a machine that has it.
        Instructions::Avx2 => unsafe { avx2::unpack(heads, stretches, step, into) },
        // SAFETY: as above.
        Instructions::Avx512 | Instructions::Amx => unsafe { avx512::unpack(heads, stretches, step, into) },
    }
}
