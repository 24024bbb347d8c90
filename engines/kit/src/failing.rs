//! Errors and panics of an engine as the `failed` that tells of them.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use protocol::{Failed, FailureKind};

/// Turns any error into a `failed` of a kind: `weights.read().or_fail(FailureKind::Model)?`.
pub trait OrFail<T> {
    fn or_fail(self, kind: FailureKind) -> Result<T, Failed>;
}

impl<T, E: Display> OrFail<T> for Result<T, E> {
    fn or_fail(self, kind: FailureKind) -> Result<T, Failed> {
        // The alternate form of an `anyhow::Error` is its whole chain.
        self.map_err(|error| with_hint(kind, &format!("{error:#}")))
    }
}

/// A message may end in a `hint:` line of its own, which has a field on the wire.
fn with_hint(kind: FailureKind, message: &str) -> Failed {
    match message.split_once("\nhint: ") {
        Some((message, hint)) => Failed::new(kind, message).hint(hint),
        None => Failed::new(kind, message),
    }
}

/// What ended a call into the engine, other than success.
pub(crate) enum Fault {
    /// The engine said so; it is as it was.
    Failed(Failed),
    /// The engine panicked; its model is in no known state.
    Panicked(String),
}

impl From<Failed> for Fault {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

/// Calls into the engine. Whoever gets `Panicked` drops what the call had borrowed, so that no broken state is seen again.
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
