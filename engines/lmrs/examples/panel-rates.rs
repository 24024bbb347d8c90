//! Compares two kernels for products of many tokens with panels: integers, and bf16 after widening. The time is the CPU time
//! of the slowest thread; `lmrs-bench` measures wall time.
//!
//! `cargo run --release -p lmrs --example panel-rates -- [tokens] [threads] [level]`: by default 512, 2, the best.
#![expect(clippy::print_stdout, reason = "an example that prints")]

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use lmrs::formats::{FORMATS, Format};
use lmrs::kernels::Level;
use lmrs::kernels::outputs::Outputs;
use lmrs::kernels::panels::{Input, multiply, prepare};
use lmrs::kernels::rows::{self, GROUP_TOKENS, TileInput};
use lmrs::matrix::Rows;
use lmrs::matrix::{Matrix, PANEL_OUTPUTS};
use lmrs::region::{NewRegion, Region};
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 9;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| {
        arguments.get(at).map_or(Ok(default), |text| text.parse()).context("expected a number")
    };
    let (tokens, threads) = (number(0, 512)?, number(1, 2)?);
    let level = arguments.get(2).map_or(Ok(Level::best()), |name| name.parse())?;
    measure(level, tokens, threads)
}

/// Constant bytes with finite scales, because only time is measured.
fn region(bytes: usize) -> Result<Region> {
    let mut region = NewRegion::new(bytes)?;
    region.bytes_mut().fill(0x11);
    Ok(region.finish())
}

/// Prints the Gop/s of each format. The two kernels take turns; bf16 is measured only if the level has products of bf16.
fn measure(level: Level, tokens: usize, threads: usize) -> Result<()> {
    for (outputs, inputs) in [(2048, 2048), (8192, 2048), (2048, 8192)] {
        let (input, packed) = (input(level, tokens, inputs), pack_input(level, tokens, inputs));
        let matrix = |format: &'static Format| {
            Ok(Matrix::new(format, outputs, inputs, region(format.bytes(outputs, inputs))?))
        };
        let formats = FORMATS.iter().copied().filter(|format| format.is_panels());
        let matrices: Vec<Matrix> = formats.map(matrix).collect::<Result<_>>()?;
        let operations = (2 * tokens * outputs * inputs) as f64;
        let mut out = Rows::new(tokens, outputs);
        // By kernel, matrix and round.
        let mut rates = [const { Vec::new() }; 2].map(|_: Vec<f64>| vec![Vec::new(); matrices.len()]);
        for _ in 0..ROUNDS {
            for (at, matrix) in matrices.iter().enumerate() {
                rates[0][at].push(operations / integers_ns(threads, level, matrix, &input, &mut out));
                if let Some(packed) = &packed {
                    rates[1][at].push(operations / widened_ns(threads, level, matrix, packed, &mut out));
                }
            }
        }
        for (kernel, rates) in ["integers", "bf16"].into_iter().zip(rates) {
            let title = format!("{tokens} tokens, {outputs} x {inputs}, {threads} threads, Gop/s, {kernel}");
            print(&title, &matrices, rates);
        }
    }
    Ok(())
}

fn print(title: &str, matrices: &[Matrix], rates: Vec<Vec<f64>>) {
    print!("{title}, median (best):");
    for (matrix, mut rates) in matrices.iter().zip(rates) {
        let name = matrix.format.name;
        rates.sort_by(f64::total_cmp);
        if let (Some(best), Some(median)) = (rates.last(), rates.get(rates.len() / 2)) {
            print!("  {name} {median:.1} ({best:.1})");
        }
    }
    println!();
}

fn activations(tokens: usize, inputs: usize) -> Rows {
    let mut x = Rows::new(tokens, inputs);
    x.all_mut().iter_mut().enumerate().for_each(|(at, x)| *x = (at % 17) as f32 - 8.0);
    x
}

fn input(level: Level, tokens: usize, inputs: usize) -> Input {
    let mut input = Input::default();
    prepare(level, &activations(tokens, inputs), &mut input);
    input
}

/// The activations for the kernel of widened panels; `None` if the level has no such kernel.
fn pack_input(level: Level, tokens: usize, inputs: usize) -> Option<TileInput> {
    if !rows::has_pairs(level) {
        return None;
    }
    let mut packed = TileInput::default();
    packed.reshape(tokens, inputs);
    let x = activations(tokens, inputs);
    for (group, lines) in packed.groups_mut().into_iter().enumerate() {
        rows::pack(level, &x, group * GROUP_TOKENS, lines.into_inner().ok()?);
    }
    Some(packed)
}

fn integers_ns(threads: usize, level: Level, matrix: &Matrix, input: &Input, out: &mut Rows) -> f64 {
    slowest_ns(threads, matrix, out, |panels, out| multiply(level, matrix, panels, input, out))
}

fn widened_ns(threads: usize, level: Level, matrix: &Matrix, packed: &TileInput, out: &mut Rows) -> f64 {
    slowest_ns(threads, matrix, out, |_, out| rows::tile(level, matrix, packed, out))
}

/// Gives each thread its part of the panels. Returns the CPU time of the slowest thread in nanoseconds.
fn slowest_ns(
    threads: usize,
    matrix: &Matrix,
    out: &mut Rows,
    work: impl Fn(Range<usize>, &mut Outputs<'_>) + Sync,
) -> f64 {
    let panels = matrix.outputs.div_ceil(PANEL_OUTPUTS);
    let slowest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let mut remaining = Outputs::new(out);
        for thread in 0..threads {
            let share = panels * thread / threads..panels * (thread + 1) / threads;
            let (mut part, after) = remaining.split_at(matrix.outputs.min(share.end * PANEL_OUTPUTS));
            remaining = after;
            let (slowest, work) = (&slowest, &work);
            scope.spawn(move || record_cpu_time(slowest, || work(share, &mut part)));
        }
    });
    slowest.into_inner() as f64
}

/// Runs the work. The thread is new, so its total CPU time is that of the work.
fn record_cpu_time(slowest: &AtomicU64, work: impl FnOnce()) {
    work();
    let time = clock_gettime(ClockId::ThreadCPUTime);
    slowest.fetch_max((time.tv_sec * 1_000_000_000 + time.tv_nsec) as u64, Ordering::Relaxed);
}
