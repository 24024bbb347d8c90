//! `orchestrate machine`: what every record says of the machine, what its counters and its tools say besides, what it can do
//! at most, and what speaks against measuring on it now.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use machine_limits::{Asked, Limits};

use super::page::{Counter, Page};
use super::{Machine, Quiet, commit, energy, gpu, gpu_limits, memory, versions};
use crate::asked::all_threads;
use crate::cli::machine::{MachineArgs, PageFormat};
use crate::exit_code::DONE;
use crate::metric::share::last_level_cache_bytes;
use crate::output;
use crate::plan::Plan;

/// Where the reader's width is not known.
const WIDTH: usize = 80;
/// Of probing: plateaus of the machine last for seconds.
const PROBE: Duration = Duration::from_secs(4);

pub fn command(arguments: &MachineArgs) -> Result<u8> {
    let page = gather(arguments);
    let bytes = match arguments.format {
        PageFormat::Json => {
            let mut bytes = serde_json::to_vec_pretty(&page)?;
            bytes.push(b'\n');
            bytes
        }
        PageFormat::Table => page.text(output::width().unwrap_or(WIDTH)).into_bytes(),
    };
    output::print(&bytes)?;
    Ok(DONE)
}

fn gather(arguments: &MachineArgs) -> Page {
    // Before anything that makes the machine busy.
    let (machine, plan) = (Machine::probe(), Plan::default());
    let mut warnings = Quiet::probe(&plan).before(&plan);
    warnings.extend(gpu::before(&machine.gpus));
    let versions = versions::ask();
    Page {
        orchestrate_version: env!("CARGO_PKG_VERSION").into(),
        commit: commit(),
        fingerprint: machine.fingerprint(),
        versions,
        energy: energy::zones_here().iter().map(counter).chain(gpu_counters()).collect(),
        limits: if arguments.no_probe { None } else { probe(&machine) },
        machine,
        warnings,
    }
}

fn counter(zone: &energy::Zone) -> Counter {
    Counter { name: zone.name.clone(), trouble: zone.trouble().map(|kind| kind.to_string()) }
}

fn gpu_counters() -> impl Iterator<Item = Counter> {
    gpu::energy().into_iter().map(|(name, _)| Counter { name, trouble: None })
}

/// With one thread, and with as many as this process may use.
fn probe(machine: &Machine) -> Option<Limits> {
    let all = all_threads();
    let cache = last_level_cache_bytes(&machine.cpu, all);
    let buffer_bytes = machine_limits::buffer_bytes(cache, memory::available_bytes()).unwrap_or(0);
    let threads = BTreeSet::from([1, all]).into_iter().collect();
    let probed = machine_limits::probe(&Asked { threads, buffer_bytes, budget: PROBE });
    if machine.gpus.is_empty() {
        return Some(probed);
    }
    let Limits { gpus, absent, .. } = gpu_limits::ask(&[]);
    Some(Limits { gpus, absent, ..probed })
}
