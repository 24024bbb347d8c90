//! Rows of bf16 times several tokens, as pairs. Each weight is read from memory once and stays in the cache for all tokens.
//!
//! ```text
//! for each block of rows that fills a quarter of a second-level cache
//!     for each group of a few tokens
//!         for each chunk of inputs that lets the tokens' numbers stay in the first-level cache
//!             for every four rows of the block: sums[token][row] += weights[row] * x[token], in registers
//! ```
//!
//! Meanwhile the next block is prefetched, line by line and evenly, so that memory and arithmetic work at the same time. The
//! order of additions is that of `dots.rs`: the lanes of a sum are added together only after the last chunk of inputs.
#![expect(unsafe_code, reason = "unaligned weights, and SIMD instructions")]
#![expect(clippy::needless_range_loop, reason = "indices of several arrays at once, as in the formula")]

use std::cell::RefCell;
use std::ops::Range;

use super::BLOCKED_ROWS;
use super::activations::{LINE_NUMBERS, PaddedRows};
use super::lanes::{Lanes, Number};
use super::paired::{Paired, totals};
use crate::kernels::Outputs;
use crate::matrix::Floats;

/// Tokens for which one call of `totals` adds up the lanes.
const TOTAL_TOKENS: usize = 4;
/// The most inputs of a chunk: six tokens and four rows of this length fill about a first-level cache (`MEASURED.md`).
const MAX_CHUNK_INPUTS: usize = 2048;
const NUMBER_BYTES: usize = 2;
/// Bytes of a block of rows, which all tokens use: a quarter of a second-level cache of 1 MiB. Meanwhile the next block is
/// prefetched.
const BLOCK_BYTES: usize = 256 << 10;
/// Bytes of the first block of a product, if the thread's last product did not prefetch it. Each next block is twice as large,
/// up to `BLOCK_BYTES`.
const FIRST_BLOCK_BYTES: usize = 32 << 10;
const LINE_BYTES: usize = 64;

/// Buffers of a thread, kept for the next product.
#[derive(Default)]
struct Scratch {
    /// An entry for every four rows. With a single chunk of inputs, one entry serves all rows in turn.
    sums: Vec<Sums>,
    /// The address of the rows that the last product of this thread prefetched, or 0.
    prefetched: usize,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// # Safety
/// The machine has AVX-512 with bf16 products; the asserts of `rows::multiply_blocked` hold.
#[inline(always)]
pub unsafe fn multiply(floats: &Floats, x: &PaddedRows, out: &mut Outputs) {
    let mut scratch = SCRATCH.take();
    let outputs = out.outputs();
    let rows_that_fit =
        |bytes: usize| (bytes / (floats.inputs * NUMBER_BYTES).max(1)).max(ROWS) / ROWS * ROWS;
    let weights = |outputs: &Range<usize>| floats.rows(outputs.start..outputs.end.min(floats.outputs.end));
    let mut block_rows = rows_that_fit(BLOCK_BYTES);
    if scratch.prefetched != weights(&outputs).as_ptr().addr() {
        block_rows = rows_that_fit(FIRST_BLOCK_BYTES);
        let first_block = outputs.start..outputs.start + block_rows;
        weights(&first_block).chunks(LINE_BYTES).for_each(|line| Paired::prefetch_line(line.as_ptr()));
    }
    let mut first = outputs.start;
    while first < outputs.end {
        let rows = first..outputs.end.min(first + block_rows);
        block_rows = (2 * block_rows).min(rows_that_fit(BLOCK_BYTES));
        let next = weights(&(rows.end..rows.end + block_rows));
        (scratch.prefetched, first) = (next.as_ptr().addr(), rows.end);
        // SAFETY: the caller guarantees this.
        unsafe { Pass { floats, x, outputs: rows, next }.run(&mut scratch.sums, out) };
    }
    SCRATCH.set(scratch);
}

/// Multiplies all tokens with rows that are in the cache already. Meanwhile it prefetches `next`, the memory of the next rows.
///
/// # Safety
/// The same as for `multiply`.
#[inline(always)]
pub unsafe fn multiply_cached(floats: &Floats, x: &PaddedRows, next: &[u8], out: &mut Outputs) {
    let mut scratch = SCRATCH.take();
    // SAFETY: the caller guarantees this.
    unsafe { Pass { floats, x, outputs: out.outputs(), next }.run(&mut scratch.sums, out) };
    SCRATCH.set(scratch);
}

/// The product of all tokens with one block of rows. Meanwhile the next block is prefetched.
struct Pass<'a> {
    floats: &'a Floats<'a>,
    x: &'a PaddedRows,
    outputs: Range<usize>,
    next: &'a [u8],
}

