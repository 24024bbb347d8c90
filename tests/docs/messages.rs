//! The messages that docs/troubleshooting.md explains.

use crate::page::Page;
use crate::support::tree::{text, unignored_files};

/// Stands for the part of a message that varies.
const ANY: &str = "...";

#[test]
fn every_message_in_troubleshooting_exists() {
    let page = Page::read("docs/troubleshooting.md");
    let sources = sources();
    let messages: Vec<&str> = page.text.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    assert!(messages.len() > 10, "too few messages: {messages:?}");
    let is_missing = |message: &&&str| message.split(ANY).any(|part| !sources.contains(part.trim()));
    let missing: Vec<_> = messages.iter().filter(is_missing).collect();
    assert!(
        missing.is_empty(),
        "no program prints these messages; `{ANY}` stands for a name or a number: {missing:?}"
    );
}

/// The sources of the program, the engines and the scripts, as one text. A string that continues in the next line is joined.
fn sources() -> String {
    let is_source = |path: &&String| {
        let folder = path.split('/').next().unwrap_or_default();
        ["src", "engines", "models", "protocol", "scripts"].contains(&folder) && !path.ends_with(".md")
    };
    let texts = unignored_files().iter().filter(is_source).filter_map(|path| text(path)).collect::<String>();
    let joined: String = texts.split("\\\n").map(str::trim_start).collect();
    // In a Rust string a quote has a backslash.
    joined.replace("\\\"", "\"")
}
