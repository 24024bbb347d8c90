//! Plain Rust: the reference for the other levels.

use std::ops::Range;

use model_files::{Dtype, blocks};

use super::super::lanes::exp;
use super::{Product, Softmax, Stored, Sums, TILE};

pub fn accumulate(product: Product) {
    let Product { left: a, right: b, depth, sums: Sums { numbers: c, stride: c_stride } } = product;
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
    // It fails only if lengths disagree, and these agree.
    blocks::widen(dtype, bytes, numbers).unwrap_or_default();
}

const LANES: usize = 16;

/// Updates the softmax state. It is inlined into the levels, so that each compiles it for its own vectors.
#[inline(always)]
pub fn step(state: &mut Softmax, scores: &mut [f32; TILE], seen: Range<usize>) -> f32 {
    if seen.start == 0 && seen.end >= TILE {
        return weigh::<false>(state, scores);
    }
    if seen.is_empty() {
        scores.fill(0.0);
        return 1.0;
    }
    for (position, score) in scores.iter_mut().enumerate() {
        let hidden = position < seen.start || position >= seen.end;
        *score = if hidden { f32::NEG_INFINITY } else { *score };
    }
    weigh::<true>(state, scores)
}

#[inline(always)]
fn weigh<const HIDDEN: bool>(state: &mut Softmax, scores: &mut [f32; TILE]) -> f32 {
    let mut most = [f32::NEG_INFINITY; LANES];
    for chunk in scores.as_chunks::<LANES>().0 {
        for (most, score) in most.iter_mut().zip(chunk) {
            *most = larger(*score, *most);
        }
    }
    let largest = larger(across(most, larger), state.largest);
    // Later tiles seldom have a larger score.
    let correction = if largest == state.largest { 1.0 } else { exp(state.largest - largest) };
    let mut sums = [0.0; LANES];
    for chunk in scores.as_chunks_mut::<LANES>().0 {
        for (sum, score) in sums.iter_mut().zip(chunk) {
            // Hidden positions have weight zero.
            *score = if HIDDEN && *score == f32::NEG_INFINITY { 0.0 } else { exp(*score - largest) };
            *sum += *score;
        }
    }
    state.largest = largest;
    state.sum = state.sum * correction + across(sums, |one, other| one + other);
    correction
}

#[inline(always)]
fn larger(one: f32, other: f32) -> f32 {
    if one > other { one } else { other }
}

/// Reduces the lanes by adding halves, as vectors do.
#[inline(always)]
fn across(mut lanes: [f32; LANES], with: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] = with(lanes[lane], lanes[lane + half]);
        }
    }
    lanes[0]
}
