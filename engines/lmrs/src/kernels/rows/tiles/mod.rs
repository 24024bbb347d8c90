//! Products with many tokens, as pairs of bf16. Each weight is used for all tokens.
//!
//! ```text
//! for each block of weights (some rows, some steps) that fills half of a second-level cache, widened once
//!     for each set of as many groups of tokens as a tile has
//!         for each chunk of steps that lets the tokens' lines stay in the first-level cache
//!             for each tile's outputs: sums[output][token] += weights[output][step] * lines[step][token]
//!         transpose the sums and add them to the outputs
//! ```
//!
//! `pack` makes the lines, and `WidenedPanels` makes rows from panels. `TileUnit` is the trait of a level; `pairs` and `amx`
//! implement it. The engine sums products by `amx` alone, which uses the conversions and the transposition of `pairs`. The sums
//! of `pairs` serve tests on machines without AMX, and `examples/panel-rates` measures them.
#![expect(unsafe_code, reason = "SIMD instructions")]

pub mod amx;
pub mod pairs;

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

use half::bf16;

use super::activations::{GROUP_TOKENS, PAIR_INPUTS, TileInput, U32Line};
use crate::kernels::Outputs;
use crate::kernels::panels::PanelFormat;
use crate::matrix::{Floats, GROUP_INPUTS, Matrix, PANEL_OUTPUTS, Rows};

/// Bytes of widened weights that all tokens use before the next block: about half of a second-level cache.
const WEIGHTS_BYTES: usize = 512 << 10;
/// The most outputs of a block. More are not faster, and their sums would leave the first-level cache.
const MAX_OUTPUTS: usize = 96;
/// The most steps of a block: `MAX_OUTPUTS` rows of this length fit into `WEIGHTS_BYTES`. With longer rows, a block would have
/// fewer rows, and all activations would be read more often.
const MAX_STEPS: usize = 1024;
const BF16_BYTES: usize = 2;

/// Buffers of a thread, kept for the next product.
#[derive(Default)]
struct Scratch {
    weights: Vec<U32Line>,
    /// Bits of f32 sums.
    sums: Vec<U32Line>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// # Safety
/// The machine has the level of `T`; the asserts of `rows::tile` hold.
#[inline(always)]
pub unsafe fn multiply<T: TileUnit, S: WeightSource>(source: &S, packed: &TileInput, out: &mut Outputs) {
    let Scratch { mut weights, mut sums } = SCRATCH.take();
    let steps = packed.steps();
    let block_steps = steps.clamp(1, MAX_STEPS);
    // An odd number of lines for each row, so that rows do not map to the same cache sets.
    let row_lines = (block_steps / GROUP_TOKENS) | 1;
    // Both numbers are powers of two, so a multiple of the larger one holds whole tiles and whole panels.
    let multiple = T::OUTPUTS.max(S::FILLED_ROWS);
    let block_outputs = (WEIGHTS_BYTES / (row_lines * size_of::<U32Line>())).min(MAX_OUTPUTS) / multiple;
    let block_outputs = block_outputs.max(1) * multiple;
    weights.resize(block_outputs * row_lines, U32Line([0; GROUP_TOKENS]));
    sums.resize(block_outputs * T::GROUPS, U32Line([0; GROUP_TOKENS]));
    let range = out.outputs();
    // SAFETY: the caller guarantees the level.
    unsafe { T::begin() };
    for first in range.clone().step_by(block_outputs) {
        let outputs = first..range.end.min(first + block_outputs);
        let columns = outputs.start - range.start..outputs.end - range.start;
        for first_step in (0..steps.max(1)).step_by(block_steps) {
            let steps = first_step..steps.min(first_step + block_steps);
            let mut block = Weights { lines: &mut weights, row_lines, outputs: outputs.clone(), steps };
            // SAFETY: as above.
            unsafe { source.fill::<T>(&mut block) };
            for group in (0..packed.groups()).step_by(T::GROUPS) {
                let groups = group..packed.groups().min(group + T::GROUPS);
                sums.fill(U32Line([0; GROUP_TOKENS]));
                // SAFETY: as above; the weights and the sums have `block_outputs` outputs, which are whole tiles.
                unsafe { block.add::<T>(packed, groups.clone(), &mut sums) };
                for (index, group) in groups.enumerate() {
                    // SAFETY: as above.
                    unsafe { store::<T>(&sums[index..], group, columns.clone(), first_step > 0, out) };
                }
            }
        }
    }
    // SAFETY: as above.
    unsafe { T::end() };
    SCRATCH.set(Scratch { weights, sums });
}

/// A source of weights for tiles.
pub trait WeightSource {
    /// Rows that `fill` writes together: a block has a multiple of this number.
    const FILLED_ROWS: usize;

