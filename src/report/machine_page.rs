//! The description of the machine, for people and in JSON. It is pure: it reads nothing from the machine.

mod limits;

use std::collections::BTreeMap;

use machine_limits::Limits;
use serde::Serialize;

use super::document::{Content, Document, Layouts, Lines, List, Section};
use super::json::json_bytes;
use crate::machine::cpu::{Cache, Cpu};
use crate::machine::energy::{ListedCounter, PERMISSION_COMMAND};
use crate::machine::gpu::UnknownOrder;
use crate::machine::{Gpu, Machine};
use crate::text::{line, plural};

/// The machine. JSON has these names: add, never rename.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Page {
    pub orchestrate_version: String,
    pub commit: Option<String>,
    /// Equal for machines with comparable results.
    pub fingerprint: String,
    pub machine: Machine,
    /// The versions of the programs that engines are built and run with.
    pub versions: BTreeMap<&'static str, String>,
    pub energy: Vec<ListedCounter>,
    /// The limits of the machine; absent where nothing was probed.
    pub limits: Option<Limits>,
    pub warnings: Vec<String>,
}

impl Content for Page {
    fn document(&self, _: Layouts) -> Document {
        let facts = self.facts().into_iter().map(|(label, fact)| (label, line(&fact))).collect();
        let mut parts = vec![Section::Facts(facts)];
        parts.extend(self.limits.iter().flat_map(limits::parts));
        let warnings = self.warnings.iter().map(|warning| format!("warning: {}", line(warning)));
        parts.extend((!self.warnings.is_empty()).then(|| Section::List(List::plain(warnings))));
        Document { parts, summary: None }
    }

    fn lines(&self) -> Option<Lines> {
        None
    }

    fn json(&self) -> Vec<u8> {
        json_bytes(self)
    }

    fn width(&self, terminal_width: Option<usize>) -> usize {
        terminal_width.unwrap_or(80).max(40)
    }
}

impl Page {
    /// The facts with their labels. Unknown facts are left out, except those that a reader would look for.
    fn facts(&self) -> Vec<(String, String)> {
        let Machine { cpu, gpus, os, architecture, .. } = &self.machine;
        let unknown = || "unknown".to_string();
        let facts = [
            ("fingerprint", self.fingerprint.clone()),
            ("CPU", cpu.model.clone().unwrap_or_else(unknown)),
            ("cores", cores(cpu)),
            ("SIMD", if cpu.simd.is_empty() { unknown() } else { cpu.simd.join(" ") }),
            ("caches", cpu.caches.iter().map(cache).collect::<Vec<_>>().join(", ")),
            ("clock", clock(cpu)),
            ("host", self.host()),
            ("memory", self.memory()),
            ("kernel", self.kernel()),
            ("system", format!("{os}, {architecture}")),
            ("container", self.container()),
            ("load average", self.load()),
            ("energy", self.energy()),
        ];
        let facts = facts.into_iter().filter(|(_, fact)| !fact.is_empty());
        let of_gpus = gpus.iter().flat_map(|gpu| {
            let facts = [gpu_description(gpu), self.device_name(gpu), gpu_state(gpu), gpu_processes(gpu)];
            let mut label = Some(format!("GPU {}", gpu.index));
            let facts = facts.into_iter().filter(|fact| !fact.is_empty());
            facts.map(move |fact| (label.take().unwrap_or_default(), fact))
        });
        let no_gpu = gpus.is_empty().then(|| ("GPUs", "none that a driver reports".to_string()));
        let order = self.gpu_order().map(|fact| ("order", fact));
        let owned = |(label, fact): (&str, String)| (label.to_string(), fact);
        let (before, after) = (facts.map(owned), no_gpu.into_iter().chain(order));
        before.chain(of_gpus).chain(after.chain([("versions", self.versions())]).map(owned)).collect()
    }

    /// The GPU's name for `--device`, or the reason why engines do not see the GPU. Empty if the name has the GPU's own index, or
    /// if it is unknown.
    fn device_name(&self, gpu: &Gpu) -> String {
        let Machine { gpus, cuda: Some(cuda), .. } = &self.machine else { return String::new() };
        let Some(visible) = cuda.visible(gpus) else { return String::new() };
        match visible.iter().position(|&index| index == gpu.index) {
            Some(number) if number as u64 == u64::from(gpu.index) && cuda.visible_devices.is_none() => {
                String::new()
            }
            Some(number) => format!("`--device cuda:{number}`"),
            None if visible.is_empty() => "hidden from engines: CUDA_VISIBLE_DEVICES names no GPU".into(),
            None => "hidden from engines: CUDA_VISIBLE_DEVICES names other GPUs".into(),
        }
    }

