//! Many tokens at once, each weight used for all of them, as pairs of bf16.
//!
//! ```text
//! for some rows of weights, and so many of their steps that half of a second cache holds them, widened once
//!     for some groups of tokens, as many as a tile has
//!         for some steps, so that the tokens' lines stay in the first cache
//!             for each tile's outputs: sums[output][token] += weights[output][step] * lines[step][token]
//!         the sums to their places, with outputs side by side; what earlier steps gave is there already
//! ```
//!
//! `pack` makes the lines, `widened` rows of panels; `pairs` and `amx` are tiles, `tile` says what one is, and `proof` whether it is
//! right. Products take tiles of `amx` alone. `pairs` are what its loops are tested with where there is no AMX, and what
//! `examples/panel-rates` holds integers against; `near` beats them with any number of tokens.
#![expect(unsafe_code, reason = "instructions of a level")]

pub mod amx;
mod pack;
pub mod pairs;
mod proof;
mod tile;
pub mod widened;

use std::cell::RefCell;
use std::ops::Range;

#[cfg(test)]
pub use pack::bf16_from_f32;
pub use pack::pack;
pub use proof::works;

use super::packed::{Line, PAIR, Packed, TOKENS};
use crate::kernels::Outputs;
use crate::matrix::Floats;
use tile::{Part, Tile};

/// Of the widened weights that are used for all tokens before the next: about half of a second cache.
const WEIGHTS_BYTES: usize = 512 << 10;
/// Beyond it nothing is gained, and the sums leave the first cache.
const MOST_OUTPUTS: usize = 96;
/// So that `MOST_OUTPUTS` rows of any length are within `WEIGHTS_BYTES`: the fewer rows there are, the more often all
/// activations are read.
const MOST_STEPS: usize = 1024;
/// Bytes of a weight.
const BF16: usize = 2;

/// What a thread needs for it, kept for the next product.
#[derive(Default)]
struct Scratch {
    weights: Vec<Line>,
    sums: Vec<Line>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// # Safety
///
/// The machine has the level of `T`; all else is what `rows::tile` asserts.
#[inline(always)]
pub unsafe fn multiply<T: Tile, S: Source>(source: &S, packed: &Packed, out: &mut Outputs) {
    let Scratch { mut weights, mut sums } = SCRATCH.take();
    let steps = packed.steps();
    let deep = steps.clamp(1, MOST_STEPS);
    // An odd number of lines, so that rows do not meet in the same sets of a cache.
    let row_lines = (deep / TOKENS) | 1;
    // Both are powers of two, so that these are whole tiles and whole panels.
    let unit = T::OUTPUTS.max(S::TOGETHER);
    let most = (WEIGHTS_BYTES / (row_lines * size_of::<Line>())).min(MOST_OUTPUTS) / unit;
    let most = most.max(1) * unit;
    weights.resize(most * row_lines, Line([0; TOKENS]));
    sums.resize(most * T::GROUPS, Line([0; TOKENS]));
    let range = out.outputs();
    // SAFETY: the level is the caller's promise; so below.
    unsafe { T::begin() };
    for first in range.clone().step_by(most) {
        let outputs = first..range.end.min(first + most);
        let places = outputs.start - range.start..outputs.end - range.start;
        for begin in (0..steps.max(1)).step_by(deep) {
            let steps = begin..steps.min(begin + deep);
            let mut block = Weights { lines: &mut weights, row_lines, outputs: outputs.clone(), steps };
            // SAFETY: as above.
            unsafe { source.fill::<T>(&mut block) };
            for group in (0..packed.groups()).step_by(T::GROUPS) {
                let groups = group..packed.groups().min(group + T::GROUPS);
                sums.fill(Line([0; TOKENS]));
                // SAFETY: as above; the weights and the sums are of `most` outputs, which are whole tiles.
                unsafe { block.add::<T>(packed, groups.clone(), &mut sums) };
                for (part, group) in groups.enumerate() {
                    // SAFETY: as above.
                    unsafe { store::<T>(&sums[part..], group, places.clone(), begin > 0, out) };
                }
            }
        }
    }
    // SAFETY: as above.
    unsafe { T::end() };
    SCRATCH.set(Scratch { weights, sums });
}

/// The source of tiles.
pub trait Source {
    /// Rows that are read together.
    const TOGETHER: usize;

