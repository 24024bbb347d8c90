//! Text for a person at a shell: errors with hints, commands that can be pasted, sizes.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// A user's error: the command line names something that does not exist.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Turns an error into a user's error.
pub fn usage(error: anyhow::Error) -> anyhow::Error {
    Usage(format!("{error:#}")).into()
}

/// The reason why something cannot run, in one line. The first line of `hint` is the command to try first; further lines are
/// other ways.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unavailable {
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Unavailable {
    pub fn hints(&self) -> impl Iterator<Item = &str> {
        self.hint.iter().flat_map(|hint| hint.lines())
    }

    /// The text for an error.
    pub fn message(&self) -> String {
        let hints: String = self.hints().map(|hint| format!("\nhint: {hint}")).collect();
        format!("{}{hints}", self.reason)
    }
}

/// The command that starts this program from the current folder, for hints that can be pasted.
pub fn this_program() -> String {
    let exe = std::env::current_exe().ok();
    let on_path = which::which("orchestrate").ok().and_then(|path| path.canonicalize().ok());
    if on_path.is_some() && on_path == exe {
        return "orchestrate".into();
    }
    let here = std::env::current_dir().ok();
    let relative = exe.as_deref().zip(here.as_deref()).and_then(|(exe, here)| exe.strip_prefix(here).ok());
    match (relative, &exe) {
        (Some(relative), _) => pasteable(&[format!("./{}", relative.display())]),
        (None, Some(exe)) => pasteable(&[exe.display().to_string()]),
        (None, None) => "orchestrate".into(),
    }
}

/// A command with the quotes that a shell needs.
pub fn pasteable(command: &[String]) -> String {
    let needs_no_quotes = |it: char| it.is_alphanumeric() || "-_./=:,+@%".contains(it);
    let word = |word: &String| match word.is_empty() || !word.chars().all(needs_no_quotes) {
        true => format!("'{}'", word.replace('\'', r"'\''")),
        false => word.clone(),
    };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// The hint of an error of opening a path, on a line of its own: the command that grants this access (`u+r`, `u+x`) if it is
/// denied. Empty for other errors.
pub fn access_hint(error: &std::io::Error, path: &Path, access: &str) -> String {
    if error.kind() != std::io::ErrorKind::PermissionDenied {
        return String::new();
    }
    format!("\nhint: chmod {access} {}", pasteable(&[path.display().to_string()]))
}

/// A size for a person: `2.9 GB`, `111 MB`.
pub fn megabytes(megabytes: u64) -> String {
    match megabytes {
        1000.. => format!("{:.1} GB", megabytes as f64 / 1000.0),
        _ => format!("{megabytes} MB"),
    }
}

/// The bytes that a person means by `20GB`, `1.5 tb` or `4096`.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => 1.0,
        "KB" | "K" => 1e3,
        "MB" | "M" => 1e6,
        "GB" | "G" => 1e9,
        "TB" | "T" => 1e12,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * factor;
    (bytes < 1e18).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_access_has_the_command_that_grants_it() {
        let hint = |errno: i32| {
            access_hint(&std::io::Error::from_raw_os_error(errno), Path::new("/a b/engine"), "u+x")
        };
        let [no_such_file, no_access] = [2, 13];
        assert_eq!(hint(no_access), "\nhint: chmod u+x '/a b/engine'");
        assert_eq!(hint(no_such_file), "");
    }

    #[test]
    fn sizes_are_parsed_as_people_write_them() {
        let texts = ["20GB", "1.5 tb", "4096", " 2 MB ", "x", "3 zb", "", "1e999GB", "99999999TB"];
        let expected = [Some(20_000_000_000), Some(1_500_000_000_000), Some(4096), Some(2_000_000)];
        assert_eq!(texts.map(parse_bytes)[..4], expected);
        assert!(texts.map(parse_bytes)[4..].iter().all(Option::is_none));
    }
}
