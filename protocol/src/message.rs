//! The messages that an engine writes on its stdout.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{DeviceMemory, Facts, HelloFacts, Id, Iteration, Loaded};

/// A line on an engine's stdout.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    Hello(HelloFacts),
    Progress(Progress),
    Loaded(Loaded),
    Token(Token),
    Generated(Generated),
    Scored(Scored),
    Facts(Facts),
    Bye {},
    Failed(Failed),
}

impl Message {
    /// The value of `type` in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Progress(_) => "progress",
            Self::Loaded(_) => "loaded",
            Self::Token(_) => "token",
            Self::Generated(_) => "generated",
            Self::Scored(_) => "scored",
            Self::Facts(_) => "facts",
            Self::Bye {} => "bye",
            Self::Failed(_) => "failed",
        }
    }
}

/// Says that a load is still in progress. The deadline of the load starts again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Progress {
    pub phase: String,
    /// From 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Ids sent during a generation with `stream`, one or more.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Token {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
    #[serde(default)]
    pub iteration: u32,
    #[serde(default)]
    pub sequence: u32,
    /// The position of the first of `ids` in the sequence's output.
    pub index: u32,
    pub ids: Vec<u32>,
    /// The time of these ids, from the moment when the request was read.
    pub ns: u64,
}

/// The final answer to a `generate`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Generated {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
    pub iterations: Vec<Iteration>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warmup_iterations: Vec<Iteration>,
    /// The facts of a load that this request caused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<Loaded>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<DeviceMemory>,
    /// For a person at a shell; the orchestrator ignores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Scored {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
    /// Natural logarithms; n ids give n - 1 values; minus infinity is null.
    pub logprobs: Vec<Vec<Option<f64>>>,
    /// The most likely id at the position of each log-probability. Only with `most_likely`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_likely_ids: Option<Vec<Vec<u32>>>,
    /// The log-probabilities of `most_likely_ids`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_likely_logprobs: Option<Vec<Vec<f64>>>,
    /// The duration.
    pub ns: u64,
}

/// A request that could not be answered. The engine continues if it can.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Failed {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
    pub kind: FailureKind,
    pub message: String,
    /// The remedy, if possible as a command or a setting to paste.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The cause of a failure. Of several errors, the first in this order is the answer: the line alone (`bad_request`), the
/// capabilities (`unsupported`), the load, the vocabulary and BOS of the model (`bad_request`), its context (`context`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The line, its type, a field or a load option is invalid.
    BadRequest,
    /// A valid request that this engine does not support.
    Unsupported,
    /// A driver, a library or an environment is missing on this machine.
    Unavailable,
    /// The model's files are missing, broken or inconsistent.
    Model,
    /// Prompt and output do not fit the context.
    Context,
    OutOfMemory,
    Device,
    Internal,
}

impl FailureKind {
    /// The value of `kind` in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::Unsupported => "unsupported",
            Self::Unavailable => "unavailable",
            Self::Model => "model",
            Self::Context => "context",
            Self::OutOfMemory => "out_of_memory",
            Self::Device => "device",
            Self::Internal => "internal",
        }
    }
}

impl Failed {
    /// A failure without an id. The lines of `message` that begin with `hint: ` become the hint.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        let (message, hint) = split_hints(&message.into());
        Self { id: None, kind, message, hint }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Splits a text into the lines that are no hints, and the hints without `hint: `, one on each line. An error with several
/// causes may have its hint in the middle.
pub fn split_hints(text: &str) -> (String, Option<String>) {
    let (hints, message): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("hint: "));
    let hints: Vec<&str> = hints.into_iter().map(|hint| hint.trim_start_matches("hint: ")).collect();
    (message.join("\n"), (!hints.is_empty()).then(|| hints.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_of_a_message_is_a_field_of_its_own() {
        let failed = Failed::new(FailureKind::Model, "cannot open `m`\nhint: chmod u+x m: denied\ntwice");
        assert_eq!(
            (failed.message.as_str(), failed.hint.as_deref()),
            ("cannot open `m`\ntwice", Some("chmod u+x m: denied"))
        );
        assert_eq!(split_hints("one line"), ("one line".into(), None));
        assert_eq!(split_hints("a\nhint: b\nhint: c"), ("a".into(), Some("b\nc".into())));
    }
}
