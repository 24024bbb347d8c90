//! The measured limits of this machine: the speed of memory reads, and the operations per second of each arithmetic unit. The
//! orchestrator and the engines' benchmarks compare engines with these limits.
//!
//! Every result of a probe is the fastest of several short passes: other processes can only make a pass slower. Passes with
//! different numbers of streams take turns, as do those of different units, because speeds vary. README.md says what is measured
//! and what is not.

mod gpu;
mod memory;
mod read;
mod team;
mod units;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use system::processors;

pub use gpu::{GpuProbeSettings, probe_gpus};
pub use memory::{STREAMS, buffer_bytes};

/// The names of arithmetic units in JSON.
pub mod names {
    pub const F32_FMA: &str = "f32_fma";
    pub const AVX512_BF16: &str = "avx512_bf16";
    pub const AVX_VNNI: &str = "avx_vnni";
    pub const AVX512_VNNI: &str = "avx512_vnni";
    pub const AMX_BF16: &str = "amx_bf16";
    pub const AMX_INT8: &str = "amx_int8";
    pub const CUBLAS_BF16: &str = "cublas_bf16";
    pub const CUBLAS_F16: &str = "cublas_f16";
    pub const CUBLAS_TF32: &str = "cublas_tf32";
    pub const CUBLAS_F32: &str = "cublas_f32";
}

/// All results of a probe: bytes or operations, and the nanoseconds that they took. Methods compute the rates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// One entry for each number of threads and of streams per thread.
    pub reads: Vec<Reads>,
    pub units: Vec<Operations>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuLimits>,
    /// The reasons for missing GPU results.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<String>,
}

/// Bytes read from memory by `threads` threads, each of which reads `streams` separate ranges at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reads {
    pub threads: u32,
    pub streams: u32,
    pub bytes: u64,
    pub ns: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuLimits {
    /// CUDA's index among the GPUs visible to this process. An engine calls index 1 `cuda:1`. NVML's index may differ.
    pub index: u32,
    pub name: String,
    /// The UUID, such as `8932f937-d72c-4106-c12f-20bd9faed9f6`, which identifies the GPU in NVML. NVML puts `GPU-` before it,
    /// or `MIG-` for a MIG device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Bytes of the L2 cache, which answers repeated reads in place of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<Copies>,
    /// Products of square matrices by cuBLAS, for each number type (`names`). Here `threads` has no meaning.
    pub matrix: Vec<Operations>,
}

/// Bytes copied within a GPU's memory: read bytes plus written bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Copies {
    pub bytes: u64,
    pub ns: u64,
}

/// Operations of one arithmetic unit on all threads: a multiplication and an addition count as two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operations {
    /// `f32_fma`, `avx512_bf16`, `avx512_vnni`, `avx_vnni`, `amx_bf16`, `amx_int8`; in `GpuLimits`, `cublas_...`.
    pub unit: String,
    /// Whether operands are loaded: on the CPU from the nearest cache, on a GPU by cuBLAS. Otherwise they stay in registers.
    pub loads: bool,
    pub threads: u32,
    pub operations: u64,
    pub ns: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProbeSettings {
    /// Thread counts, probed separately. Counts above the number of processors are reduced to it.
    pub threads: Vec<u32>,
    /// The size of the buffer to read, from `buffer_bytes`. Zero skips the probe of memory.
    pub buffer_bytes: u64,
    /// The approximate total time. Each number of streams and each unit has two passes at least, however long they take.
    pub budget: Duration,
}

/// Memory gets two thirds of the budget: its passes are longer than those of units, and its buffer is written first.
const MEMORY_THIRDS: u32 = 2;

/// Measures the limits for about the time of the budget. Meanwhile it keeps one processor busy for each thread, and holds
/// `buffer_bytes` of memory. The result lacks probes that are impossible on this machine.
pub fn probe(settings: &ProbeSettings) -> Limits {
    let (allowed, cores) = (processors::cores_first(), processors::one_per_core());
    let max = u32::try_from(allowed.len()).unwrap_or(u32::MAX).max(1);
    let mut threads: Vec<u32> = settings.threads.iter().map(|&threads| threads.clamp(1, max)).collect();
    threads.sort_unstable();
    threads.dedup();
    let budget = settings.budget / u32::try_from(threads.len()).unwrap_or(u32::MAX).max(1);
    let memory_budget = if settings.buffer_bytes > 0 { budget * MEMORY_THIRDS / 3 } else { Duration::ZERO };
    let mut limits = Limits::default();
    for threads in threads {
        let team = team::spread(&allowed, &cores, threads as usize);
        limits.reads.extend(memory::probe(&team, settings.buffer_bytes, memory_budget));
        limits.units.extend(units::probe(&team, budget - memory_budget));
    }
    limits
}

