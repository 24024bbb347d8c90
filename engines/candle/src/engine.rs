//! Loading: from a model folder and a request to a network and its facts.

use candle_core::DeviceLocation;
use engine_kit::{Engine, Options, Phases};
use model_files::{Format, ModelFolder};
use protocol::{Facts, Failed, HelloFacts, Load};

use crate::architectures::Architecture;
use crate::failure::{computing, unsupported};
use crate::model::LoadedModel;
use crate::network::Network;
use crate::{about, device, gguf, safetensors, threads};

/// candle in its users' configuration.
pub struct CandleEngine;

impl Engine for CandleEngine {
    type Model = LoadedModel;

    fn hello(&self) -> Result<HelloFacts, Failed> {
        Ok(about::hello())
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
        pool_reaches(own_pool, device.location())?;
        let mut facts = Facts {
            device: Some(device::name(&device)),
            threads: Some(threads::settle(load.threads)?),
            use_cache: Some(true),
            vocabulary_size: Some(folder.config.vocabulary_size),
            prefix_cache: Some(false),
            libraries: about::libraries(&device),
            ..Facts::default()
        };
        let weights = match folder.format {
            Format::Safetensors => safetensors::load,
            Format::Gguf => gguf::load,
        };
        let decoder = weights(architecture, folder, load, &device, phases, &mut facts)?;
        // A GPU copies and widens asynchronously. That time belongs to this load, not to the first request.
        device.synchronize().map_err(|error| computing("loading", &error, &device))?;
        Ok(LoadedModel { network: Network { device, decoder, own_pool }, facts })
    }
}

/// Whether forward passes may run in candle's pool. A GPU orders work by the calling thread, so a pass in the pool's
/// threads would not wait for its input from another thread.
fn pool_reaches(own_pool: bool, location: DeviceLocation) -> Result<(), Failed> {
    match location {
        DeviceLocation::Cpu => Ok(()),
        _ if !own_pool => Ok(()),
        _ => Err(unsupported(
            "`own_pool` on a device that is not the CPU: candle's pool of threads is the CPU's",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candles_own_pool_is_refused_on_a_gpu_and_nowhere_else() {
        let gpu = DeviceLocation::Cuda { gpu_id: 0 };
        let refused = pool_reaches(true, gpu).unwrap_err();
        assert_eq!(refused.kind, protocol::FailureKind::Unsupported);
        assert!(refused.message.contains("`own_pool`"), "{refused:?}");
        assert!(pool_reaches(true, DeviceLocation::Metal { gpu_id: 0 }).is_err());
        assert_eq!(
            (pool_reaches(false, gpu).is_ok(), pool_reaches(true, DeviceLocation::Cpu).is_ok()),
            (true, true)
        );
    }
}
