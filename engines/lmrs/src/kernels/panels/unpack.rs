//! One row out of a panel, as numbers: what an embedding is looked up by.

use super::portable::{number, scale};
use crate::matrix::{Format, Matrix, PANEL};

/// The weights of one output, as its format widens them.
pub fn row(matrix: &Matrix, output: usize, into: &mut [f32]) {
    assert!(output < matrix.outputs && into.len() == matrix.inputs, "a row of the matrix");
    let format = matrix.format;
    let stretches = matrix.panel(output / PANEL).chunks_exact(format.stretch_bytes());
    let output = output % PANEL;
    // Inputs that share a scale.
    let run = if format == Format::Q6K { 16 } else { 32 };
    for (stretch, into) in stretches.zip(into.chunks_mut(format.stretch())) {
        for (at, into) in into.chunks_mut(run).enumerate() {
            let (scale, minimum) = scale(format, stretch, output, at * run);
            for (input, into) in (at * run..).zip(into) {
                *into = number(format, stretch, output, input) as f32 * scale - minimum.unwrap_or(0.0);
            }
        }
    }
}
