//! Which code a level is, on 64-bit Arm.
#![expect(unsafe_code, reason = "instructions of a level")]

use std::ops::Range;

use super::input::{Block, Input, InputPart};
use super::numbers::Numbers;
use super::{neon, portable};
use crate::kernels::outputs::Outputs;
use crate::kernels::{Instructions, Level};
use crate::matrix::Matrix;
use crate::rows::Rows;

/// Every such processor has what the compiler is told that it has, so that nothing is to be chosen.
pub fn prepare_part(_: Level, x: &Rows, part: InputPart<'_>) {
    part.fill(x, Block::of);
}

/// `N` is the matrix's format, and `walk::check` has passed.
pub fn multiply<N: Numbers>(
    level: Level,
    matrix: &Matrix,
    panels: Range<usize>,
    input: &Input,
    out: &mut Outputs<'_>,
) {
    match level.instructions() {
        Instructions::Portable => portable::multiply::<N>(matrix, panels, input, out),
        // SAFETY: a level exists only on a machine that has it; all else is the caller's promise.
        Instructions::Neon => unsafe { neon::multiply::<N>(matrix, panels, input, out) },
    }
}
