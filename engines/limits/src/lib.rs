//! What this machine can do at most: how fast it reads memory and how many operations each of its units does, measured
//! now. For an orchestrator that says how far an engine is from it, and for engines whose own benchmarks do.
//!
//! Everything is the best of many short passes, interleaved over the settings: whoever else is on the machine can only make
//! a pass slower, and what memory and units give comes in plateaus. README.md says what is measured, and what it is not.

mod buffer;
mod cores;
mod gpu;
mod memory;
pub mod names;
mod read;
mod team;
mod units;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use gpu::{GpuAsked, probe_gpus};
pub use memory::{STREAMS, buffer_bytes};

/// Everything that was probed at one time. Counts and nanoseconds: rates are for who reads them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Memory, by threads and by streams for each of them.
    pub reads: Vec<Reads>,
    pub units: Vec<Operations>,
    /// From `probe_gpus` alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuLimits>,
    /// Why something is not here, for a person: of a GPU, from `probe_gpus`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<String>,
}

/// Bytes read from memory by so many threads, each walking so many far-apart places at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reads {
    pub threads: u32,
    pub streams: u32,
    pub bytes: u64,
    pub ns: u64,
}

/// What one NVIDIA GPU does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuLimits {
    /// CUDA's, among those that this process may see: what `cuda:1` means to an engine, and not always what NVML counts.
    pub index: u32,
    pub name: String,
    /// `8932f937-d72c-4106-c12f-20bd9faed9f6`: what makes this index one of NVML's, which writes `GPU-` before it, and `MIG-`
    /// before that of a part of a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// What it does not read from its memory again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<Copies>,
    /// Products of square matrices by cuBLAS, for each kind of number (`names`). They have no threads.
    pub matrix: Vec<Operations>,
}

/// Bytes copied within a GPU's memory: those read and those written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Copies {
    pub bytes: u64,
    pub ns: u64,
}

/// Operations of one unit: a multiplication and an addition are two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operations {
    /// `f32_fma`, `avx512_bf16`, `avx512_vnni`, `avx_vnni`, `amx_bf16`, `amx_int8`; those of a GPU stand with it.
    pub unit: String,
    /// With its operands read from the nearest cache, not kept in registers.
    pub loads: bool,
    pub threads: u32,
    pub operations: u64,
    pub ns: u64,
}

/// What to probe, and in how much time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Each by itself. More than there are cores to run on are as many as there are.
    pub threads: Vec<u32>,
    /// Of the memory that is read: see `buffer_bytes`. Zero leaves memory out.
    pub buffer_bytes: u64,
    /// For all of it, about: every setting has two passes at least, however long they take.
    pub budget: Duration,
}

/// What is asked about memory has this share of the budget, in thirds. Its passes are longer, and it has a buffer to touch.
const THIRDS_FOR_MEMORY: u32 = 2;

/// Takes about as long as its budget, with as many cores busy as it has threads, and holds `buffer_bytes` meanwhile. What
/// cannot be probed here is absent.
pub fn probe(asked: &Asked) -> Limits {
    let allowed = cores::allowed();
    let most = u32::try_from(allowed.len()).unwrap_or(u32::MAX).max(1);
    let mut threads: Vec<u32> = asked.threads.iter().map(|&threads| threads.clamp(1, most)).collect();
    threads.sort_unstable();
    threads.dedup();
    let budget = asked.budget / u32::try_from(threads.len()).unwrap_or(u32::MAX).max(1);
    let for_memory = if asked.buffer_bytes > 0 { budget * THIRDS_FOR_MEMORY / 3 } else { Duration::ZERO };
    let mut limits = Limits::default();
    for threads in threads {
        let team = cores::spread(&allowed, threads as usize);
        limits.reads.extend(memory::probe(&team, asked.buffer_bytes, for_memory));
        limits.units.extend(units::probe(&team, budget - for_memory));
    }
    limits
}

/// Bytes a second that memory gives all cores for as long as `time`, each walking so many of `STREAMS`. `None` where that cannot
/// be had.
pub fn sustained(buffer_bytes: u64, streams: u32, time: Duration) -> Option<f64> {
    STREAMS.contains(&streams).then_some(())?;
    memory::sustained(&cores::allowed(), buffer_bytes, streams, time)
}

