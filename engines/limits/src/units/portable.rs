//! f32 in vectors of the compiler's choice, for processors without a specific unit.

use std::hint::black_box;

use super::Unit;
use crate::names;

const LANES: usize = 64;

/// A multiplication and an addition. They are fused only if every machine of this kind supports it.
pub const F32_UNIT: Unit =
    Unit { name: names::F32_FMA, loads: false, each: 2 * LANES as u64, run: multiply_and_add };

fn multiply_and_add(rounds: u64) {
    let (half, one) = (black_box(0.5f32), black_box(1.0f32));
    let mut sums = [1.0f32; LANES];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = *sum * half + one;
        }
    }
    black_box(sums);
}
