//! The kinds of engine failures. To add one, add a variant to `Cause`, a line to `record::FailureKind`, an option of the fake
//! engine and a test.

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use model_files::size;
use protocol::{Failed, split_hints};

use super::containment::FOLDER_LIMIT_VARIABLE;
use crate::record::{Failure, FailureKind, Stage};
use crate::shell::{Unavailable, pasteable};

/// The early end of a launch.
#[derive(Debug)]
pub enum LaunchError {
    /// The engine's failure, which becomes a row.
    EngineFailure(EngineFailure),
    /// An error of this program, which ends the run.
    ProgramError(anyhow::Error),
}

/// A failure of an engine with the facts for its row.
#[derive(Debug)]
pub struct EngineFailure {
    pub when: Stage,
    pub cause: Cause,
    /// The last lines of the engine's stderr, and its lines on stdout that are no messages.
    pub stderr: Vec<String>,
    /// The number of the failed launch, if the record contains that launch.
    pub launch: Option<u32>,
}

#[derive(Debug)]
pub enum Cause {
    /// The program could not be started, or the system's loader could not load its libraries.
    Start { message: String, hint: Option<String> },
    /// The exit code or the signal of a process that ended before it answered.
    Exited(String),
    /// The exit code or the signal of a process that ended after it answered `failed`.
    ExitedAfterFailed(String),
    /// No answer within the deadline.
    Timeout(Duration),
    /// No answer within the deadline, because a signal has stopped this process of the engine.
    Stopped { after: Duration, pid: u32 },
    /// The process wrote no message until this end: it may know no protocol. `text`: the first line that it wrote instead.
    /// `is_no_engine`: it did not fail either.
    NoMessage { end: Box<Cause>, text: Option<String>, program: String, is_no_engine: bool },
    /// The engine did not answer within the time that a case allows for one request.
    TooSlow(Duration),
    /// The engine wrote at least this many bytes into its working folder, which is more than the limit.
    FolderFull { bytes: u64, limit: u64 },
    /// The engine speaks this other version of the protocol.
    Version(u32),
    /// The engine's output violates the protocol.
    Protocol(String),
    /// The engine's output is not the requested output.
    WrongOutput(String),
    /// The engine does not support something that the run needs.
    Unsupported(String),
    /// The engine answered `failed`, or this program found that the engine cannot do the work.
    FailedAnswer(Failed),
    /// The engine refused a request that it must refuse: its kind of `failed` and its message.
    Refused(String),
}

impl LaunchError {
    /// Separates a failure of the engine from an error of this program: the inner `Err` is the failure, the outer one the error.
    pub fn separate<T>(result: Result<T, Self>) -> Result<Result<T, EngineFailure>> {
        match result {
            Ok(value) => Ok(Ok(value)),
            Err(Self::EngineFailure(failure)) => Ok(Err(failure)),
            Err(Self::ProgramError(error)) => Err(error),
        }
    }
}

impl From<EngineFailure> for LaunchError {
    fn from(failure: EngineFailure) -> Self {
        Self::EngineFailure(failure)
    }
}

impl From<anyhow::Error> for LaunchError {
    fn from(error: anyhow::Error) -> Self {
        Self::ProgramError(error)
    }
}

impl EngineFailure {
    /// A failure that no output of a process explains, so it has no lines of stderr.
    pub fn without_process(when: Stage, cause: Cause) -> Self {
        Self { when, cause, stderr: Vec::new(), launch: None }
    }

    pub fn into_failure(self, configuration: usize, case: Option<usize>) -> Failure {
        Failure {
            configuration,
            case,
            launch: self.launch,
            kind: self.cause.kind(),
            when: self.when.to_string(),
            message: self.cause.to_string(),
            hint: self.cause.hint(),
            is_no_engine: matches!(self.cause, Cause::NoMessage { is_no_engine: true, .. }),
            stderr: self.stderr,
        }
    }
}

impl Cause {
    /// Something that the engine does not support. The text of the error may end in hints.
    pub fn reported_unsupported(error: &anyhow::Error) -> Self {
        let Unavailable { reason, hint } = Unavailable::of_error(error);
        Self::FailedAnswer(Failed { hint, ..Failed::new(protocol::FailureKind::Unsupported, reason) })
    }

