//! The fallback for processors with only the portable level, or without attention kernels of their own.

use std::ops::Range;

use super::super::Level;
use super::{Product, Softmax, TILE, portable};

pub fn accumulate(_: Level, product: Product) {
    portable::accumulate(product);
}

pub fn step(_: Level, state: &mut Softmax, scores: &mut [f32; TILE], seen: Range<usize>) -> f32 {
    portable::step(state, scores, seen)
}
