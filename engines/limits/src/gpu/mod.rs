//! The limits of NVIDIA GPUs: the speed of copies within memory, and the operations per second of cuBLAS.
//!
//! A process of its own should run this: a context holds some hundred MiB of a GPU until its process ends, and a driver may
//! hang or crash. Impossible probes are absent from the result, with reasons in words.

mod copies;
mod cublas;
mod driver;
mod library;
mod matrix;

use std::path::PathBuf;
use std::time::Duration;

use crate::{GpuLimits, Limits};
use cublas::Cublas;
use driver::{Device, Driver};

/// The request of a GPU probe: settings and time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuAsked {
    /// CUDA indices; empty means all.
    pub devices: Vec<u32>,
    /// Further folders for cuBLAS, besides the loader's paths: Python's wheels have folders of their own.
    pub folders: Vec<PathBuf>,
    /// The approximate time of each setting: an idle GPU needs some of it to raise its clocks.
    pub budget: Duration,
}

/// Probes the GPUs. It takes some seconds, mostly for loading libraries. Only `gpus` and `absent` are set.
pub fn probe_gpus(asked: &GpuAsked) -> Limits {
    let mut limits = Limits::default();
    if let Err(reason) = probe_into(&mut limits, asked) {
        limits.absent.push(reason);
    }
    limits
}

fn probe_into(limits: &mut Limits, asked: &GpuAsked) -> Result<(), String> {
    let driver = Driver::load()?;
    let count = driver.count()?;
    if count == 0 {
        return Err("the driver knows no GPU that this process may see".into());
    }
    let devices = if asked.devices.is_empty() { (0..count).collect() } else { asked.devices.clone() };
    for index in devices {
        let mut absent = Vec::new();
        if index < count {
            limits.gpus.extend(probe(&driver, index, asked, &mut absent));
        } else {
            absent.push(format!("the driver knows {count} that this process may see"));
        }
        limits.absent.extend(absent.into_iter().map(|reason| format!("GPU {index}: {reason}")));
    }
    Ok(())
}

fn probe(driver: &Driver, index: u32, asked: &GpuAsked, absent: &mut Vec<String>) -> Option<GpuLimits> {
    let device = driver.device(index).map_err(|reason| absent.push(reason)).ok()?;
    let mut gpu = GpuLimits {
        index,
        name: device.name(),
        uuid: device.uuid(),
        l2_bytes: device.l2_bytes(),
        ..GpuLimits::default()
    };
    if let Err(reason) = probe_in_context(&device, asked, &mut gpu, absent) {
        absent.push(reason);
    }
    Some(gpu)
}

fn probe_in_context(
    device: &Device,
    asked: &GpuAsked,
    gpu: &mut GpuLimits,
    absent: &mut Vec<String>,
) -> Result<(), String> {
    let context = device.context()?;
    match copies::probe(&context, asked.budget) {
        Ok(copies) => gpu.copies = Some(copies),
        Err(reason) => absent.push(format!("copies: {reason}")),
    }
    let cublas = Cublas::load(&context, &asked.folders).map_err(|reason| format!("products: {reason}"))?;
    for number in matrix::NUMBERS {
        match matrix::probe(&context, &cublas, number, asked.budget) {
            Ok(operations) => gpu.matrix.push(operations),
            Err(reason) => absent.push(format!("{}: {reason}", number.unit)),
        }
    }
    Ok(())
}
