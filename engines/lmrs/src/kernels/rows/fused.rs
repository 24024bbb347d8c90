//! Zipped rows by a token or two, with each number unpacked in a register and multiplied there: what memory gives is all that is read.
//!
//! Rows that stand together are multiplied together, so that the activations are read once for all of them. Sums are taken in the
//! order of `dots`.
#![expect(unsafe_code, reason = "instructions of a level")]

use std::arch::x86_64::*;
use std::iter::Peekable;

use super::FUSED;
use super::lanes::Lanes;
use super::paired::Paired;
use crate::kernels::Outputs;
use crate::kernels::zipped::avx512::Row;
use crate::kernels::zipped::{Aside, Group, STRETCH, STRETCH_BYTES, TOGETHER, asides};
use crate::matrix::Matrix;

/// Registers of a stretch.
const STEPS: usize = STRETCH / Paired::LANES;
/// Numbers of a stretch.
type Numbers = [__m512i; STEPS];

/// # Safety
///
/// The machine has AVX-512 and its products of bf16; the matrix is zipped; `x` has its inputs for each token of `out`, of which
/// there are `FUSED` at most.
#[inline(always)]
pub unsafe fn multiply(matrix: &Matrix, x: &[u16], out: &mut Outputs) {
    // SAFETY: the caller's promise.
    unsafe {
        match out.tokens() {
            1 => groups::<1>(matrix, x, out),
            FUSED => groups::<FUSED>(matrix, x, out),
            tokens => unreachable!("{tokens} tokens are more than registers take"),
        }
    }
}

/// # Safety
///
/// As of `multiply`, with so many tokens.
#[inline(always)]
unsafe fn groups<const TOKENS: usize>(matrix: &Matrix, x: &[u16], out: &mut Outputs) {
    let outputs = out.outputs();
    let mut output = outputs.start;
    while output < outputs.end {
        let (group, first) = (matrix.zipped(output), output % TOGETHER);
        let count = (group.rows() - first).min(outputs.end - output);
        // SAFETY: the caller's promise; so below.
        if count == TOGETHER {
            let totals = unsafe { rows::<TOGETHER, TOKENS>(&group, first, x) };
            write(&totals, output - outputs.start, out);
        } else {
            for row in 0..count {
                let totals = unsafe { rows::<1, TOKENS>(&group, first + row, x) };
                write(&totals, output + row - outputs.start, out);
            }
        }
        output += count;
    }
}

#[inline(always)]
fn write<const ROWS: usize, const TOKENS: usize>(
    totals: &[[f32; TOKENS]; ROWS],
    place: usize,
    out: &mut Outputs,
) {
    for token in 0..TOKENS {
        let places = &mut out.row_mut(token)[place..place + ROWS];
        for (place, totals) in places.iter_mut().zip(totals) {
            *place = totals[token];
        }
    }
}

/// Of so many rows from this one on, each with each token.
///
/// # Safety
///
/// The machine has AVX-512 and its products of bf16.
#[inline(always)]
unsafe fn rows<const ROWS: usize, const TOKENS: usize>(
    group: &Group,
    first_row: usize,
    x: &[u16],
) -> [[f32; TOKENS]; ROWS] {
    let (inputs, step) = (group.inputs(), group.rows() * STRETCH_BYTES);
    assert!(
        x.len() == TOKENS * inputs && first_row + ROWS <= group.rows(),
        "rows of a group, inputs of a token"
    );
    // SAFETY: the caller's promise; so below.
    let heads = std::array::from_fn::<_, ROWS, _>(|row| unsafe { Row::of(group.head(first_row + row)) });
    let mut kept = std::array::from_fn::<_, ROWS, _>(|row| asides(group.head(first_row + row)).peekable());
    let mut due = next_place(&mut kept);
    let mut sums = [[unsafe { Paired::zero() }; TOKENS]; ROWS];
    for (number, stretches) in group.stretches(first_row).chunks(step).take(inputs / STRETCH).enumerate() {
        let first = number * STRETCH;
        let stretches = &stretches[..ROWS * STRETCH_BYTES];
        // SAFETY: there are so many stretches of inputs, as was asserted.
        let load = |token: usize, step: usize| unsafe {
            Paired::load(x.as_ptr().add(token * inputs + first + step * Paired::LANES))
        };
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
    // Here, and not in each step, all sums go to memory: a loop over them would have them there throughout.
    std::hint::black_box(sums).map(|sums| sums.map(|sum| unsafe { sum.sum() }))
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
