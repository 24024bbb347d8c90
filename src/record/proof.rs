//! What a record holds for proof that engines did the work: facts, of which `agreement` makes a standing.

use serde::{Deserialize, Serialize};

/// The log-probabilities that one configuration gave to the ids of one held-out sequence.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    pub configuration: usize,
    pub launch: u32,
    /// An index into `HeldOut::sequences`.
    pub sequence: usize,
    /// Of every id but the first; `None` is minus infinity.
    pub logprobs: Vec<Option<f64>>,
    /// From the request to its answer, on the orchestrator's clock.
    pub elapsed_ns: u64,
}

/// How one configuration went on with the held-out prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continued {
    pub configuration: usize,
    pub launch: u32,
    pub ids: Vec<u32>,
}

/// What an engine in f32 says of a model, kept beside that model: it stands in for a witness that is not at hand.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The model's path, as configurations have it.
    pub model: String,
    /// Engine and version.
    pub by: String,
    /// One for each of `HeldOut::sequences`.
    pub logprobs: Vec<Vec<Option<f64>>>,
    pub continued: Vec<u32>,
}

/// What the witness, given all tokens before it, says of one token that a configuration gave in a sample.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Opinion {
    /// The configuration that was asked.
    pub witness: usize,
    /// The sample that it is about.
    pub launch: u32,
    pub case: usize,
    pub index: u32,
    /// The token's place in the output.
    pub place: u32,
    pub theirs: u32,
    /// What the witness would have given.
    pub own: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub theirs_logprob: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_logprob: Option<f64>,
}

/// Why something was not proved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unproved {
    /// Absent when it concerns every configuration on the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}
