//! Packed rows: some at a time are unpacked into memory that a cache holds, and multiplied there as rows of bf16 that a file has.
//! So they give the same bits. It is written once, over `PackedBf16`, and compiled for each format.
#![expect(unsafe_code, reason = "numbers as bytes")]

use std::cell::RefCell;
use std::ops::Range;

use super::apart::Apart;
use super::packed::Packed;
use super::{Aligned, machine};
use crate::formats::floats::InBf16;
use crate::formats::{BF16, Unfit};
use crate::kernels::{Level, Outputs};
use crate::matrix::{Block, Floats, Matrix};

/// A format whose rows are bf16 in fewer bits: its layout, and how kernels read it.
pub(crate) trait PackedBf16: 'static {
    /// Rows of a block, which are packed together. The last block of a matrix may have fewer.
    const BLOCK: usize;
    /// Tokens that `dot` multiplies at most. More of them are multiplied with rows that were unpacked before.
    const FEW_TOKENS: usize;

    /// Whether rows of so many inputs can be packed.
    fn takes(inputs: usize) -> bool;

    /// Bytes of a row of so many inputs.
    fn row_bytes(inputs: usize) -> usize;

    /// Rows of so many inputs that are unpacked together, at least.
    fn unpacked_together(inputs: usize) -> usize;

    /// So many inputs a row; the rows of a block, as files have them; their memory.
    fn pack(inputs: usize, rows: &[u8], block: &mut [u8]) -> Result<(), Unfit>;

    /// All numbers of some rows of a block, row after row.
    fn unpack(level: Level, block: Block, rows: Range<usize>, into: &mut [u16]);

    /// Products of `FEW_TOKENS` or fewer, out of registers and in the order of `Paired`.
    ///
    /// # Safety
    ///
    /// The machine has AVX-512 and its products of bf16; the matrix is of this format; `x` has its inputs for each token of `out`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn dot(matrix: &Matrix, x: &[u16], out: &mut Outputs);
}

/// Of rows that one token meets once: half of a first cache, where those that stand together are no more.
const ONCE_BYTES: usize = 16 << 10;
/// And of those that several tokens meet again: half of a second one.
const AGAIN_BYTES: usize = 256 << 10;
/// While the tokens are so few that a second cache holds them beside all else, rows need not stay for long.
const FEW_BYTES: usize = 32 << 10;
const SEVERAL: usize = 48;
/// Of a number.
const BYTES: usize = 2;

thread_local! {
    static UNPACKED: RefCell<Aligned> = RefCell::default();
}

pub fn dot<P: PackedBf16>(level: Level, matrix: &Matrix, x: &[f32], outs: &mut [Outputs]) {
    let out = &mut outs[0];
    let once = out.tokens() == 1;
    by_blocks::<P>(level, matrix, out, if once { ONCE_BYTES } else { AGAIN_BYTES }, |floats, out| {
        // Several rows share what is read of a token.
        let (rows, at_once) = (out.outputs().len(), machine::rows(level));
        let stretch = rows.div_ceil(at_once);
        match at_once {
            _ if once && rows < at_once => machine::dot::<InBf16>(level, &floats, x, &mut [out]),
            2 => {
                let (first, second) = cut(out, stretch);
                machine::dot::<InBf16>(level, &floats, x, &mut [first, second]);
            }
            _ => {
                let (first, rest) = cut(out, stretch);
                let (second, rest) = cut(rest, stretch);
                let (third, fourth) = cut(rest, stretch);
                machine::dot::<InBf16>(level, &floats, x, &mut [first, second, third, fourth]);
            }
        }
    });
}

/// The first so many outputs, as far as they are there, and the others.
fn cut(out: Outputs, first: usize) -> (Outputs, Outputs) {
    let outputs = out.outputs();
    out.split_at(outputs.end.min(outputs.start + first))
}

pub fn pass<P: PackedBf16>(level: Level, matrix: &Matrix, x: &Apart, out: &mut Outputs) {
    let most = if out.tokens() > SEVERAL { AGAIN_BYTES } else { FEW_BYTES };
    by_blocks::<P>(level, matrix, out, most, |floats, mut out| {
        let Range { start, end } = out.outputs();
        let row_bytes = P::row_bytes(matrix.inputs);
        let next = end.min(matrix.outputs)..(2 * end - start).min(matrix.outputs);
        let next = matrix.packed_rows(row_bytes, next);
        machine::pass_near(level, &floats, x, next, &mut out);
    });
}

pub fn tile<P: PackedBf16>(level: Level, matrix: &Matrix, packed: &Packed, out: &mut Outputs) {
    by_blocks::<P>(level, matrix, out, AGAIN_BYTES, |floats, mut out| {
        machine::tile(level, &floats, packed, &mut out);
    });
}

/// As many rows at once as so many bytes hold, and at least those that are unpacked together.
fn by_blocks<P: PackedBf16>(
    level: Level,
    matrix: &Matrix,
    out: &mut Outputs,
    most_bytes: usize,
    mut multiply: impl FnMut(Floats, Outputs),
) {
    let (inputs, outputs) = (matrix.inputs, out.outputs());
    let (together, row_bytes) = (P::unpacked_together(inputs), P::row_bytes(inputs));
    let most = most_bytes / (inputs * BYTES).max(1) / together * together;
    let most = most.max(together).min(outputs.len().max(1));
    let mut unpacked = UNPACKED.take();
    for first in outputs.clone().step_by(most) {
        let some = first..outputs.end.min(first + most);
        unpacked.resize(some.len() * inputs);
        let mut rest = unpacked.all_mut();
        let mut output = some.start;
        while output < some.end {
            let (block, row) = (matrix.block(P::BLOCK, row_bytes, output), output % P::BLOCK);
            let rows = row..block.rows.min(row + some.end - output);
            output += rows.len();
            let own = rest.split_off_mut(..rows.len() * inputs).expect("numbers of each row");
            P::unpack(level, block, rows, own);
        }
        multiply(Floats::new(&BF16, inputs, some.clone(), bytes(unpacked.all())), out.part(some));
    }
    UNPACKED.set(unpacked);
}

/// As a machine with the lowest byte first has them, which is how files have them.
fn bytes(numbers: &[u16]) -> &[u8] {
    // SAFETY: any number is two bytes, and `numbers` is borrowed for as long as they are.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}
