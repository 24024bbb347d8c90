//! Packed rows times one or two tokens: each number is unpacked and multiplied in registers, so only packed bytes are read.
//!
//! Rows that are packed together are multiplied together, so the activations are read once for all of them. Sums have the order
//! of `dots`: between two parts of a row, all lanes are kept.
#![expect(unsafe_code, reason = "instructions of a level")]

use std::arch::x86_64::*;
use std::iter::Peekable;

use super::avx512::Row;
use super::{Aside, BLOCK, Block, FUSED, Group, STRETCH, STRETCH_BYTES, TOGETHER, parts, row_bytes};
use crate::kernels::Outputs;
use crate::kernels::rows::lanes::Lanes;
use crate::kernels::rows::paired::Paired;
use crate::matrix::Matrix;

const STEPS: usize = STRETCH / Paired::LANES;
type Numbers = [__m512i; STEPS];

/// # Safety
///
/// The machine has AVX-512 with bf16 products; the matrix has this format; `x` has its inputs for at most `FUSED` tokens.
#[inline(always)]
pub unsafe fn multiply(matrix: &Matrix, x: &[u16], out: &mut Outputs) {
    // SAFETY: the caller guarantees this.
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
/// As of `multiply`, with `TOKENS` tokens.
#[inline(always)]
unsafe fn blocks<const TOKENS: usize>(matrix: &Matrix, x: &[u16], out: &mut Outputs) {
    let outputs = out.outputs();
    assert!(x.len() == TOKENS * matrix.inputs, "inputs of each token");
    let mut output = outputs.start;
    while output < outputs.end {
        let block = Block::of(matrix.block(BLOCK, row_bytes(matrix.inputs), output));
        let first = output % BLOCK;
        let own = first..block.rows().min(first + outputs.end - output);
        // SAFETY: the caller guarantees this; the same below.
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

/// Adds the products of this part of `ROWS` rows, from `first_row` on, with each token.
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
    // SAFETY: the caller guarantees this; the same below.
    let heads = std::array::from_fn::<_, ROWS, _>(|row| unsafe { Row::of(group.head(first_row + row)) });
    let mut kept = std::array::from_fn::<_, ROWS, _>(|row| group.asides(first_row + row).peekable());
    let mut due = next_place(&mut kept);
    let mut sums: [_; ROWS] = std::array::from_fn(|row| kept_sums[row]);
    let x = x.map(<[u16]>::as_ptr);
    let stretches = group.stretches(first_row).chunks(group.step()).take(inputs / STRETCH);
    for (number, stretches) in stretches.enumerate() {
        let first = number * STRETCH;
        let stretches = &stretches[..ROWS * STRETCH_BYTES];
        // SAFETY: the assert above guarantees these stretches of inputs.
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
    // Without `black_box` the compiler orders this differently, and slower. (Measured.)
    kept_sums[..ROWS].copy_from_slice(&std::hint::black_box(sums));
}

/// The position of the next exception of any row.
#[inline(always)]
fn next_place(kept: &mut [Peekable<impl Iterator<Item = Aside>>]) -> usize {
    kept.iter_mut().filter_map(|kept| kept.peek().map(|aside| aside.place())).min().unwrap_or(usize::MAX)
}

/// Writes an exception to its position among the numbers from `first` on.
///
/// # Safety
///
/// The machine has AVX-512.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx512f")]
unsafe fn put(mut numbers: Numbers, aside: Aside, first: usize) -> Numbers {
    // SAFETY: registers hold any bits, as many numbers as a stretch.
    let all = unsafe { &mut *std::ptr::from_mut(&mut numbers).cast::<[u16; STRETCH]>() };
    // A position before `first` comes only from damaged data.
    if let Some(number) = aside.place().checked_sub(first).and_then(|place| all.get_mut(place)) {
        *number = aside.bits();
    }
    numbers
}