impl Pass<'_> {
    /// # Safety
    /// The same as for `multiply`; `out` has the outputs.
    #[inline(always)]
    unsafe fn run(self, sums: &mut Vec<Sums>, out: &mut Outputs) {
        let Self { floats, x, outputs, next } = self;
        let inputs = floats.inputs;
        // Sets of four rows.
        let quads = outputs.len().div_ceil(ROWS);
        let groups = x.tokens().div_ceil(MAX_TILE_TOKENS);
        let chunks = inputs.div_ceil(MAX_CHUNK_INPUTS).max(1);
        // With a single chunk, one shared entry leaves more of the first-level cache to the tokens.
        let quad_stride = usize::from(chunks > 1);
        // SAFETY: the caller guarantees this.
        sums.resize((quads * quad_stride).max(1), [[unsafe { Paired::zero() }; ROWS]; MAX_TILE_TOKENS]);
        let chunk_inputs = inputs.div_ceil(chunks).next_multiple_of(LINE_NUMBERS);
        let mut prefetch = Prefetch::of(next, groups * chunks * quads);
        for group in 0..groups {
            // The groups have equal sizes, or differ by one token.
            let tokens = group * x.tokens() / groups..(group + 1) * x.tokens() / groups;
            for begin in (0..inputs.max(1)).step_by(chunk_inputs.max(1)) {
                let inputs = begin..inputs.min(begin + chunk_inputs);
                let chunk = InputChunk { floats, x, tokens: tokens.clone(), inputs };
                for quad in 0..quads {
                    let quad_outputs = outputs.start + quad * ROWS..outputs.end;
                    let sums = &mut sums[quad * quad_stride];
                    // SAFETY: the caller guarantees this; the outputs, inputs and at most `MAX_TILE_TOKENS` tokens exist.
                    unsafe {
                        chunk.add(quad_outputs.clone(), &mut prefetch, sums);
                        if chunk.inputs.end == floats.inputs {
                            chunk.store(quad_outputs, sums, out);
                        }
                    }
                }
            }
        }
    }
}

/// A chunk of inputs of a few tokens.
struct InputChunk<'a> {
    floats: &'a Floats<'a>,
    x: &'a PaddedRows,
    tokens: Range<usize>,
    inputs: Range<usize>,
}

impl InputChunk<'_> {
    /// Adds the products of these inputs for the first four of `outputs`. If there are fewer, the last one is repeated.
    ///
    /// # Safety
    /// The same as for `multiply`; the outputs, the inputs and at most `MAX_TILE_TOKENS` tokens exist.
    #[inline(always)]
    unsafe fn add(&self, outputs: Range<usize>, prefetch: &mut Prefetch, sums: &mut Sums) {
        // SAFETY: the caller guarantees this.
        unsafe {
            match self.tokens.len() {
                3 => self.add_tokens::<3>(outputs, prefetch, sums),
                4 => self.add_tokens::<4>(outputs, prefetch, sums),
                5 => self.add_tokens::<5>(outputs, prefetch, sums),
                6 => self.add_tokens::<6>(outputs, prefetch, sums),
                count => unreachable!("groups have 3 to 6 tokens, not {count}"),
            }
        }
    }

    /// # Safety
    /// The same as for `add`, with `COUNT` tokens.
    #[inline(always)]
    unsafe fn add_tokens<const COUNT: usize>(
        &self,
        outputs: Range<usize>,
        prefetch: &mut Prefetch,
        sums: &mut Sums,
    ) {
        let mut rows = [std::ptr::null(); ROWS];
        for (index, row) in rows.iter_mut().enumerate() {
            let output = (outputs.start + index).min(outputs.end - 1);
            *row = self.floats.rows(output..output + 1)[self.inputs.start * NUMBER_BYTES..].as_ptr();
        }
        let mut x = [std::ptr::null(); COUNT];
        for (index, x) in x.iter_mut().enumerate() {
            let lines = self.x.token(self.tokens.start + index);
            *x = lines[self.inputs.start / LINE_NUMBERS..].as_ptr().cast();
        }
        let tile = RegisterTile {
            rows,
            x,
            steps: self.inputs.len() / LINE_NUMBERS,
            continues: self.inputs.start > 0,
        };
        let (prefetched, lines) = prefetch.next(tile.steps);
        // SAFETY: each row and each token has the numbers of `inputs`, from a whole line on; the caller guarantees the level.
        unsafe {
            match lines {
                0 => tile.add::<0>(prefetched, sums),
                1 => tile.add::<1>(prefetched, sums),
                2 => tile.add::<2>(prefetched, sums),
                _ => tile.add::<4>(prefetched, sums),
            }
        }
    }

    /// Sums the lanes, adds the last inputs, which do not fill a line, and stores the totals.
    ///
    /// # Safety
    /// The same as for `multiply`.
    #[inline(always)]
    unsafe fn store(&self, outputs: Range<usize>, sums: &Sums, out: &mut Outputs) {
        let rows = ROWS.min(outputs.len());
        let column = outputs.start - out.outputs().start;
        for first in (0..self.tokens.len()).step_by(TOTAL_TOKENS) {
            let mut token_sums = [&sums[0]; TOTAL_TOKENS];
            for (index, token) in token_sums.iter_mut().enumerate() {
                *token = &sums[(first + index).min(MAX_TILE_TOKENS - 1)];
            }
            // SAFETY: the caller guarantees this.
            let mut tile_totals = unsafe { totals(token_sums) };
            for (token, totals) in (self.tokens.start + first..self.tokens.end).zip(&mut tile_totals) {
                if !self.floats.inputs.is_multiple_of(LINE_NUMBERS) {
                    self.add_last_inputs(token, outputs.start, &mut totals[..rows]);
                }
                let token_outputs = &mut out.row_mut(token)[column..column + rows];
                match <&mut [f32; ROWS]>::try_from(&mut *token_outputs) {
                    Ok(token_outputs) => *token_outputs = *totals,
                    Err(_) => token_outputs.copy_from_slice(&totals[..rows]),
                }
            }
        }
    }

    /// Adds the products of the last inputs, which do not fill a line.
    fn add_last_inputs(&self, token: usize, first: usize, totals: &mut [f32]) {
        let inputs = self.floats.inputs;
        let last_inputs = inputs / LINE_NUMBERS * LINE_NUMBERS..inputs;
        let x = &self.x.token(token)[inputs / LINE_NUMBERS].0;
        let rows = self.floats.rows(first..first + totals.len()).chunks(inputs * NUMBER_BYTES);
        for (row, total) in rows.zip(totals) {
            let (weights, _) = row[last_inputs.start * NUMBER_BYTES..].as_chunks::<NUMBER_BYTES>();
            for (weight, x) in weights.iter().zip(x) {
                *total += u16::from_le_bytes(*weight).widen() * x.widen();
            }
        }
    }
}

