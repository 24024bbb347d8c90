//! Prefill: many tokens at once, each weight used for all of them.
//!
//! ```text
//! for some rows of weights, and so many of their steps that half of a second cache holds them, widened once
//!     for some groups of tokens, as many as a tile has
//!         for some steps, so that the tokens' lines stay in the first cache
//!             for each tile's outputs: sums[output][token] += weights[output][step] * lines[step][token]
//!         the sums to their places, with outputs side by side; what earlier steps gave is there already
//! ```
#![expect(unsafe_code, reason = "instructions of a level")]
#![expect(clippy::needless_range_loop, reason = "indices of several arrays at once, as in the formula")]

use std::cell::RefCell;
use std::ops::Range;

use super::lanes::{Bf16, F16, F32, Lanes, Weight, Widening};
use super::packed::{self, Block, Kind, Line, Packed, TOKENS};
use super::widened;
use crate::kernels::Outputs;
use crate::matrix::{Format, Matrix, PANEL};
use crate::rows::Rows;

/// Of the widened weights that are used for all tokens before the next: about half of a second cache.
const WEIGHTS_BYTES: usize = 512 << 10;
/// Beyond it nothing is gained, and the sums leave the first cache.
const MOST_OUTPUTS: usize = 96;
/// Of pairs, so that `MOST_OUTPUTS` rows of any length are within `WEIGHTS_BYTES`: the fewer rows there are, the more often
/// all activations are read. Sums of numbers are taken in one go, as the exact mode wants them.
const MOST_PAIRS: usize = 1024;

/// How a level sums up a tile.
///
/// # Safety
///
/// Of every method: the machine has the level.
pub trait Tile {
    const KIND: Kind;
    /// Outputs and groups of tokens that it has.
    const OUTPUTS: usize;
    const GROUPS: usize;
    /// Whose lines are to stay in the first cache.
    const STEPS: usize;

    /// # Safety
    ///
    /// What `Part` says lies there, with `OUTPUTS` outputs and at most `GROUPS` groups.
    unsafe fn add(part: &Part);

    /// A row of a matrix of this format as weights of so many steps; those beyond it are zero.
    unsafe fn pack(format: Format, row: &[u8], weights: &mut [u32]);

    /// Of one token the numbers of 16 steps.
    #[inline(always)]
    unsafe fn line(numbers: &[f32]) -> Line {
        packed::line(Self::KIND, numbers)
    }

    #[inline(always)]
    unsafe fn transpose(block: &mut Block) {
        packed::transpose(block);
    }

    /// `number * times + plus` as pairs: the first of `times` and `plus` for 16 numbers, the second for the other 16.
    #[inline(always)]
    unsafe fn widen(numbers: &[u8; 32], times: [f32; 2], plus: [f32; 2]) -> Line {
        let of = |at: usize| f32::from(numbers[at]) * times[at / 16] + plus[at / 16];
        packed::line(Kind::Pairs, &std::array::from_fn::<_, 32, _>(of))
    }

    /// Before and after a thread adds parts.
    #[inline(always)]
    unsafe fn begin() {}
    #[inline(always)]
    unsafe fn end() {}
}

