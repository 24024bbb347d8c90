//! An error with a known remedy.

use std::fmt;

/// A problem, and its remedy as a field of its own, so that no program searches for it in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub message: String,
    /// A command that can be pasted, or a sentence.
    pub hint: String,
}

impl Problem {
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

/// The hint of an error, also if other errors have it as their cause.
pub fn hint_of(error: &anyhow::Error) -> Option<&str> {
    let mut causes = error.chain();
    causes.find_map(|cause| cause.downcast_ref::<Problem>()).map(|problem| problem.hint.as_str())
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nhint: {}", self.message, self.hint)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn a_hint_is_found_below_other_errors_and_ends_the_text() {
        let error = anyhow!(Problem::new("no model at `x`", "orchestrate model list")).context("loading");
        assert_eq!(hint_of(&error), Some("orchestrate model list"));
        assert_eq!(format!("{error:#}"), "loading: no model at `x`\nhint: orchestrate model list");
        assert_eq!(hint_of(&anyhow!("a text about\nhint: nothing")), None);
    }
}
