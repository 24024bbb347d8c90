//! Prints the limits of this machine as a table; `HELP` has the arguments.
#![expect(clippy::print_stdout, reason = "an example that prints")]

use std::time::Duration;

use machine_limits::{Limits, ProbeSettings, STREAMS, probe, sustained};

const HELP: &str = "\
limits: the speed of memory and of each arithmetic unit of this machine, as a table

  cargo run --release -p machine-limits --example limits -- [--mib MIB] [--ms MS] [THREADS...]
  cargo run --release -p machine-limits --example limits -- [--mib MIB] --sustained MS [STREAMS]

  THREADS         the numbers of threads; default: 1, and all processors
  --mib MIB       the size of the buffer in MiB; default: 1024; 0 skips memory
  --ms MS         the time for all limits in milliseconds; default: 4000
  --sustained MS  only the speed of memory with all processors, during this time in milliseconds,
                  for each number of streams or only for STREAMS

The table has the best of short passes, which a shared machine may not sustain.
";

fn main() -> Result<(), String> {
    // The default buffer is larger than the caches of every machine that was tried.
    let (mut mib, mut ms, mut threads) = (1024, 4000, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let parse = |text: &str| text.parse::<u64>().map_err(|error| format!("`{text}`: {error}"));
        let number = |text: Option<String>| {
            parse(&text.unwrap_or_default()).map_err(|error| format!("{argument} {error}"))
        };
        match argument.as_str() {
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(());
            }
            "--mib" => mib = number(arguments.next())?,
            "--ms" => ms = number(arguments.next())?,
            "--sustained" => {
                let time = Duration::from_millis(number(arguments.next())?);
                let selected = arguments.next().map(|streams| parse(&streams)).transpose()?;
                let is_selected = |streams: &u32| selected.is_none_or(|it| it == u64::from(*streams));
                for streams in STREAMS.into_iter().filter(is_selected) {
                    let rate = sustained(mib.saturating_mul(1 << 20), streams, time).unwrap_or(0.0);
                    println!("{streams} streams  {:6.1} GB/s", rate / 1e9);
                }
                return Ok(());
            }
            _ => threads.push(u32::try_from(parse(&argument)?).unwrap_or(u32::MAX)),
        }
    }
    if threads.is_empty() {
        threads = vec![1, u32::MAX]; // `probe` reduces this to the number of processors
    }
    print(&probe(&ProbeSettings {
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
    for operations in &limits.units {
        let unit = operations.unit.clone();
        let name = if operations.loads { unit + " with loads" } else { unit };
        let rate = operations.per_second().unwrap_or(0.0) / 1e9;
        println!("{:7}  {name:24}  {rate:8.1}", operations.threads);
    }
}
