//! Loading: from a model folder and a request to a network and the facts about it.

use engine_kit::{Engine, Options, Phases};
use model_files::{Format, ModelFolder};
use protocol::{Facts, Failed, HelloFacts, Load};

use crate::architectures::Architecture;
use crate::failure::computing;
use crate::model::LoadedModel;
use crate::network::Network;
use crate::{about, device, gguf, safetensors, threads};

/// candle, as its users run it.
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
        // A GPU copies and widens while the host goes on. What is under way belongs to this load, not to the first request.
        device.synchronize().map_err(|error| computing("loading", &error, &device))?;
        Ok(LoadedModel { network: Network { device, decoder, own_pool }, facts })
    }
}
