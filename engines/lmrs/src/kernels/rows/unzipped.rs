//! Zipped rows: some at a time are unpacked into memory that a cache holds, and multiplied there as rows of bf16 that a file has.
//! So they give the same bits.
#![expect(unsafe_code, reason = "numbers as bytes")]

use std::cell::RefCell;
use std::ops::Range;

use super::apart::Apart;
use super::packed::Packed;
use super::{Aligned, machine};
use crate::formats::BF16;
use crate::formats::floats::InBf16;
use crate::kernels::zipped::{BLOCK, TOGETHER};
use crate::kernels::{Level, Outputs, zipped};
use crate::matrix::{Floats, Matrix};

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

pub fn dot(level: Level, matrix: &Matrix, x: &[f32], outs: &mut [Outputs]) {
    let out = &mut outs[0];
    let once = out.tokens() == 1;
    by_blocks(level, matrix, out, if once { ONCE_BYTES } else { AGAIN_BYTES }, |floats, out| {
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

pub fn pass(level: Level, matrix: &Matrix, x: &Apart, out: &mut Outputs) {
    let most = if out.tokens() > SEVERAL { AGAIN_BYTES } else { FEW_BYTES };
    by_blocks(level, matrix, out, most, |floats, mut out| {
        let Range { start, end } = out.outputs();
        let next = matrix.zipped_bytes(end.min(matrix.outputs)..(2 * end - start).min(matrix.outputs));
        machine::pass_near(level, &floats, x, next, &mut out);
    });
}

pub fn tile(level: Level, matrix: &Matrix, packed: &Packed, out: &mut Outputs) {
    by_blocks(level, matrix, out, AGAIN_BYTES, |floats, mut out| {
        machine::tile(level, &floats, packed, &mut out);
    });
}

/// As many rows at once as so many bytes hold, and at least those that stand together: of rows in parts a whole block.
fn by_blocks(
    level: Level,
    matrix: &Matrix,
    out: &mut Outputs,
    most_bytes: usize,
    mut multiply: impl FnMut(Floats, Outputs),
) {
    let (inputs, outputs) = (matrix.inputs, out.outputs());
    let together = if zipped::parts(inputs).count() > 1 { BLOCK } else { TOGETHER };
    let most = most_bytes / (inputs * BYTES).max(1) / together * together;
    let most = most.max(together).min(outputs.len().max(1));
    let mut unpacked = UNPACKED.take();
    for first in outputs.clone().step_by(most) {
        let some = first..outputs.end.min(first + most);
        unpacked.resize(some.len() * inputs);
        let mut rest = unpacked.all_mut();
        let mut output = some.start;
        while output < some.end {
            let (block, row) = (matrix.zipped(output), output % BLOCK);
            let rows = row..block.rows().min(row + some.end - output);
            output += rows.len();
            let own = rest.split_off_mut(..rows.len() * inputs).expect("numbers of each row");
            block.unpack(level, rows, own);
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
