//! Which level computes, on x86-64.
#![expect(unsafe_code, reason = "calls into code that is compiled for more than every processor has")]

use std::ops::Range;

use super::super::Level;
use super::{Left, Numbers, Softmax, TILE, avx2, avx512, portable};

pub fn accumulate(level: Level, a: Left, b: Numbers, depth: usize, c: &mut [f32], c_stride: usize) {
    if level >= Level::Avx512 && has_avx512() {
        // SAFETY: the processor has what the function is compiled for; the caller has checked that every row lies within
        // its slice, which is what the function reads and writes.
        unsafe { avx512::accumulate(a, b, depth, c, c_stride) }
    } else if level >= Level::Avx2 && has_avx2() {
        // SAFETY: as above.
        unsafe { avx2::accumulate(a, b, depth, c, c_stride) }
    } else {
        portable::accumulate(a, b, depth, c, c_stride);
    }
}

pub fn step(level: Level, state: &mut Softmax, scores: &mut [f32; TILE], seen: Range<usize>) -> f32 {
    if level >= Level::Avx512 && has_avx512() {
        // SAFETY: the processor has what the function is compiled for.
        unsafe { avx512::step(state, scores, seen) }
    } else if level >= Level::Avx2 && has_avx2() {
        // SAFETY: as above.
        unsafe { avx2::step(state, scores, seen) }
    } else {
        portable::step(state, scores, seen)
    }
}

fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
}

fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}
