//! Failures of cases and of whole configurations.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::Configuration;

/// A case, or a whole configuration, that could not be measured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub configuration: usize,
    /// Absent when the failure concerns every case of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub case: Option<usize>,
    /// Absent when the engine failed before its launch was recorded. Older records may name a launch that has no entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<u32>,
    pub kind: FailureKind,
    /// A `Stage` as text, or a text that a later version of this program wrote. Empty if the time budget ended before the case.
    pub when: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The program wrote no message of the protocol and did not fail either.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_no_engine: bool,
    /// The last lines of the engine's stderr, and its lines on stdout that are no messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
}

/// The stage of a launch in which a failure happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Start,
    Hello,
    Load,
    OutputCheck,
    Warmup(u32),
    /// The discarded request before a sample.
    BeforeSample(u32),
    Sample(u32),
    /// The pass in which samplers run.
    Pass,
}

impl Stage {
    /// Whether a stage, as text, comes before the engine's first answer.
    pub fn is_before_first_answer(word: &str) -> bool {
        [Self::Start, Self::Hello].iter().any(|stage| stage.to_string() == word)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("start"),
            Self::Hello => f.write_str("hello"),
            Self::Load => f.write_str("load"),
            Self::OutputCheck => f.write_str("output check"),
            Self::Warmup(index) => write!(f, "warm-up {}", index + 1),
            Self::BeforeSample(index) => write!(f, "the request before sample {}", index + 1),
            Self::Sample(index) => write!(f, "sample {}", index + 1),
            Self::Pass => f.write_str("the sampled pass"),
        }
    }
}

/// Defines `FailureKind` with the text and the meaning of each kind, and the parser. Each kind is one entry below.
macro_rules! kinds {
    ($($(#[$attribute:meta])* $kind:ident = $word:literal, $about:literal;)+) => {
        /// The reason why something was not measured.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum FailureKind {
            $($(#[$attribute])* #[doc = $about] $kind,)+
            /// A kind that a later version of this program wrote.
            Other(String),
        }

        impl FailureKind {
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// The text in records.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$kind => $word,)+
                    Self::Other(word) => word,
                }
            }

            /// The meaning for a reader of a report, as a sentence about an engine or a case. Empty for an unknown kind.
            pub fn about(&self) -> &'static str {
                match self {
                    $(Self::$kind => $about,)+
                    Self::Other(_) => "",
                }
            }

            /// The kind with this text. `Other` keeps an unknown text.
            pub fn parse(word: &str) -> Self {
                match word {
                    $($word => Self::$kind,)+
                    _ => Self::Other(word.into()),
                }
            }
        }
    };
}

// Engines too can report the kinds from `unsupported` on; `protocol::FailureKind` explains them to their authors.
kinds! {
    Start = "start", "The program could not be started, or its libraries could not be loaded.";
    Exited = "exited", "The process ended before it answered.";
    Timeout = "timeout", "The engine gave no answer within the deadline (`--timeout`).";
    TooSlow = "too_slow", "A request took longer than `--max-request-time` allows.";
    NoTime = "no_time", "The time budget of the run ended first. This is no fault of the engine.";
    FolderFull = "folder_full", "The engine wrote more into its working folder than the limit allows.";
    Version = "version", "The engine uses another version of the protocol.";
    Protocol = "protocol", "The engine sent a line that violates the protocol.";
    WrongOutput = "wrong_output", "The engine's answer does not fit the request.";
    Refused = "refused", "The engine refused a request that it must refuse. This is not a failure.";
    Unsupported = "unsupported", "The engine does not support the device, the dtype, the option or the request that the message names.";
    Unavailable = "unavailable", "The engine cannot run on this machine as it is now.";
    BadRequest = "bad_request", "The engine did not accept a request.";
    Model = "model", "The engine could not open or read the model.";
    Context = "context", "A request has more tokens than the engine's context holds.";
    OutOfMemory = "out_of_memory", "The engine had too little memory.";
    Device = "device", "The device of the engine failed.";
    #[default]
    Internal = "internal", "The engine failed for another reason.";
}

impl FailureKind {
    /// The kind of failure of a configuration that cannot be measured (`Configuration::unavailable`).
    pub fn of_unavailable(configuration: &Configuration) -> Self {
        if configuration.unsupported { Self::Unsupported } else { Self::Unavailable }
    }

    /// The text in a table: `too slow`.
    pub fn words(&self) -> String {
        self.as_str().replace('_', " ")
    }
}

impl From<protocol::FailureKind> for FailureKind {
    fn from(kind: protocol::FailureKind) -> Self {
        Self::parse(kind.as_str())
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<String> for FailureKind {
    fn from(word: String) -> Self {
        Self::parse(&word)
    }
}

impl From<FailureKind> for String {
    fn from(kind: FailureKind) -> Self {
        kind.as_str().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_kind_of_the_protocol_is_known() {
        use protocol::FailureKind as Reported;
        let all = [
            Reported::BadRequest,
            Reported::Unsupported,
            Reported::Unavailable,
            Reported::Model,
            Reported::Context,
            Reported::OutOfMemory,
            Reported::Device,
            Reported::Internal,
        ];
        for reported in all {
            let kind = FailureKind::from(reported);
            assert_eq!(kind.as_str(), reported.as_str());
            assert!(!matches!(kind, FailureKind::Other(_)), "{kind}");
        }
    }

    #[test]
    fn an_unknown_failure_kind_is_kept() {
        let line = r#"{"configuration":0,"kind":"preempted","when":"sample 1","message":"m"}"#;
        let failure: Failure = serde_json::from_str(line).unwrap();
        assert_eq!(failure.kind, FailureKind::Other("preempted".into()));
        assert_eq!(serde_json::to_string(&failure).unwrap(), line);
        let known: FailureKind = serde_json::from_str(r#""too_slow""#).unwrap();
        assert_eq!(known, FailureKind::TooSlow);
    }
}
