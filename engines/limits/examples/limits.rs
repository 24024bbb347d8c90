//! What this machine can do at most, as a table.
//!
//! `cargo run --release -p machine-limits --example limits -- [--mib SIZE] [--ms TIME] [THREADS...]`: 1 and as many threads
//! as there are cores, 1024 MiB and 4000 ms unless told. Without memory, with `--mib 0`.
//!
//! `... --example limits -- --sustained 3000`: what memory gives all cores for so many ms on end, each tenth of a second. The
//! table has the best of short passes, which a machine that is shared with others may not keep up.
#![expect(clippy::print_stdout, reason = "an example that prints")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use machine_limits::{Asked, Limits, probe};

fn main() -> Result<(), String> {
    // Beyond the caches of any machine that this was tried on.
    let (mut mib, mut ms, mut threads) = (1024, 4000, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let number = |text: Option<String>| {
            let text = text.unwrap_or_default();
            text.parse::<u64>().map_err(|error| format!("`{text}` after `{argument}`: {error}"))
        };
        match argument.as_str() {
            "--mib" => mib = number(arguments.next())?,
            "--ms" => ms = number(arguments.next())?,
            "--sustained" => {
                sustained(Duration::from_millis(number(arguments.next())?));
                return Ok(());
            }
            _ => threads.push(u32::try_from(number(Some(argument.clone()))?).unwrap_or(u32::MAX)),
        }
    }
    if threads.is_empty() {
        threads = vec![1, u32::MAX];
    }
    print(&probe(&Asked {
        threads,
        buffer_bytes: mib.saturating_mul(1 << 20),
        budget: Duration::from_millis(ms),
    }));
    Ok(())
}

fn print(limits: &Limits) {
    println!("{:>7}  {:>7}  {:>8}", "threads", "streams", "GB/s");
    for reads in &limits.reads {
        let rate = reads.bytes_per_second().unwrap_or(0.0) / 1e9;
        println!("{:7}  {:7}  {rate:8.1}", reads.threads, reads.streams);
    }
    println!("\n{:>7}  {:24}  {:>8}", "threads", "unit", "Gop/s");
    for unit in &limits.units {
        let name = if unit.loads { format!("{} with loads", unit.unit) } else { unit.unit.clone() };
        let rate = unit.per_second().unwrap_or(0.0) / 1e9;
        println!("{:7}  {name:24}  {rate:8.1}", unit.threads);
    }
}

/// Numbers that each thread walks through again and again, beyond any cache; and those it reads between two looks at the rest.
const NUMBERS: usize = 64 << 20;
const AT_ONCE: usize = 1 << 20;

fn sustained(time: Duration) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (bytes, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let walk = |ready: mpsc::Sender<()>| {
        let numbers: Vec<u64> = (0..NUMBERS as u64).collect();
        let _ = ready.send(());
        for window in numbers.chunks(AT_ONCE).cycle() {
            std::hint::black_box(window.iter().fold(0, |sum: u64, number| sum ^ number));
            bytes.fetch_add(size_of_val(window) as u64, Ordering::Relaxed);
            if over.load(Ordering::Relaxed) {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        let (ready, all) = mpsc::channel();
        (0..cores).for_each(|_| {
            let ready = ready.clone();
            scope.spawn(|| walk(ready));
        });
        all.iter().take(cores).for_each(drop);
        let (began, mut seen) = (Instant::now(), (Instant::now(), bytes.load(Ordering::Relaxed)));
        while began.elapsed() < time {
            // Nobody sends anything: a tenth of a second passes.
            let _ = all.recv_timeout(Duration::from_millis(100));
            let now = (Instant::now(), bytes.load(Ordering::Relaxed));
            let rate = (now.1 - seen.1) as f64 / (now.0 - seen.0).as_secs_f64() / 1e9;
            println!("{:5.1} s  {rate:6.1} GB/s", began.elapsed().as_secs_f64());
            seen = now;
        }
        over.store(true, Ordering::Relaxed);
    });
}
