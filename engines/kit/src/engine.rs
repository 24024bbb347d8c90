//! The traits that the author of an engine implements, and the calls to an engine. The kit does everything else: JSON,
//! clocks, tokenising, iterations, streaming, cancelling, length and end of sequence, errors on the wire.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use model_files::ModelFolder;
use protocol::{Facts, Failed, FailureKind, HelloFacts, Load, Padding, Sampling};

use crate::{Phases, Tokens};

/// An engine: its facts, and the loading of a model.
pub trait Engine {
    type Model: Model;

    /// The facts of the engine, from constants: it initialises no library and reads no model file. `Err` when the machine
    /// lacks something that the engine needs (kind `unavailable`, with a hint).
    fn hello(&self) -> Result<HelloFacts, Failed>;

    /// Loads a model. `phases` times the parts and reports progress to the orchestrator. The kit drops the previous model
    /// first. The engine refuses options that it does not know; `Options` helps.
    fn load(&mut self, folder: &ModelFolder, load: &Load, phases: &mut Phases)
    -> Result<Self::Model, Failed>;
}

/// A loaded model. The kit makes one call at a time, on one thread. It runs one request at a time, unless the engine has
/// `slots`.
pub trait Model {
    /// The configuration in effect and the facts known at this time. It must be fast: it does not synchronise with the
    /// device unless `facts` was requested.
    fn facts(&self) -> Facts;

    /// Runs the prompts once. The engine calls `tokens.push(sequence, id)` for every new token, as soon as the host can use
    /// the id. It stops when `push` answers that the sequence is done. The kit has checked the context, the batch and the
    /// capabilities.
    fn generate(&mut self, job: &Job, tokens: &mut Tokens) -> Result<(), Failed>;

    /// Natural-log probabilities of `ids[1..]`, each given all ids before it. The kit calls it only if hello states `score`.
    fn score(&mut self, _ids: &[u32]) -> Result<Vec<f64>, Failed> {
        Err(Failed::new(FailureKind::Unsupported, "`score` is not supported by this engine"))
    }

    /// The slots of an engine that advances several requests at once; hello's `concurrency` is their number.
    fn slots(&mut self) -> Option<&mut dyn Slots> {
        None
    }
}

/// Overlapping requests: the kit admits a request at any time, then advances every admitted request by one step.
pub trait Slots {
    /// Admits a request under `slot`, a number below hello's `concurrency`. The slot stays taken until `leave`; after an
    /// `Err` it is free.
    fn admit(&mut self, slot: usize, job: &Job) -> Result<(), Failed>;

    /// Advances every admitted request by one token (its prefill counts as the first): `tokens[slot].push(sequence, id)`.
    /// `tokens` holds `None` for free slots. `Tokens::fail` fails one request; an `Err` fails all of them.
    fn step(&mut self, tokens: &mut [Option<Tokens>]) -> Result<(), Failed>;

    /// Forgets a request that is done, cancelled or failed. The kit calls it once for every admitted slot.
    fn leave(&mut self, slot: usize);
}

/// One run through the prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The token ids of each sequence. Neither the list nor a prompt is empty.
    pub prompts: Vec<Vec<u32>>,
    pub max_new_tokens: u32,
    /// `None` is greedy: the largest logit, the lowest id among equals.
    pub sampling: Option<Sampling>,
    /// EOS ends no sequence. The kit enforces this in `Tokens::push`; an engine that masks EOS reads this field.
    pub ignore_eos: bool,
    pub use_cache: bool,
    pub padding: Padding,
}

/// Turns any error into a `failed` of a kind: `weights.read().or_fail(FailureKind::Model)?`.
pub trait OrFail<T> {
    fn or_fail(self, kind: FailureKind) -> Result<T, Failed>;
}

impl<T, E: Display> OrFail<T> for Result<T, E> {
    fn or_fail(self, kind: FailureKind) -> Result<T, Failed> {
        // The alternate form of an `anyhow::Error` prints its whole chain.
        self.map_err(|error| with_hint(kind, &format!("{error:#}")))
    }
}

/// Moves a `hint:` line at the end of a message to the `hint` field of the wire.
fn with_hint(kind: FailureKind, message: &str) -> Failed {
    match message.split_once("\nhint: ") {
        Some((message, hint)) => Failed::new(kind, message).hint(hint),
        None => Failed::new(kind, message),
    }
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

/// Calls into the engine. After `Panicked`, the caller drops everything that the call had borrowed, so that nothing uses
/// the broken state.
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
