//! Rows of bf16 by several tokens, as pairs: each weight is read from memory once, and stays near while all tokens pass.
//!
//! ```text
//! for each few tokens
//!     for some inputs, so that those of the tokens stay in the first cache
//!         for each four rows of those that a second cache holds: sums[token][row] += weights[row] * x[token], in registers
//! ```
//!
//! Meanwhile the rows that come next are fetched, line after line and evenly, so that memory works while arithmetic does. Sums
//! are taken in the order of `dots`: what is kept between some inputs and the next are all lanes. `tile` is the innermost line, and
//! `ahead` what is fetched.
#![expect(unsafe_code, reason = "weights at any address, and instructions of a level")]

mod ahead;
mod tile;

use std::cell::RefCell;
use std::ops::Range;

use super::apart::{Apart, NUMBERS};
use super::lanes::{Lanes, Number};
use super::paired::{Paired, totals};
use crate::kernels::Outputs;
use crate::matrix::Floats;
use ahead::Ahead;
use tile::{ROWS, Sums, TOKENS, Tile};

/// Tokens whose totals are taken at once.
const TOTALS: usize = 4;
/// Of so many inputs those of six tokens and of four rows are about a first cache. (Measured: `MEASURED.md`.)
const INPUTS: usize = 2048;
/// Of a weight.
const BYTES: usize = 2;
/// Of the rows that all tokens pass over, and as many that are fetched meanwhile: half of a second cache.
const BLOCK_BYTES: usize = 256 << 10;
/// And of the first of a product, which nobody has fetched; the next are twice as many, until they are a block.
const FIRST_BYTES: usize = 32 << 10;
/// Bytes that memory gives at once.
const LINE: usize = 64;

/// What a thread needs for it, kept for the next product.
#[derive(Default)]
struct Scratch {
    /// Of each four rows; of those that need not be kept, one place for all.
    sums: Vec<Sums>,
    /// Where what was fetched last begins, or nowhere.
    fetched: usize,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// # Safety
///
/// The machine has AVX-512 and its products of bf16; all else is what `rows::pass` asserts.
#[inline(always)]
pub unsafe fn multiply(floats: &Floats, x: &Apart, out: &mut Outputs) {
    let mut scratch = SCRATCH.take();
    let outputs = out.outputs();
    let rows_of = |bytes: usize| (bytes / (floats.inputs * BYTES).max(1)).max(ROWS) / ROWS * ROWS;
    let weights = |outputs: &Range<usize>| floats.rows(outputs.start..outputs.end.min(floats.outputs.end));
    let mut block = rows_of(BLOCK_BYTES);
    if scratch.fetched != weights(&outputs).as_ptr().addr() {
        block = rows_of(FIRST_BYTES);
        let first = outputs.start..outputs.start + block;
        weights(&first).chunks(LINE).for_each(|line| Paired::fetch(line.as_ptr()));
    }
    let mut first = outputs.start;
    while first < outputs.end {
        let rows = first..outputs.end.min(first + block);
        block = (2 * block).min(rows_of(BLOCK_BYTES));
        let next = weights(&(rows.end..rows.end + block));
        (scratch.fetched, first) = (next.as_ptr().addr(), rows.end);
        // SAFETY: the caller's promise.
        unsafe { Pass { floats, x, outputs: rows, next }.run(&mut scratch.sums, out) };
    }
    SCRATCH.set(scratch);
}

/// All tokens over rows that are near already, the outputs of `out`, while `next` is fetched.
///
/// # Safety
///
/// As of `multiply`.
#[inline(always)]
pub unsafe fn multiply_near(floats: &Floats, x: &Apart, next: &[u8], out: &mut Outputs) {
    let mut scratch = SCRATCH.take();
    // SAFETY: the caller's promise.
    unsafe { Pass { floats, x, outputs: out.outputs(), next }.run(&mut scratch.sums, out) };
    SCRATCH.set(scratch);
}

/// All tokens over some rows, while the next ones are fetched.
struct Pass<'a> {
    floats: &'a Floats<'a>,
    x: &'a Apart,
    /// Some of those that are written.
    outputs: Range<usize>,
    next: &'a [u8],
}

impl Pass<'_> {
    /// # Safety
    ///
    /// As of `multiply`; `out` has the outputs.
    #[inline(always)]
    unsafe fn run(self, sums: &mut Vec<Sums>, out: &mut Outputs) {
        let Self { floats, x, outputs, next } = self;
        let inputs = floats.inputs;
        let quads = outputs.len().div_ceil(ROWS);
        let groups = x.tokens().div_ceil(TOKENS);
        let chunks = inputs.div_ceil(INPUTS).max(1);
        // Where nothing is to be kept, many places would leave less of the first cache to the tokens.
        let apart = usize::from(chunks > 1);
        // SAFETY: the caller's promise.
        sums.resize((quads * apart).max(1), [[unsafe { Paired::zero() }; ROWS]; TOKENS]);
        let chunk = inputs.div_ceil(chunks).next_multiple_of(NUMBERS);
        let mut ahead = Ahead::of(next, groups * chunks * quads);
        for group in 0..groups {
            // In equal shares.
            let tokens = group * x.tokens() / groups..(group + 1) * x.tokens() / groups;
            for begin in (0..inputs.max(1)).step_by(chunk.max(1)) {
                let inputs = begin..inputs.min(begin + chunk);
                let part = Part { floats, x, tokens: tokens.clone(), inputs };
                for quad in 0..quads {
                    let four = outputs.start + quad * ROWS..outputs.end;
                    let sums = &mut sums[quad * apart];
                    // SAFETY: the caller's promise; there are such outputs, inputs and tokens, `TOKENS` at most.
                    unsafe {
                        part.add(four.clone(), &mut ahead, sums);
                        if part.inputs.end == floats.inputs {
                            part.store(four, sums, out);
                        }
                    }
                }
            }
        }
    }
}

