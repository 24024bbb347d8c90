//! The engine's facts, and its `load`, which turns a model folder and a request into a network with its facts.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use candle_core::{Device, DeviceLocation};
use engine_kit::{Engine, Options, Phases};
use model_files::{Format, ModelFolder};
use protocol::{Capabilities, Facts, Failed, HelloFacts, Load, Padding};

use crate::architectures::{ARCHITECTURES, Architecture};
use crate::failure::{compute_failure, unsupported};
use crate::model::{LoadedModel, Network};
use crate::{device, gguf, safetensors};

/// The release of candle-core, candle-nn and candle-transformers; a test compares it with Cargo.lock.
pub const CANDLE_VERSION: &str = "0.11.1";
/// The release of gemm, candle's multiplication of f32 and f16 matrices on the CPU; a test compares it with Cargo.lock.
pub const GEMM_VERSION: &str = "0.19.0";

/// The most sequences of a batch. candle has no limit but the memory.
const LARGEST_BATCH: u32 = 64;

pub struct CandleEngine;

impl Engine for CandleEngine {
    type Model = LoadedModel;

    fn hello(&self) -> Result<HelloFacts, Failed> {
        Ok(hello())
    }

    fn load(
        &mut self,
        folder: &ModelFolder,
        load: &Load,
        phases: &mut Phases,
    ) -> Result<LoadedModel, Failed> {
        let options = Options::new(&load.options);
        let own_pool = options.bool("own_pool")?.unwrap_or(false);
        options.finish()?;
        phases.begin("config");
        let architecture = Architecture::of(folder)?;
        let device = device::open(load.device.as_deref())?;
        if own_pool {
            expect_cpu_for_own_pool(device.location())?;
        }
        let mut facts = Facts {
            device: Some(device::name(&device)),
            threads: Some(set_threads(load.threads)?),
            use_cache: Some(true),
            vocabulary_size: Some(folder.config.vocabulary_size),
            prefix_cache: Some(false),
            libraries: libraries(&device),
            ..Facts::default()
        };
        let load_decoder = match folder.format {
            Format::Safetensors => safetensors::load,
            Format::Gguf => gguf::load,
        };
        let decoder = load_decoder(architecture, folder, load, &device, phases, &mut facts)?;
        // A GPU copies and widens weights asynchronously. That time belongs to this load, not to the first request.
        device.synchronize().map_err(|error| compute_failure("loading", &error, &device))?;
        Ok(LoadedModel { network: Network { device, decoder, own_pool }, facts })
    }
}

/// Refuses `own_pool` on every device but the CPU. On other devices candle runs forward passes outside its pool anyway, so the
/// option would have no effect.
fn expect_cpu_for_own_pool(location: DeviceLocation) -> Result<(), Failed> {
    match location {
        DeviceLocation::Cpu => Ok(()),
        _ => Err(unsupported("`own_pool`: only the device `cpu` uses candle's thread pool")),
    }
}

pub fn hello() -> HelloFacts {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let mut hello = engine_kit::hello("candle", CANDLE_VERSION);
    if let Some(build) = &mut hello.build {
        build.features.extend(cfg!(target_arch = "x86_64").then(|| "gemm/x86-v4".to_string()));
        build.features.extend(device::build_features());
    }
    hello.capabilities = Capabilities {
        devices: names(device::NAMES),
        dtypes: safetensors::dtypes(),
        options: Some(names(&["own_pool"])),
        formats: names(&["safetensors", "gguf"]),
        architectures: names(&ARCHITECTURES.map(|architecture| architecture.name)),
        batch: LARGEST_BATCH,
        use_cache_toggle: true,
        padding_sides: vec![Padding::Right],
        sampling: true,
        score: true,
        ..hello.capabilities
    };
    hello
}

/// Library versions for the answer `loaded`. The libraries of the device report their own versions at run time.
fn libraries(device: &Device) -> BTreeMap<String, String> {
    let candle = ["candle-core", "candle-nn", "candle-transformers"].map(|name| (name, CANDLE_VERSION));
    let compiled = candle.into_iter().chain([("gemm", GEMM_VERSION)]);
    let compiled = compiled.map(|(name, version)| (name.to_string(), version.to_string()));
    compiled.chain(device::libraries(device)).collect()
}

/// The environment variables with the sizes of candle's pools. The first is for rayon's global pool (gemm, elementwise work) and
/// for the pool of `own_pool`. The barrier pool (copies, quantized products) reads the second, and without it the first.
const THREAD_VARIABLES: [&str; 2] = ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"];

/// The size of the pools, which the first load sets.
static POOL_THREADS: OnceLock<u32> = OnceLock::new();

/// Sizes the pools at the first load, and returns the number in effect. With `None` candle decides: the environment's
/// number, else one thread for each physical core, or for each fast core if the cores differ in speed.
///
/// A pool takes its size from the environment at first use and keeps it, so a later load with another number is refused. The
/// first variable is set even if candle decides, because candle would otherwise read `/proc/cpuinfo` at every matrix product.
pub fn set_threads(requested: Option<u32>) -> Result<u32, Failed> {
    let in_effect = *POOL_THREADS.get_or_init(|| {
        match requested {
            Some(threads) => THREAD_VARIABLES.map(|name| set_variable(name, threads as usize)),
            None => [set_variable(THREAD_VARIABLES[0], candle_core::utils::get_num_threads()), ()],
        };
        candle_core::utils::init_global_threadpool();
        u32::try_from(rayon::current_num_threads()).unwrap_or(u32::MAX)
    });
    match requested {
        Some(threads) if threads != in_effect => {
            Err(unsupported(format!("{threads} threads: this process has {in_effect} since its first load"))
                .hint("candle's pools keep their size: start another process for another number of threads"))
        }
        _ => Ok(in_effect),
    }
}

#[expect(unsafe_code, reason = "candle takes the number of threads from the environment alone")]
fn set_variable(name: &str, threads: usize) {
    // SAFETY: at the first load the kit has two other threads, which read stdin and watch stdout. They use the environment only
    // through the lock of `std::env`. On the CPU no C library that reads it is in use yet. On a GPU CUDA's libraries are open
    // already: this call assumes that none of their threads reads the environment at this time.
    unsafe { std::env::set_var(name, threads.to_string()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_pool_of_candle_is_refused_on_a_gpu() {
        let gpu = DeviceLocation::Cuda { gpu_id: 0 };
        let refused = expect_cpu_for_own_pool(gpu).unwrap_err();
        assert_eq!(refused.kind, protocol::FailureKind::Unsupported);
        assert!(refused.message.contains("`own_pool`"), "{refused:?}");
        assert!(expect_cpu_for_own_pool(DeviceLocation::Metal { gpu_id: 0 }).is_err());
        assert!(expect_cpu_for_own_pool(DeviceLocation::Cpu).is_ok());
    }
}
