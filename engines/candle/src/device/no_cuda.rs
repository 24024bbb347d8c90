//! In the place of `cuda`, in a build that has none of it.

use std::collections::BTreeMap;

use candle_core::Device;
use protocol::{DeviceMemory, Failed};

use crate::failure::unsupported;

/// What this build can open; the first is what a load without a device gets.
pub const NAMES: &[&str] = &["cpu"];

pub fn build_features() -> Vec<String> {
    Vec::new()
}

pub fn open(number: usize) -> Result<Device, Failed> {
    Err(unsupported(format!("device `cuda:{number}` is not in this build"))
        .hint("orchestrate setup candle --device cuda    # builds `candle-cuda`, a program of its own"))
}

/// Whatever there is, the operating system lends more.
pub fn expect_room(_: &Device, _weights_bytes: u64) -> Result<(), Failed> {
    Ok(())
}

pub fn memory(_: &Device) -> Option<DeviceMemory> {
    None
}

pub fn libraries(_: &Device) -> BTreeMap<String, String> {
    BTreeMap::new()
}

/// An error of candle's has nothing to be added to here.
pub fn explained(_: &Device, said: String) -> String {
    said
}
