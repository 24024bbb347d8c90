//! Each kernel beside what this machine can do at most, measured in the same run: by bytes of weights, or of keys and values,
//! a second, and by operations a second. `lmrs-bench --help` says what can be asked for.
//!
//! All cases take turns, and so do the probes of the machine's limits.
#![expect(clippy::print_stdout, reason = "a program that prints a table")]

mod asking;
mod attention;
mod products;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use asking::Asking;
use lmrs::kernels::Level;
use machine_limits::{Asked, Limits, buffer_bytes, probe};

fn main() -> Result<()> {
    let Some(asking) = Asking::from_arguments(std::env::args().skip(1))? else {
        print!("{}", asking::help());
        return Ok(());
    };
    let mut cases = Vec::new();
    if asking.products {
        cases.extend(products::cases(&asking)?);
    }
    if asking.attention {
        cases.extend(attention::cases(&asking)?);
    }
    let mut limits = Vec::new();
    for round in 0..asking.rounds() {
        // Where the machine is not quiet, a limit is found between the turns or not at all.
        if round % 5 == 0 {
            limits.push(probe(&Asked {
                threads: vec![u32::try_from(asking.threads)?],
                buffer_bytes: buffer_bytes(None, None).unwrap_or(0),
                budget: Duration::from_millis(500),
            }));
        }
        cases.iter_mut().for_each(Case::turn);
    }
    print(&cases, &Limits::best(&limits).context("no limit was probed")?, &asking);
    Ok(())
}

/// One kernel at one shape.
struct Case {
    /// Format, shape.
    what: [String; 2],
    tokens: usize,
    level: Level,
    /// What its operations are held against: the first of these that was probed.
    units: &'static [&'static str],
    /// Of one piece of work.
    bytes: f64,
    operations: f64,
    /// Pieces in a turn, so that it takes milliseconds.
    pieces: usize,
    work: Box<dyn FnMut()>,
    /// Seconds for each piece.
    turns: Vec<f64>,
}

impl Case {
    fn turn(&mut self) {
        for _ in 0..self.pieces {
            let began = Instant::now();
            (self.work)();
            self.turns.push(began.elapsed().as_secs_f64());
        }
    }

    fn seconds(&self, best: bool) -> f64 {
        let mut turns = self.turns.clone();
        turns.sort_by(f64::total_cmp);
        turns[if best { 0 } else { turns.len() / 2 }]
    }
}

fn print(cases: &[Case], limits: &Limits, asking: &Asking) {
    let reads = limits.reads.iter().filter_map(|reads| Some((reads.bytes_per_second()?, reads.streams)));
    let (read, streams) = reads.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::NAN, 0));
    println!("{} threads. Limits: reads {:.1} GB/s ({streams} streams a thread)", asking.threads, read / 1e9);
    for unit in &limits.units {
        let loads = if unit.loads { " with loads" } else { "" };
        println!("{}{loads} {:.0} Gop/s", unit.unit, unit.per_second().unwrap_or(f64::NAN) / 1e9);
    }
    println!("\n| what | shape | tokens | level | us | GB/s | of reads | Gop/s | of unit |");
    println!("|---|---|--:|---|--:|--:|--:|--:|--:|");
    for case in cases {
        // Of a unit with loads and without, that with loads, which is less.
        let rates = |name: &&str| {
            let named = limits.units.iter().filter(|unit| unit.unit == **name);
            named.filter_map(|unit| unit.per_second()).reduce(f64::min)
        };
        let unit = case.units.iter().find_map(rates).unwrap_or(f64::NAN);
        let seconds = case.seconds(asking.best);
        let (bytes, operations) = (case.bytes / seconds, case.operations / seconds);
        println!(
            "| {} | {} | {} | {} | {:.0} | {:.1} | {:.0} % | {:.0} | {:.0} % |",
            case.what[0],
            case.what[1],
            case.tokens,
            case.level,
            seconds * 1e6,
            bytes / 1e9,
            bytes / read * 100.0,
            operations / 1e9,
            operations / unit * 100.0,
        );
    }
}