impl Limits {
    /// Of several probes the best of each setting; `None` of none.
    pub fn best<'a>(probes: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let mut probes = probes.into_iter();
        let mut best = probes.next()?.clone();
        for probe in probes {
            // GPUs are asked once.
            if best.gpus.is_empty() {
                best.gpus.clone_from(&probe.gpus);
            }
            for reads in &probe.reads {
                let same = |it: &&mut Reads| (it.threads, it.streams) == (reads.threads, reads.streams);
                match best.reads.iter_mut().find(same) {
                    Some(known) if known.bytes_per_second() >= reads.bytes_per_second() => {}
                    Some(known) => *known = *reads,
                    None => best.reads.push(*reads),
                }
            }
            for unit in &probe.units {
                let of = |it: &Operations| (it.unit.clone(), it.loads, it.threads);
                match best.units.iter_mut().find(|it| of(it) == of(unit)) {
                    Some(known) if known.per_second() >= unit.per_second() => {}
                    Some(known) => *known = unit.clone(),
                    None => best.units.push(unit.clone()),
                }
            }
        }
        Some(best)
    }
}

impl Reads {
    /// `None` where there was no time to count it in.
    pub fn bytes_per_second(&self) -> Option<f64> {
        per_second(self.bytes, self.ns)
    }
}

impl Copies {
    /// `None` where there was no time to count it in.
    pub fn bytes_per_second(&self) -> Option<f64> {
        per_second(self.bytes, self.ns)
    }
}

impl Operations {
    /// `None` where there was no time to count it in.
    pub fn per_second(&self) -> Option<f64> {
        per_second(self.operations, self.ns)
    }
}

fn per_second(count: u64, ns: u64) -> Option<f64> {
    (count > 0 && ns > 0).then(|| count as f64 * 1e9 / ns as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn briefly(threads: &[u32], buffer_bytes: u64) -> Limits {
        probe(&Asked { threads: threads.to_vec(), buffer_bytes, budget: Duration::from_millis(1) })
    }

    #[test]
    fn every_thread_count_has_each_number_of_streams_and_each_unit_once() {
        let limits = briefly(&[1, 2, 1, u32::MAX, 0], 1 << 20);
        let counts: std::collections::BTreeSet<u32> =
            limits.reads.iter().map(|reads| reads.threads).collect();
        assert!(counts.contains(&1) && counts.len() <= 3, "{counts:?}");
        for &threads in &counts {
            let streams: Vec<u32> = limits
                .reads
                .iter()
                .filter(|reads| reads.threads == threads)
                .map(|reads| reads.streams)
                .collect();
            assert_eq!(streams, STREAMS);
            let of = |unit: &&Operations| unit.unit == names::F32_FMA && unit.threads == threads;
            assert_eq!(limits.units.iter().filter(of).count(), 1);
        }
    }

    #[test]
    fn what_was_probed_is_more_than_nothing_and_no_more_than_any_machine_does() {
        let limits = briefly(&[1, 2], 4 << 20);
        for reads in &limits.reads {
            let rate = reads.bytes_per_second().unwrap();
            assert!(rate > 1e6 && rate < 1e14, "{reads:?}");
        }
        for unit in &limits.units {
            let rate = unit.per_second().unwrap();
            assert!(rate > 1e6 && rate < 1e17, "{unit:?}");
        }
    }

    #[test]
    fn no_buffer_leaves_memory_out_and_no_threads_leave_out_everything() {
        let without = briefly(&[1], 0);
        assert!(without.reads.is_empty() && !without.units.is_empty());
        assert_eq!(briefly(&[], 1 << 20), Limits::default());
    }

    #[test]
    fn a_buffer_that_no_machine_has_is_absent_and_not_fatal() {
        let limits = briefly(&[1], u64::MAX);
        assert!(limits.reads.is_empty() && !limits.units.is_empty());
    }

    #[test]
    fn the_best_of_several_probes_has_each_setting_at_its_fastest() {
        let reads = |streams, bytes| Reads { threads: 2, streams, bytes, ns: 10 };
        let fma = |operations| Operations {
            unit: names::F32_FMA.into(),
            operations,
            ns: 10,
            ..Operations::default()
        };
        let one =
            Limits { reads: vec![reads(1, 50), reads(4, 70)], units: vec![fma(9)], ..Limits::default() };
        let other = Limits {
            reads: vec![reads(1, 60), reads(4, 65), reads(8, 1)],
            units: vec![fma(8)],
            ..Limits::default()
        };
        let best = Limits {
            reads: vec![reads(1, 60), reads(4, 70), reads(8, 1)],
            units: vec![fma(9)],
            ..Limits::default()
        };
        assert_eq!(Limits::best([&one, &other]), Some(best));
        assert_eq!(Limits::best([]), None);
    }

    #[test]
    fn a_count_without_time_is_no_rate() {
        assert_eq!(Reads { bytes: 1, ..Reads::default() }.bytes_per_second(), None);
        assert_eq!(Operations { ns: 1, ..Operations::default() }.per_second(), None);
        assert_eq!(Reads { bytes: 30, ns: 2, ..Reads::default() }.bytes_per_second(), Some(15e9));
    }
}
