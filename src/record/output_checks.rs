//! Output checks in a record: facts from which `agreement` derives a verification status.

use serde::{Deserialize, Serialize};

/// The log-probabilities that one configuration gave to the ids of one held-out sequence.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    pub configuration: usize,
    pub launch: u32,
    /// An index into `HeldOut::sequences`.
    pub sequence: usize,
    /// One for every id but the first; `None` is minus infinity.
    pub logprobs: Vec<Option<f64>>,
    /// From the request to its answer, on the orchestrator's clock.
    pub elapsed_ns: u64,
}

/// One configuration's continuation of the held-out prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continued {
    pub configuration: usize,
    pub launch: u32,
    pub ids: Vec<u32>,
}

/// Reference answers in f32 that are kept beside a model, in place of those of a verifier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredAnswers {
    /// The model's path, as in configurations.
    pub model: String,
    /// The name and version of the engine that answered.
    pub by: String,
    /// One for each of `HeldOut::sequences`.
    pub logprobs: Vec<Vec<Option<f64>>>,
    pub continued: Vec<u32>,
}

/// The verifier's answer for one token of a sample, given all tokens before it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReferenceToken {
    /// The verifier's configuration.
    #[serde(alias = "witness")]
    pub verifier: usize,
    /// The sample that is checked.
    pub launch: u32,
    pub case: usize,
    pub index: u32,
    /// The token's position in the output.
    #[serde(alias = "place")]
    pub position: u32,
    #[serde(alias = "theirs")]
    pub engine_token: u32,
    /// The token that the verifier gives.
    #[serde(alias = "own")]
    pub verifier_token: u32,
    #[serde(default, alias = "theirs_logprob", skip_serializing_if = "Option::is_none")]
    pub engine_logprob: Option<f64>,
    #[serde(default, alias = "own_logprob", skip_serializing_if = "Option::is_none")]
    pub verifier_logprob: Option<f64>,
}

/// An output check that was not possible, with the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotChecked {
    /// Absent when it concerns every configuration on the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}
