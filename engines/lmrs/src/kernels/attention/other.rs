//! Where there is no level but the portable one, or none of its own.

use std::ops::Range;

use super::super::Level;
use super::{Left, Numbers, Softmax, TILE, portable};

pub fn accumulate(_: Level, a: Left, b: Numbers, depth: usize, c: &mut [f32], c_stride: usize) {
    portable::accumulate(a, b, depth, c, c_stride);
}

pub fn step(_: Level, state: &mut Softmax, scores: &mut [f32; TILE], seen: Range<usize>) -> f32 {
    portable::step(state, scores, seen)
}
