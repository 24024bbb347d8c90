//! For tests of the project's rules: lists its sources and engine folders, and finds words and paths in a line.

use std::collections::BTreeSet;

use super::{Scratch, finish, root};

/// Folders of `engines/` that are no engine.
pub const SHARED_BY_ENGINES: &[&str] = &["environments", "kit", "limits", "paths"];

/// Whether the line has a path that begins with this folder. A path that passes through a folder of that name does not count.
pub fn has_path(line: &str, folder: &str) -> bool {
    let inside = |before: char| before.is_alphanumeric() || "._-}*".contains(before);
    line.match_indices(folder).any(|(at, _)| !line[..at].ends_with(inside))
}

pub fn has_word(line: &str, word: &str) -> bool {
    let inside = |it: char| it.is_alphanumeric() || it == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(inside) && !line[at + word.len()..].starts_with(inside))
}

/// A source file without its tests.
pub struct Source {
    pub path: String,
    /// Without comments too.
    pub code: String,
}

impl Source {
    pub fn refuse(&self, word: &str, advice: &str) {
        let found = self.code.lines().find(|line| line.contains(word));
        assert!(found.is_none(), "`{}` uses `{word}`: {advice}\n{}", self.path, found.unwrap_or_default());
    }

    /// Like `refuse`, but only for the whole word: longer words may contain it.
    pub fn refuse_word(&self, word: &str, advice: &str) {
        let found = self.code.lines().find(|line| has_word(line, word));
        assert!(found.is_none(), "`{}` uses `{word}`: {advice}\n{}", self.path, found.unwrap_or_default());
    }
}

pub fn sources(under: &str) -> Vec<Source> {
    let paths = tracked()
        .into_iter()
        .filter(|path| path.starts_with(under) && path.ends_with(".rs") && !is_test(path));
    let code = |path: &str| {
        let program = without_tests(&text(path).unwrap());
        let lines = program.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let sources: Vec<_> = paths.map(|path| Source { code: code(&path), path }).collect();
    assert!(
        !sources.is_empty(),
        "no sources under `{under}`: if they have moved, correct the path in this test"
    );
    sources
}

pub fn is_test(path: &str) -> bool {
    path.split('/')
        .any(|part| ["tests", "tests.rs", "specimen.rs"].contains(&part) || part.starts_with("test_"))
}

/// Leaves out every item under `#[cfg(test)]`: to its semicolon, or to the closing brace at the left margin.
pub fn without_tests(source: &str) -> String {
    let mut rest = String::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if line != "#[cfg(test)]" {
            rest.extend([line, "\n"]);
            continue;
        }
        let ends =
            |line: &str| line == "}" || (!line.starts_with([' ', '#', '/']) && line.ends_with([';', '}']));
        lines.by_ref().find(|line| ends(line));
    }
    rest
}

/// Every file that is, or would be, committed.
pub fn tracked() -> Vec<String> {
    let scratch = Scratch::new();
    let mut git = scratch.marked("git");
    let listed =
        finish(git.args(["ls-files", "--cached", "--others", "--exclude-standard"]).current_dir(root()))
            .exits_with(0);
    let mut files: Vec<_> =
        listed.stdout.lines().map(String::from).filter(|path| root().join(path).is_file()).collect();
    files.sort();
    files.dedup();
    assert!(files.len() > 50, "git lists too little: {files:?}");
    files
}

pub fn text(path: &str) -> Option<String> {
    std::fs::read_to_string(root().join(path)).ok()
}

pub fn engine_folders() -> Vec<String> {
    let of = |path: &String| Some(path.strip_prefix("engines/")?.split_once('/')?.0.to_string());
    let folders: BTreeSet<_> = tracked().iter().filter_map(of).collect();
    folders.into_iter().filter(|folder| !SHARED_BY_ENGINES.contains(&&**folder)).collect()
}

pub fn manifests() -> impl Iterator<Item = (String, toml::Table)> {
    engine_folders().into_iter().filter_map(|folder| {
        let manifest = text(&format!("engines/{folder}/engine.toml"))?.parse().unwrap();
        Some((folder, manifest))
    })
}
