//! Observations of samplers, counters and drivers of the machine and its processes: the values that a record keeps.

use serde::{Deserialize, Serialize};

/// What a process tree holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub resident_bytes: u64,
    /// The proportional set size: pages that processes share count by their share, whoever else shares them.
    pub pss_bytes: u64,
    /// What no file backs, each page once.
    pub anonymous_bytes: u64,
    /// What a file backs (and can be read again from there), each page once, also where another engine maps the same file.
    pub file_bytes: u64,
}

/// Counters of processors and of their memory begin so.
pub const PACKAGE: &str = "package";

/// What the counter of a GPU is called, by NVML's index.
pub fn gpu_counter(index: u32) -> String {
    format!("gpu-{index}")
}

/// What one counter of energy counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Energy {
    /// `package-0`, `gpu-0`.
    pub counter: String,
    pub microjoules: u64,
    pub elapsed_ns: u64,
}

/// A GPU over a pass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuPass {
    /// NVML's.
    pub index: u32,
    /// The mean over the looks a second and more after the first: the driver's own figure is a mean over up to that. Absent
    /// where there were none, or the device does not say, as a part of one (MIG) does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation_percent: Option<u32>,
    /// Over the same looks: of the time in which its memory was read or written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_utilisation_percent: Option<u32>,
    /// Over the same looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_milliwatts: Option<u32>,
    pub looks: u32,
    /// The most of the whole device, for whomever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// The most of the engine's processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_bytes: Option<u64>,
    /// Of the streaming processors: the lowest and the highest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<(u32, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<(u32, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<u32>,
    /// As the driver names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub throttled_by: Vec<String>,
    /// Those at which the driver named any; absent where it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_looks: Option<u32>,
}

/// The memory of a whole GPU, for whomever, when nothing of a launch was there yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuHeld {
    /// NVML's.
    pub index: u32,
    pub memory_used_bytes: u64,
}
