//! Which device a load runs on. The only place that knows: the rest of the engine is handed a `Device`.

use candle_core::Device;
use protocol::{Failed, FailureKind};

use crate::failure::unsupported;

/// What this build can open; the first is what a load without a device gets.
pub const NAMES: &[&str] = if cfg!(feature = "cuda") { &["cuda", "cpu"] } else { &["cpu"] };

/// Opens a device by its name: `cpu`, or `cuda` and `cuda:1` in the build that has CUDA.
pub fn open(name: Option<&str>) -> Result<Device, Failed> {
    let name = name.unwrap_or(NAMES[0]);
    let (family, number) = name.split_once(':').unwrap_or((name, "0"));
    match (family, number.parse::<usize>()) {
        ("cpu", Ok(0)) => Ok(Device::Cpu),
        ("cuda", Ok(number)) if NAMES.contains(&"cuda") => Device::new_cuda(number).map_err(|error| {
            let what = format!("cannot open `{name}`: {}", crate::failure::first_line(&error));
            Failed::new(FailureKind::Unavailable, what).hint("check the driver with `nvidia-smi`")
        }),
        ("cuda", Ok(_)) => Err(unsupported(format!("device `{name}` is not in this build"))
            .hint("the CUDA build is a binary of its own: see engines/candle/README.md")),
        _ => Err(unsupported(format!("no device `{name}`: this build has `{}`", NAMES.join("`, `")))),
    }
}

/// As facts name it.
pub fn name(device: &Device) -> String {
    match device.location() {
        candle_core::DeviceLocation::Cpu => "cpu".into(),
        candle_core::DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        candle_core::DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    }
}
