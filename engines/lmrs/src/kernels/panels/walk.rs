//! In which order panels and tokens are visited.
//!
//! Few tokens: memory is what takes time. It gives more the more places it is read at, so a range of panels is divided into
//! streams that are far apart, and a few KiB of each are read in turn.
//!
//! Many tokens: arithmetic is what takes time. As many panels as fit into the second-level cache are multiplied with all
//! tokens before the next ones are read.
#![expect(unsafe_code, reason = "hands addresses to the kernels")]

use std::ops::Range;

use super::input::{BLOCK, Input, TILE};
use super::lanes::Lanes;
use super::numbers::{Numbers, Q4_0, Q4K, Q6K, Q8_0};
use super::tile;
use crate::kernels::outputs::Outputs;
use crate::matrix::{Format, Matrix, PANEL};

/// Places that are read in turn.
const STREAMS: usize = 8;
/// Bytes of one place that are read before the next place's turn.
const TURN_BYTES: usize = 4096;
/// Panels that stay in the second-level cache: half of a small one.
const NEAR_BYTES: usize = 512 << 10;

/// What all levels may rely on.
pub fn check(matrix: &Matrix, panels: &Range<usize>, input: &Input, out: &Outputs<'_>) {
    assert_eq!(matrix.inputs, input.inputs(), "inputs of a matrix and of its input");
    assert_eq!(input.tokens(), out.tokens(), "tokens of an input and of its outputs");
    let outputs = panels.start * PANEL..matrix.outputs.min(panels.end * PANEL);
    assert_eq!(outputs, out.outputs(), "columns of panels {panels:?}");
}

/// # Safety
/// The processor has what `L` needs, and `check` has passed.
#[inline(always)]
pub unsafe fn multiply<L: Lanes>(
    matrix: &Matrix,
    panels: Range<usize>,
    input: &Input,
    out: &mut Outputs<'_>,
) {
    // SAFETY: the caller's promises; the type is the format's.
    unsafe {
        match matrix.format {
            Format::Q8_0 => multiply_format::<L, Q8_0>(matrix, panels, input, out),
            Format::Q4_0 => multiply_format::<L, Q4_0>(matrix, panels, input, out),
            Format::Q4K => multiply_format::<L, Q4K>(matrix, panels, input, out),
            Format::Q6K => multiply_format::<L, Q6K>(matrix, panels, input, out),
            Format::F32 | Format::F16 | Format::Bf16 => panic!("floats lie in rows"),
        }
    }
}

#[inline(always)]
unsafe fn multiply_format<L: Lanes, N: Numbers>(
    matrix: &Matrix,
    panels: Range<usize>,
    input: &Input,
    out: &mut Outputs<'_>,
) {
    // SAFETY: the caller's promises.
    unsafe {
        if input.tokens() <= TILE {
            multiply_few::<L, N>(matrix, panels, input, out);
        } else {
            multiply_many::<L, N>(matrix, panels, input, out);
        }
    }
}

#[inline(always)]
unsafe fn multiply_few<L: Lanes, N: Numbers>(
    matrix: &Matrix,
    panels: Range<usize>,
    input: &Input,
    out: &mut Outputs<'_>,
) {
    let Some((tokens, blocks)) = input.tiles().next() else { return };
    let width = tokens.len();
    let of_stretch = N::GROUPS * 2 * width;
    let turn = (TURN_BYTES / N::STRETCH_BYTES).max(1);
    let apart = panels.len().div_ceil(STREAMS).max(1);
    for step in 0..apart {
        let mut sums = [[[0.0; PANEL]; TILE]; STREAMS];
        let stretches = matrix.inputs.div_ceil(matrix.format.stretch());
        for start in (0..stretches).step_by(turn) {
            let turn = turn.min(stretches - start);
            for (stream, sums) in sums.iter_mut().enumerate() {
                let panel = panels.start + stream * apart + step;
                if panel < panels.end {
                    let weights = &matrix.panel(panel)[start * N::STRETCH_BYTES..][..turn * N::STRETCH_BYTES];
                    let blocks = &blocks[start * of_stretch..][..turn * of_stretch];
                    // SAFETY: both slices are as long as is promised; the rest is the caller's promise.
                    unsafe {
                        tile::multiply::<L, N>(
                            weights.as_ptr(),
                            turn,
                            blocks.as_ptr(),
                            width,
                            &mut sums[..width],
                        );
                    }
                }
            }
        }
        for (stream, sums) in sums.iter().enumerate() {
            let panel = panels.start + stream * apart + step;
            if panel < panels.end {
                write(panel, tokens.clone(), &sums[..width], out);
            }
        }
    }
}

#[inline(always)]
unsafe fn multiply_many<L: Lanes, N: Numbers>(
    matrix: &Matrix,
    panels: Range<usize>,
    input: &Input,
    out: &mut Outputs<'_>,
) {
    let stretches = matrix.inputs.div_ceil(matrix.format.stretch());
    let near = (NEAR_BYTES / (stretches * N::STRETCH_BYTES).max(1)).max(1);
    for start in panels.clone().step_by(near) {
        for (tokens, blocks) in input.tiles() {
            let width = tokens.len();
            for panel in start..panels.end.min(start + near) {
                let weights = matrix.panel(panel);
                assert!(weights.len() == stretches * N::STRETCH_BYTES, "the bytes of a panel");
                assert!(blocks.len() * BLOCK >= width * matrix.inputs, "the blocks of a tile");
                let mut sums = [[0.0; PANEL]; TILE];
                // SAFETY: both are as long as is promised, the blocks being filled up to whole stretches of any format.
                unsafe {
                    tile::multiply::<L, N>(
                        weights.as_ptr(),
                        stretches,
                        blocks.as_ptr(),
                        width,
                        &mut sums[..width],
                    );
                }
                write(panel, tokens.clone(), &sums[..width], out);
            }
        }
    }
}

fn write(panel: usize, tokens: Range<usize>, sums: &[[f32; PANEL]], out: &mut Outputs<'_>) {
    let Range { start, end } = out.outputs();
    let (first, end) = (panel * PANEL, end.min(panel * PANEL + PANEL));
    for (token, sums) in tokens.zip(sums) {
        out.row_mut(token)[first - start..end - start].copy_from_slice(&sums[..end - first]);
    }
}