/// Some inputs of a few tokens.
struct Part<'a> {
    floats: &'a Floats<'a>,
    x: &'a Apart,
    tokens: Range<usize>,
    inputs: Range<usize>,
}

impl Part<'_> {
    /// What these inputs give the first four of `outputs`; where there are fewer, the last one again.
    ///
    /// # Safety
    ///
    /// As of `multiply`; there are such outputs, inputs and tokens, `TOKENS` at most.
    #[inline(always)]
    unsafe fn add(&self, outputs: Range<usize>, ahead: &mut Ahead, sums: &mut Sums) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.tokens.len() {
                3 => self.add_tokens::<3>(outputs, ahead, sums),
                4 => self.add_tokens::<4>(outputs, ahead, sums),
                5 => self.add_tokens::<5>(outputs, ahead, sums),
                6 => self.add_tokens::<6>(outputs, ahead, sums),
                other => unreachable!("{other} is no share of several tokens"),
            }
        }
    }

    /// # Safety
    ///
    /// As of `add`, with so many tokens.
    #[inline(always)]
    unsafe fn add_tokens<const COUNT: usize>(
        &self,
        outputs: Range<usize>,
        ahead: &mut Ahead,
        sums: &mut Sums,
    ) {
        let mut rows = [std::ptr::null(); ROWS];
        for (place, row) in rows.iter_mut().enumerate() {
            let output = (outputs.start + place).min(outputs.end - 1);
            *row = self.floats.rows(output..output + 1)[self.inputs.start * BYTES..].as_ptr();
        }
        let mut x = [std::ptr::null(); COUNT];
        for (place, x) in x.iter_mut().enumerate() {
            let lines = self.x.token(self.tokens.start + place);
            *x = lines[self.inputs.start / NUMBERS..].as_ptr().cast();
        }
        let tile = Tile { rows, x, steps: self.inputs.len() / NUMBERS, goes_on: self.inputs.start > 0 };
        let (from, lines) = ahead.next(tile.steps);
        // SAFETY: of each row and each token there are as many numbers as `inputs` says, which begin at a whole line; the level is
        // the caller's promise.
        unsafe {
            match lines {
                0 => tile.add::<0>(from, sums),
                1 => tile.add::<1>(from, sums),
                2 => tile.add::<2>(from, sums),
                _ => tile.add::<4>(from, sums),
            }
        }
    }

    /// The totals of the sums to their places, with what does not fill a register.
    ///
    /// # Safety
    ///
    /// As of `multiply`.
    #[inline(always)]
    unsafe fn store(&self, outputs: Range<usize>, sums: &Sums, out: &mut Outputs) {
        let rows = ROWS.min(outputs.len());
        let place = outputs.start - out.outputs().start;
        for first in (0..self.tokens.len()).step_by(TOTALS) {
            let mut some = [&sums[0]; TOTALS];
            for (place, token) in some.iter_mut().enumerate() {
                *token = &sums[(first + place).min(TOKENS - 1)];
            }
            // SAFETY: the caller's promise.
            let mut found = unsafe { totals(some) };
            for (token, totals) in (self.tokens.start + first..self.tokens.end).zip(&mut found) {
                if !self.floats.inputs.is_multiple_of(NUMBERS) {
                    self.add_rest(token, outputs.start, &mut totals[..rows]);
                }
                let places = &mut out.row_mut(token)[place..place + rows];
                match <&mut [f32; ROWS]>::try_from(&mut *places) {
                    Ok(places) => *places = *totals,
                    Err(_) => places.copy_from_slice(&totals[..rows]),
                }
            }
        }
    }

    /// To the totals of some outputs what the last inputs give them, that are no whole line.
    fn add_rest(&self, token: usize, first: usize, totals: &mut [f32]) {
        let inputs = self.floats.inputs;
        let rest = inputs / NUMBERS * NUMBERS..inputs;
        let x = &self.x.token(token)[inputs / NUMBERS].0;
        let rows = self.floats.rows(first..first + totals.len()).chunks(inputs * BYTES);
        for (row, total) in rows.zip(totals) {
            let (weights, _) = row[rest.start * BYTES..].as_chunks::<BYTES>();
            for (weight, x) in weights.iter().zip(x) {
                *total += u16::from_le_bytes(*weight).widen() * x.widen();
            }
        }
    }
}
