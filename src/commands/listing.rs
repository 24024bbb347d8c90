//! Parts that listings share: plain text, for people.

use paths::OwnPython;

use crate::text;

/// The width of listings of engines and of set-up messages.
pub const WIDTH: usize = 80;

/// A paragraph below a name: a hint or a description.
pub fn folded(said: &str) -> String {
    text::wrap(said, WIDTH - 4, "  ").iter().map(|line| format!("    {line}\n")).collect()
}

/// The text about a user's own Python. Only the engine can check it, when it starts.
pub fn unseen(own: &OwnPython) -> String {
    format!("`{}` ({}; not checked)", own.interpreter.display(), own.variable)
}