    /// # Safety
    /// The machine has the level of `T`.
    unsafe fn fill<T: TileUnit>(&self, weights: &mut Weights);
}

/// A block of weights as pairs: some steps of some rows.
pub struct Weights<'a> {
    /// `row_lines` lines for each output.
    lines: &'a mut [U32Line],
    row_lines: usize,
    outputs: Range<usize>,
    steps: Range<usize>,
}

/// Rows of bf16 as files store them.
impl WeightSource for Floats<'_> {
    const FILLED_ROWS: usize = 1;

    #[inline(always)]
    unsafe fn fill<T: TileUnit>(&self, weights: &mut Weights) {
        let Weights { lines, row_lines, outputs, steps } = weights;
        let inputs = steps.start * PAIR_INPUTS..self.inputs.min(steps.end * PAIR_INPUTS);
        let rows = self.rows(outputs.clone()).chunks_exact((self.inputs * BF16_BYTES).max(1));
        for (row, lines) in rows.zip(lines.chunks_exact_mut(*row_lines)) {
            copy(&row[inputs.start * BF16_BYTES..inputs.end * BF16_BYTES], first_pairs(lines, steps.len()));
        }
    }
}

impl Weights<'_> {
    /// Adds the products of these steps to the sums of each output, for some groups of tokens.
    ///
    /// # Safety
    /// The machine has the level of `T`; the lines, and the `GROUPS` lines of sums of each output, are padded to whole tiles.
    #[inline(always)]
    unsafe fn add<T: TileUnit>(&self, packed: &TileInput, groups: Range<usize>, sums: &mut [U32Line]) {
        let Self { row_lines, outputs, steps, .. } = self;
        let lines = packed.lines(groups.clone());
        for step in steps.clone().step_by(T::STEPS) {
            // Rows after the last output hold old data: they are summed but not used.
            for output in (0..outputs.len()).step_by(T::OUTPUTS) {
                let row = self.lines[output * row_lines..].as_ptr().cast::<u32>();
                let part = TileProduct {
                    weights: row.wrapping_add(step - steps.start),
                    weights_stride: row_lines * GROUP_TOKENS,
                    lines: lines[step..].as_ptr(),
                    lines_stride: packed.steps(),
                    groups: groups.len(),
                    steps: T::STEPS.min(steps.end - step),
                    sums: sums[output * T::GROUPS..].as_mut_ptr().cast(),
                    sums_stride: T::GROUPS * GROUP_TOKENS,
                };
                // SAFETY: `lines` has these groups with all steps; the caller guarantees the other conditions.
                unsafe { T::add(&part) };
            }
        }
    }
}

/// Stores the sums of a group (every `GROUPS`th line of `sums`) in these columns, or adds them to the columns if `adds`.
///
/// # Safety
/// The machine has the level of `T`.
#[inline(always)]
unsafe fn store<T: TileUnit>(
    sums: &[U32Line],
    group: usize,
    columns: Range<usize>,
    adds: bool,
    out: &mut Outputs,
) {
    let tokens = group * GROUP_TOKENS..((group + 1) * GROUP_TOKENS).min(out.tokens());
    for (square, first) in columns.clone().step_by(GROUP_TOKENS).enumerate() {
        let columns = first..(first + GROUP_TOKENS).min(columns.end);
        let mut lines = [U32Line([0; GROUP_TOKENS]); GROUP_TOKENS];
        let sums = sums[square * GROUP_TOKENS * T::GROUPS..].iter().step_by(T::GROUPS);
        for (line, sums) in lines.iter_mut().zip(sums) {
            *line = *sums;
        }
        // SAFETY: the caller guarantees this.
        unsafe { T::transpose(&mut lines) };
        for (line, token) in lines.iter().zip(tokens.clone()) {
            let numbers = &mut out.row_mut(token)[columns.clone()];
            for (number, bits) in numbers.iter_mut().zip(line.0) {
                let sum = f32::from_bits(bits);
                *number = if adds { *number + sum } else { sum };
            }
        }
    }
}

