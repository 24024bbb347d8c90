//! Loading: from a model folder and a request to a network and the facts about it.

use candle_core::Device;
use engine_kit::{Engine, Options, Phases};
use model_files::{Format, ModelFolder};
use protocol::{Facts, Failed, HelloFacts, Load};

use crate::failure::unsupported;
use crate::model::LoadedModel;
use crate::network::Network;
use crate::shape::{self, Shape};
use crate::{about, device, gguf, safetensors, tensors, threads};

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
        let device = device::open(load.device.as_deref())?;
        let mut facts = Facts {
            device: Some(device::name(&device)),
            threads: Some(threads::settle(load.threads)?),
            use_cache: Some(true),
            vocabulary_size: Some(folder.config.vocabulary_size),
            prefix_cache: Some(false),
            libraries: about::libraries(),
            ..Facts::default()
        };
        let mut network = match folder.format {
            Format::Safetensors => load_safetensors(folder, load, &device, phases, &mut facts)?,
            Format::Gguf => load_gguf(folder, load, &device, phases, &mut facts)?,
        };
        network.own_pool = own_pool;
        Ok(LoadedModel { network, facts })
    }
}

fn load_safetensors(
    folder: &ModelFolder,
    load: &Load,
    device: &Device,
    phases: &mut Phases,
    facts: &mut Facts,
) -> Result<Network, Failed> {
    let (name, dtype) = safetensors::dtype(load.dtype.as_deref(), &folder.config.architecture)?;
    let longest = shape::longest_context(folder)?;
    let context_tokens = shape::context_tokens(folder, load.context_tokens, longest)?;
    let shape = Shape::of(folder, context_tokens as usize)?;
    let parameters = tensors::check(folder, &shape)?;

    phases.begin("weights");
    let network = safetensors::weights(folder, &shape, dtype, device)?;

    facts.context_tokens = Some(context_tokens);
    facts.parameters = Some(parameters);
    facts.weights_bytes = Some(parameters * dtype.size_in_bytes() as u64);
    for fact in [&mut facts.weights_dtype, &mut facts.compute_dtype, &mut facts.kv_dtype] {
        *fact = Some(name.into());
    }
    Ok(network)
}

fn load_gguf(
    folder: &ModelFolder,
    load: &Load,
    device: &Device,
    phases: &mut Phases,
    facts: &mut Facts,
) -> Result<Network, Failed> {
    gguf::check(folder)?;
    let weights_dtype = gguf::weights_dtype(folder);
    if let Some(asked) = load.dtype.as_deref().filter(|&asked| asked != weights_dtype) {
        let what = format!("dtype `{}`: a GGUF keeps its own, here `{weights_dtype}`", asked.escape_debug());
        return Err(unsupported(what));
    }
    let context_tokens = shape::context_tokens(folder, load.context_tokens, gguf::longest_context(folder)?)?;
    if gguf::ignores_frequency_scaling(folder) {
        let note = "candle ignores this file's frequency scaling: its outputs drift from other engines'";
        phases.progress(0.0, Some(note.into()));
    }

    phases.begin("weights");
    let network = gguf::weights(folder, device)?;

    facts.context_tokens = Some(context_tokens);
    facts.parameters = Some(gguf::parameters(folder));
    facts.weights_bytes = Some(gguf::resident_bytes(folder));
    facts.weights_dtype = Some(weights_dtype);
    facts.compute_dtype = Some("f32".into());
    facts.kv_dtype = Some("f32".into());
    Ok(network)
}
