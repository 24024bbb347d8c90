//! Plain Rust. The other levels are held against it.

use std::ops::Range;

use model_files::{Dtype, blocks};

use super::super::lanes::exp;
use super::{Left, Numbers, Softmax, Stored, TILE};

pub fn accumulate(a: Left, b: Numbers, depth: usize, c: &mut [f32], c_stride: usize) {
    let mut row = [0.0; TILE];
    let row = &mut row[..b.width];
    let bytes = b.width * b.stored.bytes();
    for (k, stored) in b.bytes.chunks_exact(bytes).take(depth).enumerate() {
        widen(b.stored, stored, row);
        for token in 0..a.rows {
            let factor = a.numbers[token * a.stride + k];
            let sums = &mut c[token * c_stride..][..b.width];
            sums.iter_mut().zip(&*row).for_each(|(sum, number)| *sum += factor * number);
        }
    }
}

pub fn widen(stored: Stored, bytes: &[u8], numbers: &mut [f32]) {
    let dtype = match stored {
        Stored::F16 => Dtype::F16,
        Stored::F32 => Dtype::F32,
    };
    // It refuses lengths that disagree, and these do not.
    blocks::widen(dtype, bytes, numbers).unwrap_or_default();
}

/// Inlined into the levels, so that each compiles it for its own vectors.
#[inline(always)]
pub fn step(state: &mut Softmax, scores: &mut [f32; TILE], seen: Range<usize>) -> f32 {
    const LANES: usize = 16;
    for (position, score) in scores.iter_mut().enumerate() {
        let hidden = position < seen.start || position >= seen.end;
        *score = if hidden { f32::NEG_INFINITY } else { *score };
    }
    let mut largest = [f32::NEG_INFINITY; LANES];
    for chunk in scores.as_chunks::<LANES>().0 {
        for (largest, score) in largest.iter_mut().zip(chunk) {
            *largest = if *score > *largest { *score } else { *largest };
        }
    }
    let largest = largest.iter().fold(state.largest, |most, score| if *score > most { *score } else { most });
    if largest == f32::NEG_INFINITY {
        scores.fill(0.0);
        return 1.0;
    }
    let correction = if state.largest == f32::NEG_INFINITY { 0.0 } else { exp(state.largest - largest) };
    let mut sums = [0.0; LANES];
    for chunk in scores.as_chunks_mut::<LANES>().0 {
        for (sum, score) in sums.iter_mut().zip(chunk) {
            // What is hidden weighs nothing at all.
            *score = if *score == f32::NEG_INFINITY { 0.0 } else { exp(*score - largest) };
            *sum += *score;
        }
    }
    state.largest = largest;
    state.sum = state.sum * correction + sums.iter().sum::<f32>();
    correction
}

#[cfg(not(target_arch = "x86_64"))]
pub fn accumulate_at(_: super::Level, a: Left, b: Numbers, depth: usize, c: &mut [f32], c_stride: usize) {
    accumulate(a, b, depth, c, c_stride);
}

#[cfg(not(target_arch = "x86_64"))]
pub fn step_at(_: super::Level, state: &mut Softmax, scores: &mut [f32; TILE], seen: Range<usize>) -> f32 {
    step(state, scores, seen)
}
