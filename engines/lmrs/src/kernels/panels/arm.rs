//! The choice of code for each level, on 64-bit ARM.
#![expect(unsafe_code, reason = "instructions of a level")]

use std::ops::Range;

use super::input::{Block, Input, InputPart};
use super::numbers::Numbers;
use super::{neon, portable};
use crate::kernels::outputs::Outputs;
use crate::kernels::{Instructions, Level};
use crate::matrix::Matrix;
use crate::matrix::Rows;

/// Plain code: the compiler may use NEON for it on every 64-bit ARM processor.
pub fn prepare_part(_: Level, x: &Rows, part: InputPart<'_>) {
    part.fill(x, Block::of);
}

/// Multiplies panels. `N` is the matrix's format, and `walk::check` has passed.
pub fn multiply<N: Numbers>(
    level: Level,
    matrix: &Matrix,
    panels: Range<usize>,
    input: &Input,
    out: &mut Outputs<'_>,
) {
    match level.instructions() {
        Instructions::Portable => portable::multiply::<N>(matrix, panels, input, out),
        // SAFETY: a `Level` value exists only on a machine that has the level; the caller guarantees the rest.
        Instructions::Neon => unsafe { neon::multiply::<N>(matrix, panels, input, out) },
    }
}
