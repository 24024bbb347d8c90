//! The choice of code on processors with only the portable level.

use std::ops::Range;

use super::input::{Block, Input, InputPart};
use super::numbers::Numbers;
use super::portable;
use crate::kernels::Level;
use crate::kernels::outputs::Outputs;
use crate::matrix::Matrix;
use crate::matrix::Rows;

pub fn prepare_part(_: Level, x: &Rows, part: InputPart<'_>) {
    part.fill(x, Block::of);
}

pub fn multiply<N: Numbers>(
    _: Level,
    matrix: &Matrix,
    panels: Range<usize>,
    input: &Input,
    out: &mut Outputs<'_>,
) {
    portable::multiply::<N>(matrix, panels, input, out);
}
