//! Which code a level is, on x86-64.

use std::ops::Range;

use super::input::{Block, Input, InputPart};
use super::{avx2, avx512, portable};
use crate::kernels::Level;
use crate::kernels::outputs::Outputs;
use crate::matrix::Matrix;
use crate::rows::Rows;

/// Panels at once for one token: a Zen 4 reads fastest who walks on from one to the next.
const PLACES: usize = 1;
/// What was best on a Sapphire Rapids, which is what has AMX.
const PLACES_AMX: usize = 8;

pub fn prepare_part(level: Level, x: &Rows, part: InputPart<'_>) {
    match level {
        Level::Portable => part.fill(x, Block::of),
        Level::Avx2 => avx2::prepare_part(x, part),
        Level::Avx512 | Level::Amx => avx512::prepare_part(x, part),
    }
}

pub fn multiply(level: Level, matrix: &Matrix, panels: Range<usize>, input: &Input, out: &mut Outputs<'_>) {
    match level {
        Level::Portable => portable::multiply(matrix, panels, input, out),
        Level::Avx2 => avx2::multiply(matrix, panels, input, out),
        Level::Avx512 => avx512::multiply(PLACES, matrix, panels, input, out),
        Level::Amx => avx512::multiply(PLACES_AMX, matrix, panels, input, out),
    }
}

/// What this processor has, but the portable level.
#[cfg(test)]
pub fn here() -> Vec<Level> {
    // AMX needs nothing more than AVX-512 as long as it only reads panels at more places.
    let avx512 = avx512::is_here();
    let levels = [(avx2::is_here(), Level::Avx2), (avx512, Level::Avx512), (avx512, Level::Amx)];
    levels.into_iter().filter(|(here, _)| *here).map(|(_, level)| level).collect()
}
