//! The result of a check: why it did not pass, its evidence, and the number of checks with each result.

use protocol::{Failed, Message};

/// The reason why a check did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// A property that is neither proved nor violated: the engine does not claim the optional feature, or the check lacks a fact,
    /// a tokenizer or time.
    Absent(String),
    /// A breach of the protocol.
    Wrong(String),
    /// A check that was not made, because an earlier step failed.
    Skipped(String),
}

pub type Outcome<T = ()> = Result<T, Finding>;

pub fn wrong<T>(fault: impl Into<String>) -> Outcome<T> {
    Err(Finding::Wrong(fault.into()))
}

pub fn absent<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Finding::Absent(why.into()))
}

/// Passes if the condition holds.
pub fn require(holds: bool, fault: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { wrong(fault) }
}

/// The fault of an unexpected message.
pub fn unexpected<T>(message: &Message, expected: &str) -> Outcome<T> {
    match message {
        Message::Failed(failed) => wrong(failure_text(failed)),
        _ => wrong(format!("expected `{expected}`, got another message")),
    }
}

pub fn failure_text(failed: &Failed) -> String {
    format!("answered `failed` ({}): {}", failed.kind.as_str(), with_hint(failed))
}

pub fn with_hint(failed: &Failed) -> String {
    let hint = failed.hint.as_ref().map(|hint| format!(" (hint: {hint})")).unwrap_or_default();
    format!("{}{hint}", failed.message)
}

/// The number of checks with each result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u32,
    pub absent: u32,
    pub wrong: u32,
    pub skipped: u32,
}

impl Counts {
    pub fn all(&self) -> u32 {
        self.passed + self.absent + self.wrong + self.skipped
    }

    pub fn add(&mut self, result: &Outcome) {
        *match result {
            Ok(()) => &mut self.passed,
            Err(Finding::Absent(_)) => &mut self.absent,
            Err(Finding::Wrong(_)) => &mut self.wrong,
            Err(Finding::Skipped(_)) => &mut self.skipped,
        } += 1;
    }
}

/// The evidence of a result.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// The last line to the engine.
    pub sent: Vec<u8>,
    /// The last line from the engine after `sent`. Empty if there is none.
    pub received: Vec<u8>,
    /// The last lines of stderr of an engine that ended.
    pub stderr: Vec<String>,
}
