//! The facts of one GPU.

use serde::{Deserialize, Serialize};

/// An absent fact is unknown. Several facts are absent on a MIG device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    /// NVML's index.
    pub index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The slot: `00000000:1B:00.0`. CUDA is made to count in this order; NVML promises no order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The newest CUDA that the driver supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
    /// For example `9.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_capability: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// The clock of the streaming multiprocessors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_clock_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_memory_clock_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilisation_percent: Option<u32>,
    /// The power draw as the driver reports it: since the Ampere generation (except the A100), the mean over a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_milliwatts: Option<u32>,
    /// The power limit in effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_milliwatts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_power_limit_milliwatts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc: Option<bool>,
    /// Whether MIG is on. `mig_profiles` has the profiles of the visible MIG devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<bool>,
    #[serde(rename = "mig_parts", skip_serializing_if = "Vec::is_empty")]
    pub mig_profiles: Vec<String>,
    /// The same devices by their names in `CUDA_VISIBLE_DEVICES`, in the same order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mig_uuids: Vec<String>,
    pub processes: Vec<GpuProcess>,
}

/// A process that computes or renders on a GPU. In a container, `pid` may be the number of the process on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuProcess {
    pub pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl Gpu {
    /// The properties that identify the GPU in comparisons: model, memory and MIG profiles. The `uuid` is excluded because another GPU
    /// of the same kind is equivalent, and the driver because it changes.
    pub fn kind(&self) -> String {
        let name = self.name.as_deref().unwrap_or("unknown");
        let memory = self.memory_bytes.map(|bytes| format!(" {} GiB", gib(bytes)));
        let profiles =
            (!self.mig_profiles.is_empty()).then(|| format!(" ({})", self.mig_profiles.join(" + ")));
        [Some(name.to_string()), memory, profiles].into_iter().flatten().collect()
    }

    /// Whether the GPU is partitioned into MIG devices, which several programs may use at once.
    pub fn is_partitioned(&self) -> bool {
        self.mig == Some(true)
    }
}

fn gib(bytes: u64) -> f64 {
    (bytes as f64 / f64::from(1 << 30)).round()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_of_one_kind_and_partition_are_equal_under_any_driver() {
        let gpu = Gpu { name: Some("GPU-9".into()), memory_bytes: Some(80 << 30), ..Gpu::default() };
        let other =
            Gpu { uuid: Some("x".into()), driver: Some("570".into()), clock_mhz: Some(3), ..gpu.clone() };
        assert_eq!((gpu.kind(), other.kind()), ("GPU-9 80 GiB".into(), "GPU-9 80 GiB".into()));
        let partitioned = Gpu { mig_profiles: vec!["1g.10gb".into(), "2g.20gb".into()], ..gpu };
        assert_eq!(partitioned.kind(), "GPU-9 80 GiB (1g.10gb + 2g.20gb)");
        assert_eq!(Gpu::default().kind(), "unknown");
    }
}
