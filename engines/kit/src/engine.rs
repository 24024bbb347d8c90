//! The traits that the author of an engine implements, and the calls to an engine. The kit does everything else: JSON,
//! clocks, tokenising, iterations, streaming, cancelling, length and end of sequence, errors on the wire.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use model_files::ModelFolder;
use protocol::{Facts, Failed, FailureKind, HelloFacts, Load, Padding, Sampling, Speculation};

use crate::inbox::Waker;
use crate::{Phases, Tokens};

/// An engine: its facts, and the loading of a model.
pub trait Engine {
    type Model: Model;

    /// The facts of the engine, from constants: the call initialises no library and reads no model file. `Err` if the machine
    /// lacks something that the engine needs (kind `unavailable`, with a hint).
    fn hello(&self) -> Result<HelloFacts, Failed>;

    /// Whether `load` converts a model in a format that `hello` does not list. A run converts such a model before the load.
    fn converts_formats(&self) -> bool {
        false
    }

    /// Loads a model. `phases` times the phases of the load and reports progress to the orchestrator. The kit drops the
    /// previous model first. The engine refuses options that it does not know; `Options` helps.
    fn load(&mut self, folder: &ModelFolder, load: &Load, phases: &mut Phases)
    -> Result<Self::Model, Failed>;
}

/// A loaded model. The kit makes one call at a time, on one thread. It runs one request at a time, unless the engine has
/// `slots`.
pub trait Model {
    /// The configuration in effect and the facts known at this time. The call must be fast: it does not wait for the device.
    fn facts(&self) -> Facts;

    /// Generates once for every prompt. The engine calls `tokens.push(sequence, id)` for every new token, as soon as the host
    /// can use the id. The engine stops a sequence when `push` returns `Flow::Done`. The kit has checked the context, the batch
    /// and the capabilities.
    fn generate(&mut self, job: &Job, tokens: &mut Tokens) -> Result<(), Failed>;

    /// Natural-log probabilities of `ids[1..]`, each given all previous ids. The kit calls it only for engines with the
    /// capability `score`.
    fn score(&mut self, _ids: &[u32]) -> Result<Vec<f64>, Failed> {
        Err(unsupported_score())
    }

    /// The slots of an engine that advances several requests at once. The capability `concurrency` is their number.
    fn slots(&mut self) -> Option<&mut dyn Slots> {
        None
    }
}

/// For an engine that chooses the model's type at each load, such as one for each device.
impl Model for Box<dyn Model> {
    fn facts(&self) -> Facts {
        (**self).facts()
    }

    fn generate(&mut self, job: &Job, tokens: &mut Tokens) -> Result<(), Failed> {
        (**self).generate(job, tokens)
    }

    fn score(&mut self, ids: &[u32]) -> Result<Vec<f64>, Failed> {
        (**self).score(ids)
    }

    fn slots(&mut self) -> Option<&mut dyn Slots> {
        (**self).slots()
    }
}

/// Overlapping requests: the kit may admit further requests between two steps, and a step advances the admitted requests
/// together. A request with several iterations is admitted once for each iteration.
pub trait Slots {
    /// Admits a request under `slot`, a number below `concurrency`. The slot stays taken until `leave`; after an `Err` it is
    /// free.
    fn admit(&mut self, slot: usize, job: &Job) -> Result<(), Failed>;

    /// Advances the sequences that are not done, usually by one token each: `tokens[slot].push(sequence, id)`. The prefill is a
    /// part of the first steps after `admit`. A step may give a sequence no token or several. `tokens` is `None` for free
    /// slots. `Tokens::fail` fails one request; an `Err` fails all of them.
    fn step(&mut self, tokens: &mut [Option<Tokens>]) -> Result<(), Failed>;

    /// Removes a request that is done, cancelled or failed. The kit calls `leave` once after each successful `admit`, unless a
    /// panic has dropped the model, or the process ends.
    fn leave(&mut self, slot: usize);

    /// For an engine whose `step` waits for other threads, such as those of a server's clients: a function that ends this wait.
    /// The kit calls it from another thread at each new line and each cancel, so that a request is admitted at once.
    fn waker(&self) -> Option<Waker> {
        None
    }
}

/// One iteration of a request: the engine generates once for every prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The token ids of each sequence. Neither the list nor a prompt is empty.
    pub prompts: Vec<Vec<u32>>,
    pub max_new_tokens: u32,
    /// `None` is greedy: the largest logit, the lowest id among equals.
    pub sampling: Option<Sampling>,
    /// Whether sequences continue after EOS. `Tokens::push` takes care of that; only an engine that masks EOS needs the field.
    pub ignore_eos: bool,
    pub use_cache: bool,
    /// Whether keys and values of earlier requests may be used, and those of this one kept. Only an engine with a prefix cache
    /// needs the field.
    pub prefix_cache: bool,
    pub padding: Padding,
    pub speculation: Speculation,
}

/// Converts any error to a `Failed` of a kind: `weights.read().or_fail(FailureKind::Model)?`.
pub trait OrFail<T> {
    fn or_fail(self, kind: FailureKind) -> Result<T, Failed>;
}

impl<T, E: Display> OrFail<T> for Result<T, E> {
    fn or_fail(self, kind: FailureKind) -> Result<T, Failed> {
        // The alternate form of an `anyhow::Error` prints its whole chain.
        self.map_err(|error| Failed::new(kind, format!("{error:#}")))
    }
}

pub(crate) fn unsupported_score() -> Failed {
    Failed::new(FailureKind::Unsupported, "`score` is not supported by this engine")
}

/// The error of a call into the engine.
pub(crate) enum CallError {
    /// The engine returned an error; its state is intact.
    Failed(Failed),
    /// The engine panicked; its model is in an unknown state.
    Panicked(String),
}

impl From<Failed> for CallError {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

/// Calls into the engine, and catches a panic. `Server::failure_of` drops the model after `Panicked`, because its state is
/// unknown.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> Result<T, Failed>) -> Result<T, CallError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(CallError::Failed),
        Err(payload) => {
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_string());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            Err(CallError::Panicked(text.unwrap_or_else(|| "no message".into())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_no_part_of_the_message_of_a_failure() {
        let failed = |text: &str| Err::<(), _>(text).or_fail(FailureKind::Model).unwrap_err();
        let with_hints = failed("no model\nhint: first\nhint: second");
        assert_eq!((&*with_hints.message, with_hints.hint.as_deref()), ("no model", Some("first\nsecond")));
        assert_eq!(failed("no model").hint, None);
    }
}
