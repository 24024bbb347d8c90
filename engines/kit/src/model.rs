//! The loaded model: the engine's model, the tokenizer, and the facts in effect.

use std::sync::Arc;
use std::time::Instant;

use model_files::{ModelFolder, Tokenizer};
use protocol::{Capabilities, Facts, Failed, FailureKind, Load, Loaded, environment};

use crate::engine::{Fault, OrFail, guarded};
use crate::inbox::ns_since;
use crate::load::{PlantedDelay, quote};
use crate::{Engine, Model, Phases, facts};

pub(crate) struct LoadedModel<M> {
    pub model: M,
    /// Opened at the first request with text.
    tokenizer: Option<Tokenizer>,
    /// The facts in effect since the load.
    pub facts: Facts,
    pub eos_ids: Arc<[u32]>,
    pub delay: PlantedDelay,
    folder: ModelFolder,
    context_tokens: Option<u32>,
}

/// The model and settings that the environment names for a `generate` without a `load`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    pub model: Option<String>,
    pub device: Option<String>,
    pub dtype: Option<String>,
    pub threads: Option<String>,
}

impl Environment {
    pub fn read() -> Self {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            model: set(environment::MODEL),
            device: set(environment::DEVICE),
            dtype: set(environment::DTYPE),
            threads: set(environment::THREADS),
        }
    }

    /// The load that the environment describes, by default of the embedded model.
    pub(crate) fn load(&self) -> Result<Load, Failed> {
        let number = |text: &String| {
            let number = text.parse::<u32>().ok().filter(|&threads| threads > 0);
            let message = format!("`{}`: expected a number of threads, found `{text}`", environment::THREADS);
            number.ok_or_else(|| Failed::new(FailureKind::BadRequest, message))
        };
        Ok(Load {
            model: self.model.clone().unwrap_or_else(|| model_files::embedded::NAME.into()),
            device: self.device.clone(),
            dtype: self.dtype.clone(),
            threads: self.threads.as_ref().map(number).transpose()?,
            ..Load::default()
        })
    }
}

impl<M: Model> LoadedModel<M> {
    /// Loads a model. `unload` drops the previous model, after the request has been checked.
    pub fn load<E: Engine<Model = M>>(
        engine: &mut E,
        load: &Load,
        can: &Capabilities,
        mut phases: Phases,
        unload: impl FnOnce(),
    ) -> Result<(Self, Loaded), Fault> {
        check_offered("device", load.device.as_deref(), &can.devices)?;
        check_offered("dtype", load.dtype.as_deref(), &can.dtypes)?;
        if load.threads == Some(0) {
            return Err(
                Failed::new(FailureKind::BadRequest, "`threads`: expected at least 1, found 0").into()
            );
        }
        let (delay, load) = PlantedDelay::take(load)?;
        let began = Instant::now();
        let open = || ModelFolder::open(model_files::resolve(Some(&load.model))?);
        let folder = phases.phase("headers", open).or_fail(FailureKind::Model)?;
        check_offered("format", Some(folder.format.as_str()), &can.formats)?;
        check_offered("architecture", Some(&folder.config.architecture), &can.architectures)?;
        check_context(&load, &folder)?;
        unload();
        let model = guarded(|| engine.load(&folder, &load, &mut phases))?;
        let mut held = Self {
            model,
            tokenizer: None,
            facts: Facts::default(),
            eos_ids: Arc::default(),
            delay,
            folder,
            context_tokens: load.context_tokens,
        };
        held.facts = held.facts_now()?;
        held.eos_ids = held.facts.eos_ids.as_deref().unwrap_or_default().into();
        let phases = phases.finish();
        let loaded = Loaded { load_ns: ns_since(began), phases, pids: Vec::new(), facts: held.facts.clone() };
        Ok((held, loaded))
    }

    /// The engine's facts, completed from the model's files.
    pub fn facts_now(&self) -> Result<Facts, Fault> {
        let mut facts = guarded(|| Ok(self.model.facts()))?;
        facts::fill(&mut facts, &self.folder, self.context_tokens);
        Ok(facts)
    }
}

impl<M> LoadedModel<M> {
    /// Opens the tokenizer, before the clock of a request with text. Requests in ids need none, and a tokenizer of 128,000
    /// tokens takes a third of a second and 50 MB.
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
                format!("model `{}` has no tokenizer, beside its weights or within", self.folder.name);
            Failed::new(FailureKind::Model, message).hint("send `prompt_ids`")
        })
    }

    /// The text of ids, if a tokenizer is open.
    pub fn decode(&self, ids: &[u32]) -> Option<String> {
        self.tokenizer.as_ref().map(|tokenizer| tokenizer.decode(ids))
    }

    /// The ids of a text; an empty text gives BOS alone.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Failed> {
        let ids = self.tokenizer()?.encode(text).or_fail(FailureKind::BadRequest)?;
        match (ids.is_empty(), self.facts.bos_id) {
            (false, _) => Ok(ids),
            (true, Some(bos)) => Ok(vec![bos]),
            (true, None) => {
                let message = "`prompt`: no tokens, and the model has no BOS to stand for them";
                Err(Failed::new(FailureKind::BadRequest, message))
            }
        }
    }
}

/// Refuses a device or dtype that the engine does not list. An engine that lists nothing decides for itself. `cuda` covers
/// `cuda:1`; there is only one CPU.
fn check_offered(what: &str, requested: Option<&str>, offered: &[String]) -> Result<(), Failed> {
    let Some(requested) = requested.filter(|_| !offered.is_empty()) else { return Ok(()) };
    let numbered = |name: &String| {
        let number = requested.strip_prefix(name.as_str()).and_then(|rest| rest.strip_prefix(':'));
        what == "device" && number.is_some_and(|number| name != "cpu" || number == "0")
    };
    if offered.iter().any(|name| name == requested || numbered(name)) {
        return Ok(());
    }
    let message = format!(
        "{what} `{}`: offered are {}",
        requested.escape_debug(),
        quote(offered.iter().map(String::as_str))
    );
    Err(Failed::new(FailureKind::Unsupported, message))
}

fn check_context(load: &Load, folder: &ModelFolder) -> Result<(), Failed> {
    match (load.context_tokens, folder.config.context_tokens) {
        (Some(0), _) => {
            Err(Failed::new(FailureKind::BadRequest, "`context_tokens`: expected at least 1, found 0"))
        }
        (Some(requested), Some(most)) if requested > most => Err(Failed::new(
            FailureKind::Context,
            format!("`context_tokens`: {requested} is more than the {most} of model `{}`", folder.name),
        )),
        _ => Ok(()),
    }
}