const ROWS: usize = BLOCKED_ROWS;
/// The most tokens of a register tile: their sums fill the registers.
const MAX_TILE_TOKENS: usize = 6;

/// `[token][row]`
type Sums = [[Paired; ROWS]; MAX_TILE_TOKENS];

/// The innermost product: four rows by `COUNT` tokens, with the sums in registers.
struct RegisterTile<const COUNT: usize> {
    rows: [*const u8; ROWS],
    x: [*const u16; COUNT],
    /// Steps: one whole line of inputs each.
    steps: usize,
    /// Whether the products are added to the sums of earlier inputs. Otherwise the sums start at zero.
    continues: bool,
}

impl<const COUNT: usize> RegisterTile<COUNT> {
    /// Adds the products of all steps to `stored`. Each step prefetches `LINES` lines, from the address `prefetched` on.
    ///
    /// # Safety
    /// The machine has AVX-512 with bf16 products; each pointer has the numbers of all steps.
    #[inline(always)]
    unsafe fn add<const LINES: usize>(&self, prefetched: *const u8, stored: &mut Sums) {
        // SAFETY: the caller guarantees this.
        unsafe {
            let mut sums = [[Paired::zero(); ROWS]; COUNT];
            if self.continues {
                for (sums, stored) in sums.iter_mut().zip(stored.iter()) {
                    *sums = *stored;
                }
            }
            for step in 0..self.steps {
                for line in 0..LINES {
                    Paired::prefetch_line(prefetched.wrapping_add((step * LINES + line) * LINE_BYTES));
                }
                let mut weights = [Paired::zero(); ROWS];
                for row in 0..ROWS {
                    weights[row] = Paired::from_bf16(self.rows[row].add(step * LINE_BYTES));
                }
                for token in 0..COUNT {
                    let x = Paired::load(self.x[token].add(step * LINE_NUMBERS));
                    for row in 0..ROWS {
                        sums[token][row] = sums[token][row].add_product(weights[row], x);
                    }
                }
            }
            for (stored, sums) in stored.iter_mut().zip(sums) {
                *stored = sums;
            }
        }
    }
}

/// `Prefetch` counts in these parts of a line, because the number of lines for each register tile is not whole.
const PARTS_PER_LINE: usize = 1 << 16;

/// Spreads the prefetch of the next rows evenly over the register tiles of the current rows.
struct Prefetch {
    next: *const u8,
    prefetched_lines: usize,
    parts_per_tile: usize,
    /// Parts of lines that should be prefetched by the end of the current tile.
    due_parts: usize,
}

impl Prefetch {
    fn of(next: &[u8], tiles: usize) -> Self {
        let parts_per_tile = (next.len() / LINE_BYTES * PARTS_PER_LINE).div_ceil(tiles.max(1));
        Self { next: next.as_ptr(), prefetched_lines: 0, parts_per_tile, due_parts: 0 }
    }

    /// Takes the memory that the next register tile prefetches, in this number of steps. Returns its address, and the lines of
    /// each step (0, 1, 2 or 4).
    #[inline(always)]
    fn next(&mut self, steps: usize) -> (*const u8, usize) {
        self.due_parts += self.parts_per_tile;
        let due_lines = (self.due_parts / PARTS_PER_LINE).saturating_sub(self.prefetched_lines);
        let lines = [4, 2, 1].into_iter().find(|lines| due_lines >= lines * steps).unwrap_or(0);
        let from = self.next.wrapping_add(self.prefetched_lines * LINE_BYTES);
        self.prefetched_lines += lines * steps;
        (from, lines)
    }
}
