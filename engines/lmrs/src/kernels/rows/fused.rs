//! Zipped rows by a token or two, with each number unpacked in a register and multiplied there: what memory gives is all that is read.
//!
//! Sums are taken in the order of `dots`.
#![expect(unsafe_code, reason = "instructions of a level")]

use std::arch::x86_64::*;

use super::FUSED;
use super::lanes::Lanes;
use super::paired::Paired;
use crate::kernels::zipped::avx512::Row;
use crate::kernels::zipped::{Aside, STRETCH, STRETCH_BYTES, asides, parts};
use crate::kernels::{Outputs, zipped};
use crate::matrix::Matrix;

/// Numbers of a stretch, as registers.
type Numbers = [__m512i; STRETCH / Paired::LANES];

/// # Safety
///
/// The machine has AVX-512 and its products of bf16; the matrix is zipped; `x` has its inputs for each token of `out`, of which
/// there are `FUSED` at most.
#[inline(always)]
pub unsafe fn multiply(matrix: &Matrix, x: &[u16], out: &mut Outputs) {
    // SAFETY: the caller's promise.
    unsafe {
        match out.tokens() {
            1 => rows::<1>(matrix, x, out),
            FUSED => rows::<FUSED>(matrix, x, out),
            tokens => unreachable!("{tokens} tokens are more than registers take"),
        }
    }
}

/// # Safety
///
/// As of `multiply`, with so many tokens.
#[inline(always)]
unsafe fn rows<const TOKENS: usize>(matrix: &Matrix, x: &[u16], out: &mut Outputs) {
    let (inputs, outputs) = (matrix.inputs, out.outputs());
    assert!(x.len() == TOKENS * inputs && zipped::takes(inputs), "inputs of each token, in whole stretches");
    for (place, output) in outputs.enumerate() {
        let (head, stretches) = parts(matrix.rows(output..output + 1), inputs);
        // SAFETY: the caller's promise; so below.
        let row = unsafe { Row::of(head) };
        let mut asides = asides(head).peekable();
        let mut sums = [unsafe { Paired::zero() }; TOKENS];
        for (number, stretch) in stretches.chunks_exact(STRETCH_BYTES).enumerate() {
            let mut numbers = unsafe { row.numbers(stretch.as_ptr()) };
            let first = number * STRETCH;
            while let Some(aside) = asides.next_if(|aside| aside.place() < first + STRETCH) {
                numbers = unsafe { put(numbers, aside, first) };
            }
            // SAFETY: as above; there are so many stretches of inputs, as was asserted.
            let add = |sums, step: usize| unsafe {
                let x = x.as_ptr().add(first + step * Paired::LANES);
                add::<TOKENS>(sums, Paired::of(numbers[step]), x, inputs)
            };
            sums = add(add(add(add(sums, 0), 1), 2), 3);
        }
        // Here, and not in each step, all sums go to memory: a loop over them would have them there throughout.
        for (token, sum) in std::hint::black_box(sums).into_iter().enumerate() {
            out.row_mut(token)[place] = unsafe { sum.sum() };
        }
    }
}

/// To the sum of each token what these numbers give it; from its inputs there to the next token's it is so far.
///
/// # Safety
///
/// As of `multiply`; there are such inputs.
#[inline(always)]
unsafe fn add<const TOKENS: usize>(
    mut sums: [Paired; TOKENS],
    numbers: Paired,
    x: *const u16,
    inputs: usize,
) -> [Paired; TOKENS] {
    for (token, sum) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *sum = unsafe { sum.add_product(numbers, Paired::load(x.add(token * inputs))) };
    }
    sums
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
