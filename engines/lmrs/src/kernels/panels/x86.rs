//! The choice of code for each level, on x86.
#![expect(unsafe_code, reason = "instructions of a level")]

use std::ops::Range;

use super::input::{Block, Input, InputPart};
use super::numbers::Numbers;
use super::{avx2, avx512, portable};
use crate::kernels::outputs::Outputs;
use crate::kernels::{Instructions, Level};
use crate::matrix::Matrix;
use crate::matrix::Rows;

/// Panels at once for one token: a Zen 4 reads memory fastest sequentially.
const PLACES: usize = 1;
/// Panels at once with AMX: the fastest number on a Sapphire Rapids.
const PLACES_AMX: usize = 8;

pub fn prepare_part(level: Level, x: &Rows, part: InputPart<'_>) {
    // SAFETY: a `Level` value exists only on a machine that has the level.
    unsafe {
        match level.instructions() {
            Instructions::Portable => part.fill(x, Block::of),
            Instructions::Avx2 => avx2::prepare_part(x, part),
            Instructions::Avx512 | Instructions::Amx => avx512::prepare_part(x, part),
        }
    }
}

/// Multiplies panels. `N` is the matrix's format, and `walk::check` has passed.
pub fn multiply<N: Numbers>(
    level: Level,
    matrix: &Matrix,
    panels: Range<usize>,
    input: &Input,
    out: &mut Outputs<'_>,
) {
    // SAFETY: as above; `walk::check` has passed.
    unsafe {
        match level.instructions() {
            Instructions::Portable => portable::multiply::<N>(matrix, panels, input, out),
            Instructions::Avx2 => avx2::multiply::<N>(matrix, panels, input, out),
            Instructions::Avx512 => avx512::multiply::<N>(PLACES, matrix, panels, input, out),
            Instructions::Amx => avx512::multiply::<N>(PLACES_AMX, matrix, panels, input, out),
        }
    }
}
