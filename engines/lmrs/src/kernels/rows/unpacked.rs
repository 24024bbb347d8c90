//! Packed rows: a few at a time are unpacked into a buffer in the cache, and multiplied there as rows of bf16. The results
//! have the same bits as those of unpacked rows. The code is written once, over `PackedBf16`, and compiled for each format.
#![expect(unsafe_code, reason = "numbers as bytes")]

use std::cell::RefCell;
use std::ops::Range;

use super::activations::{AlignedBf16, PaddedRows, TileInput};
use super::levels;
use crate::formats::floats::InBf16;
use crate::formats::{BF16, Unfit};
use crate::kernels::{Level, Outputs};
use crate::matrix::{Block, Floats, Matrix};

/// A format that packs rows of bf16 into fewer bits: its layout and its readers.
pub(crate) trait PackedBf16: 'static {
    /// The number of rows that are packed together as a block. The last block of a matrix may have fewer.
    const BLOCK_ROWS: usize;
    /// The most tokens for `PackedBf16::dot`. More tokens are multiplied with unpacked rows.
    const MAX_DOT_TOKENS: usize;

    /// Whether rows with this number of inputs can be packed.
    fn can_pack(inputs: usize) -> bool;

    fn row_bytes(inputs: usize) -> usize;

    /// The number of rows that are unpacked together, so that memory is read sequentially: 1 if rows do not interleave.
    fn rows_unpacked_together(inputs: usize) -> usize;

    /// Packs rows of `inputs` numbers, in the layout of files, into the memory of one block.
    fn pack(inputs: usize, rows: &[u8], block: &mut [u8]) -> Result<(), Unfit>;

    fn unpack(level: Level, block: Block, rows: Range<usize>, destination: &mut [u16]);

    /// Multiplies at most `MAX_DOT_TOKENS` tokens with weights unpacked in registers. Sums have the order of `super::dots`.
    ///
    /// # Safety
    ///
    /// The machine has AVX-512 with bf16 products; the matrix has this format; `x` has `matrix.inputs` numbers a token.
    #[cfg(target_arch = "x86_64")]
    unsafe fn dot(matrix: &Matrix, x: &[u16], out: &mut Outputs);
}

/// Bytes of unpacked rows that a single token uses once: half of a first-level cache.
const SINGLE_TOKEN_BYTES: usize = 16 << 10;
/// Bytes of unpacked rows that several tokens use repeatedly: a quarter of a second-level cache of 1 MiB.
const MANY_TOKENS_BYTES: usize = 256 << 10;
/// Bytes of unpacked rows for at most `MAX_FEW_TOKENS` tokens, whose activations fit into the second-level cache too.
const FEW_TOKENS_BYTES: usize = 32 << 10;
const MAX_FEW_TOKENS: usize = 48;
const BF16_BYTES: usize = 2;

thread_local! {
    static UNPACKED: RefCell<AlignedBf16> = RefCell::default();
}

pub fn dot<P: PackedBf16>(level: Level, matrix: &Matrix, x: &[f32], outs: &mut [Outputs]) {
    let out = &mut outs[0];
    let is_single = out.tokens() == 1;
    let max_bytes = if is_single { SINGLE_TOKEN_BYTES } else { MANY_TOKENS_BYTES };
    for_each_unpacked_chunk::<P>(level, matrix, out, max_bytes, |floats, out| {
        // The rows become streams: `dot` multiplies a row of each at once, and they share each read of the activations.
        let (rows, streams) = (out.outputs().len(), levels::rows_at_once(level));
        let stream_rows = rows.div_ceil(streams);
        match streams {
            _ if is_single && rows < streams => levels::dot::<InBf16>(level, &floats, x, &mut [out]),
            2 => {
                let (first, second) = split_after(out, stream_rows);
                levels::dot::<InBf16>(level, &floats, x, &mut [first, second]);
            }
            _ => {
                let (first, rest) = split_after(out, stream_rows);
                let (second, rest) = split_after(rest, stream_rows);
                let (third, fourth) = split_after(rest, stream_rows);
                levels::dot::<InBf16>(level, &floats, x, &mut [first, second, third, fourth]);
            }
        }
    });
}

/// Splits after the first `first` outputs, or at the end if there are fewer.
fn split_after(out: Outputs, first: usize) -> (Outputs, Outputs) {
    let outputs = out.outputs();
    out.split_at(outputs.end.min(outputs.start + first))
}

pub fn multiply_blocked<P: PackedBf16>(level: Level, matrix: &Matrix, x: &PaddedRows, out: &mut Outputs) {
    let max_bytes = if out.tokens() > MAX_FEW_TOKENS { MANY_TOKENS_BYTES } else { FEW_TOKENS_BYTES };
    for_each_unpacked_chunk::<P>(level, matrix, out, max_bytes, |floats, mut out| {
        let Range { start, end } = out.outputs();
        let row_bytes = P::row_bytes(matrix.inputs);
        let next_chunk = end.min(matrix.outputs)..(2 * end - start).min(matrix.outputs);
        let prefetched = matrix.packed_rows(row_bytes, next_chunk);
        levels::multiply_cached(level, &floats, x, prefetched, &mut out);
    });
}

pub fn tile<P: PackedBf16>(level: Level, matrix: &Matrix, packed: &TileInput, out: &mut Outputs) {
    for_each_unpacked_chunk::<P>(level, matrix, out, MANY_TOKENS_BYTES, |floats, mut out| {
        levels::tile(level, &floats, packed, &mut out);
    });
}

/// Unpacks rows in chunks, and calls `multiply` for each chunk. A chunk has at most `max_bytes`, or `rows_unpacked_together`
/// rows if these have more.
fn for_each_unpacked_chunk<P: PackedBf16>(
    level: Level,
    matrix: &Matrix,
    out: &mut Outputs,
    max_bytes: usize,
    mut multiply: impl FnMut(Floats, Outputs),
) {
    let (inputs, outputs) = (matrix.inputs, out.outputs());
    let (unit, row_bytes) = (P::rows_unpacked_together(inputs), P::row_bytes(inputs));
    let chunk_rows = max_bytes / (inputs * BF16_BYTES).max(1) / unit * unit;
    let chunk_rows = chunk_rows.max(unit).min(outputs.len().max(1));
    let mut unpacked = UNPACKED.take();
    for first in outputs.clone().step_by(chunk_rows) {
        let range = first..outputs.end.min(first + chunk_rows);
        unpacked.resize(range.len() * inputs);
        let mut rest = unpacked.all_mut();
        let mut output = range.start;
        while output < range.end {
            let (block, row) = (matrix.block(P::BLOCK_ROWS, row_bytes, output), output % P::BLOCK_ROWS);
            let rows = row..block.rows.min(row + range.end - output);
            output += rows.len();
            let numbers = rest.split_off_mut(..rows.len() * inputs).expect("numbers of each row");
            P::unpack(level, block, rows, numbers);
        }
        multiply(Floats::new(&BF16, inputs, range.clone(), bytes(unpacked.all())), out.part(range));
    }
    UNPACKED.set(unpacked);
}

/// The bytes of numbers, little-endian as in files.
fn bytes(numbers: &[u16]) -> &[u8] {
    // SAFETY: any number is two bytes, and the result borrows `numbers`.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}