/// Copies a row of bf16 as pairs, and pads it with zeros.
fn copy(row: &[u8], weights: &mut [u32]) {
    let (pairs, odd) = row.as_chunks::<4>();
    let (filled, padding) = weights.split_at_mut(pairs.len());
    for (weight, pair) in filled.iter_mut().zip(pairs) {
        *weight = u32::from_le_bytes(*pair);
    }
    padding.fill(0);
    if let (&[low, high], Some(last)) = (odd, padding.first_mut()) {
        *last = u32::from_le_bytes([low, high, 0, 0]);
    }
}

/// The first `pairs` pairs in these lines.
fn first_pairs(lines: &mut [U32Line], pairs: usize) -> &mut [u32] {
    assert!(pairs <= lines.len() * GROUP_TOKENS);
    // SAFETY: a line is exactly 16 pairs, and the result borrows `lines`.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), pairs) }
}

/// The tile operations of a level.
///
/// # Safety
/// For every method: the machine has the level.
pub trait TileUnit {
    /// The number of outputs of a register tile.
    const OUTPUTS: usize;
    /// The number of groups of tokens of a register tile.
    const GROUPS: usize;
    /// The most steps of a `TileProduct`: their lines stay in the first-level cache.
    const STEPS: usize;

    /// # Safety
    /// The memory of `part` is valid, with `OUTPUTS` outputs and at most `GROUPS` groups.
    unsafe fn add(part: &TileProduct);

    /// The pairs of 16 steps of one token.
    #[inline(always)]
    unsafe fn line(numbers: &[f32]) -> U32Line {
        pack_line(numbers)
    }

    #[inline(always)]
    unsafe fn transpose(square: &mut U32Square) {
        transpose_portable(square);
    }

    /// `number * factor + addend` as pairs. The first factor and addend apply to the first 16 numbers, the second ones to the
    /// other 16.
    #[inline(always)]
    unsafe fn widen(numbers: &[u8; 32], factors: [f32; 2], addends: [f32; 2]) -> U32Line {
        let weight = |at: usize| f32::from(numbers[at]) * factors[at / 16] + addends[at / 16];
        pack_line(&std::array::from_fn::<_, 32, _>(weight))
    }

    /// A thread calls `begin` before it adds parts, and `end` after.
    #[inline(always)]
    unsafe fn begin() {}
    #[inline(always)]
    unsafe fn end() {}
}

/// The operands of a register tile, over some of the steps.
pub struct TileProduct {
    /// `[outputs][steps]`: pairs of bf16.
    pub weights: *const u32,
    /// The distance in pairs from the weights of one output to the weights of the next output.
    pub weights_stride: usize,
    /// `[groups][steps]`
    pub lines: *const U32Line,
    /// The distance in lines from the start of one group to the start of the next group.
    pub lines_stride: usize,
    pub groups: usize,
    pub steps: usize,
    /// `[outputs][groups][16]`
    pub sums: *mut f32,
    /// The distance in numbers from the sums of one output to the sums of the next output.
    pub sums_stride: usize,
}

/// 16 lines of 16 words each, for `transpose`.
pub type U32Square = [U32Line; GROUP_TOKENS];

/// Packs the 16 tokens from `first` on, or fewer at the end, into the lines of one group.
///
/// # Safety
/// The machine has the level of `T`.
#[inline(always)]
pub unsafe fn pack<T: TileUnit>(x: &Rows, first: usize, lines: &mut [U32Line]) {
    // A line of a square has 16 pairs of one token until it is transposed.
    let line_inputs = GROUP_TOKENS * PAIR_INPUTS;
    let tokens = GROUP_TOKENS.min(x.tokens() - first);
    let (squares, _) = lines.as_chunks_mut::<GROUP_TOKENS>();
    for (at, square) in squares.iter_mut().enumerate() {
        let inputs = (at * line_inputs).min(x.width)..((at + 1) * line_inputs).min(x.width);
        for (index, destination) in square.iter_mut().enumerate() {
            *destination = match (index < tokens, inputs.len() == line_inputs) {
                // SAFETY: the caller guarantees this.
                (true, true) => unsafe { T::line(&x.row(first + index)[inputs.clone()]) },
                (true, false) => pack_line(&x.row(first + index)[inputs.clone()]),
                (false, _) => U32Line([0; GROUP_TOKENS]),
            };
        }
        // SAFETY: the caller guarantees this.
        unsafe { T::transpose(square) };
    }
}

