//! Converts errors and panics of an engine to `failed` messages.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use protocol::{Failed, FailureKind};

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

/// The unsuccessful end of a call into the engine.
pub(crate) enum Fault {
    /// The engine returned an error; its state is intact.
    Failed(Failed),
    /// The engine panicked; its model is in no known state.
    Panicked(String),
}

impl From<Failed> for Fault {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

/// Calls into the engine. After `Panicked`, the caller drops everything that the call had borrowed, so that nothing uses
/// the broken state.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, Failed>) -> Result<T, Fault> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(Fault::Failed),
        Err(payload) => {
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_string());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            Err(Fault::Panicked(text.unwrap_or_else(|| "no message".into())))
        }
    }
}
