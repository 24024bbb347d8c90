//! `orchestrate machine`: the machine's facts, counters and tools, its limits, and reasons not to measure on it now.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use machine_limits::{Limits, ProbeSettings};

use super::{output, version};
use crate::cli::exit_code::DONE;
use crate::cli::formats_where;
use crate::machine::cpu::{all_threads, last_level_cache_bytes};
use crate::machine::{Machine, QuietCheck, gpu, gpu_limits, memory, versions};
use crate::report::machine_page::Page;
use crate::report::{FORMATS, Format};

/// The approximate time of all probes of the CPU and its memory: long, because a machine may be slow for seconds.
const PROBE_TIME: Duration = Duration::from_secs(4);

#[derive(Debug, Args)]
pub struct MachineArgs {
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = FORMATS[0].name, value_parser = formats_where(|it| !it.has_lines()))]
    pub format: &'static Format,
    /// Skip the probes of the machine's limits
    #[arg(long)]
    pub no_probe: bool,
}

pub fn machine(arguments: &MachineArgs) -> Result<u8> {
    output::show(&gather(arguments), arguments.format)?;
    Ok(DONE)
}

fn gather(arguments: &MachineArgs) -> Page {
    // The machine is examined before a probe makes it busy.
    let machine = Machine::probe();
    let mut warnings = QuietCheck::probe(&[]).warnings_before(&[], "now");
    warnings.extend(gpu::warnings(&machine.gpus));
    let versions = versions::probe();
    Page {
        orchestrate_version: version::VERSION.into(),
        commit: version::COMMIT.map(String::from),
        fingerprint: machine.fingerprint(),
        versions,
        energy: machine.energy_counters.clone(),
        limits: if arguments.no_probe { None } else { probe(&machine) },
        machine,
        warnings,
    }
}

/// Probes the CPU with one thread and with all threads that this process may use, then the GPUs.
fn probe(machine: &Machine) -> Option<Limits> {
    let all = all_threads();
    let cache = last_level_cache_bytes(&machine.cpu, all);
    let buffer_bytes = machine_limits::buffer_bytes(cache, memory::available_bytes()).unwrap_or(0);
    let threads = BTreeSet::from([1, all]).into_iter().collect();
    let probed = machine_limits::probe(&ProbeSettings { threads, buffer_bytes, budget: PROBE_TIME });
    let no_memory = probed.reads.is_empty().then(|| missing_memory_reason(buffer_bytes));
    let no_gpus = machine.gpus.is_empty();
    let on_gpus = if no_gpus { Limits::default() } else { gpu_limits::probe_separately(&[], None) };
    let absent = no_memory.into_iter().chain(on_gpus.absent).collect();
    Some(Limits { gpus: on_gpus.gpus, absent, ..probed })
}

/// The reason why there is no table of memory rates.
fn missing_memory_reason(buffer_bytes: u64) -> String {
    match buffer_bytes {
        0 => "memory: too little is available for a buffer larger than the caches".into(),
        bytes => format!("memory: no room for the buffer of {} MiB or for its threads", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_table_of_memory_rates_has_a_reason() {
        assert!(missing_memory_reason(256 << 20).contains("no room for the buffer of 256 MiB"));
        assert!(missing_memory_reason(0).contains("too little is available"));
    }
}
