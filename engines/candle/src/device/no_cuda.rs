//! The replacement of `cuda` in a build without CUDA.

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
        .hint("orchestrate setup candle --device cuda    # builds `candle-cuda`, a program of its own"))
}

/// Never refuses: the operating system can provide more than the physical memory.
pub fn expect_room(_: &Device, _weights_bytes: u64) -> Result<(), Failed> {
    Ok(())
}

pub fn memory(_: &Device) -> Option<DeviceMemory> {
    None
}

pub fn libraries(_: &Device) -> BTreeMap<String, String> {
    BTreeMap::new()
}

/// Returns the error unchanged: there is nothing to add on the CPU.
pub fn explained(_: &Device, said: String) -> String {
    said
}
