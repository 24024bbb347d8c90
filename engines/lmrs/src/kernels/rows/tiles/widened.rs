//! Panels as rows of pairs, so that a tile reads weights of 8, 6 and 4 bits as it reads those of bf16: each is widened once for
//! all tokens, with its scale in it.
//!
//! ```text
//! a group of a panel: 16 outputs x 64 inputs
//!     its numbers as bytes          16 lines, each with four inputs of 16 outputs
//!     the lines turned              16 rows, each with 64 inputs of one output
//!     number * times + plus         as f32; 16 inputs share both, in every format
//!     rounded to bf16               32 inputs are a line of pairs
//! ```
//!
//! The f32 are what the format says: number and scale have 19 to 24 bits together, and only what Q4_K takes off is rounded. So
//! a weight is off by at most half a unit of bf16, 2^-8 of itself.
#![expect(unsafe_code, reason = "instructions of a level")]

use std::ops::Range;

use super::super::packed::Line;
use super::pack::Block;
use super::tile::Tile;
use crate::kernels::half;
use crate::matrix::{Format, GROUP, Matrix, PANEL};

/// Inputs that share a scale in every format.
const RUN: usize = 16;
const RUNS: usize = GROUP / RUN;
/// Inputs of a line of pairs.
const LINE: usize = 32;

/// For each run of a group and each output: a weight is `number * times + plus`, the number as it is stored.
struct Scales {
    times: [[f32; PANEL]; RUNS],
    plus: [[f32; PANEL]; RUNS],
}

/// Lines of pairs, by their place in a row, of whole panels from output `first` on. `weights` has `row_lines` for each output.
///
/// # Safety
///
/// The machine has the level of `T`.
#[inline(always)]
pub unsafe fn widen<T: Tile>(
    matrix: &Matrix,
    first: usize,
    lines: Range<usize>,
    weights: &mut [Line],
    row_lines: usize,
) {
    assert!(
        first.is_multiple_of(PANEL) && lines.start.is_multiple_of(GROUP / LINE),
        "whole groups of whole panels"
    );
    let (format, groups) = (matrix.format, matrix.format.stretch() / GROUP);
    for (panel, rows) in (first / PANEL..).zip(weights.chunks_exact_mut(PANEL * row_lines)) {
        let bytes = matrix.panel(panel);
        for line in lines.clone().step_by(GROUP / LINE) {
            let (stretch, group) = (line / (GROUP / LINE) / groups, line / (GROUP / LINE) % groups);
            let stretch = &bytes[stretch * format.stretch_bytes()..][..format.stretch_bytes()];
            let (mut block, scales) = unpack(format, stretch, group);
            // SAFETY: the caller's promise; so below.
            unsafe { T::transpose(&mut block) };
            let places = line - lines.start..(line + GROUP / LINE).min(lines.end) - lines.start;
            for ((output, row), numbers) in rows.chunks_exact_mut(row_lines).enumerate().zip(&block) {
                let numbers = numbers.0.map(u32::to_le_bytes);
                let halves = numbers.as_flattened().as_chunks::<LINE>().0;
                for (half, (place, numbers)) in row[places.clone()].iter_mut().zip(halves).enumerate() {
                    let both = [2 * half, 2 * half + 1];
                    let (times, plus) =
                        (both.map(|run| scales.times[run][output]), both.map(|run| scales.plus[run][output]));
                    // SAFETY: as above.
                    *place = unsafe { T::widen(numbers, times, plus) };
                }
            }
        }
    }
}

/// Line `i` of the block has inputs `4i .. 4i + 4` of the group, a byte each, of 16 outputs.
#[inline(always)]
fn unpack(format: Format, stretch: &[u8], group: usize) -> (Block, Scales) {
    // What all inputs of the stretch share.
    let (head, rest) = stretch.split_at(64);
    match format {
        Format::Q8_0 => {
            let times = [0, 32].map(|at| halves(&head[at..]));
            (std::array::from_fn(|at| line(rest, at)), Scales::less(128.0, twice(times)))
        }
        Format::Q4_0 => {
            let times = [0, 32].map(|at| halves(&head[at..]));
            (nibbles(rest), Scales::less(8.0, twice(times)))
        }
        Format::Q4K => {
            let (scales, numbers) = rest[group * 9 * 64..].split_at(64);
            let (d, minimum) = (halves(head), halves(&head[32..]));
            let times = [0, 16].map(|at| product(d, lanes(&scales[at..], f32::from)));
            let plus = [32, 48].map(|at| product(minimum, lanes(&scales[at..], |byte| -f32::from(byte))));
            (nibbles(numbers), Scales { times: twice(times), plus: twice(plus) })
        }
        Format::Q6K => {
            let (scales, numbers) = rest[group * 13 * 64..].split_at(64);
            let scale = |run: usize| lanes(&scales[run * 16..], |byte| f32::from(byte.cast_signed()));
            let d = halves(head);
            let mut block = nibbles(numbers);
            for at in 0..4 {
                // Two bits of each of the four runs, which belong in bits 4 and 5 of each byte.
                let fours = line(numbers, 8 + at).0;
                for (output, fours) in fours.into_iter().enumerate() {
                    block[at].0[output] |= fours << 4 & 0x3030_3030;
                    block[at + 4].0[output] |= fours << 2 & 0x3030_3030;
                    block[at + 8].0[output] |= fours & 0x3030_3030;
                    block[at + 12].0[output] |= fours >> 2 & 0x3030_3030;
                }
            }
            (block, Scales::less(32.0, std::array::from_fn(|run| product(d, scale(run)))))
        }
        Format::F32 | Format::F16 | Format::Bf16 | Format::Bf16z => panic!("floats lie in rows"),
    }
}

impl Scales {
    /// Of numbers that are stored as so much more than is meant: a power of two, so that `plus` is exact.
    #[inline(always)]
    fn less(more: f32, times: [[f32; PANEL]; RUNS]) -> Self {
        Self { times, plus: times.map(|times| times.map(|times| -more * times)) }
    }
}

/// What 32 inputs share, for each 16 of them.
#[inline(always)]
fn twice([first, second]: [[f32; PANEL]; 2]) -> [[f32; PANEL]; RUNS] {
    [first, first, second, second]
}

/// Eight lines: the lower halves of their bytes, then the upper ones.
#[inline(always)]
fn nibbles(lines: &[u8]) -> Block {
    std::array::from_fn(|at| Line(line(lines, at % 8).0.map(|quad| quad >> (at / 8 * 4) & 0x0f0f_0f0f)))
}

#[inline(always)]
fn line(bytes: &[u8], at: usize) -> Line {
    let quads = bytes[at * 64..][..64].as_chunks::<4>().0;
    Line(std::array::from_fn(|output| u32::from_le_bytes(quads[output])))
}

#[inline(always)]
fn halves(bytes: &[u8]) -> [f32; PANEL] {
    let bytes = &bytes[..2 * PANEL];
    std::array::from_fn(|output| half::at(bytes, output))
}

#[inline(always)]
fn lanes(bytes: &[u8], number: impl Fn(u8) -> f32) -> [f32; PANEL] {
    let bytes = &bytes[..PANEL];
    std::array::from_fn(|output| number(bytes[output]))
}

#[inline(always)]
fn product(a: [f32; PANEL], b: [f32; PANEL]) -> [f32; PANEL] {
    std::array::from_fn(|output| a[output] * b[output])
}
