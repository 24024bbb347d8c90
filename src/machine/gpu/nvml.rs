//! NVIDIA's management library, loaded at run time. Facts that the library does not report are absent. The whole
//! program uses one session: opening a session takes tens of milliseconds, and an open session keeps the driver active.

use std::ffi::OsStr;
use std::sync::OnceLock;
use std::time::Duration;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory as ProcessMemory;
use nvml_wrapper::error::{Bits, NvmlError};
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use super::facts::{Gpu, GpuProcess};
use super::samples::GpuSample;
use crate::machine::observed::{UsedGpuMemory, gpu_counter};

/// The driver's throttle reasons that are no slowdown: an idle GPU, a clock set by the user, a display.
const HARMLESS: ThrottleReasons = ThrottleReasons::GPU_IDLE
    .union(ThrottleReasons::APPLICATIONS_CLOCKS_SETTING)
    .union(ThrottleReasons::DISPLAY_CLOCK_SETTING);

/// Paths where containers mount the driver's library. They are tried last, because the container's loader may not search them.
const MOUNTED_LIBRARIES: &[&str] =
    &["/usr/local/nvidia/lib64/libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"];

fn session() -> Option<&'static Nvml> {
    static SESSION: OnceLock<Option<Nvml>> = OnceLock::new();
    let mounted = |path: &&str| Nvml::builder().lib_path(OsStr::new(path)).init().ok();
    SESSION.get_or_init(|| Nvml::init().ok().or_else(|| MOUNTED_LIBRARIES.iter().find_map(mounted))).as_ref()
}

fn devices(nvml: &Nvml) -> impl Iterator<Item = (u32, Device<'_>)> {
    let count = nvml.device_count().unwrap_or(0);
    (0..count).filter_map(|index| Some((index, nvml.device_by_index(index).ok()?)))
}

pub fn probe() -> Vec<Gpu> {
    let Some(nvml) = session() else { return Vec::new() };
    let driver = nvml.sys_driver_version().ok();
    let cuda = nvml.sys_cuda_driver_version().ok().and_then(cuda_version);
    let described = devices(nvml).map(|(index, device)| Gpu {
        driver: driver.clone(),
        cuda: cuda.clone(),
        ..describe(index, &device)
    });
    described.collect()
}

fn describe(index: u32, device: &Device) -> Gpu {
    let memory = device.memory_info().ok();
    let mig = device.mig_mode().ok().map(|mode| mode.current == 1);
    let capability = device.cuda_compute_capability().ok();
    let (mig_profiles, mig_uuids) =
        if mig == Some(true) { mig_devices(device) } else { (Vec::new(), Vec::new()) };
    Gpu {
        index,
        name: device.name().ok(),
        uuid: device.uuid().ok(),
        pci: device.pci_info().ok().map(|pci| pci.bus_id),
        compute_capability: capability.map(|it| format!("{}.{}", it.major, it.minor)),
        memory_bytes: memory.as_ref().map(|memory| memory.total),
        memory_used_bytes: memory.as_ref().map(|memory| memory.used),
        clock_mhz: device.clock_info(Clock::SM).ok(),
        max_clock_mhz: device.max_clock_info(Clock::SM).ok(),
        memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
        max_memory_clock_mhz: device.max_clock_info(Clock::Memory).ok(),
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        utilisation_percent: device.utilization_rates().ok().map(|it| it.gpu),
        power_milliwatts: device.power_usage().ok(),
        power_limit_milliwatts: device.enforced_power_limit().ok(),
        default_power_limit_milliwatts: device.power_management_limit_default().ok(),
        ecc: device.is_ecc_enabled().ok().map(|ecc| ecc.currently_enabled),
        mig,
        mig_profiles,
        mig_uuids,
        processes: processes(device),
        ..Gpu::default()
    }
}

/// The profiles of the MIG devices, from the end of their names, and their UUIDs.
fn mig_devices(device: &Device) -> (Vec<String>, Vec<String>) {
    let count = device.mig_device_count().unwrap_or(0);
    // Some of these indices may have no MIG device.
    let mig_devices = (0..count).filter_map(|index| device.mig_device_by_index(index).ok());
    let named = mig_devices.filter_map(|mig_device| {
        let name = mig_device.name().ok()?;
        let profile = name.rsplit("MIG ").next().unwrap_or_default().trim().to_string();
        Some((profile, mig_device.uuid().unwrap_or_default()))
    });
    named.unzip()
}

fn processes(device: &Device) -> Vec<GpuProcess> {
    let compute = device.running_compute_processes().unwrap_or_default();
    let all = compute.into_iter().chain(device.running_graphics_processes().unwrap_or_default());
    let mut processes: Vec<GpuProcess> = all.map(|it| process(&it)).collect();
    processes.sort_by_key(|process| (process.pid, std::cmp::Reverse(process.bytes)));
    // A process that computes and renders is in both lists.
    processes.dedup_by_key(|process| process.pid);
    processes
}

