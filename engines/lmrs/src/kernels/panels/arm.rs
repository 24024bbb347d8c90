//! Which code a level is, on 64-bit Arm.

use std::ops::Range;

use super::input::{Block, Input, InputPart};
use super::{neon, portable};
use crate::kernels::outputs::Outputs;
use crate::kernels::{Instructions, Level};
use crate::matrix::Matrix;
use crate::rows::Rows;

/// Every such processor has what the compiler is told that it has, so that nothing is to be chosen.
pub fn prepare_part(_: Level, x: &Rows, part: InputPart<'_>) {
    part.fill(x, Block::of);
}

pub fn multiply(level: Level, matrix: &Matrix, panels: Range<usize>, input: &Input, out: &mut Outputs<'_>) {
    match level.instructions() {
        Instructions::Portable => portable::multiply(matrix, panels, input, out),
        Instructions::Neon => neon::multiply(matrix, panels, input, out),
    }
}
