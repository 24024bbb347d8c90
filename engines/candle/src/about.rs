//! The constant facts and capabilities of the engine.

use std::collections::BTreeMap;

use candle_core::Device;
use protocol::{Capabilities, HelloFacts};

use crate::architectures::ARCHITECTURES;
use crate::{device, safetensors};

/// The release of candle-core, candle-nn and candle-transformers in Cargo.lock; a test compares.
pub const CANDLE: &str = "0.11.1";
/// The release of gemm, candle's multiplication of f32 and f16 matrices on the CPU; a test compares.
pub const GEMM: &str = "0.19.0";

pub fn hello() -> HelloFacts {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let mut hello = engine_kit::hello("candle", CANDLE);
    if let Some(build) = &mut hello.build {
        build.features.extend(cfg!(target_arch = "x86_64").then(|| "gemm/x86-v4".to_string()));
        build.features.extend(device::build_features());
    }
    hello.capabilities = Capabilities {
        devices: names(device::NAMES),
        dtypes: safetensors::dtypes(),
        formats: names(&["safetensors", "gguf"]),
        architectures: names(&ARCHITECTURES.map(|architecture| architecture.name)),
        use_cache_toggle: true,
        sampling: true,
        score: true,
        ..hello.capabilities
    };
    hello
}

/// Library versions for `loaded`. Those of the device's libraries are read from the loaded libraries.
pub fn libraries(device: &Device) -> BTreeMap<String, String> {
    let candle = ["candle-core", "candle-nn", "candle-transformers"].map(|name| (name, CANDLE));
    let all = candle.into_iter().chain([("gemm", GEMM)]);
    let named = all.map(|(name, release)| (name.to_string(), release.to_string()));
    named.chain(device::libraries(device)).collect()
}
