//! Formats names and values of untrusted files for messages.

use serde_json::Value;

/// Removes control characters and limits the length to a line: a false length can make half a file a name.
pub(crate) fn shown(name: &str) -> String {
    let mut characters = name.chars();
    let begins: String = characters.by_ref().take(LONGEST).flat_map(char::escape_debug).collect();
    if characters.next().is_some() { format!("{begins}…") } else { begins }
}

const LONGEST: usize = 80;

/// A config value of either format. A list is not printed.
pub fn shown_value(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".into(),
        // The placeholder of a GGUF's list.
        Value::Object(fields) if fields.len() == 1 && fields.contains_key("array") => "a list".into(),
        Value::Object(_) => "an object".into(),
        Value::String(text) => format!("`\"{}\"`", shown(text)),
        plain => format!("`{plain}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn names_are_escaped_and_cut() {
        assert_eq!(shown("a\u{1b}[2Jé"), "a\\u{1b}[2Jé");
        assert_eq!(shown(&"x".repeat(500)).chars().count(), 81);
    }
}