/// A part of a tile's steps.
pub struct Part {
    /// `[outputs][steps]`: a number, or a pair of bf16.
    pub weights: *const u32,
    /// From one output's weights to the next's.
    pub weights_stride: usize,
    /// `[groups][steps]`
    pub lines: *const Line,
    /// From one group's lines to the next's.
    pub lines_stride: usize,
    pub groups: usize,
    pub steps: usize,
    /// `[outputs][groups][16]`
    pub sums: *mut f32,
    /// From one output's sums to the next's.
    pub sums_stride: usize,
}

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
/// The machine has the level of `T`; all else is what `rows::prefill` asserts.
#[inline(always)]
pub unsafe fn prefill<T: Tile>(matrix: &Matrix, packed: &Packed, out: &mut Outputs) {
    assert_eq!(packed.kind(), T::KIND, "how activations are packed");
    let Scratch { mut weights, mut sums } = SCRATCH.take();
    let steps = packed.steps();
    let deep = if T::KIND == Kind::Pairs { steps.min(MOST_PAIRS) } else { steps };
    // An odd number of lines, so that rows do not meet in the same sets of a cache.
    let row_lines = (deep / TOKENS) | 1;
    // Both are powers of two, so that these are whole tiles and whole panels.
    let unit = if matrix.format.is_panels() { T::OUTPUTS.max(PANEL) } else { T::OUTPUTS };
    let most = (WEIGHTS_BYTES / (row_lines * size_of::<Line>())).min(MOST_OUTPUTS) / unit;
    let most = most.max(1) * unit;
    weights.resize(most * row_lines, Line([0; TOKENS]));
    sums.resize(most * T::GROUPS, Line([0; TOKENS]));
    let range = out.outputs();
    // SAFETY: the level is the caller's promise; so below.
    unsafe { T::begin() };
    let blocks = range
        .clone()
        .step_by(most)
        .flat_map(|first| (0..steps.max(1)).step_by(deep.max(1)).map(move |step| (first, step)));
    for (first, begin) in blocks {
        let outputs = first..range.end.min(first + most);
        let end = steps.min(begin + deep);
        // SAFETY: as above.
        unsafe { fill::<T>(matrix, outputs.clone(), begin..end, &mut weights, row_lines) };
        for group in (0..packed.groups()).step_by(T::GROUPS) {
            let groups = T::GROUPS.min(packed.groups() - group);
            sums.fill(Line([0; TOKENS]));
            let lines = packed.lines(group..group + groups);
            for step in (begin..end).step_by(T::STEPS) {
                // What stands behind the last outputs is from rows before: it is summed up and not used.
                for output in (0..outputs.len()).step_by(T::OUTPUTS) {
                    let part = Part {
                        weights: weights[output * row_lines..]
                            .as_ptr()
                            .cast::<u32>()
                            .wrapping_add(step - begin),
                        weights_stride: row_lines * TOKENS,
                        lines: lines[step..].as_ptr(),
                        lines_stride: steps,
                        groups,
                        steps: T::STEPS.min(end - step),
                        sums: sums[output * T::GROUPS..].as_mut_ptr().cast(),
                        sums_stride: T::GROUPS * TOKENS,
                    };
                    // SAFETY: `weights` and `sums` have `most` outputs, a multiple of the tile's, `weights` the steps from
                    // `begin` to `end`, and `lines` so many groups, each of `steps` steps; the level is the caller's promise.
                    unsafe { T::add(&part) };
                }
            }
            for part in 0..groups {
                let places = first - range.start..outputs.end - range.start;
                // SAFETY: as above.
                unsafe { store::<T>(&sums[part..], group + part, places, begin > 0, out) };
            }
        }
    }
    // SAFETY: as above.
    unsafe { T::end() };
    SCRATCH.set(Scratch { weights, sums });
}

