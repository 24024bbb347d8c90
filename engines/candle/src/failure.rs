//! candle's errors and a model's faults, in the words of the protocol.

use std::path::Path;

use protocol::{Failed, FailureKind};

/// The model's files are not what they claim, or not what candle reads: which file, and what of it.
pub fn model(file: &Path, what: impl std::fmt::Display) -> Failed {
    Failed::new(FailureKind::Model, format!("`{}`: {what}", file.display()))
}

/// candle has no code for it, or has code that would compute something else.
pub fn unsupported(what: impl Into<String>) -> Failed {
    Failed::new(FailureKind::Unsupported, what)
}

/// An error out of candle while a request was computed.
pub fn computing(what: &str, error: &candle_core::Error) -> Failed {
    let text = first_line(error);
    let kind = match text.to_ascii_lowercase() {
        text if text.contains("out of memory") || text.contains("out_of_memory") => FailureKind::OutOfMemory,
        text if text.contains("cuda") || text.contains("cublas") => FailureKind::Device,
        _ => FailureKind::Internal,
    };
    Failed::new(kind, format!("{what}: {text}"))
}

/// candle appends a backtrace where one is switched on; it belongs on stderr, not in a row of a table.
pub fn first_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or("no message").to_string()
}
