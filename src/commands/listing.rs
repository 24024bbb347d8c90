//! The parts that listings share. They are plain text, for a person.

use places::OwnPython;

use crate::text;

/// Columns of what lists engines, and of what is said while they are set up.
pub const WIDTH: usize = 80;

/// Prose below a name: a hint, or what something is about.
pub fn folded(said: &str) -> String {
    text::wrap(said, WIDTH - 4, "  ").iter().map(|line| format!("    {line}\n")).collect()
}

/// A Python of the user's own: whether an engine runs in it, the engine says when it is started.
pub fn unseen(own: &OwnPython) -> String {
    format!("`{}` ({}; not looked into)", own.interpreter.display(), own.variable)
}
