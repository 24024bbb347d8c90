//! Text for messages: escaped names from files, config values, and sizes.

use serde_json::Value;

/// Escapes control characters and limits the length: a false length in a file can make half of the file a name.
pub(crate) fn printable(name: &str) -> String {
    let mut characters = name.chars();
    let start: String = characters.by_ref().take(MAX_CHARACTERS).flat_map(char::escape_debug).collect();
    if characters.next().is_some() { format!("{start}…") } else { start }
}

/// The longest printed name, in characters.
const MAX_CHARACTERS: usize = 80;

/// A value from config.json or GGUF metadata for a message. A list is not printed.
pub fn json_text(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".into(),
        // The placeholder of a list in GGUF.
        Value::Object(fields) if fields.len() == 1 && fields.contains_key("array") => "a list".into(),
        Value::Object(_) => "an object".into(),
        Value::String(text) => format!("`\"{}\"`", printable(text)),
        other => format!("`{other}`"),
    }
}

/// A size with three digits and a decimal unit: `2.47 GB`, `513 kB`.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in ["kB", "MB", "GB", "TB"] {
        // 999.5 would be printed as 1000.
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1000.0, larger);
    }
    match unit {
        "B" => format!("{bytes} B"),
        unit if value < 9.995 => format!("{value:.2} {unit}"),
        unit if value < 99.95 => format!("{value:.1} {unit}"),
        unit => format!("{value:.0} {unit}"),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_shortened() {
        assert_eq!(printable("a\u{1b}[2Jé"), "a\\u{1b}[2Jé");
        assert_eq!(printable(&"x".repeat(500)).chars().count(), 81);
    }

    #[test]
    fn sizes_have_three_digits_and_a_unit() {
        let sizes = [0, 999, 1000, 2_471_645_608, 26_500_000, 513_400, 999_600, 16_060_000_000_000];
        let expected = ["0 B", "999 B", "1.00 kB", "2.47 GB", "26.5 MB", "513 kB", "1.00 MB", "16.1 TB"];
        assert_eq!(sizes.map(size), expected);
    }
}