/// These steps of these outputs, widened.
///
/// # Safety
///
/// The machine has the level of `T`.
#[inline(always)]
unsafe fn fill<T: Tile>(
    matrix: &Matrix,
    outputs: Range<usize>,
    steps: Range<usize>,
    weights: &mut [Line],
    row_lines: usize,
) {
    if matrix.format.is_panels() {
        let lines = steps.start / TOKENS..steps.end / TOKENS;
        let weights = &mut weights[..outputs.len().next_multiple_of(PANEL) * row_lines];
        // SAFETY: the caller's promise; so below.
        return unsafe { widened::widen::<T>(matrix, outputs.start, lines, weights, row_lines) };
    }
    let row_bytes = matrix.rows(outputs.clone());
    let rows = row_bytes.chunks_exact((row_bytes.len() / outputs.len()).max(1));
    let number = row_bytes.len() / (outputs.len() * matrix.inputs).max(1);
    let inputs = steps.start * T::KIND.inputs()..matrix.inputs.min(steps.end * T::KIND.inputs());
    for (row, weights) in rows.zip(weights.chunks_exact_mut(row_lines)) {
        let row = &row[inputs.start * number..inputs.end * number];
        // SAFETY: as above.
        unsafe { T::pack(matrix.format, row, weights.as_flattened_mut_numbers(steps.len())) };
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

/// The tokens from `first` on into a group.
///
/// # Safety
///
/// The machine has the level of `T`.
#[inline(always)]
pub unsafe fn pack<T: Tile>(x: &Rows, first: usize, lines: &mut [Line]) {
    let each = TOKENS * T::KIND.inputs();
    let tokens = TOKENS.min(x.tokens() - first);
    let (blocks, _) = lines.as_chunks_mut::<TOKENS>();
    for (at, block) in blocks.iter_mut().enumerate() {
        let inputs = (at * each).min(x.width)..((at + 1) * each).min(x.width);
        for (place, line) in block.iter_mut().enumerate() {
            *line = match (place < tokens, inputs.len() == each) {
                // SAFETY: the caller's promise.
                (true, true) => unsafe { T::line(&x.row(first + place)[inputs.clone()]) },
                (true, false) => packed::line(T::KIND, &x.row(first + place)[inputs.clone()]),
                (false, _) => Line([0; TOKENS]),
            };
        }
        // SAFETY: the caller's promise.
        unsafe { T::transpose(block) };
    }
}

/// `OUTPUTS` by `REGISTERS` sums at once.
///
/// # Safety
///
/// The machine has the level of `L`, and what `Part` says lies there; `REGISTERS` hold its groups.
#[inline(always)]
pub unsafe fn add_part<L: Lanes, const OUTPUTS: usize, const REGISTERS: usize>(part: &Part) {
    // SAFETY: the caller's promise: every place is one of `OUTPUTS` outputs, of the groups and the steps of the part.
    unsafe {
        let mut lines = [part.lines.cast::<f32>(); REGISTERS];
        let mut weights = [part.weights.cast::<f32>(); OUTPUTS];
        let mut sums = [[L::splat(0.0); REGISTERS]; OUTPUTS];
        for register in 0..REGISTERS {
            let lane = register * L::LANES;
            lines[register] =
                part.lines.add(lane / TOKENS * part.lines_stride).cast::<f32>().add(lane % TOKENS);
        }
        for output in 0..OUTPUTS {
            weights[output] = part.weights.add(output * part.weights_stride).cast();
            for register in 0..REGISTERS {
                sums[output][register] =
                    L::load(part.sums.add(output * part.sums_stride + register * L::LANES));
            }
        }
        for step in 0..part.steps {
            let mut numbers = [L::splat(0.0); REGISTERS];
            for register in 0..REGISTERS {
                numbers[register] = L::load(lines[register].add(step * TOKENS));
            }
            for output in 0..OUTPUTS {
                let weight = L::splat(*weights[output].add(step));
                for register in 0..REGISTERS {
                    sums[output][register] = sums[output][register].add_product(weight, numbers[register]);
                }
            }
        }
        for output in 0..OUTPUTS {
            for register in 0..REGISTERS {
                sums[output][register].store(part.sums.add(output * part.sums_stride + register * L::LANES));
            }
        }
    }
}

/// A row as f32.
///
/// # Safety
///
/// The machine has the level of `L`.
#[inline(always)]
pub unsafe fn widen_row<L: Widening>(format: Format, row: &[u8], weights: &mut [u32]) {
    // SAFETY: the caller's promise.
    unsafe {
        match format {
            Format::F32 => widen::<L, F32>(row, weights),
            Format::F16 => widen::<L, F16>(row, weights),
            _ => widen::<L, Bf16>(row, weights),
        }
    }
}

/// # Safety
///
/// As of `widen_row`.
#[inline(always)]
unsafe fn widen<L: Widening, W: Weight>(row: &[u8], weights: &mut [u32]) {
    let inputs = row.len() / W::BYTES;
    let (numbers, filling) = weights.split_at_mut(inputs);
    let whole = inputs / L::LANES * L::LANES;
    for input in (0..whole).step_by(L::LANES) {
        // SAFETY: so many lanes are left in both; the level is the caller's promise.
        unsafe {
            W::load::<L>(row[input * W::BYTES..].as_ptr()).store(numbers[input..].as_mut_ptr().cast());
        }
    }
    for input in whole..inputs {
        numbers[input] = W::widen(&row[input * W::BYTES..]).to_bits();
    }
    filling.fill(0);
}

/// A row of bf16 as pairs: as it is.
pub fn copy_pairs(row: &[u8], weights: &mut [u32]) {
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

/// Lines as the numbers in them.
trait Flattened {
    fn as_flattened_mut_numbers(&mut self, numbers: usize) -> &mut [u32];
}

impl Flattened for [Line] {
    fn as_flattened_mut_numbers(&mut self, numbers: usize) -> &mut [u32] {
        assert!(numbers <= self.len() * TOKENS);
        // SAFETY: a line is 16 numbers and nothing else, and `self` is borrowed for as long as they are.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr().cast(), numbers) }
    }
}
