//! Prints the rate at which one thread converts numbers of each dtype to f32 (`widen`) and back (`narrow`), in million numbers
//! a second.
//!
//! `cargo run --release -p model-files --example block-rates`
#![expect(clippy::print_stdout, reason = "an example that prints")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;
use model_files::Dtype;
use model_files::blocks::{can_narrow, narrow, widen};

/// How many numbers are converted at once. They fit in a cache, so the example measures arithmetic, not memory.
const NUMBERS: usize = 1 << 16;
const TRIES: usize = 25;

fn main() -> Result<()> {
    let values = normal_numbers();
    println!("{:6} {:>16} {:>16}", "", "widen, M/s", "narrow, M/s");
    for &dtype in Dtype::ALL {
        let mut bytes = vec![0; dtype.bytes(NUMBERS as u64) as usize];
        let narrow_rate = if can_narrow(dtype) {
            format!("{:.0}", rate(|| narrow(dtype, black_box(&values), black_box(&mut bytes)))?)
        } else {
            "-".to_owned()
        };
        let mut widened = vec![0.0; NUMBERS];
        let widen_rate = rate(|| widen(dtype, black_box(&bytes), black_box(&mut widened)))?;
        println!("{:6} {widen_rate:16.0} {narrow_rate:>16}", dtype.as_str());
    }
    Ok(())
}

/// Returns million numbers a second: the best of several tries, because other work on the machine only slows a try down.
fn rate(mut convert: impl FnMut() -> Result<()>) -> Result<f64> {
    convert()?;
    let mut best = Duration::MAX;
    for _ in 0..TRIES {
        let start = Instant::now();
        convert()?;
        best = best.min(start.elapsed());
    }
    Ok(NUMBERS as f64 / best.as_secs_f64() / 1e6)
}

/// Sums of four random bytes: close to a normal distribution with a standard deviation of 0.015, like weights.
fn normal_numbers() -> Vec<f32> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32).to_le_bytes()[..4].iter().map(|&byte| f32::from(byte) - 127.5).sum::<f32>()
    };
    (0..NUMBERS).map(|_| next() * 1e-4).collect()
}
