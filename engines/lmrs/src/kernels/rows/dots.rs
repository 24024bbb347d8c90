//! Rows of weights dotted with the activations of a few tokens.
//!
//! With few tokens each number of a matrix is used once or a few times, so memory sets the pace: a single token's rows are read
//! one after the other. Several tokens share what is read of a few rows, and these what is read of the tokens. Many tokens pass
//! over the same rows group by group. While some rows meet several tokens the next ones are fetched, by levels that can, so that
//! memory works while arithmetic does.
#![expect(unsafe_code, reason = "weights at any address, and instructions of a level")]

use std::ops::Range;

use super::lanes::{Lanes, Number, Weight};
use super::{DECODE_TOKENS, FROM_MEMORY};
use crate::kernels::Outputs;
use crate::matrix::Floats;

/// Of many tokens so many pass over some rows before the next.
const GROUP: usize = 6;
/// Bytes that memory gives at once.
const LINE: usize = 64;

/// # Safety
///
/// The machine has the level of `L`; the rows are of `W`; all else is what `rows::dot` asserts.
#[inline(always)]
pub unsafe fn by_groups<L: Lanes, W: Weight<L>>(floats: &Floats, x: &[L::Number], outs: &mut [Outputs]) {
    let tokens = outs[0].tokens();
    let at_once = if tokens <= DECODE_TOKENS { tokens } else { GROUP };
    for first in (0..tokens).step_by(at_once) {
        let group = first..tokens.min(first + at_once);
        // SAFETY: the caller's promise.
        unsafe {
            match (outs.len(), together::<L>(group.len())) {
                (1, 1) => side_by_side::<L, W, 1, 1>(floats, x, group, outs),
                (2, 1) => side_by_side::<L, W, 2, 1>(floats, x, group, outs),
                (2, 2) => side_by_side::<L, W, 2, 2>(floats, x, group, outs),
                (2, _) => side_by_side::<L, W, 2, 3>(floats, x, group, outs),
                (_, 1) => side_by_side::<L, W, 4, 1>(floats, x, group, outs),
                (_, 2) => side_by_side::<L, W, 4, 2>(floats, x, group, outs),
                (_, 3) => side_by_side::<L, W, 4, 3>(floats, x, group, outs),
                _ => side_by_side::<L, W, 4, 4>(floats, x, group, outs),
            }
        }
    }
}

/// In equal shares: four tokens are two and two, not three and one.
fn together<L: Lanes>(tokens: usize) -> usize {
    tokens.div_ceil(tokens.div_ceil(L::TOGETHER))
}

/// # Safety
///
/// As of `by_groups`, with `ROWS` of `outs`.
#[inline(always)]
unsafe fn side_by_side<L: Lanes, W: Weight<L>, const ROWS: usize, const TOKENS: usize>(
    floats: &Floats,
    x: &[L::Number],
    group: Range<usize>,
    outs: &mut [Outputs],
) {
    let (inputs, first_output) = (floats.inputs, floats.outputs.start);
    let weights = floats.rows(floats.outputs.clone());
    let row_bytes = inputs * W::BYTES;
    for place in 0..outs[0].outputs().len() {
        let mut rows = [weights.as_ptr(); ROWS];
        for (row, out) in rows.iter_mut().zip(&*outs) {
            // A stretch that has ended goes along with the first.
            let output =
                if place < out.outputs().len() { out.outputs().start } else { outs[0].outputs().start };
            *row = weights[(output + place - first_output) * row_bytes..].as_ptr();
        }
        for first in group.clone().step_by(TOKENS) {
            // Where there are fewer tokens, the last one is computed again.
            let numbers =
                std::array::from_fn(|token| x[(first + token).min(group.end - 1) * inputs..].as_ptr());
            // A single token has too little arithmetic to hide anything behind, but that several rows are read at once.
            let hides = TOKENS > 1 || ROWS > 1 && weights.len() >= FROM_MEMORY;
            let ahead = if hides && first == group.start { row_bytes } else { 0 };
            // SAFETY: each of the rows has `inputs` numbers of `W` within `weights`, each of the tokens `inputs` within `x`.
            let sums = unsafe { dots::<L, W, ROWS, TOKENS>(rows, numbers, inputs, ahead) };
            for (row, out) in outs.iter_mut().enumerate() {
                if place < out.outputs().len() {
                    for (token, sums) in (first..group.end).zip(&sums) {
                        out.row_mut(token)[place] = sums[row];
                    }
                }
            }
        }
    }
}

/// Each row with each token. Every product is added up in one order, whatever is computed beside it: lane by lane, in `CHAINS` sums
/// that take turns; then these, then lane after lane.
///
/// What lies `ahead` bytes after each row is fetched meanwhile; nothing where that is 0.
///
/// # Safety
///
/// The machine has the level of `L`; `inputs` numbers of `W` lie at each of `rows`, and of its own at each of `x`.
#[inline(always)]
unsafe fn dots<L: Lanes, W: Weight<L>, const ROWS: usize, const TOKENS: usize>(
    rows: [*const u8; ROWS],
    x: [*const L::Number; TOKENS],
    inputs: usize,
    ahead: usize,
) -> [[f32; ROWS]; TOKENS] {
    // SAFETY: every number that is read comes before `inputs`; the level is the caller's promise.
    unsafe {
        let mut sums = [[[L::zero(); ROWS]; TOKENS]; 2];
        let mut input = 0;
        // The fewer instructions for a line, the further a processor that waits for memory runs ahead.
        while ROWS * TOKENS == 1 && input + 8 * L::LANES <= inputs {
            for pair in 0..4 {
                let input = input + 2 * pair * L::LANES;
                step::<L, W, ROWS, TOKENS>(&mut sums[0], &rows, &x, input);
                step::<L, W, ROWS, TOKENS>(&mut sums[L::CHAINS - 1], &rows, &x, input + L::LANES);
            }
            input += 8 * L::LANES;
        }
        while input + 2 * L::LANES <= inputs {
            if ahead != 0 {
                fetch::<L, W, ROWS>(&rows, ahead, input);
            }
            step::<L, W, ROWS, TOKENS>(&mut sums[0], &rows, &x, input);
            step::<L, W, ROWS, TOKENS>(&mut sums[L::CHAINS - 1], &rows, &x, input + L::LANES);
            input += 2 * L::LANES;
        }
        if input + L::LANES <= inputs {
            step::<L, W, ROWS, TOKENS>(&mut sums[0], &rows, &x, input);
            input += L::LANES;
        }
        // Here, and not in each step, all sums go to memory: a loop over them would have them there throughout.
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

/// # Safety
///
/// As of `dots`, with so many lanes left from `input` on.
#[inline(always)]
unsafe fn step<L: Lanes, W: Weight<L>, const ROWS: usize, const TOKENS: usize>(
    sums: &mut [[L; ROWS]; TOKENS],
    rows: &[*const u8; ROWS],
    x: &[*const L::Number; TOKENS],
    input: usize,
) {
    // SAFETY: the caller's promise.
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

/// Of two steps, each line once, whether they are longer than it or shorter.
#[inline(always)]
fn fetch<L: Lanes, W: Weight<L>, const ROWS: usize>(rows: &[*const u8; ROWS], ahead: usize, input: usize) {
    let (at, bytes) = (input * W::BYTES, 2 * L::LANES * W::BYTES);
    if bytes < LINE && !at.is_multiple_of(LINE) {
        return;
    }
    for row in rows {
        for line in 0..bytes.div_ceil(LINE) {
            L::fetch(row.wrapping_add(ahead + at + line * LINE));
        }
    }
}