/// The pairs of up to 16 steps of one token; missing steps are zero.
fn pack_line(numbers: &[f32]) -> U32Line {
    let mut line = U32Line([0; GROUP_TOKENS]);
    for (pair, numbers) in line.0.iter_mut().zip(numbers.chunks(PAIR_INPUTS)) {
        let half =
            |at: usize| numbers.get(at).map_or(0, |number| u32::from(bf16::from_f32(*number).to_bits()));
        *pair = half(0) | half(1) << 16;
    }
    line
}

fn transpose_portable(square: &mut U32Square) {
    let from = *square;
    for (row, line) in square.iter_mut().enumerate() {
        for (column, number) in line.0.iter_mut().enumerate() {
            *number = from[column].0[row];
        }
    }
}

/// Inputs of a line of pairs.
const LINE_INPUTS: usize = 32;

/// Panels as rows of pairs: weights of 8, 6 and 4 bits become bf16, scales included. Each weight is widened once for all tokens.
///
/// ```text
/// a group of a panel: 16 outputs x 64 inputs
///     its numbers as bytes          16 lines, each with four inputs of 16 outputs
///     the lines transposed          16 rows, each with 64 inputs of one output
///     number * factor + addend      as f32; at least 16 inputs share factor and addend
///     rounded to bf16               32 inputs are a line of pairs
/// ```
///
/// Number and factor have at most 24 bits together, so the f32 values are exact, except that Q4_K's addition rounds. A weight
/// is off by at most half a unit of the last place of bf16, 2^-8 of itself.
pub struct WidenedPanels<'a, N> {
    matrix: &'a Matrix,
    format: PhantomData<N>,
}

impl<'a, N: PanelFormat> WidenedPanels<'a, N> {
    pub fn new(matrix: &'a Matrix) -> Self {
        Self { matrix, format: PhantomData }
    }
}

impl<N: PanelFormat> WeightSource for WidenedPanels<'_, N> {
    const FILLED_ROWS: usize = PANEL_OUTPUTS;

    #[inline(always)]
    unsafe fn fill<T: TileUnit>(&self, weights: &mut Weights) {
        let Weights { lines: weights, row_lines, outputs, steps } = weights;
        let (first, lines) = (outputs.start, steps.start / GROUP_TOKENS..steps.end / GROUP_TOKENS);
        assert!(
            first.is_multiple_of(PANEL_OUTPUTS) && lines.start.is_multiple_of(GROUP_INPUTS / LINE_INPUTS),
            "full groups of full panels"
        );
        let weights = &mut weights[..outputs.len().next_multiple_of(PANEL_OUTPUTS) * *row_lines];
        for (panel, rows) in
            (first / PANEL_OUTPUTS..).zip(weights.chunks_exact_mut(PANEL_OUTPUTS * *row_lines))
        {
            let bytes = self.matrix.panel(panel);
            for line in lines.clone().step_by(GROUP_INPUTS / LINE_INPUTS) {
                let (section, group) = (
                    line / (GROUP_INPUTS / LINE_INPUTS) / N::GROUPS,
                    line / (GROUP_INPUTS / LINE_INPUTS) % N::GROUPS,
                );
                let section = &bytes[section * N::SECTION_BYTES..][..N::SECTION_BYTES];
                let (mut square, scales) = N::widen(section, group);
                // SAFETY: the caller guarantees this.
                unsafe { T::transpose(&mut square) };
                let row_part =
                    line - lines.start..(line + GROUP_INPUTS / LINE_INPUTS).min(lines.end) - lines.start;
                for ((output, row), numbers) in rows.chunks_exact_mut(*row_lines).enumerate().zip(&square) {
                    let numbers = numbers.0.map(u32::to_le_bytes);
                    let halves = numbers.as_flattened().as_chunks::<LINE_INPUTS>().0;
                    for (half, (pairs, numbers)) in row[row_part.clone()].iter_mut().zip(halves).enumerate() {
                        let runs = [2 * half, 2 * half + 1];
                        let factors = runs.map(|run| scales.factors[run][output]);
                        let addends = runs.map(|run| scales.addends[run][output]);
                        // SAFETY: as above.
                        *pairs = unsafe { T::widen(numbers, factors, addends) };
                    }
                }
            }
        }
    }
}
