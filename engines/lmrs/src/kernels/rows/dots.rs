//! Dot products of rows of weights with the activations of a few tokens.
//!
//! With few tokens each weight is used only a few times, so memory limits the speed. For a single token, most large matrices
//! are read as one stream, row after row (`rows::streams`). Otherwise several rows are multiplied with several tokens at once:
//! the tokens share each read of a row, and the rows share each read of a token's activations. A large batch is divided into
//! groups of tokens; each group reads all rows. Levels with a prefetch instruction load the next rows meanwhile.
#![expect(unsafe_code, reason = "unaligned weights, and SIMD instructions")]

use std::ops::Range;

use super::lanes::{Lanes, Number, Weight};
use super::{MAX_DECODE_TOKENS, MIN_UNCACHED_BYTES};
use crate::kernels::Outputs;
use crate::matrix::Floats;

/// The most tokens of a group, in batches of more than `MAX_DECODE_TOKENS` tokens.
const MAX_GROUP_TOKENS: usize = 6;
const LINE_BYTES: usize = 64;

/// Multiplies the rows of every stream with all tokens, group by group.
///
/// # Safety
/// The machine has the level of `L`; the rows have numbers of `W`; the asserts of `rows::dot` hold.
#[inline(always)]
pub unsafe fn multiply_groups<L: Lanes, W: Weight<L>>(
    floats: &Floats,
    x: &[L::Number],
    outs: &mut [Outputs],
) {
    let tokens = outs[0].tokens();
    let group_tokens = if tokens <= MAX_DECODE_TOKENS { tokens } else { MAX_GROUP_TOKENS };
    for first in (0..tokens).step_by(group_tokens) {
        let group = first..tokens.min(first + group_tokens);
        // SAFETY: the caller guarantees this.
        unsafe {
            match (outs.len(), tokens_per_read::<L>(group.len())) {
                (1, 1) => multiply_rows::<L, W, 1, 1>(floats, x, group, outs),
                (2, 1) => multiply_rows::<L, W, 2, 1>(floats, x, group, outs),
                (2, 2) => multiply_rows::<L, W, 2, 2>(floats, x, group, outs),
                (2, _) => multiply_rows::<L, W, 2, 3>(floats, x, group, outs),
                (_, 1) => multiply_rows::<L, W, 4, 1>(floats, x, group, outs),
                (_, 2) => multiply_rows::<L, W, 4, 2>(floats, x, group, outs),
                (_, 3) => multiply_rows::<L, W, 4, 3>(floats, x, group, outs),
                _ => multiply_rows::<L, W, 4, 4>(floats, x, group, outs),
            }
        }
    }
}

/// The number of tokens that share each read of a row: at most `TOKENS_PER_READ`, in parts of equal size. With a limit of three,
/// four tokens become two and two, not three and one.
fn tokens_per_read<L: Lanes>(tokens: usize) -> usize {
    tokens.div_ceil(tokens.div_ceil(L::TOKENS_PER_READ))
}

/// Multiplies `ROWS` rows at once, one of each stream, with `TOKENS` tokens of a group at once.
///
/// # Safety
/// The same as for `multiply_groups`, with `ROWS` entries in `outs`.
#[inline(always)]
unsafe fn multiply_rows<L: Lanes, W: Weight<L>, const ROWS: usize, const TOKENS: usize>(
    floats: &Floats,
    x: &[L::Number],
    group: Range<usize>,
    outs: &mut [Outputs],
) {
    let (inputs, first_output) = (floats.inputs, floats.outputs.start);
    let weights = floats.rows(floats.outputs.clone());
    let row_bytes = inputs * W::BYTES;
    for index in 0..outs[0].outputs().len() {
        let mut rows = [weights.as_ptr(); ROWS];
        for (row, out) in rows.iter_mut().zip(&*outs) {
            // A stream (an entry of `outs`) that has fewer rows repeats the first stream's row.
            let output =
                if index < out.outputs().len() { out.outputs().start } else { outs[0].outputs().start };
            *row = weights[(output + index - first_output) * row_bytes..].as_ptr();
        }
        for first in group.clone().step_by(TOKENS) {
            // If fewer than `TOKENS` are left, the last token is computed again.
            let numbers =
                std::array::from_fn(|token| x[(first + token).min(group.end - 1) * inputs..].as_ptr());
            // The product of one row with one token has too little arithmetic to hide the cost of a prefetch. A small matrix may
            // be in a cache, and needs none.
            let hides_prefetch = TOKENS > 1 || ROWS > 1 && weights.len() >= MIN_UNCACHED_BYTES;
            let prefetch_distance = if hides_prefetch && first == group.start { row_bytes } else { 0 };
            // SAFETY: each row has `inputs` numbers of `W` within `weights`, and each token `inputs` numbers within `x`.
            let sums = unsafe { dots::<L, W, ROWS, TOKENS>(rows, numbers, inputs, prefetch_distance) };
            for (row, out) in outs.iter_mut().enumerate() {
                if index < out.outputs().len() {
                    for (token, sums) in (first..group.end).zip(&sums) {
                        out.row_mut(token)[index] = sums[row];
                    }
                }
            }
        }
    }
}

