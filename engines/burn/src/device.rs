//! The device of a load: the CPU, or a GPU in the build that has CUDA.

use burn::tensor::Device;
use protocol::{DeviceMemory, Failed, FailureKind};

/// The devices of this build; the first is the default.
pub const NAMES: &[&str] = if cfg!(feature = "cuda") { &["cuda", "cpu"] } else { &["cpu"] };

/// A device with its name in facts.
#[derive(Debug, Clone)]
pub struct Opened {
    pub device: Device,
    pub name: String,
}

impl Opened {
    pub fn is_cpu(&self) -> bool {
        self.name == "cpu"
    }

    /// The memory that Burn's allocator holds on a GPU. `None` on the CPU, where Burn counts nothing.
    pub fn memory(&self) -> Option<DeviceMemory> {
        let usage = self.device.memory_pool_usage().filter(|_| !self.is_cpu())?;
        // The allocator keeps freed pages, so the reserved bytes are its peak.
        Some(DeviceMemory {
            in_use_bytes: usage.bytes_in_use,
            peak_bytes: usage.bytes_reserved,
            reserved_bytes: Some(usage.bytes_reserved),
        })
    }
}

/// Opens a device by its name: `cpu`, or `cuda` and `cuda:1` in the build that has CUDA.
pub fn open(name: Option<&str>) -> Result<Opened, Failed> {
    let name = name.unwrap_or(NAMES[0]);
    match parse(name) {
        Some(Name::Cpu) => Ok(Opened { device: Device::flex(), name: "cpu".into() }),
        Some(Name::Cuda(number)) => open_cuda(number),
        None => {
            let known = NAMES.join("`, `");
            let message = format!("no device `{}`: this build has `{known}`", name.escape_debug());
            Err(Failed::new(FailureKind::Unsupported, message))
        }
    }
}

#[cfg(feature = "cuda")]
fn open_cuda(number: usize) -> Result<Opened, Failed> {
    let count = Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec().len();
    if number >= count {
        let message = format!("no `cuda:{number}`: the number of GPUs that Burn finds is {count}");
        return Err(
            Failed::new(FailureKind::Unavailable, message).hint("nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES")
        );
    }
    Ok(Opened { device: Device::cuda(number), name: format!("cuda:{number}") })
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(number: usize) -> Result<Opened, Failed> {
    let message = format!("device `cuda:{number}` is not in this build");
    Err(Failed::new(FailureKind::Unsupported, message)
        .hint("orchestrate setup burn --device cuda    # builds the separate program `burn-cuda`"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Cpu,
    /// The number that CUDA gives the GPU; `CUDA_VISIBLE_DEVICES` may hide some GPUs.
    Cuda(usize),
}

fn parse(name: &str) -> Option<Name> {
    let (family, number) = name.split_once(':').unwrap_or((name, "0"));
    // `+1` would parse as a number, but is not a valid name.
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse::<usize>().ok().filter(|_| is_number)?;
    match family {
        "cpu" => (number == 0).then_some(Name::Cpu),
        "cuda" => Some(Name::Cuda(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_name_is_a_family_and_a_number() {
        assert_eq!((parse("cpu"), parse("cpu:0")), (Some(Name::Cpu), Some(Name::Cpu)));
        assert_eq!((parse("cuda"), parse("cuda:1")), (Some(Name::Cuda(0)), Some(Name::Cuda(1))));
        for name in ["", ":", "cpu:1", "cuda:", "cuda:-1", "cuda:+1", "cuda:1:2", "CUDA", "tpu"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_gpu_is_refused_by_the_program_for_the_cpu_with_the_command_that_builds_the_other() {
        let failed = open(Some("cuda:1")).unwrap_err();
        assert_eq!(failed.message, "device `cuda:1` is not in this build");
        assert!(failed.hint.unwrap().starts_with("orchestrate setup burn --device cuda"));
    }
}
