//! The definition of a product with a panel, number by number: the reference for all levels, and the fallback without one. Row
//! lookups use the same code.

use std::ops::Range;

use super::input::{BLOCK, Block, Input};
use super::numbers::Numbers;
use crate::kernels::outputs::Outputs;
use crate::matrix::{GROUP, Matrix, PANEL};

pub fn multiply<N: Numbers>(matrix: &Matrix, panels: Range<usize>, input: &Input, out: &mut Outputs<'_>) {
    let start = out.outputs().start;
    for panel in panels {
        let stretches = matrix.panel(panel).chunks_exact(N::STRETCH_BYTES);
        let outputs = panel * PANEL..matrix.outputs.min(panel * PANEL + PANEL);
        for token in 0..input.tokens() {
            let sums = &mut out.row_mut(token)[outputs.start - start..outputs.end - start];
            sums.fill(0.0);
            for (at, stretch) in stretches.clone().enumerate() {
                let blocks = N::GROUPS * GROUP / BLOCK;
                for block in 0..blocks {
                    let x = input.block(token, at * blocks + block);
                    for (output, sum) in sums.iter_mut().enumerate() {
                        add_block::<N>(stretch, block, output, x, sum);
                    }
                }
            }
        }
    }
}

/// Adds the products of 32 inputs with one output.
fn add_block<N: Numbers>(stretch: &[u8], block: usize, output: usize, x: &Block, sum: &mut f32) {
    // Inputs that share a scale.
    let run = GROUP / N::RUNS;
    for (at, numbers) in x.numbers.chunks(run).enumerate() {
        let first = block * BLOCK + at * run;
        let weights = (first..).map(|input| N::number(stretch, output, input));
        let dot: i32 = weights.zip(numbers).map(|(weight, &x)| weight * i32::from(x)).sum();
        let (scale, minimum) = N::scale_and_minimum(stretch, output, first);
        *sum += dot as f32 * (scale * x.scale);
        if let Some(minimum) = minimum {
            *sum += minimum * x.minus_sum;
        }
    }
}

/// Looks up the weights of one output, widened by its format; embeddings use it.
pub fn row<N: Numbers>(matrix: &Matrix, output: usize, into: &mut [f32]) {
    assert!(output < matrix.outputs && into.len() == matrix.inputs, "a row of the matrix");
    let stretches = matrix.panel(output / PANEL).chunks_exact(N::STRETCH_BYTES);
    let output = output % PANEL;
    let run = GROUP / N::RUNS;
    for (stretch, into) in stretches.zip(into.chunks_mut(N::GROUPS * GROUP)) {
        for (at, into) in into.chunks_mut(run).enumerate() {
            let (scale, minimum) = N::scale_and_minimum(stretch, output, at * run);
            for (input, into) in (at * run..).zip(into) {
                *into = N::number(stretch, output, input) as f32 * scale - minimum.unwrap_or(0.0);
            }
        }
    }
}
