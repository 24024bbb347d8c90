//! The messages that the pages of troubleshooting explain: each exists in the sources, so a renamed message breaks its page.

use crate::page::Page;
use crate::support::tree::{is_test, sources, text, unignored_files};

const PAGES: [&str; 2] = ["docs/troubleshooting.md", "docs/troubleshooting-results.md"];
/// Folders whose programs print messages in other languages than Rust.
const FOLDERS: [&str; 2] = ["engines", "scripts"];
/// Stands for the part of a message that varies.
const ANY: &str = "...";

#[test]
fn every_message_in_troubleshooting_exists() {
    let sources = source_lines();
    for path in PAGES {
        let page = Page::read(path);
        let messages: Vec<&str> = page.text.lines().filter_map(|line| line.strip_prefix("### ")).collect();
        assert!(messages.len() > 10, "{path}: too few messages: {messages:?}");
        let missing: Vec<_> = messages.iter().filter(|it| !exists(it, &sources)).collect();
        assert!(
            missing.is_empty(),
            "{path}: no program prints these messages; `{ANY}` stands for a name or a number: {missing:?}"
        );
    }
}

/// Whether one line of the sources has all parts of a message, in their order.
fn exists(message: &str, sources: &[String]) -> bool {
    let has_all = |line: &String| {
        let mut rest = line.as_str();
        message.split(ANY).map(str::trim).all(|part| match rest.split_once(part) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    };
    sources.iter().any(has_all)
}

/// The lines of the program, the engines and the scripts, without tests and comments. A string that continues in the next line is
/// one line.
fn source_lines() -> Vec<String> {
    let is_other = |path: &&String| {
        let is_source = !path.ends_with(".rs") && !path.ends_with(".md") && !is_test(path);
        is_source && path.split_once('/').is_some_and(|(folder, _)| FOLDERS.contains(&folder))
    };
    let others = unignored_files();
    let others = others.iter().filter(is_other).filter_map(|path| text(path));
    let joined = |text: String| {
        let text: String = text.split("\\\n").map(str::trim_start).collect();
        // In a Rust string a quote has a backslash.
        text.replace("\\\"", "\"").lines().map(String::from).collect::<Vec<_>>()
    };
    sources("").into_iter().map(|it| it.code).chain(others).flat_map(joined).collect()
}

#[test]
fn a_message_that_is_only_in_parts_of_several_lines_does_not_exist() {
    let sources = ["bail!(\"no engine named `{name}`, and no file\")", "error: too large"].map(String::from);
    for message in ["no engine named `...`", "no engine ... and no file", "... too large"] {
        assert!(exists(message, &sources), "{message}");
    }
    for message in ["no engine named ... too large", "no file ... no engine", "no such engine"] {
        assert!(!exists(message, &sources), "{message}");
    }
}
