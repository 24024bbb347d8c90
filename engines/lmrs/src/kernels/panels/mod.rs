//! A place for the kernels of panels.

use std::ops::Range;

use super::{Level, Outputs};
use crate::matrix::Matrix;
use crate::rows::Rows;

/// Activations as these kernels read them.
#[derive(Debug, Default)]
pub struct Input {}

/// All tokens.
pub fn prepare(level: Level, x: &Rows, input: &mut Input) {
    let _ = (level, x, input);
    panic!("not yet")
}

/// `out` covers the outputs from `16 * panels.start` to `16 * panels.end`, or to the matrix's last.
pub fn multiply(level: Level, matrix: &Matrix, panels: Range<usize>, input: &Input, out: &mut Outputs) {
    let _ = (level, matrix, panels, input, out);
    panic!("not yet")
}