/// Multiplies each row with each token. The order of additions never depends on the other rows and tokens: `CHAINS` alternating
/// sums in each lane, then these sums, then the lanes (`Lanes::sum`), then the inputs that do not fill a register.
///
/// Meanwhile it prefetches the memory `prefetch_distance` bytes after the weights that it reads. 0 means no prefetch.
///
/// # Safety
/// The machine has the level of `L`; each of `rows` has `inputs` numbers of `W`, and each of `x` has `inputs` numbers.
#[inline(always)]
unsafe fn dots<L: Lanes, W: Weight<L>, const ROWS: usize, const TOKENS: usize>(
    rows: [*const u8; ROWS],
    x: [*const L::Number; TOKENS],
    inputs: usize,
    prefetch_distance: usize,
) -> [[f32; ROWS]; TOKENS] {
    // SAFETY: every number read is before `inputs`; the caller guarantees the level.
    unsafe {
        let mut sums = [[[L::zero(); ROWS]; TOKENS]; 2];
        let mut input = 0;
        // Each iteration has four double steps, so fewer instructions belong to the loop itself. A processor that waits for
        // memory then reaches more loads in advance.
        while ROWS * TOKENS == 1 && input + 8 * L::LANES <= inputs {
            for double_step in 0..4 {
                let input = input + 2 * double_step * L::LANES;
                step::<L, W, ROWS, TOKENS>(&mut sums[0], &rows, &x, input);
                step::<L, W, ROWS, TOKENS>(&mut sums[L::CHAINS - 1], &rows, &x, input + L::LANES);
            }
            input += 8 * L::LANES;
        }
        while input + 2 * L::LANES <= inputs {
            if prefetch_distance != 0 {
                prefetch_rows::<L, W, ROWS>(&rows, prefetch_distance, input);
            }
            step::<L, W, ROWS, TOKENS>(&mut sums[0], &rows, &x, input);
            step::<L, W, ROWS, TOKENS>(&mut sums[L::CHAINS - 1], &rows, &x, input + L::LANES);
            input += 2 * L::LANES;
        }
        if input + L::LANES <= inputs {
            step::<L, W, ROWS, TOKENS>(&mut sums[0], &rows, &x, input);
            input += L::LANES;
        }
        // `black_box` writes the sums to memory here. Otherwise the loop over the sums makes the compiler keep them in memory
        // in every step.
        let sums = if L::CHAINS * ROWS * TOKENS == 1 { sums } else { std::hint::black_box(sums) };
        let mut totals = [[0.0; ROWS]; TOKENS];
        for token in 0..TOKENS {
            for row in 0..ROWS {
                let mut total = match L::CHAINS {
                    1 => sums[0][token][row].sum(),
                    _ => sums[0][token][row].add(sums[1][token][row]).sum(),
                };
                for input in input..inputs {
                    let weight = std::slice::from_raw_parts(rows[row].add(input * W::BYTES), W::BYTES);
                    total += W::widen(weight) * (*x[token].add(input)).widen();
                }
                totals[token][row] = total;
            }
        }
        totals
    }
}

/// Adds the products of the next `LANES` inputs to the sums.
///
/// # Safety
/// The same as for `dots`; from `input` on, at least `LANES` inputs are left.
#[inline(always)]
unsafe fn step<L: Lanes, W: Weight<L>, const ROWS: usize, const TOKENS: usize>(
    sums: &mut [[L; ROWS]; TOKENS],
    rows: &[*const u8; ROWS],
    x: &[*const L::Number; TOKENS],
    input: usize,
) {
    // SAFETY: the caller guarantees this.
    unsafe {
        let mut numbers = [L::zero(); TOKENS];
        for token in 0..TOKENS {
            numbers[token] = L::load(x[token].add(input));
        }
        for row in 0..ROWS {
            let weights = W::load(rows[row].add(input * W::BYTES));
            for token in 0..TOKENS {
                sums[token][row] = sums[token][row].add_product(weights, numbers[token]);
            }
        }
    }
}

/// Prefetches the memory `prefetch_distance` bytes after the weights of the next two steps. Each cache line is prefetched once,
/// also if two steps read less than a line.
#[inline(always)]
fn prefetch_rows<L: Lanes, W: Weight<L>, const ROWS: usize>(
    rows: &[*const u8; ROWS],
    prefetch_distance: usize,
    input: usize,
) {
    let (at, bytes) = (input * W::BYTES, 2 * L::LANES * W::BYTES);
    if bytes < LINE_BYTES && !at.is_multiple_of(LINE_BYTES) {
        return;
    }
    for row in rows {
        for line in 0..bytes.div_ceil(LINE_BYTES) {
            L::prefetch_line(row.wrapping_add(prefetch_distance + at + line * LINE_BYTES));
        }
    }
}
