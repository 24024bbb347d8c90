//! The device of a load and its facts. Other modules use candle's `Device`, and never a type of CUDA.
//!
//! `cuda` is the only file that calls CUDA; a build without CUDA has the module `cuda` of this file in its place.

#[cfg(any(feature = "cuda", test))]
mod arch;
#[cfg(feature = "cuda")]
mod cuda;

use candle_core::{Device, DeviceLocation};
use protocol::Failed;

use crate::failure::unsupported;

pub use cuda::{NAMES, add_free_memory, build_features, expect_free_memory, libraries, memory};

/// Opens a device by its name: `cpu`, or `cuda` and `cuda:1` in the build that has CUDA.
pub fn open(name: Option<&str>) -> Result<Device, Failed> {
    match Name::parse(name.unwrap_or(NAMES[0])) {
        Some(Name::Cpu) => Ok(Device::Cpu),
        Some(Name::Cuda(number)) => cuda::open(number),
        None => {
            let name = name.unwrap_or_default().escape_debug();
            Err(unsupported(format!("no device `{name}`: this build has `{}`", NAMES.join("`, `"))))
        }
    }
}

/// The device's name in facts.
pub fn name(device: &Device) -> String {
    match device.location() {
        DeviceLocation::Cpu => "cpu".into(),
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    }
}

/// The parsed name of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Cpu,
    /// The number that CUDA gives the GPU; `CUDA_VISIBLE_DEVICES` may hide some GPUs.
    Cuda(usize),
}

impl Name {
    fn parse(name: &str) -> Option<Self> {
        let (family, number) = name.split_once(':').unwrap_or((name, "0"));
        // `+1` would parse as a number, but is not a valid name.
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.parse::<usize>().ok().filter(|_| is_number)?;
        match family {
            "cpu" => (number == 0).then_some(Self::Cpu),
            "cuda" => Some(Self::Cuda(number)),
            _ => None,
        }
    }
}

/// The total and the free memory of a device, in bytes.
#[cfg(any(feature = "cuda", test))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Memory {
    free_bytes: u64,
    total_bytes: u64,
}

#[cfg(any(feature = "cuda", test))]
impl Memory {
    /// Refuses weights that cannot fit, before any of them is copied.
    fn expect_free(self, device: &str, weights_bytes: u64) -> Result<(), Failed> {
        if weights_bytes <= self.free_bytes {
            return Ok(());
        }
        let message = format!("the weights need {}, and `{device}` has {self}", gigabytes(weights_bytes));
        Err(Failed::new(protocol::FailureKind::OutOfMemory, message).hint(crate::failure::FREE_MEMORY_HINT))
    }
}

#[cfg(any(feature = "cuda", test))]
impl std::fmt::Display for Memory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} free of {}", gigabytes(self.free_bytes), gigabytes(self.total_bytes))
    }
}

#[cfg(any(feature = "cuda", test))]
fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

/// The replacement of `cuda.rs` in a build without CUDA.
#[cfg(not(feature = "cuda"))]
mod cuda {
    use std::collections::BTreeMap;

    use candle_core::Device;
    use protocol::{DeviceMemory, Failed};

    use crate::failure::unsupported;

    /// The devices of this build; the first is the default.
    pub const NAMES: &[&str] = &["cpu"];

    pub fn build_features() -> Vec<String> {
        Vec::new()
    }

    pub fn open(number: usize) -> Result<Device, Failed> {
        Err(unsupported(format!("device `cuda:{number}` is not in this build"))
            .hint("orchestrate setup candle --device cuda    # builds the separate program `candle-cuda`"))
    }

    /// Never refuses: the operating system can provide more than the physical memory.
    pub fn expect_free_memory(_: &Device, _weights_bytes: u64) -> Result<(), Failed> {
        Ok(())
    }

    pub fn memory(_: &Device) -> Option<DeviceMemory> {
        None
    }

    pub fn libraries(_: &Device) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Returns the error unchanged, because the CPU has no device memory.
    pub fn add_free_memory(_: &Device, error: String) -> String {
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_name_is_a_family_and_a_number() {
        assert_eq!((Name::parse("cpu"), Name::parse("cpu:0")), (Some(Name::Cpu), Some(Name::Cpu)));
        assert_eq!(Name::parse("cuda"), Some(Name::Cuda(0)));
        assert_eq!(Name::parse("cuda:1"), Some(Name::Cuda(1)));
    }

    #[test]
    fn invalid_device_names_are_refused() {
        let long = format!("cuda:{}", "9".repeat(40));
        for name in
            ["", ":", "cpu:1", "cuda:", "cuda:-1", "cuda:+1", "cuda:1:2", "CUDA", "tpu", " cuda", &long]
        {
            assert_eq!(Name::parse(name), None, "{name}");
        }
    }

    const MEMORY: Memory = Memory { free_bytes: 9_300_000_000, total_bytes: 85_000_000_000 };

    #[test]
    fn weights_that_fit_are_accepted() {
        assert_eq!(MEMORY.expect_free("cuda:0", 9_300_000_000), Ok(()));
    }

    #[test]
    fn weights_that_do_not_fit_are_refused_with_both_numbers() {
        let refused = MEMORY.expect_free("cuda:1", 16_060_000_000).unwrap_err();
        assert_eq!(refused.kind, protocol::FailureKind::OutOfMemory);
        assert_eq!(refused.message, "the weights need 16.06 GB, and `cuda:1` has 9.30 GB free of 85.00 GB");
        assert!(refused.hint.unwrap().contains("nvidia-smi"));
    }
}
