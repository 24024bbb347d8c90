//! The files of the project, for tests of its rules: sources without their tests, engine folders, words and paths in a line.

use std::collections::BTreeSet;

use super::{Scratch, finish, root};

/// Folders of `engines/` that are not engines.
pub const SHARED_BY_ENGINES: &[&str] = &["environments", "kit", "limits", "paths", "server-client", "system"];

/// Whether the line has a path that begins with `folder`. A path with a folder of that name in its middle does not count.
pub fn contains_path(line: &str, folder: &str) -> bool {
    let is_path_char = |it: char| it.is_alphanumeric() || "._-}*".contains(it);
    line.match_indices(folder).any(|(at, _)| !line[..at].ends_with(is_path_char))
}

pub fn contains_word(line: &str, word: &str) -> bool {
    let is_word_char = |it: char| it.is_alphanumeric() || it == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_word_char) && !line[at + word.len()..].starts_with(is_word_char)
    })
}

pub struct Source {
    pub path: String,
    /// The text without tests and comments.
    pub code: String,
}

impl Source {
    /// Checks that the code does not contain this text.
    pub fn refuse(&self, text: &str, advice: &str) {
        let found = self.code.lines().find(|line| line.contains(text));
        assert!(found.is_none(), "`{}` uses `{text}`: {advice}\n{}", self.path, found.unwrap_or_default());
    }

    /// Checks that the code does not contain this word. Longer words that contain it are allowed.
    pub fn refuse_word(&self, word: &str, advice: &str) {
        let found = self.code.lines().find(|line| contains_word(line, word));
        assert!(found.is_none(), "`{}` uses `{word}`: {advice}\n{}", self.path, found.unwrap_or_default());
    }
}

pub fn sources(under: &str) -> Vec<Source> {
    let paths = unignored_files()
        .into_iter()
        .filter(|path| path.starts_with(under) && path.ends_with(".rs") && !is_test(path));
    let code = |path: &str| {
        let program = without_tests(&text(path).unwrap());
        let lines = program.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let sources: Vec<_> = paths.map(|path| Source { code: code(&path), path }).collect();
    assert!(!sources.is_empty(), "no sources under `{under}`: update the path in this test");
    sources
}

pub fn is_test(path: &str) -> bool {
    path.split('/')
        .any(|part| ["tests", "tests.rs", "specimen.rs"].contains(&part) || part.starts_with("test_"))
}

/// Removes every item under `#[cfg(test)]`, up to its semicolon or to the closing brace at the left margin.
pub fn without_tests(source: &str) -> String {
    let mut kept = String::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if line != "#[cfg(test)]" {
            kept.extend([line, "\n"]);
            continue;
        }
        let is_end =
            |line: &str| line == "}" || (!line.starts_with([' ', '#', '/']) && line.ends_with([';', '}']));
        lines.by_ref().find(|line| is_end(line));
    }
    kept
}

/// Every file in git or not ignored by git.
pub fn unignored_files() -> Vec<String> {
    let scratch = Scratch::new();
    let mut git = scratch.command("git");
    let listed =
        finish(git.args(["ls-files", "--cached", "--others", "--exclude-standard"]).current_dir(root()))
            .exits_with(0);
    let mut files: Vec<_> =
        listed.stdout.lines().map(String::from).filter(|path| root().join(path).is_file()).collect();
    files.sort();
    files.dedup();
    assert!(files.len() > 50, "git lists too few files: {files:?}");
    files
}

pub fn text(path: &str) -> Option<String> {
    std::fs::read_to_string(root().join(path)).ok()
}

pub fn engine_folders() -> Vec<String> {
    let engine = |path: &String| Some(path.strip_prefix("engines/")?.split_once('/')?.0.to_string());
    let folders: BTreeSet<_> = unignored_files().iter().filter_map(engine).collect();
    folders.into_iter().filter(|folder| !SHARED_BY_ENGINES.contains(&&**folder)).collect()
}

pub fn manifests() -> impl Iterator<Item = (String, toml::Table)> {
    engine_folders().into_iter().filter_map(|folder| {
        let manifest = text(&format!("engines/{folder}/engine.toml"))?.parse().unwrap();
        Some((folder, manifest))
    })
}