fn process(info: &ProcessInfo) -> GpuProcess {
    let bytes = match info.used_gpu_memory {
        ProcessMemory::Used(bytes) => Some(bytes),
        ProcessMemory::Unavailable => None,
    };
    GpuProcess { pid: info.pid, bytes }
}

/// A sample of every GPU. `pids` are the engine's processes, and `at` is the time since the first sample began.
pub fn sample(pids: &[u32], at: Duration) -> Vec<GpuSample> {
    let Some(nvml) = session() else { return Vec::new() };
    devices(nvml).map(|(index, device)| sample_one(index, &device, pids, at)).collect()
}

/// The used memory of each GPU now, for all processes.
pub fn used_memory() -> Vec<UsedGpuMemory> {
    let Some(nvml) = session() else { return Vec::new() };
    let memory = devices(nvml).filter_map(|(index, device)| {
        Some(UsedGpuMemory { index, memory_used_bytes: device.memory_info().ok()?.used })
    });
    memory.collect()
}

fn sample_one(index: u32, device: &Device, pids: &[u32], at: Duration) -> GpuSample {
    let engine_processes = processes(device).into_iter().filter(|process| pids.contains(&process.pid));
    let utilisation = device.utilization_rates().ok();
    GpuSample {
        index,
        at,
        utilisation_percent: utilisation.as_ref().map(|it| it.gpu),
        memory_utilisation_percent: utilisation.map(|it| it.memory),
        memory_used_bytes: device.memory_info().ok().map(|memory| memory.used),
        process_bytes: engine_processes.filter_map(|process| process.bytes).reduce(u64::saturating_add),
        power_milliwatts: device.power_usage().ok(),
        clock_mhz: device.clock_info(Clock::SM).ok(),
        memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        throttled_by: throttle_reasons(device).map(slowdown_reasons),
    }
}

/// The throttle reasons as bits. CUDA 13 deprecates the call. If a driver refuses it, the reasons are unknown.
fn throttle_reasons(device: &Device) -> Option<u64> {
    match device.current_throttle_reasons_strict() {
        Ok(reasons) => Some(reasons.bits()),
        // Newer drivers know reasons that the wrapper has no name for.
        Err(NvmlError::IncorrectBits(Bits::U64(bits))) => Some(bits),
        Err(_) => None,
    }
}

/// The names of the reasons that slow the GPU down. Reasons without a name are given as bits.
fn slowdown_reasons(bits: u64) -> Vec<String> {
    let known = ThrottleReasons::from_bits_truncate(bits).difference(HARMLESS);
    let unnamed = bits & !ThrottleReasons::all().bits();
    let named = known.iter_names().map(|(name, _)| name.to_ascii_lowercase());
    named.chain((unnamed != 0).then(|| format!("reason_{unnamed:#x}"))).collect()
}

/// The name of each GPU's counter, and the energy since its driver was loaded, in microjoules.
pub fn energy() -> Vec<(String, u64)> {
    let Some(nvml) = session() else { return Vec::new() };
    let counters = devices(nvml).filter_map(|(index, device)| {
        let millijoules = device.total_energy_consumption().ok()?;
        Some((gpu_counter(index), millijoules.checked_mul(1000)?))
    });
    counters.collect()
}

/// The driver's number of GPUs, or the error of its library.
pub fn count() -> Result<u32, NvmlError> {
    match session() {
        Some(nvml) => nvml.device_count(),
        None => Nvml::init().and_then(|nvml| nvml.device_count()),
    }
}

/// CUDA's version from its number: 12080 is 12.8.
fn cuda_version(number: i32) -> Option<String> {
    (number > 0).then(|| format!("{}.{}", number / 1000, number % 1000 / 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cuda_version_is_decoded_from_its_number() {
        assert_eq!(cuda_version(12_080).as_deref(), Some("12.8"));
        assert_eq!(cuda_version(13_000).as_deref(), Some("13.0"));
        assert_eq!(cuda_version(0), None);
    }

    #[test]
    fn throttle_reasons_have_names_and_unknown_bits_are_reported() {
        // An idle GPU, and a clock set by the user.
        assert_eq!(slowdown_reasons(0x3), Vec::<String>::new());
        assert_eq!(slowdown_reasons(0x4 | 0x1), ["sw_power_cap"]);
        assert_eq!(
            slowdown_reasons(0x8 | 0x40 | 0x8000),
            ["hw_slowdown", "hw_thermal_slowdown", "reason_0x8000"]
        );
    }

    #[test]
    fn without_nvml_there_are_no_gpus_and_no_counters() {
        if session().is_none() {
            let values = (probe(), sample(&[1], Duration::ZERO), energy());
            assert_eq!(values, (Vec::new(), Vec::new(), Vec::new()));
        }
    }
}
