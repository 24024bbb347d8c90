//! Values from samplers, counters and drivers that a record keeps about the machine and its processes.

use serde::{Deserialize, Serialize};

/// The memory of a process tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldMemory {
    pub resident_bytes: u64,
    /// The proportional set size: every process, inside or outside the tree, has its share of a shared page.
    pub pss_bytes: u64,
    /// Memory without a file behind it, each page once.
    pub anonymous_bytes: u64,
    /// Memory of mapped files, each page once. It counts in full even if another engine maps the same file.
    pub file_bytes: u64,
}

/// The prefix of the names of counters of processors and of their memory.
pub const PACKAGE_PREFIX: &str = "package";

/// The name of a GPU's energy counter, by NVML's index.
pub fn gpu_counter(index: u32) -> String {
    format!("gpu-{index}")
}

/// The energy that one counter counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Energy {
    /// `package-0`, `gpu-0`.
    pub counter: String,
    pub microjoules: u64,
    pub elapsed_ns: u64,
}

/// The summary of one GPU's samples in a sampled pass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuPass {
    /// NVML's index.
    pub index: u32,
    /// The mean over the samples from at least one second after the first. The driver's own value is a mean over up to a second.
    /// Absent without such samples, or if the device does not report it (a part of a GPU does not).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation_percent: Option<u32>,
    /// The mean share of time in which the device's memory was read or written, over the samples of `utilisation_percent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_utilisation_percent: Option<u32>,
    /// The mean power over the samples of `utilisation_percent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_milliwatts: Option<u32>,
    #[serde(alias = "looks")]
    pub samples: u32,
    /// The largest memory use of the whole device, by all processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// The largest memory use of the engine's processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_bytes: Option<u64>,
    /// The lowest and the highest clock of the streaming multiprocessors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<(u32, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<(u32, u32)>,
    /// The highest temperature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<u32>,
    /// The driver's names for the reasons of a slowdown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub throttled_by: Vec<String>,
    /// The number of samples with at least one reason. Absent if the driver does not say.
    #[serde(default, alias = "throttled_looks", skip_serializing_if = "Option::is_none")]
    pub throttled_samples: Option<u32>,
}

/// The used memory of a whole GPU, for all processes, before a launch started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedGpuMemory {
    /// NVML's index.
    pub index: u32,
    pub memory_used_bytes: u64,
}
