//! Products with many tokens, as pairs of bf16. Each weight is used for all tokens.
//!
//! ```text
//! for each block of weights (some rows, some steps) that fills half of a second-level cache, widened once
//!     for each few groups of tokens, as many as a tile has
//!         for each chunk of steps that lets the tokens' lines stay in the first-level cache
//!             for each tile's outputs: sums[output][token] += weights[output][step] * lines[step][token]
//!         transpose the sums and add them to the outputs
//! ```
//!
//! `pack` makes the lines, and `widened` makes rows from panels. `tile` is the trait; `pairs` and `amx` implement it; `proof`
//! checks that an implementation is right. Products use `amx` only. `pairs` serves tests on machines without AMX, and is the
//! reference of `examples/panel-rates`.
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

/// Bytes of widened weights that all tokens use before the next block: about half of a second-level cache.
const WEIGHTS_BYTES: usize = 512 << 10;
/// The most outputs of a block. More give no speed, and the sums would leave the first-level cache.
const MOST_OUTPUTS: usize = 96;
/// The most steps of a block: `MOST_OUTPUTS` rows of this length fit into `WEIGHTS_BYTES`. Fewer rows would mean that all
/// activations are read more often.
const MOST_STEPS: usize = 1024;
/// Bytes of a weight.
const BF16: usize = 2;

/// Buffers of a thread, kept for the next product.
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
/// The machine has the level of `T`; the asserts of `rows::tile` hold.
#[inline(always)]
pub unsafe fn multiply<T: Tile, S: Source>(source: &S, packed: &Packed, out: &mut Outputs) {
    let Scratch { mut weights, mut sums } = SCRATCH.take();
    let steps = packed.steps();
    let deep = steps.clamp(1, MOST_STEPS);
    // An odd number of lines, so that rows do not map to the same cache sets.
    let row_lines = (deep / TOKENS) | 1;
    // Both are powers of two, so blocks hold whole tiles and whole panels.
    let unit = T::OUTPUTS.max(S::TOGETHER);
    let most = (WEIGHTS_BYTES / (row_lines * size_of::<Line>())).min(MOST_OUTPUTS) / unit;
    let most = most.max(1) * unit;
    weights.resize(most * row_lines, Line([0; TOKENS]));
    sums.resize(most * T::GROUPS, Line([0; TOKENS]));
    let range = out.outputs();
    // SAFETY: the caller guarantees the level; the same below.
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
                // SAFETY: as above; the weights and the sums have `most` outputs, which are whole tiles.
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

/// A source of weights for tiles.
pub trait Source {
    /// Rows that are read together.
    const TOGETHER: usize;

    /// # Safety
    ///
    /// The machine has the level of `T`.
    unsafe fn fill<T: Tile>(&self, weights: &mut Weights);
}

/// A block of weights as pairs: some steps of some rows.
pub struct Weights<'a> {
    /// `row_lines` lines for each output.
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
    /// Adds the products of these steps to the sums of each output, for some groups of tokens.
    ///
    /// # Safety
    ///
    /// The machine has the level of `T`; the lines, and `GROUPS` lines of sums, are padded to whole tiles of outputs.
    #[inline(always)]
    unsafe fn add<T: Tile>(&self, packed: &Packed, groups: Range<usize>, sums: &mut [Line]) {
        let Self { row_lines, outputs, steps, .. } = self;
        let lines = packed.lines(groups.clone());
        for step in steps.clone().step_by(T::STEPS) {
            // Rows after the last output hold old data: they are summed but not used.
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
                // SAFETY: `lines` has these groups with all steps; the caller guarantees the rest.
                unsafe { T::add(&part) };
            }
        }
    }
}

/// Stores the sums of a group, every `GROUPS`th line of `sums`, in the outputs; or adds them to the outputs.
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
        // SAFETY: the caller guarantees this.
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

/// Copies a row of bf16 as pairs, and pads it with zeros.
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

/// The first numbers in these lines.
fn numbers_of(lines: &mut [Line], numbers: usize) -> &mut [u32] {
    assert!(numbers <= lines.len() * TOKENS);
    // SAFETY: a line is exactly 16 numbers, and the result borrows `lines`.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), numbers) }
}
