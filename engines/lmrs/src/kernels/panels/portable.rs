//! What a product with a panel is, number by number. The reference for the levels, and what is left where there is none.

use std::ops::Range;

use super::input::{BLOCK, Block, Input};
use crate::kernels::half;
use crate::kernels::outputs::Outputs;
use crate::matrix::{Format, GROUP, Matrix, PANEL};

pub fn multiply(matrix: &Matrix, panels: Range<usize>, input: &Input, out: &mut Outputs<'_>) {
    let start = out.outputs().start;
    for panel in panels {
        let stretches = matrix.panel(panel).chunks_exact(matrix.format.stretch_bytes());
        let outputs = panel * PANEL..matrix.outputs.min(panel * PANEL + PANEL);
        for token in 0..input.tokens() {
            let sums = &mut out.row_mut(token)[outputs.start - start..outputs.end - start];
            sums.fill(0.0);
            for (at, stretch) in stretches.clone().enumerate() {
                let blocks = matrix.format.stretch() / BLOCK;
                for block in 0..blocks {
                    let x = input.block(token, at * blocks + block);
                    for (output, sum) in sums.iter_mut().enumerate() {
                        add_block(matrix.format, stretch, block, output, x, sum);
                    }
                }
            }
        }
    }
}

/// Adds what 32 inputs give one output.
fn add_block(format: Format, stretch: &[u8], block: usize, output: usize, x: &Block, sum: &mut f32) {
    // Inputs that share a scale.
    let run = if format == Format::Q6K { 16 } else { 32 };
    for (at, numbers) in x.numbers.chunks(run).enumerate() {
        let first = block * BLOCK + at * run;
        let weights = (first..).map(|input| number(format, stretch, output, input));
        let dot: i32 = weights.zip(numbers).map(|(weight, &x)| weight * i32::from(x)).sum();
        let (scale, minimum) = scale(format, stretch, output, first);
        *sum += dot as f32 * (scale * x.scale);
        if let Some(minimum) = minimum {
            *sum += minimum * x.minus_sum;
        }
    }
}

/// The weight before it is scaled.
pub fn number(format: Format, stretch: &[u8], output: usize, input: usize) -> i32 {
    let (group, block, quad) = (input / GROUP, input % GROUP / BLOCK, input % BLOCK / 4);
    let place = output * 4 + input % 4;
    let byte = |line: usize| i32::from(stretch[line * 64 + place]);
    match format {
        Format::Q8_0 => byte(1 + block * 8 + quad) - 128,
        Format::Q4_0 => (byte(1 + quad) >> (4 * block) & 15) - 8,
        Format::Q4K => byte(1 + group * 9 + 1 + quad) >> (4 * block) & 15,
        Format::Q6K => {
            let first = 1 + group * 13 + 1;
            let lower = byte(first + quad) >> (4 * block) & 15;
            let upper = byte(first + 8 + quad % 4) >> (4 * block + quad / 4 * 2) & 3;
            (lower | upper << 4) - 32
        }
        Format::F32 | Format::F16 | Format::Bf16 | Format::Bf16z => panic!("floats lie in rows"),
    }
}

/// What it is multiplied by, and what is taken off then.
pub fn scale(format: Format, stretch: &[u8], output: usize, input: usize) -> (f32, Option<f32>) {
    let (group, block) = (input / GROUP, input % GROUP / BLOCK);
    match format {
        Format::Q8_0 | Format::Q4_0 => (half::at(stretch, block * 16 + output), None),
        Format::Q4K => {
            let line = &stretch[(1 + group * 9) * 64..];
            let scale = half::at(stretch, output) * f32::from(line[block * 16 + output]);
            (scale, Some(half::at(stretch, 16 + output) * f32::from(line[32 + block * 16 + output])))
        }
        Format::Q6K => {
            let scale = stretch[(1 + group * 13) * 64 + input % GROUP / 16 * 16 + output].cast_signed();
            (half::at(stretch, output) * f32::from(scale), None)
        }
        Format::F32 | Format::F16 | Format::Bf16 | Format::Bf16z => panic!("floats lie in rows"),
    }
}
