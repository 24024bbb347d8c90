//! Measures the kernels and the limits of this machine in the same run: bytes of weights, or of keys and values, per second,
//! and operations per second. `lmrs-bench --help` lists the options.
//!
//! Every round measures one turn of each case, and every fifth round also probes the limits.
#![expect(clippy::print_stdout, reason = "a program that prints a table")]

mod arguments;
mod attention;
mod products;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use arguments::Arguments;
use lmrs::kernels::Level;
use machine_limits::{Limits, ProbeSettings, buffer_bytes, probe};

fn main() -> Result<()> {
    let Some(arguments) = Arguments::from_arguments(std::env::args().skip(1))? else {
        print!("{}", arguments::help());
        return Ok(());
    };
    let mut cases = Vec::new();
    if arguments.measures_products {
        cases.extend(products::cases(&arguments)?);
    }
    if arguments.measures_attention {
        cases.extend(attention::cases(&arguments)?);
    }
    let mut limits = Vec::new();
    for round in 0..arguments.rounds() {
        // The best of several probes counts, because a busy machine often delivers less than its limits.
        if round % 5 == 0 {
            limits.push(probe(&ProbeSettings {
                threads: vec![u32::try_from(arguments.threads)?],
                buffer_bytes: buffer_bytes(None, None).unwrap_or(0),
                budget: Duration::from_millis(500),
            }));
        }
        cases.iter_mut().for_each(Case::run_turn);
    }
    print(&cases, &Limits::best(&limits).context("no limit was probed")?, &arguments);
    Ok(())
}

/// One kernel at one shape.
struct Case {
    /// The format and the shape of the matrix, or the depth and the heads of attention.
    labels: [String; 2],
    tokens: usize,
    level: Level,
    /// The arithmetic units to compare with: the first one with a probe result counts.
    units: &'static [&'static str],
    /// Bytes that one piece of work (a product, or a layer's attention) reads, and its operations.
    bytes: f64,
    operations: f64,
    /// Pieces in a turn, enough for some milliseconds.
    pieces: usize,
    work: Box<dyn FnMut()>,
    piece_seconds: Vec<f64>,
}

impl Case {
    fn run_turn(&mut self) {
        for _ in 0..self.pieces {
            let began = Instant::now();
            (self.work)();
            self.piece_seconds.push(began.elapsed().as_secs_f64());
        }
    }

    /// The shortest time of a piece, or the median.
    fn seconds(&self, shortest: bool) -> f64 {
        let mut sorted = self.piece_seconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[if shortest { 0 } else { sorted.len() / 2 }]
    }
}

fn print(cases: &[Case], limits: &Limits, arguments: &Arguments) {
    let reads = limits.reads.iter().filter_map(|reads| Some((reads.bytes_per_second()?, reads.streams)));
    let (read_rate, streams) = reads.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::NAN, 0));
    println!(
        "{} threads. Limits: reads {:.1} GB/s ({streams} streams a thread)",
        arguments.threads,
        read_rate / 1e9
    );
    for unit in &limits.units {
        let loads = if unit.loads { " with loads" } else { "" };
        println!("{}{loads} {:.0} Gop/s", unit.unit, unit.per_second().unwrap_or(f64::NAN) / 1e9);
    }
    println!("\n| kernel | shape | tokens | level | us | GB/s | of reads | Gop/s | of unit |");
    println!("|---|---|--:|---|--:|--:|--:|--:|--:|");
    for case in cases {
        // If a unit was probed with loads and without, the lower rate counts.
        let lowest_rate = |name: &&str| {
            let named = limits.units.iter().filter(|unit| unit.unit == **name);
            named.filter_map(|unit| unit.per_second()).reduce(f64::min)
        };
        let unit_rate = case.units.iter().find_map(lowest_rate).unwrap_or(f64::NAN);
        let seconds = case.seconds(arguments.prints_best);
        let (byte_rate, operation_rate) = (case.bytes / seconds, case.operations / seconds);
        println!(
            "| {} | {} | {} | {} | {:.0} | {:.1} | {:.0} % | {:.0} | {:.0} % |",
            case.labels[0],
            case.labels[1],
            case.tokens,
            case.level,
            seconds * 1e6,
            byte_rate / 1e9,
            byte_rate / read_rate * 100.0,
            operation_rate / 1e9,
            operation_rate / unit_rate * 100.0,
        );
    }
}
