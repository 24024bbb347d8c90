//! Packed rows by a token or two, with each number unpacked in a register and multiplied there: what memory gives is all that is read.
//!
//! Rows that stand together are multiplied together, so that the activations are read once for all of them. Sums are taken in the
//! order of `dots`: from one part of a row to its next all lanes are kept.
#![expect(unsafe_code, reason = "instructions of a level")]

use std::arch::x86_64::*;
use std::iter::Peekable;

use super::avx512::Row;
use super::{Aside, BLOCK, Block, FUSED, Group, STRETCH, STRETCH_BYTES, TOGETHER, parts, row_bytes};
use crate::kernels::Outputs;
use crate::kernels::rows::lanes::Lanes;
use crate::kernels::rows::paired::Paired;
use crate::matrix::Matrix;

/// Registers of a stretch.
const STEPS: usize = STRETCH / Paired::LANES;
/// Numbers of a stretch.
type Numbers = [__m512i; STEPS];

/// # Safety
///
/// The machine has AVX-512 and its products of bf16; the matrix is of this format; `x` has its inputs for each token of `out`, of which
/// there are `FUSED` at most.
#[inline(always)]
pub unsafe fn multiply(matrix: &Matrix, x: &[u16], out: &mut Outputs) {
    // SAFETY: the caller's promise.
    unsafe {
        match out.tokens() {
            1 => blocks::<1>(matrix, x, out),
            FUSED => blocks::<FUSED>(matrix, x, out),
            tokens => unreachable!("{tokens} tokens are more than registers take"),
        }
    }
}

/// # Safety
///
/// As of `multiply`, with so many tokens.
#[inline(always)]
unsafe fn blocks<const TOKENS: usize>(matrix: &Matrix, x: &[u16], out: &mut Outputs) {
    let outputs = out.outputs();
    assert!(x.len() == TOKENS * matrix.inputs, "inputs of each token");
    let mut output = outputs.start;
    while output < outputs.end {
        let block = Block::of(matrix.block(BLOCK, row_bytes(matrix.inputs), output));
        let first = output % BLOCK;
        let own = first..block.rows().min(first + outputs.end - output);
        // SAFETY: the caller's promise; so below.
        let mut sums = [[unsafe { Paired::zero() }; TOKENS]; BLOCK];
        for part in parts(matrix.inputs) {
            let x: [_; TOKENS] = std::array::from_fn(|token| &x[token * matrix.inputs..][part.clone()]);
            let mut row = own.start;
            while row < own.end {
                let group = block.group(&part, row);
                let whole = row % TOGETHER == 0 && group.rows() == TOGETHER && own.end - row >= TOGETHER;
                if whole {
                    unsafe { rows::<TOGETHER, TOKENS>(&group, 0, x, &mut sums[row..]) };
                    row += TOGETHER;
                } else {
                    unsafe { rows::<1, TOKENS>(&group, row % TOGETHER, x, &mut sums[row..]) };
                    row += 1;
                }
            }
        }
        for token in 0..TOKENS {
            let places = &mut out.row_mut(token)[output - outputs.start..][..own.len()];
            for (place, sums) in places.iter_mut().zip(&sums[own.clone()]) {
                *place = unsafe { sums[token].sum() };
            }
        }
        output += own.len();
    }
}

/// Adds to the sums of so many rows from this one on what this part of them gives with each token.
///
/// # Safety
///
/// The machine has AVX-512 and its products of bf16.
#[inline(always)]
unsafe fn rows<const ROWS: usize, const TOKENS: usize>(
    group: &Group,
    first_row: usize,
    x: [&[u16]; TOKENS],
    kept_sums: &mut [[Paired; TOKENS]],
) {
    let inputs = group.inputs();
    assert!(
        x.iter().all(|x| x.len() == inputs) && first_row + ROWS <= group.rows(),
        "rows of a group, a part of a token"
    );
    // SAFETY: the caller's promise; so below.
    let heads = std::array::from_fn::<_, ROWS, _>(|row| unsafe { Row::of(group.head(first_row + row)) });
    let mut kept = std::array::from_fn::<_, ROWS, _>(|row| group.asides(first_row + row).peekable());
    let mut due = next_place(&mut kept);
    let mut sums: [_; ROWS] = std::array::from_fn(|row| kept_sums[row]);
    let x = x.map(<[u16]>::as_ptr);
    let stretches = group.stretches(first_row).chunks(group.step()).take(inputs / STRETCH);
    for (number, stretches) in stretches.enumerate() {
        let first = number * STRETCH;
        let stretches = &stretches[..ROWS * STRETCH_BYTES];
        // SAFETY: there are so many stretches of inputs, as was asserted.
        let load =
            |token: usize, step: usize| unsafe { Paired::load(x[token].add(first + step * Paired::LANES)) };
        let x: [[Paired; STEPS]; TOKENS] =
            std::array::from_fn(|token| std::array::from_fn(|step| load(token, step)));
        let is_due = due < first + STRETCH;
        for row in 0..ROWS {
            let mut numbers = unsafe { heads[row].numbers(stretches[row * STRETCH_BYTES..].as_ptr()) };
            if is_due {
                while let Some(aside) = kept[row].next_if(|aside| aside.place() < first + STRETCH) {
                    numbers = unsafe { put(numbers, aside, first) };
                }
            }
            for (step, numbers) in numbers.into_iter().enumerate() {
                for (sum, x) in sums[row].iter_mut().zip(&x) {
                    *sum = unsafe { sum.add_product(Paired::of(numbers), x[step]) };
                }
            }
        }
        if is_due {
            due = next_place(&mut kept);
        }
    }
    // Without it the compiler has all of this otherwise, and slower. (Measured, and so is unrolling by hand: two tokens lose.)
    kept_sums[..ROWS].copy_from_slice(&std::hint::black_box(sums));
}

/// Of the next number that is kept aside, of whichever row.
#[inline(always)]
fn next_place(kept: &mut [Peekable<impl Iterator<Item = Aside>>]) -> usize {
    kept.iter_mut().filter_map(|kept| kept.peek().map(|aside| aside.place())).min().unwrap_or(usize::MAX)
}

/// One that is kept aside to its place among the numbers from `first` on.
///
/// # Safety
///
/// The machine has AVX-512.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx512f")]
unsafe fn put(mut numbers: Numbers, aside: Aside, first: usize) -> Numbers {
    // SAFETY: registers are numbers of any bits, as many as a stretch has.
    let all = unsafe { &mut *std::ptr::from_mut(&mut numbers).cast::<[u16; STRETCH]>() };
    // A place before these, which there is not, is of nobody's making.
    if let Some(number) = aside.place().checked_sub(first).and_then(|place| all.get_mut(place)) {
        *number = aside.bits();
    }
    numbers
}
