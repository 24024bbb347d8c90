//! What the engine is and can do, from constants.

use std::collections::BTreeMap;

use protocol::{Capabilities, HelloFacts};

use crate::architectures::ARCHITECTURES;

/// The release of candle-core, candle-nn and candle-transformers that Cargo.lock names; a test compares.
pub const CANDLE: &str = "0.11.1";
/// The release of gemm, which multiplies candle's f32 and f16 matrices on the CPU; a test compares.
pub const GEMM: &str = "0.19.0";

pub fn hello() -> HelloFacts {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let mut hello = engine_kit::hello("candle", CANDLE);
    if let Some(build) = &mut hello.build {
        let switched_on = [("gemm/x86-v4", cfg!(target_arch = "x86_64")), ("cuda", cfg!(feature = "cuda"))];
        build.features.extend(switched_on.iter().filter(|(_, on)| *on).map(|(name, _)| name.to_string()));
    }
    hello.capabilities = Capabilities {
        devices: names(crate::device::NAMES),
        dtypes: crate::safetensors::DTYPES.iter().map(|(name, _)| name.to_string()).collect(),
        formats: names(&["safetensors", "gguf"]),
        architectures: names(&ARCHITECTURES.map(|architecture| architecture.name)),
        use_cache_toggle: true,
        sampling: true,
        score: true,
        ..hello.capabilities
    };
    hello
}

/// Releases, as `loaded` states them.
pub fn libraries() -> BTreeMap<String, String> {
    let candle = ["candle-core", "candle-nn", "candle-transformers"].map(|name| (name, CANDLE));
    let all = candle.into_iter().chain([("gemm", GEMM)]);
    all.map(|(name, release)| (name.to_string(), release.to_string())).collect()
}
