//! Tests that every file and name in `READING.md`, the guide to lmrs for a reader of llama2.c, exists.

#![expect(clippy::unwrap_used, reason = "tests panic")]

use std::path::{Path, PathBuf};

/// All sources below a folder, with their text.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files_of = |path: PathBuf| match path.is_dir() {
        true => sources(&path),
        false => vec![(path.clone(), std::fs::read_to_string(path).unwrap())],
    };
    paths.flat_map(files_of).collect()
}

fn declares(source: &str, name: &str) -> bool {
    ["fn ", "struct ", "enum ", "trait ", "static ", "mod "].iter().any(|kind| {
        let declaration = format!("{kind}{name}");
        let mut rests = source.split(&declaration).skip(1);
        rests.any(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
    })
}

#[test]
fn every_file_and_every_name_in_the_guide_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = sources(&root.join("src"));
    let guide = std::fs::read_to_string(root.join("READING.md")).unwrap();
    let prose: String = guide.split("```").step_by(2).collect();
    let (mut file, mut checked) = (None, 0);
    for line in prose.lines() {
        // The first column of the table has names of llama2.c, which are not checked.
        let line =
            line.strip_prefix("| ").and_then(|row| row.split_once(" | ")).map_or(line, |(_, lmrs)| lmrs);
        let words: Vec<&str> = line.split('`').collect();
        for (before, word) in words.iter().zip(&words[1..]).step_by(2) {
            if word.ends_with(".rs") || word.ends_with(".md") {
                let path =
                    [root.join("src").join(word), root.join(word)].into_iter().find(|path| path.is_file());
                file = Some(path.unwrap_or_else(|| panic!("`{word}` is not a file")));
            } else if !word.contains([' ', '/', '(']) && *word != "vdpbf16ps" {
                // `file`: `name` means that the file declares the name. `vdpbf16ps` is an instruction.
                let may_declare = |path: &Path| *before != ": " || file.as_deref() == Some(path);
                let is_declared =
                    sources.iter().any(|(path, source)| may_declare(path) && declares(source, word));
                assert!(is_declared, "`{word}` is not declared: {line}");
                checked += 1;
            }
        }
    }
    // The sketch of `run_layers` has no backticks. In it, paths, words with `_` or `:`, and the word after a path are checked.
    for line in guide.split("```").skip(1).step_by(2).flat_map(str::lines) {
        let words: Vec<&str> = line.split_whitespace().map(|word| word.trim_matches([',', ':'])).collect();
        for (before, word) in words.iter().zip(&words[1..]) {
            if word.ends_with(".rs") {
                assert!(root.join("src").join(word).is_file(), "`{word}` is not a file");
            } else if word.contains(['_', ':']) || before.ends_with(".rs") {
                let name = word.rsplit("::").next().unwrap();
                assert!(sources.iter().any(|(_, source)| declares(source, name)), "`{word}` is not declared");
                checked += 1;
            }
        }
    }
    assert!(checked > 45, "only {checked} names were found in the guide");
}