    /// Turns a timeout into `TooSlow`, if the deadline was the time that a case allows.
    pub fn if_too_slow(self, is_capped: bool, cap: Duration) -> Self {
        match self {
            Self::Timeout(_) if is_capped => Self::TooSlow(cap),
            cause => cause,
        }
    }

    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Start { .. } => FailureKind::Start,
            Self::Exited(_) | Self::ExitedAfterFailed(_) => FailureKind::Exited,
            Self::Timeout(_) | Self::Stopped { .. } => FailureKind::Timeout,
            Self::NoMessage { end, .. } => end.kind(),
            Self::TooSlow(_) => FailureKind::TooSlow,
            Self::FolderFull { .. } => FailureKind::FolderFull,
            Self::Version(_) => FailureKind::Version,
            Self::Protocol(_) => FailureKind::Protocol,
            Self::WrongOutput(_) => FailureKind::WrongOutput,
            Self::Unsupported(_) => FailureKind::Unsupported,
            Self::FailedAnswer(failed) => failed.kind.into(),
            Self::Refused(_) => FailureKind::Refused,
        }
    }

    /// Whether the engine can still take requests.
    pub fn engine_survives(&self) -> bool {
        matches!(self, Self::FailedAnswer(_) | Self::Refused(_) | Self::Unsupported(_) | Self::WrongOutput(_))
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::FailedAnswer(failed) => failed.hint.clone(),
            Self::Start { hint, .. } => hint.clone(),
            Self::NoMessage { program, .. } => {
                Some(format!("orchestrate check {}", pasteable(std::slice::from_ref(program))))
            }
            Self::TooSlow(cap) => Some(format!("--max-request-time {}s", cap.as_secs().max(1) * 5)),
            Self::FolderFull { limit, .. } => Some(format!(
                "export {FOLDER_LIMIT_VARIABLE}={}",
                size(limit.saturating_mul(5)).replace(' ', "")
            )),
            Self::Timeout(after) => Some(format!("--timeout {}", after.as_secs().max(1) * 5)),
            // The message may be an error of this program with a hint of its own.
            Self::Unsupported(message) => split_hints(message).1,
            _ => None,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { message, .. }
            | Self::Protocol(message)
            | Self::WrongOutput(message)
            | Self::Refused(message) => f.write_str(message),
            Self::Unsupported(message) => f.write_str(&split_hints(message).0),
            Self::ExitedAfterFailed(status) => write!(f, "ended with {status} after `failed`"),
            Self::Exited(status) => write!(f, "ended with {status} before it answered"),
            Self::Timeout(after) => write!(f, "no answer within {} s", after.as_secs_f64()),
            Self::Stopped { after, pid } => write!(
                f,
                "no answer within {} s: process {pid} is stopped, by a signal (`kill -STOP`) or by reading from the terminal",
                after.as_secs_f64()
            ),
            Self::NoMessage { end, text: Some(text), .. } => {
                write!(f, "{end}; it wrote text, not JSON: `{text}`")
            }
            Self::NoMessage { end, text: None, .. } => write!(f, "{end}"),
            Self::TooSlow(cap) => write!(f, "too slow (> {} s)", cap.as_secs_f64()),
            Self::FolderFull { bytes, limit } => {
                let (bytes, limit) = (size(*bytes), size(*limit));
                write!(f, "wrote {bytes} into its working folder, the limit is {limit}")
            }
            Self::Version(spoken) => {
                write!(f, "speaks protocol {spoken}, this orchestrator speaks {}", protocol::version::CURRENT)
            }
            Self::FailedAnswer(failed) => f.write_str(&failed.message),
        }
    }
}

/// The maximum number of characters that are kept of an engine's message, and of its hint.
const MAX_REPORTED_CHARS: usize = 1000;

/// A failure as the engine reported it, with a message and a hint of limited length. Hints in the message become the hint, if
/// the engine gave no other hint.
pub fn limited(failed: Failed) -> Failed {
    let (message, hint) = split_hints(&failed.message);
    let hint = failed.hint.or(hint);
    Failed { message: beginning(&message), hint: hint.as_deref().map(beginning), ..failed }
}

/// The beginning of a text, and the length of a text that was cut.
fn beginning(text: &str) -> String {
    match text.char_indices().nth(MAX_REPORTED_CHARS) {
        Some((end, _)) => format!("{}... ({} bytes)", &text[..end], text.len()),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use protocol::FailureKind;

    use super::*;

    #[test]
    fn a_long_message_is_cut_and_its_length_is_added() {
        let failed = Failed::new(FailureKind::Internal, "ü".repeat(60_000)).hint("x".repeat(1000));
        let limited = limited(failed);
        assert_eq!(limited.message, format!("{}... (120000 bytes)", "ü".repeat(1000)));
        assert_eq!(limited.hint, Some("x".repeat(1000)));
    }

    #[test]
    fn a_hint_inside_a_message_is_the_hint() {
        let message = "no tokenizer\nhint: send `prompt_ids`".to_string();
        let failed = Failed { message, ..Failed::new(FailureKind::Model, "") };
        let limited = limited(failed);
        assert_eq!(
            (limited.message.as_str(), limited.hint.as_deref()),
            ("no tokenizer", Some("send `prompt_ids`"))
        );
        let cause = Cause::Unsupported("cannot be converted: no space\nhint: choose another disk".into());
        assert_eq!(
            (cause.to_string().as_str(), cause.hint().as_deref()),
            ("cannot be converted: no space", Some("choose another disk"))
        );
    }
}
