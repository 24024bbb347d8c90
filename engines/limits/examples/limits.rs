//! What this machine can do at most, as a table.
//!
//! `cargo run --release -p machine-limits --example limits [THREADS...]`: 1 and as many as there are cores, unless told.
#![expect(clippy::print_stdout, reason = "an example that prints")]

use std::time::Duration;

use machine_limits::{Asked, Limits, buffer_bytes, probe};

/// Of memory that is read: beyond the caches of any machine that this was tried on.
const CACHE: u64 = 256 << 20;

fn main() {
    let named: Vec<u32> = std::env::args().skip(1).filter_map(|threads| threads.parse().ok()).collect();
    let threads = if named.is_empty() { vec![1, u32::MAX] } else { named };
    let asked = Asked {
        threads,
        buffer_bytes: buffer_bytes(Some(CACHE), Some(u64::MAX)).unwrap_or(0),
        budget: Duration::from_secs(4),
    };
    print(&probe(&asked));
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
