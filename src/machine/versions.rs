//! Versions of the programs on PATH that engines are built and run with. Records do not contain them, because engines report the
//! versions of their own libraries, and asking the programs takes too long for a run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A program that takes longer is ignored.
const DEADLINE: Duration = Duration::from_secs(2);

/// The name of each version, and the command that prints it.
const COMMANDS: &[(&str, &[&str])] = &[
    ("glibc", &["getconf", "GNU_LIBC_VERSION"]),
    ("python", &["python3", "--version"]),
    ("uv", &["uv", "--version"]),
    ("rustc", &["rustc", "--version"]),
    ("cc", &["cc", "-dumpfullversion"]),
    ("nvcc", &["nvcc", "--version"]),
];

/// Asks all programs at once.
pub fn probe() -> BTreeMap<&'static str, String> {
    let deadline = Instant::now() + DEADLINE;
    let started = COMMANDS.iter().filter_map(|(name, command)| {
        let (program, arguments) = command.split_first()?;
        // rustup must not download a missing toolchain here.
        let command = duct::cmd(*program, arguments).env("RUSTUP_AUTO_INSTALL", "0").unchecked();
        Some((*name, command.stdin_null().stderr_null().stdout_capture().start().ok()?))
    });
    let mut answers = BTreeMap::new();
    for (name, handle) in started.collect::<Vec<_>>() {
        match handle.wait_deadline(deadline) {
            Ok(Some(output)) => {
                let version = version(&String::from_utf8_lossy(&output.stdout));
                answers.extend(version.map(|version| (name, version)));
            }
            // A slow program is ended, and its end is not waited for.
            _ => drop(handle.kill()),
        }
    }
    answers
}

/// The first word that begins with a digit, after an optional `v`, and has a point.
fn version(text: &str) -> Option<String> {
    let words = text.split(|it: char| it.is_whitespace() || it == ',');
    let mut versions = words.map(|word| word.trim_start_matches(['v', 'V'])).filter(|word| {
        word.starts_with(|it: char| it.is_ascii_digit()) && word.contains('.') && word.len() <= 40
    });
    versions.next().map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_the_output_of_programs() {
        let outputs = [
            "glibc 2.36\n",
            "Python 3.11.7\n",
            "uv 0.5.1 (abc 2025-01-01)",
            "rustc 1.95.0 (59807616e 2026-04-14)\n",
            "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.8, V12.8.61\n",
            "command not found",
            "",
        ];
        let versions = outputs.map(version);
        let expected =
            [Some("2.36"), Some("3.11.7"), Some("0.5.1"), Some("1.95.0"), Some("12.8"), None, None];
        assert_eq!(versions.each_ref().map(Option::as_deref), expected);
    }
}