    /// # Safety
    ///
    /// The machine has the level of `T`.
    unsafe fn fill<T: Tile>(&self, weights: &mut Weights);
}

/// Some steps of some rows of weights, as pairs.
pub struct Weights<'a> {
    /// So many for each output.
    lines: &'a mut [Line],
    row_lines: usize,
    outputs: Range<usize>,
    steps: Range<usize>,
}

/// Rows of bf16.
impl Source for Floats<'_> {
    const TOGETHER: usize = 1;

    #[inline(always)]
    unsafe fn fill<T: Tile>(&self, weights: &mut Weights) {
        let Weights { lines, row_lines, outputs, steps } = weights;
        let inputs = steps.start * PAIR..self.inputs.min(steps.end * PAIR);
        let rows = self.rows(outputs.clone()).chunks_exact((self.inputs * BF16).max(1));
        for (row, lines) in rows.zip(lines.chunks_exact_mut(*row_lines)) {
            copy(&row[inputs.start * BF16..inputs.end * BF16], numbers_of(lines, steps.len()));
        }
    }
}

impl Weights<'_> {
    /// To the sums of each output what these steps give it, for some groups of tokens.
    ///
    /// # Safety
    ///
    /// The machine has the level of `T`; there are lines, and `GROUPS` lines of sums, for so many outputs filled up to whole tiles.
    #[inline(always)]
    unsafe fn add<T: Tile>(&self, packed: &Packed, groups: Range<usize>, sums: &mut [Line]) {
        let Self { row_lines, outputs, steps, .. } = self;
        let lines = packed.lines(groups.clone());
        for step in steps.clone().step_by(T::STEPS) {
            // What stands behind the last outputs is from rows before: it is summed up and not used.
            for output in (0..outputs.len()).step_by(T::OUTPUTS) {
                let row = self.lines[output * row_lines..].as_ptr().cast::<u32>();
                let part = Part {
                    weights: row.wrapping_add(step - steps.start),
                    weights_stride: row_lines * TOKENS,
                    lines: lines[step..].as_ptr(),
                    lines_stride: packed.steps(),
                    groups: groups.len(),
                    steps: T::STEPS.min(steps.end - step),
                    sums: sums[output * T::GROUPS..].as_mut_ptr().cast(),
                    sums_stride: T::GROUPS * TOKENS,
                };
                // SAFETY: `lines` has so many groups, each of all steps; all else is the caller's promise.
                unsafe { T::add(&part) };
            }
        }
    }
}

/// The sums of a group, every `GROUPS`th line of `sums`, to where they belong, or added to what is there.
///
/// # Safety
///
/// The machine has the level of `T`.
#[inline(always)]
unsafe fn store<T: Tile>(sums: &[Line], group: usize, places: Range<usize>, add: bool, out: &mut Outputs) {
    let tokens = group * TOKENS..((group + 1) * TOKENS).min(out.tokens());
    for (block, first) in places.clone().step_by(TOKENS).enumerate() {
        let places = first..(first + TOKENS).min(places.end);
        let mut lines = [Line([0; TOKENS]); TOKENS];
        let sums = sums[block * TOKENS * T::GROUPS..].iter().step_by(T::GROUPS);
        for (line, sums) in lines.iter_mut().zip(sums) {
            *line = *sums;
        }
        // SAFETY: the caller's promise.
        unsafe { T::transpose(&mut lines) };
        for (line, token) in lines.iter().zip(tokens.clone()) {
            let numbers = &mut out.row_mut(token)[places.clone()];
            for (number, bits) in numbers.iter_mut().zip(line.0) {
                let sum = f32::from_bits(bits);
                *number = if add { *number + sum } else { sum };
            }
        }
    }
}

/// A row of bf16 as pairs: as it is, and zeros after it.
fn copy(row: &[u8], weights: &mut [u32]) {
    let (pairs, odd) = row.as_chunks::<4>();
    let (places, filling) = weights.split_at_mut(pairs.len());
    for (weight, pair) in places.iter_mut().zip(pairs) {
        *weight = u32::from_le_bytes(*pair);
    }
    filling.fill(0);
    if let (&[low, high], Some(last)) = (odd, filling.first_mut()) {
        *last = u32::from_le_bytes([low, high, 0, 0]);
    }
}

/// The first of the numbers in these lines.
fn numbers_of(lines: &mut [Line], numbers: usize) -> &mut [u32] {
    assert!(numbers <= lines.len() * TOKENS);
    // SAFETY: a line is 16 numbers and nothing else, and `lines` is borrowed for as long as they are.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), numbers) }
}