/// Bytes read per second by all processors during `time`, with `streams` (one of `STREAMS`) per thread. `None` if impossible.
pub fn sustained(buffer_bytes: u64, streams: u32, time: Duration) -> Option<f64> {
    STREAMS.contains(&streams).then_some(())?;
    memory::sustained(&processors::cores_first(), buffer_bytes, streams, time)
}

impl Limits {
    /// The fastest result over several probes, for each number of threads and streams and for each unit; `None` without probes.
    pub fn best<'a>(probes: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let mut probes = probes.into_iter();
        let mut best = probes.next()?.clone();
        for probe in probes {
            // `orchestrate` probes GPUs once per run, so the first result counts.
            if best.gpus.is_empty() {
                best.gpus.clone_from(&probe.gpus);
            }
            for reads in &probe.reads {
                let is_same = |old: &&mut Reads| (old.threads, old.streams) == (reads.threads, reads.streams);
                match best.reads.iter_mut().find(is_same) {
                    Some(old) if old.bytes_per_second() >= reads.bytes_per_second() => {}
                    Some(old) => *old = *reads,
                    None => best.reads.push(*reads),
                }
            }
            for unit in &probe.units {
                let key = |unit: &Operations| (unit.unit.clone(), unit.loads, unit.threads);
                match best.units.iter_mut().find(|old| key(old) == key(unit)) {
                    Some(old) if old.per_second() >= unit.per_second() => {}
                    Some(old) => *old = unit.clone(),
                    None => best.units.push(unit.clone()),
                }
            }
        }
        Some(best)
    }
}

impl Reads {
    pub fn bytes_per_second(&self) -> Option<f64> {
        per_second(self.bytes, self.ns)
    }
}

impl Copies {
    pub fn bytes_per_second(&self) -> Option<f64> {
        per_second(self.bytes, self.ns)
    }
}

impl Operations {
    pub fn per_second(&self) -> Option<f64> {
        per_second(self.operations, self.ns)
    }
}

/// The rate; `None` if the count or the time is 0.
fn per_second(count: u64, ns: u64) -> Option<f64> {
    (count > 0 && ns > 0).then(|| count as f64 * 1e9 / ns as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe_briefly(threads: &[u32], buffer_bytes: u64) -> Limits {
        probe(&ProbeSettings { threads: threads.to_vec(), buffer_bytes, budget: Duration::from_millis(1) })
    }

    #[test]
    fn every_thread_count_has_each_number_of_streams_and_the_fma_unit_once() {
        // 0 counts as 1, and a count above the number of processors as that number.
        let limits = probe_briefly(&[1, 2, 1, u32::MAX, 0], 1 << 20);
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
            let is_fma = |unit: &&Operations| unit.unit == names::F32_FMA && unit.threads == threads;
            assert_eq!(limits.units.iter().filter(is_fma).count(), 1);
        }
    }

    #[test]
    fn every_probed_rate_is_plausible() {
        let limits = probe_briefly(&[1, 2], 4 << 20);
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
    fn without_a_buffer_or_threads_results_are_absent() {
        let limits = probe_briefly(&[1], 0);
        assert!(limits.reads.is_empty() && !limits.units.is_empty());
        assert_eq!(probe_briefly(&[], 1 << 20), Limits::default());
    }

    #[test]
    fn a_buffer_too_large_for_the_machine_gives_no_reads() {
        let limits = probe_briefly(&[1], u64::MAX);
        assert!(limits.reads.is_empty() && !limits.units.is_empty());
    }

    #[test]
    fn the_best_of_several_probes_has_the_fastest_result_of_each_setting() {
        let reads = |streams, bytes| Reads { threads: 2, streams, bytes, ns: 10 };
        let fma = |operations| Operations {
            unit: names::F32_FMA.into(),
            operations,
            ns: 10,
            ..Operations::default()
        };
        let first =
            Limits { reads: vec![reads(1, 50), reads(4, 70)], units: vec![fma(9)], ..Limits::default() };
        let second = Limits {
            reads: vec![reads(1, 60), reads(4, 65), reads(8, 1)],
            units: vec![fma(8)],
            ..Limits::default()
        };
        let best = Limits {
            reads: vec![reads(1, 60), reads(4, 70), reads(8, 1)],
            units: vec![fma(9)],
            ..Limits::default()
        };
        assert_eq!(Limits::best([&first, &second]), Some(best));
        assert_eq!(Limits::best([]), None);
    }

    #[test]
    fn a_rate_without_a_count_or_a_time_is_absent() {
        assert_eq!(Reads { bytes: 1, ..Reads::default() }.bytes_per_second(), None);
        assert_eq!(Operations { ns: 1, ..Operations::default() }.per_second(), None);
        assert_eq!(Reads { bytes: 30, ns: 2, ..Reads::default() }.bytes_per_second(), Some(15e9));
    }
}
