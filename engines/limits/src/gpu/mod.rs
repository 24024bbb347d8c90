//! What NVIDIA GPUs can do at most: how fast one copies within its memory, and how many operations cuBLAS gets out of it.
//!
//! A context holds some hundred MiB of a GPU for as long as its process lives, and a driver may hang or crash: this is for a
//! process that does nothing else and ends. What cannot be probed is absent, and why is said in words.

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

/// What to probe, and in how much time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuAsked {
    /// By CUDA's index; none means all.
    pub devices: Vec<u32>,
    /// Where cuBLAS may lie besides where the loader looks: Python's wheels put it into folders of their own.
    pub folders: Vec<PathBuf>,
    /// For each setting, about: a GPU that idles takes some of it to raise its clocks.
    pub budget: Duration,
}

/// Takes some seconds, most of them until libraries are loaded. Gives `gpus` and `absent` alone.
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
