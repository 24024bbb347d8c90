//! The loaded model: the engine's model, the tokenizer, and the facts.

use std::sync::Arc;

use model_files::{ModelFolder, Tokenizer};
use protocol::{Capabilities, Facts, Failed, FailureKind, Load, Loaded, environment};

use crate::engine::{CallError, OrFail, catch_panic};
use crate::inbox::Clock;
use crate::load::{PlantedDelay, check_listed, quote};
use crate::{Engine, Model, Phases, facts};

pub(crate) struct LoadedModel<M> {
    pub model: M,
    /// Opened at the first request with text.
    tokenizer: Option<Tokenizer>,
    /// The facts at the end of the load.
    pub facts: Facts,
    pub eos_ids: Arc<[u32]>,
    /// An artificial delay before each token but the first (load option `planted_delay_us`), to test whether runs detect a
    /// slowdown.
    pub delay: PlantedDelay,
    folder: ModelFolder,
    requested_context_tokens: Option<u32>,
}

/// The model and settings that the environment names for a `generate` or `score` without a `load`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    pub model: Option<String>,
    pub device: Option<String>,
    pub dtype: Option<String>,
    pub threads: Option<String>,
}

impl Environment {
    pub fn read() -> Self {
        let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            model: value(environment::MODEL),
            device: value(environment::DEVICE),
            dtype: value(environment::DTYPE),
            threads: value(environment::THREADS),
        }
    }

    /// The load that the environment describes, by default of the embedded model.
    pub(crate) fn load(&self) -> Result<Load, Failed> {
        let parse_threads = |text: &String| {
            let number = text.parse::<u32>().ok().filter(|&threads| threads > 0);
            let message = format!("`{}`: expected a number of threads, found `{text}`", environment::THREADS);
            number.ok_or_else(|| Failed::new(FailureKind::BadRequest, message))
        };
        Ok(Load {
            model: self.model.clone().unwrap_or_else(|| model_files::embedded::NAME.into()),
            device: self.device.clone(),
            dtype: self.dtype.clone(),
            threads: self.threads.as_ref().map(parse_threads).transpose()?,
            ..Load::default()
        })
    }
}

impl<M: Model> LoadedModel<M> {
    /// Loads a model. `unload` drops the previous model, after the request has been checked.
    pub fn load<E: Engine<Model = M>>(
        engine: &mut E,
        load: &Load,
        capabilities: &Capabilities,
        mut phases: Phases,
        unload: impl FnOnce(),
    ) -> Result<(Self, Loaded), CallError> {
        let (delay, load) = PlantedDelay::take(load)?;
        check_listed(&load.options, capabilities.options.as_deref())?;
        check_offered("device", load.device.as_deref(), &capabilities.devices)?;
        check_offered("dtype", load.dtype.as_deref(), &capabilities.dtypes)?;
        let clock = Clock::start();
        let open = || ModelFolder::open(model_files::resolve(Some(&load.model))?);
        let folder = phases.phase("headers", open).or_fail(FailureKind::Model)?;
        if !engine.converts_formats() {
            check_offered("format", Some(folder.format.as_str()), &capabilities.formats)?;
        }
        check_offered("architecture", Some(&folder.config.architecture), &capabilities.architectures)?;
        check_context(&load, &folder)?;
        unload();
        let model = catch_panic(|| engine.load(&folder, &load, &mut phases))?;
        let mut loaded_model = Self {
            model,
            tokenizer: None,
            facts: Facts::default(),
            eos_ids: Arc::default(),
            delay,
            folder,
            requested_context_tokens: load.context_tokens,
        };
        loaded_model.facts = loaded_model.facts_now()?;
        loaded_model.eos_ids = loaded_model.facts.eos_ids.as_deref().unwrap_or_default().into();
        let phases = phases.finish();
        let loaded =
            Loaded { load_ns: clock.ns(), phases, pids: Vec::new(), facts: loaded_model.facts.clone() };
        Ok((loaded_model, loaded))
    }

    /// The engine's facts, completed from the model's files.
    pub fn facts_now(&self) -> Result<Facts, CallError> {
        let mut facts = catch_panic(|| Ok(self.model.facts()))?;
        facts::fill(&mut facts, &self.folder, self.requested_context_tokens);
        Ok(facts)
    }
}

impl<M> LoadedModel<M> {
    /// Opens the tokenizer, before the first iteration of a request with text. Prompts in token ids need no tokenizer, and to
    /// open one with 128,000 tokens takes a third of a second and 50 MB.
    pub fn open_tokenizer(&mut self) -> Result<(), Failed> {
        if self.tokenizer.is_none() && self.folder.has_tokenizer() {
            self.tokenizer = Some(self.folder.tokenizer().or_fail(FailureKind::Model)?);
        }
        self.tokenizer().map(drop)
    }

    pub fn has_open_tokenizer(&self) -> bool {
        self.tokenizer.is_some()
    }

    fn tokenizer(&self) -> Result<&Tokenizer, Failed> {
        self.tokenizer.as_ref().ok_or_else(|| {
            let message =
                format!("model `{}` has no tokenizer in its folder or its weights", self.folder.name);
            Failed::new(FailureKind::Model, message).hint("send `prompt_ids`")
        })
    }

    /// The text of ids, if a tokenizer is open.
    pub fn decode(&self, ids: &[u32]) -> Option<String> {
        self.tokenizer.as_ref().map(|tokenizer| tokenizer.decode(ids))
    }

    /// The ids of a text; an empty text gives BOS alone. `field` is the field of the request that has the text.
    pub fn encode(&self, text: &str, field: impl FnOnce() -> String) -> Result<Vec<u32>, Failed> {
        let ids = self.tokenizer()?.encode(text).or_fail(FailureKind::BadRequest)?;
        match (ids.is_empty(), self.facts.bos_id) {
            (false, _) => Ok(ids),
            (true, Some(bos)) => Ok(vec![bos]),
            (true, None) => {
                let message = format!("`{}`: no tokens, and the model has no BOS token", field());
                Err(Failed::new(FailureKind::BadRequest, message))
            }
        }
    }
}

/// Refuses a device, dtype, format or architecture that the engine does not list. If the engine lists none, the engine itself
/// decides. A listed `cuda` covers every numbered GPU such as `cuda:1`; a listed `cpu` covers `cpu:0`, but no other number.
fn check_offered(field: &str, requested: Option<&str>, offered: &[String]) -> Result<(), Failed> {
    let Some(requested) = requested.filter(|_| !offered.is_empty()) else { return Ok(()) };
    let is_numbered_device = |name: &String| {
        let index = requested.strip_prefix(name.as_str()).and_then(|rest| rest.strip_prefix(':'));
        field == "device" && index.is_some_and(|index| name != "cpu" || index == "0")
    };
    if offered.iter().any(|name| name == requested || is_numbered_device(name)) {
        return Ok(());
    }
    let message = format!(
        "{field} `{}`: expected one of {}",
        requested.escape_debug(),
        quote(offered.iter().map(String::as_str))
    );
    Err(Failed::new(FailureKind::Unsupported, message))
}

fn check_context(load: &Load, folder: &ModelFolder) -> Result<(), Failed> {
    match (load.context_tokens, folder.config.context_tokens) {
        (Some(requested), Some(max)) if requested > max => Err(Failed::new(
            FailureKind::Context,
            format!("`context_tokens`: {requested} is more than the {max} of model `{}`", folder.name),
        )),
        _ => Ok(()),
    }
}
