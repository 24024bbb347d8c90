//! NEON: f32 in vectors of 128 bits.

use std::arch::aarch64::*;
use std::hint::black_box;

use super::Unit;
use crate::names;

/// Independent sums: enough for four pipes with a latency of four; 32 registers hold them and two operands.
const SUMS: usize = 24;
const LANES: usize = 4;

pub fn here() -> impl Iterator<Item = Unit> {
    let f32_unit = Unit { name: names::F32_FMA, loads: false, each: (2 * SUMS * LANES) as u64, run: neon };
    std::arch::is_aarch64_feature_detected!("neon").then_some(f32_unit).into_iter()
}

#[target_feature(enable = "neon")]
fn neon(rounds: u64) {
    let (half, one) = (black_box(vdupq_n_f32(0.5)), black_box(vdupq_n_f32(1.0)));
    let mut sums = [one; SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = vfmaq_f32(*sum, half, one);
        }
    }
    black_box(sums);
}
