//! How fast products with panels are, beside what the memory gives when it is only read.
//!
//! `cargo run --release -p lmrs --example panel-rates -- [decode|prefill] [tokens] [threads]`
#![expect(clippy::print_stdout, reason = "an example that prints")]

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result};
use lmrs::kernels::Level;
use lmrs::kernels::outputs::Outputs;
use lmrs::kernels::panels::{Input, multiply, prepare};
use lmrs::matrix::{Format, Matrix, PANEL};
use lmrs::region::{NewRegion, Region};
use lmrs::rows::Rows;

const FORMATS: [Format; 4] = [Format::Q8_0, Format::Q4_0, Format::Q4K, Format::Q6K];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let what = arguments.first().map_or("decode", String::as_str);
    let number = |at: usize, usual: usize| {
        arguments.get(at).map_or(Ok(usual), |text| text.parse()).context("a number")
    };
    let threads = number(2, 2)?;
    let level = level(arguments.get(3).map(String::as_str));
    match what {
        "decode" => decode(level, number(1, 1)?, threads),
        _ => prefill(level, number(1, 512)?, threads),
    }
}

#[cfg(target_arch = "x86_64")]
fn level(name: Option<&str>) -> Level {
    match name {
        Some("portable") => Level::Portable,
        Some("avx2") => Level::Avx2,
        Some("amx") => Level::Amx,
        _ => Level::Avx512,
    }
}

#[cfg(target_arch = "aarch64")]
fn level(_: Option<&str>) -> Level {
    Level::Neon
}

/// A model's worth of memory, so that nothing of it is left in a cache.
const BYTES: usize = 640 << 20;

/// Any bytes, with scales that are finite: this measures time.
fn region(bytes: usize) -> Result<Region> {
    let mut region = NewRegion::new(bytes)?;
    region.bytes_mut().fill(0x11);
    Ok(region.finish())
}

fn decode(level: Level, tokens: usize, threads: usize) -> Result<()> {
    for inputs in [2048, 8192] {
        let matrices: Vec<Matrix> = FORMATS
            .iter()
            .map(|&format| {
                let panel = Matrix::bytes_for(format, PANEL, inputs);
                let outputs = BYTES / panel * PANEL;
                Ok(Matrix::new(format, outputs, inputs, region(panel * (outputs / PANEL))?))
            })
            .collect::<Result<_>>()?;
        let mut input = Input::default();
        prepare(level, &some(tokens, inputs), &mut input);
        let mut best = vec![0.0_f64; FORMATS.len() + 2];
        let mut all = vec![Vec::new(); FORMATS.len() + 2];
        for _ in 0..7 {
            for case in 0..FORMATS.len() + 2 {
                let rate = match matrices.get(case) {
                    Some(matrix) => {
                        let mut out = Rows::new(tokens, matrix.outputs);
                        rate(matrix.bytes(), || share(threads, level, matrix, &input, &mut out))
                    }
                    None => {
                        let bytes = matrices[0].region().bytes();
                        let streams = if case == FORMATS.len() { 1 } else { 8 };
                        rate(bytes.len(), || read(threads, streams, bytes))
                    }
                };
                best[case] = best[case].max(rate);
                all[case].push(rate);
            }
        }
        print!("decode {tokens} tokens, {inputs} inputs, {threads} threads, GB/s median (best):");
        let names = FORMATS.iter().map(|format| format!("{format:?}"));
        for (case, name) in names.chain(["read1".to_owned(), "read8".to_owned()]).enumerate() {
            all[case].sort_by(f64::total_cmp);
            print!("  {name} {:.1} ({:.1})", all[case][3], best[case]);
        }
        println!();
    }
    Ok(())
}

fn prefill(level: Level, tokens: usize, threads: usize) -> Result<()> {
    for (outputs, inputs) in [(2048, 2048), (8192, 2048), (2048, 8192)] {
        print!("prefill {tokens} tokens, {outputs} x {inputs}, {threads} threads, GFLOP/s median (best):");
        let x = some(tokens, inputs);
        let mut input = Input::default();
        prepare(level, &x, &mut input);
        let started = Instant::now();
        prepare(level, &x, &mut input);
        let prepared = started.elapsed();
        for format in FORMATS {
            let matrix =
                Matrix::new(format, outputs, inputs, region(Matrix::bytes_for(format, outputs, inputs))?);
            let mut out = Rows::new(tokens, outputs);
            let mut rates: Vec<f64> = (0..5)
                .map(|_| {
                    rate(2 * tokens * outputs * inputs, || share(threads, level, &matrix, &input, &mut out))
                })
                .collect();
            rates.sort_by(f64::total_cmp);
            print!("  {format:?} {:.0} ({:.0})", rates[2], rates[4]);
        }
        println!("  prepare {:.2} ms", prepared.as_secs_f64() * 1e3);
    }
    Ok(())
}

fn some(tokens: usize, inputs: usize) -> Rows {
    let mut x = Rows::new(tokens, inputs);
    x.all_mut().iter_mut().enumerate().for_each(|(at, x)| *x = (at % 17) as f32 - 8.0);
    x
}

/// Billions a second.
fn rate(units: usize, mut work: impl FnMut()) -> f64 {
    let started = Instant::now();
    work();
    units as f64 / started.elapsed().as_secs_f64() / 1e9
}

fn share(threads: usize, level: Level, matrix: &Matrix, input: &Input, out: &mut Rows) {
    let panels = matrix.outputs.div_ceil(PANEL);
    std::thread::scope(|scope| {
        let mut rest = Outputs::new(out);
        for thread in 0..threads {
            let share = panels * thread / threads..panels * (thread + 1) / threads;
            let (mut part, after) = rest.split_at(matrix.outputs.min(share.end * PANEL));
            rest = after;
            scope.spawn(move || multiply(level, matrix, share, input, &mut part));
        }
    });
}

/// Reads all of it, each thread its share from so many places.
fn read(threads: usize, streams: usize, bytes: &[u8]) {
    std::thread::scope(|scope| {
        for share in bytes.chunks(bytes.len().div_ceil(threads)) {
            scope.spawn(move || {
                let places: Vec<&[u64]> = share.chunks_exact(share.len() / streams).map(words).collect();
                let mut sums = [0_u64; 8];
                for at in (0..places[0].len() / 64 * 64).step_by(64) {
                    for place in &places {
                        for eight in place[at..at + 64].chunks_exact(8) {
                            sums.iter_mut().zip(eight).for_each(|(sum, word)| *sum ^= word);
                        }
                    }
                }
                black_box(sums);
            });
        }
    });
}

#[expect(unsafe_code, reason = "bytes as words")]
fn words(bytes: &[u8]) -> &[u64] {
    // SAFETY: any bits are a u64.
    unsafe { bytes.align_to().1 }
}
