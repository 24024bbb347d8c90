//! The device of a load and its facts. Other modules only get candle's `Device`.
//!
//! `cuda` is the only file that calls CUDA; `no_cuda` replaces it in a build without CUDA. Code that can be tested without
//! a GPU is in `arch`, `room` and `trouble`.

#[cfg(any(feature = "cuda", test))]
mod arch;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
#[cfg(any(feature = "cuda", test))]
mod room;
pub mod trouble;

use candle_core::{Device, DeviceLocation};
use protocol::Failed;

use crate::failure::unsupported;

pub use cuda::{NAMES, build_features, expect_room, explained, libraries, memory};

/// Opens a device by its name: `cpu`, or `cuda` and `cuda:1` in the build that has CUDA.
pub fn open(name: Option<&str>) -> Result<Device, Failed> {
    match Place::named(name.unwrap_or(NAMES[0])) {
        Some(Place::Cpu) => Ok(Device::Cpu),
        Some(Place::Cuda(number)) => cuda::open(number),
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

/// The meaning of a device's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Cpu,
    /// By CUDA's own numbers; `CUDA_VISIBLE_DEVICES` may hide some.
    Cuda(usize),
}

impl Place {
    fn named(name: &str) -> Option<Self> {
        let (family, number) = name.split_once(':').unwrap_or((name, "0"));
        // `+1` would parse as a number, but is not a valid name.
        let plain = number.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.parse::<usize>().ok().filter(|_| plain)?;
        match family {
            "cpu" => (number == 0).then_some(Self::Cpu),
            "cuda" => Some(Self::Cuda(number)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_family_and_a_number() {
        assert_eq!((Place::named("cpu"), Place::named("cpu:0")), (Some(Place::Cpu), Some(Place::Cpu)));
        assert_eq!(Place::named("cuda"), Some(Place::Cuda(0)));
        assert_eq!(Place::named("cuda:1"), Some(Place::Cuda(1)));
    }

    #[test]
    fn what_is_no_device_is_refused() {
        let long = format!("cuda:{}", "9".repeat(40));
        for name in
            ["", ":", "cpu:1", "cuda:", "cuda:-1", "cuda:+1", "cuda:1:2", "CUDA", "tpu", " cuda", &long]
        {
            assert_eq!(Place::named(name), None, "{name}");
        }
    }
}
