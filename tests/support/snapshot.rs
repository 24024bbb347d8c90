//! Compares exit code, stdout and stderr of a command with `tests/snapshots/NAME.txt`. Words in brackets replace text that
//! differs between machines and between versions.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test` writes the files; read the difference before you commit it.

use std::process::Command;

use super::{Scratch, finish, root};

pub fn assert_snapshot(name: &str, scratch: &Scratch, command: &mut Command) {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let outcome = finish(command);
    let code = outcome.code.map_or("none".to_string(), |code| code.to_string());
    let (words, stdout, stderr) = (words.join(" "), outcome.stdout, outcome.stderr);
    let text =
        format!("$ orchestrate {words}\n\n== exit code {code}\n== stdout\n{stdout}== stderr\n{stderr}");
    let lines: Vec<_> = redact(&text, scratch).lines().map(|line| line.trim_end().to_string()).collect();
    let found = lines.join("\n") + "\n";
    let path = root().join("tests/snapshots").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        return std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let show = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    assert!(
        found == expected,
        "`{name}` has changed; to accept the new text: UPDATE_SNAPSHOTS=1 cargo test --test program --test models\nexpected:\n{}found:\n{}",
        show(&expected),
        show(&found)
    );
}

/// The formats that `--format` accepts after these words, read from the error message that lists them.
pub fn formats(words: &[&str]) -> Vec<String> {
    let refused = unknown_format_error(words);
    let (_, list) = refused.split_once(CHOICE_PREFIX).unwrap_or_else(|| panic!("no list in {refused}"));
    list.lines().next().unwrap().split(", ").map(|name| name.trim_matches('`').to_string()).collect()
}

fn unknown_format_error(words: &[&str]) -> String {
    let scratch = Scratch::new();
    let outcome =
        finish(scratch.orchestrate().args(words).args(["--format", "no-such-format"])).exits_with(2);
    outcome.stderr
}

const FORMATS_PREFIX: &str = "[possible values:";
const CHOICE_PREFIX: &str = "hint: choose one of ";

/// Replaces each list of formats in an error message or in the short help (`-h`) by one word. `--help` lists them in another
/// form, which stays.
fn without_formats(text: &str) -> String {
    let mut parts = text.split(FORMATS_PREFIX);
    let mut result = parts.next().unwrap_or_default().to_string();
    for part in parts {
        result.push_str(FORMATS_PREFIX);
        match part.split_once(']') {
            Some((list, after)) if list.trim_start().starts_with("table,") => {
                result.push_str(&format!(" [FORMATS]]{after}"));
            }
            _ => result.push_str(part),
        }
    }
    match result.split_once(&format!("{CHOICE_PREFIX}`table`,")) {
        Some((before, list)) => {
            let after = list.split_once('\n').map_or("", |(_, after)| after);
            format!("{before}{CHOICE_PREFIX}[FORMATS]\n{after}")
        }
        None => result,
    }
}

fn redact(text: &str, scratch: &Scratch) -> String {
    let text = without_formats(text);
    // A hint may name a path in the checkout as the user would type it.
    let in_checkout = scratch.path.strip_prefix(root()).unwrap_or(&scratch.path);
    let text = text.replace(&*scratch.path.to_string_lossy(), "[TMP]");
    let text =
        text.replace(&*in_checkout.to_string_lossy(), "[TMP]").replace(&*root().to_string_lossy(), "[ROOT]");
    text.replace(env!("CARGO_PKG_VERSION"), "[VERSION]")
}
