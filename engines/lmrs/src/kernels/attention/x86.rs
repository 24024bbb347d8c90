//! The choice of code for each level, on x86.
#![expect(unsafe_code, reason = "instructions of a level")]

use std::ops::Range;

use super::super::{Instructions, Level};
use super::{Product, Softmax, TILE, avx2, avx512, portable};

pub fn accumulate(level: Level, product: Product) {
    // SAFETY: a `Level` value exists only on a machine that has the level; the caller has checked all row lengths.
    unsafe {
        match level.instructions() {
            Instructions::Portable => portable::accumulate(product),
            Instructions::Avx2 => avx2::accumulate(product),
            Instructions::Avx512 | Instructions::Amx => avx512::accumulate(product),
        }
    }
}

pub fn step(level: Level, state: &mut Softmax, scores: &mut [f32; TILE], seen: Range<usize>) -> f32 {
    // SAFETY: a `Level` value exists only on a machine that has the level.
    unsafe {
        match level.instructions() {
            Instructions::Portable => portable::step(state, scores, seen),
            Instructions::Avx2 => avx2::step(state, scores, seen),
            Instructions::Avx512 | Instructions::Amx => avx512::step(state, scores, seen),
        }
    }
}