    /// The reason why the GPUs' order is unknown, and the remedy.
    fn gpu_order(&self) -> Option<String> {
        let Machine { gpus, cuda: Some(cuda), .. } = &self.machine else { return None };
        Some(match cuda.unknown_order(gpus)? {
            UnknownOrder::Partitioned => {
                let uuid = gpus.iter().flat_map(|gpu| &gpu.mig_uuids).next().map_or("MIG-…", |it| it);
                format!(
                    "the order of GPUs is unknown, because one GPU is partitioned (MIG); hint: CUDA_VISIBLE_DEVICES={uuid}"
                )
            }
            UnknownOrder::BySpeed => {
                "the order of GPUs is unknown; hint: CUDA_DEVICE_ORDER=PCI_BUS_ID".into()
            }
        })
    }

    fn host(&self) -> String {
        let Machine { cpu, hardware, steal_share, .. } = &self.machine;
        let kind =
            cpu.hypervisor.map(|is_virtual| if is_virtual { "virtual machine" } else { "no hypervisor" });
        let steal = steal_share
            .map(|share| format!("steal since boot {:.2} % of the requested CPU time", share * 100.0));
        join_known([kind.map(String::from), hardware.clone(), steal])
    }

    fn memory(&self) -> String {
        let size = self.machine.memory_bytes.map_or_else(|| "unknown".into(), gib);
        let huge_pages =
            self.machine.huge_pages.as_ref().map(|mode| format!("transparent huge pages {mode}"));
        join_known([Some(size), huge_pages])
    }

    fn kernel(&self) -> String {
        let parameters = self.machine.kernel_parameters.join(" ");
        join_known([self.machine.kernel.clone(), Some(parameters)])
    }

    fn container(&self) -> String {
        let Machine { cpu_limit_unknown, memory_limit_unknown, .. } = self.machine;
        let cpu = match self.machine.cpu_limit_millicpus {
            Some(it) => format!("at most {} CPUs", it as f64 / 1000.0),
            None if cpu_limit_unknown => "CPU limit unknown".into(),
            None => "no CPU limit".into(),
        };
        let memory = match self.machine.memory_limit_bytes {
            Some(it) => format!("at most {} of memory", gib(it)),
            None if memory_limit_unknown => "memory limit unknown".into(),
            None => "no memory limit".into(),
        };
        // One phrase where neither limit could be read.
        if cpu_limit_unknown && memory_limit_unknown {
            return "limits unknown".into();
        }
        join_known([Some(cpu), Some(memory)])
    }

    fn load(&self) -> String {
        let write = |[one, five, fifteen]: [f64; 3]| {
            format!("{one:.2} {five:.2} {fifteen:.2} over 1, 5 and 15 minutes")
        };
        self.machine.load_average.map_or_else(|| "unknown".into(), write)
    }

    fn energy(&self) -> String {
        if self.energy.is_empty() {
            return "no energy counters: energy is n/a".into();
        }
        let counters = self.energy.iter().map(|counter| match &counter.trouble {
            None => counter.name.clone(),
            Some(trouble) => format!("{} cannot be read ({trouble})", counter.name),
        });
        let denied = self.energy.iter().any(|counter| counter.trouble.is_some());
        let remedy = denied.then(|| format!("hint: {PERMISSION_COMMAND}"));
        join_known([Some(counters.collect::<Vec<_>>().join(", ")), remedy])
    }

    fn versions(&self) -> String {
        let commit = self.commit.as_ref().map_or_else(String::new, |commit| format!(" ({commit})"));
        let orchestrate = format!("orchestrate {}{commit}", self.orchestrate_version);
        let others = self.versions.iter().map(|(name, version)| format!("{name} {version}"));
        std::iter::once(orchestrate).chain(others).collect::<Vec<_>>().join(", ")
    }
}

