//! What an engine's author writes. Everything else (JSON, clocks, tokenising, iterations, streaming, cancelling,
//! length and end of sequence, errors on the wire) is the kit's.

use model_files::ModelFolder;
use protocol::{Facts, Failed, HelloFacts, Load, Padding, Sampling};

use crate::{Phases, Tokens};

/// An engine: what it is, and how it loads a model.
pub trait Engine {
    type Model: Model;

    /// From constants: no library is initialised, no file of a model is read. `Err` when something that the engine needs
    /// is missing on this machine (kind `unavailable`, with a hint).
    fn hello(&self) -> Result<HelloFacts, Failed>;

    /// Loads a model. `phases` times the parts and tells the orchestrator that the load goes on. The previous model is
    /// dropped before this is called. Options that the engine does not know are the engine's to refuse; `Options` helps.
    fn load(&mut self, folder: &ModelFolder, load: &Load, phases: &mut Phases)
    -> Result<Self::Model, Failed>;
}

/// A loaded model. Every call is one at a time, on one thread, unless `slots` says otherwise.
pub trait Model {
    /// The configuration in effect and what is known now. Cheap: no device synchronisation that `facts` was not asked for.
    fn facts(&self) -> Facts;

    /// Runs the prompts once. For every new token: `tokens.push(sequence, id)`, the moment the host can use the id, until
    /// it answers that the sequence is done. The kit has checked the context, the batch and the capabilities.
    fn generate(&mut self, job: &Job, tokens: &mut Tokens) -> Result<(), Failed>;

    /// Natural-log probabilities of `ids[1..]`, each given all before it. Only called when hello says `score`.
    fn score(&mut self, _ids: &[u32]) -> Result<Vec<f64>, Failed> {
        Err(Failed::new(protocol::FailureKind::Unsupported, "`score` is not supported by this engine"))
    }

    /// Engines that advance several requests at once return themselves here; hello's `concurrency` says how many.
    fn slots(&mut self) -> Option<&mut dyn Slots> {
        None
    }
}

/// Overlapping requests: admit a request at any time, then advance every admitted one by a step.
pub trait Slots {
    /// Takes a request in under `slot`, a number below hello's `concurrency` that stays taken until `leave`. After an `Err`
    /// it is free.
    fn admit(&mut self, slot: usize, job: &Job) -> Result<(), Failed>;

    /// Advances every admitted request by one token (its prefill counts as the first): `tokens[slot].push(sequence, id)`.
    /// `tokens` holds `None` for free slots. A request that fails by itself is told to its `Tokens::fail`; an `Err` ends all of
    /// them.
    fn step(&mut self, tokens: &mut [Option<Tokens>]) -> Result<(), Failed>;

    /// Forgets a request that is done, cancelled or failed. Comes once for every slot that was admitted.
    fn leave(&mut self, slot: usize);
}

/// One run through the prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// One sequence each; never empty, and no sequence is.
    pub prompts: Vec<Vec<u32>>,
    pub max_new_tokens: u32,
    /// `None` is greedy: the largest logit, the lowest id among equals.
    pub sampling: Option<Sampling>,
    /// EOS ends no sequence. The kit acts on it (in `Tokens::push`); an engine that masks EOS must know.
    pub ignore_eos: bool,
    pub use_cache: bool,
    pub padding: Padding,
}