fn cores(cpu: &Cpu) -> String {
    let counted = |count: Option<u32>, kind: &str| count.map(|count| format!("{count} {kind}"));
    let smt = cpu.smt.map(|on| if on { "two threads on each (SMT)" } else { "no SMT" }.to_string());
    let nodes = cpu.numa_nodes.map(|nodes| plural(nodes, "NUMA node"));
    let all = [
        counted(cpu.allowed_cores, "allowed"),
        counted(cpu.logical_cores, "logical"),
        counted(cpu.physical_cores, "physical"),
        smt,
        nodes,
    ];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn cache(cache: &Cache) -> String {
    let kind = match cache.kind.as_str() {
        "Data" => "d",
        "Instruction" => "i",
        _ => "",
    };
    let shared = if cache.shared_by > 1 { format!(" for {} cores", cache.shared_by) } else { String::new() };
    let (mib, kib) = (cache.size_bytes >> 20, cache.size_bytes >> 10);
    let size = if mib > 0 { format!("{mib} MiB") } else { format!("{kib} KiB") };
    format!("L{}{kind} {size}{shared}", cache.level)
}

fn clock(cpu: &Cpu) -> String {
    // A virtual machine shows the rate of its time stamp counter, not that of its cores.
    let source = if cpu.hypervisor == Some(true) { "as the hypervisor reports" } else { "now" };
    let now = cpu.mhz.map(|mhz| format!("{mhz} MHz {source}"));
    let highest = cpu.max_mhz.map(|mhz| format!("{mhz} MHz at most"));
    join_known([now, highest, cpu.governor.as_ref().map(|governor| format!("governor {governor}"))])
}

fn gpu_description(gpu: &Gpu) -> String {
    let mig = match gpu.mig {
        Some(true) if gpu.mig_profiles.is_empty() => Some("MIG, no device seen".into()),
        Some(true) => Some(format!("MIG {}", gpu.mig_profiles.join(" + "))),
        _ => None,
    };
    join_known([
        gpu.name.clone(),
        gpu.memory_bytes.map(gib),
        mig,
        gpu.compute_capability.as_ref().map(|it| format!("compute capability {it}")),
        gpu.driver.as_ref().map(|it| format!("driver {it}")),
        gpu.cuda.as_ref().map(|it| format!("CUDA {it}")),
        gpu.ecc.map(|on| if on { "ECC" } else { "no ECC" }.to_string()),
    ])
}

fn gpu_state(gpu: &Gpu) -> String {
    let clocks = |now: Option<u32>, highest: Option<u32>, name: &str| match (now, highest) {
        (Some(now), Some(highest)) => Some(format!("{name} {now} of {highest} MHz")),
        (Some(only), None) | (None, Some(only)) => Some(format!("{name} {only} MHz")),
        (None, None) => None,
    };
    let watts = |milliwatts: u32| f64::from(milliwatts) / 1000.0;
    let power = match (gpu.power_milliwatts, gpu.power_limit_milliwatts) {
        (Some(now), Some(limit)) => Some(format!("{:.0} of {} W", watts(now), watts(limit))),
        (Some(now), None) => Some(format!("{:.0} W", watts(now))),
        (None, limit) => limit.map(|limit| format!("power limit {} W", watts(limit))),
    };
    join_known([
        clocks(gpu.clock_mhz, gpu.max_clock_mhz, "clock"),
        clocks(gpu.memory_clock_mhz, gpu.max_memory_clock_mhz, "memory clock"),
        gpu.temperature_celsius.map(|degrees| format!("{degrees} °C")),
        gpu.utilisation_percent.map(|percent| format!("{percent} % busy")),
        gpu.memory_used_bytes.map(|bytes| format!("{} in use", gib(bytes))),
        power,
    ])
}

fn gpu_processes(gpu: &Gpu) -> String {
    let processes = gpu.processes.iter().map(|process| match process.bytes {
        Some(bytes) => format!("{} ({})", process.pid, gib(bytes)),
        None => process.pid.to_string(),
    });
    let all = processes.collect::<Vec<_>>().join(", ");
    if all.is_empty() { all } else { format!("used by processes {all}") }
}

fn join_known<const N: usize>(parts: [Option<String>; N]) -> String {
    let known = parts.into_iter().flatten().filter(|part| !part.is_empty());
    known.collect::<Vec<_>>().join("; ")
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests;
