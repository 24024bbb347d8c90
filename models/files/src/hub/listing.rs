//! The hub's description of a repository: its commit, its files, their sizes and hashes; and the selection of files to fetch.
//! Names and sizes are untrusted; a name that could lead out of a folder is refused before anything is written.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use super::{is_commit, is_hexadecimal};
use crate::safetensors::INDEX;
use crate::size;
use crate::text::{hex, printable};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub commit: String,
    pub files: Vec<RemoteFile>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// The path in the repository, with parts separated by `/`.
    pub name: String,
    pub bytes: u64,
    pub digest: Digest,
}

impl Listing {
    /// Parses the hub's answer to `/api/models/ID/revision/REVISION?blobs=true`.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let answer: Answer = serde_json::from_slice(json).context("invalid description of a repository")?;
        ensure!(is_commit(&answer.sha), "`sha`: `{}` is not a commit", printable(&answer.sha));
        let files = answer.siblings.into_iter().map(RemoteFile::of).collect::<Result<_>>()?;
        Ok(Self { commit: answer.sha, files })
    }
}

impl RemoteFile {
    fn of(sibling: Sibling) -> Result<Self> {
        let name = sibling.rfilename;
        ensure!(
            is_safe_path(&name),
            "it lists the file `{}`, which leads out of its folder",
            printable(&name)
        );
        let (bytes, digest) = match (sibling.lfs, sibling.size, sibling.blob_id) {
            (Some(Lfs { sha256, size }), ..) if is_hexadecimal(&sha256, 64) => (size, Digest::Sha256(sha256)),
            (None, Some(size), Some(blob)) if is_hexadecimal(&blob, 40) => (size, Digest::GitBlob(blob)),
            _ => bail!("the size or the hash of `{name}` is missing"),
        };
        Ok(Self { name, bytes, digest })
    }
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

/// The hub's description of one file.
#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(alias = "oid")]
    sha256: String,
    size: u64,
}

const MAX_PATH_BYTES: usize = 1024;

/// Whether the name is a relative path of plain parts. A backslash separates parts on other systems, so it is refused.
fn is_safe_path(name: &str) -> bool {
    let is_plain = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && !part.contains(|character: char| character == '\\' || character.is_control())
    };
    name.len() <= MAX_PATH_BYTES && name.split('/').all(is_plain)
}

/// The hub identifies large files by the SHA-256 of their bytes, and small files by git's hash. The cache uses the
/// hash as the file name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Digest {
    Sha256(String),
    GitBlob(String),
}

impl Digest {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::GitBlob(digits) => digits,
        }
    }

    /// The kind of hash, for a person.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "SHA-256",
            Self::GitBlob(_) => "git hash",
        }
    }

    /// Begins a hash of the same kind over a file of this size; git's hash includes the size.
    pub fn begin(&self, bytes: u64) -> RunningHash {
        match self {
            Self::Sha256(_) => RunningHash::Sha256(Sha256::new()),
            Self::GitBlob(_) => RunningHash::GitBlob(Sha1::new().chain_update(format!("blob {bytes}\0"))),
        }
    }
}

pub enum RunningHash {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl RunningHash {
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitBlob(hash) => hash.update(bytes),
        }
    }

    pub fn finish(self) -> Digest {
        match self {
            Self::Sha256(hash) => Digest::Sha256(hex(&hash.finalize())),
            Self::GitBlob(hash) => Digest::GitBlob(hex(&hash.finalize())),
        }
    }
}

/// The files that an engine may read, besides the weights.
const OTHER_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template*",
    "special_tokens_map.json",
    "tokenizer.model",
];

/// Files that may run code when they are loaded, pickles and HDF5, are never fetched.
const UNSAFE_FILES: &[&str] = &["*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5"];

/// The files that match the patterns; without patterns, the files that an engine needs.
pub fn choose<'a>(files: &'a [RemoteFile], patterns: &[String]) -> Result<Vec<&'a RemoteFile>> {
    if patterns.is_empty() {
        return default_files(files);
    }
    let mut chosen = vec![false; files.len()];
    for pattern in patterns {
        let is_match = |file: &RemoteFile| matches(pattern, &file.name);
        let allowed: Vec<usize> =
            (0..files.len()).filter(|&at| is_match(&files[at]) && !is_unsafe(&files[at])).collect();
        if allowed.is_empty() {
            match files.iter().find(|file| is_match(file)) {
                Some(file) => bail!(
                    "`{}` may run code when it is loaded, so files of its kind are not fetched\nhint: safetensors and GGUF hold the same weights and nothing else",
                    file.name
                ),
                None => bail!("no file matches `{}`; there are:\n{}", printable(pattern), table(files)),
            }
        }
        allowed.into_iter().for_each(|at| chosen[at] = true);
    }
    Ok(files.iter().zip(chosen).filter(|&(_, chosen)| chosen).map(|(file, _)| file).collect())
}

fn default_files(files: &[RemoteFile]) -> Result<Vec<&RemoteFile>> {
    let weights = weights(files)?;
    let is_other = |file: &&RemoteFile| OTHER_FILES.iter().any(|pattern| matches_at_top(pattern, &file.name));
    Ok(files.iter().filter(is_other).chain(weights).collect())
}

/// The weight files that a reader of the folder would use. Some repositories hold the same weights a second time, in
/// their maker's format.
fn weights(files: &[RemoteFile]) -> Result<Vec<&RemoteFile>> {
    let matching =
        |pattern: &str| files.iter().filter(|file| matches_at_top(pattern, &file.name)).collect::<Vec<_>>();
    let (index, shards) = (matching(INDEX), matching("model-*-of-*.safetensors"));
    if !index.is_empty() && !shards.is_empty() {
        return Ok(index.into_iter().chain(shards).collect());
    }
    for weights in [matching("model.safetensors"), matching("*.safetensors")] {
        if !weights.is_empty() {
            return Ok(index.into_iter().chain(weights).collect());
        }
    }
    let ggufs: Vec<_> = files.iter().filter(|file| matches("*.gguf", &file.name)).collect();
    match ggufs.as_slice() {
        [only] => Ok(vec![only]),
        [] if files.iter().any(is_unsafe) => bail!(
            "its weights are in files that may run code when they are loaded (`{}`), and it has neither safetensors nor GGUF\nhint: look for a conversion of this model on the hub",
            UNSAFE_FILES.join("`, `")
        ),
        [] => bail!("it has neither `*.safetensors` nor `*.gguf` files; there are:\n{}", table(files)),
        [first, ..] => bail!(
            "it has several `.gguf` files:\n{}\nhint: name one: `--file '{}'` of `model pull`, or `-m OWNER/NAME/{}`",
            table(ggufs.iter().copied()),
            first.name,
            first.name
        ),
    }
}

fn is_unsafe(file: &RemoteFile) -> bool {
    UNSAFE_FILES.iter().any(|pattern| matches(pattern, &file.name.to_ascii_lowercase()))
}

/// The most files to list for a person.
const MAX_LISTED: usize = 40;

/// A table of names and sizes, one line for each file.
fn table<'a>(files: impl IntoIterator<Item = &'a RemoteFile>) -> String {
    let files: Vec<_> = files.into_iter().collect();
    let width = files.iter().take(MAX_LISTED).map(|file| file.name.chars().count()).max().unwrap_or(0);
    let line = |file: &&RemoteFile| format!("  {:width$}  {:>8}", file.name, size(file.bytes));
    let mut lines: Vec<_> = files.iter().take(MAX_LISTED).map(line).collect();
    match files.len() {
        0 => lines.push("  nothing".into()),
        count if count > MAX_LISTED => lines.push(format!("  and {} more", count - MAX_LISTED)),
        _ => {}
    }
    lines.join("\n")
}

/// Like `matches`, for files at the top of the repository.
fn matches_at_top(pattern: &str, name: &str) -> bool {
    !name.contains('/') && matches(pattern, name)
}

/// `*` matches any text, `?` one character, and every other character itself.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut name_at) = (0, 0);
    // The position of the last star, and the end of the text that it matches so far. Earlier stars never need to match more.
    let mut star = None;
    while name_at < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, name_at));
                at += 1;
            }
            Some(&char) if char == '?' || char == name[name_at] => {
                at += 1;
                name_at += 1;
            }
            _ => {
                let Some((star_at, end)) = star else { return false };
                star = Some((star_at, end + 1));
                (at, name_at) = (star_at + 1, end + 1);
            }
        }
    }
    pattern[at..].iter().all(|&char| char == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn parse(siblings: &serde_json::Value) -> Result<Listing> {
        let answer = serde_json::json!({ "id": "o/n", "sha": COMMIT, "siblings": siblings, "gated": false });
        Listing::parse(&serde_json::to_vec(&answer).unwrap())
    }

    fn small_file(name: &str) -> serde_json::Value {
        serde_json::json!({ "rfilename": name, "size": 7, "blobId": COMMIT })
    }

    #[test]
    fn large_files_have_their_sha_256_and_small_files_their_git_hash() {
        let sha256 = "ab".repeat(32);
        let large = serde_json::json!({ "rfilename": "a/b.gguf", "size": 9, "blobId": COMMIT,
            "lfs": { "sha256": sha256, "size": 9, "pointerSize": 134 } });
        let listing = parse(&serde_json::json!([small_file("config.json"), large])).unwrap();
        assert_eq!(listing.commit, COMMIT);
        assert_eq!(listing.files[0].digest, Digest::GitBlob(COMMIT.into()));
        assert_eq!((listing.files[1].bytes, &listing.files[1].digest), (9, &Digest::Sha256(sha256)));
    }

    #[test]
    fn a_name_that_leads_out_of_the_folder_is_refused() {
        for name in ["../evil", "/etc/passwd", "a/../../b", "a//b", "", "a/", "..\\evil", "a\nb", "./a"] {
            let refused = parse(&serde_json::json!([small_file("config.json"), small_file(name)]));
            assert!(format!("{:#}", refused.unwrap_err()).contains("leads out"), "{name:?}");
        }
    }

    #[test]
    fn an_invalid_description_of_a_repository_is_refused() {
        let no_size = serde_json::json!([{ "rfilename": "x", "blobId": COMMIT }]);
        assert!(parse(&no_size).unwrap_err().to_string().contains("size or the hash of `x`"));
        let no_hash = serde_json::json!([{ "rfilename": "x", "size": 1, "blobId": "../../x" }]);
        assert!(parse(&no_hash).is_err());
        for answer in [&b"<html>"[..], b"{}", br#"{"sha":"../..","siblings":[]}"#] {
            assert!(Listing::parse(answer).is_err());
        }
    }

    #[test]
    fn both_hashes_match_published_values() {
        let hash_of = |kind: Digest, text: &[u8]| {
            let mut hash = kind.begin(text.len() as u64);
            text.chunks(2).for_each(|part| hash.update(part));
            hash.finish()
        };
        // `printf hello | sha256sum`, `printf hello | git hash-object --stdin`
        let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        assert_eq!(hash_of(Digest::Sha256(String::new()), b"hello"), Digest::Sha256(sha256.into()));
        let git = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
        assert_eq!(hash_of(Digest::GitBlob(String::new()), b"hello"), Digest::GitBlob(git.into()));
    }

    fn files(names: &[&str]) -> Vec<RemoteFile> {
        let file = |name: &&str| RemoteFile {
            name: (*name).into(),
            bytes: 1_500_000,
            digest: Digest::GitBlob("0".repeat(40)),
        };
        names.iter().map(file).collect()
    }

    fn choose_names(names: &[&str], patterns: &[&str]) -> Result<Vec<String>> {
        let patterns: Vec<_> = patterns.iter().map(|pattern| pattern.to_string()).collect();
        choose(&files(names), &patterns).map(|files| files.iter().map(|file| file.name.clone()).collect())
    }

    fn error_message(names: &[&str], patterns: &[&str]) -> String {
        choose_names(names, patterns).unwrap_err().to_string()
    }

    #[test]
    fn stars_and_question_marks_match_as_in_a_shell_and_stars_cross_folders() {
        for (pattern, name) in [
            ("*", "a/b"),
            ("*q4_k*.gguf", "x-q4_k_m.gguf"),
            ("a?c", "abc"),
            ("**c", "abc"),
            ("a*b*c", "aXbYbc"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("a?c", "ac"), ("*.gguf", "x.gguf.txt"), ("", "a"), ("a*b", "a"), ("[ab]", "a")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        // The time does not grow exponentially with the number of stars.
        assert!(!matches(&"a*".repeat(500), &format!("{}b", "a".repeat(499))));
    }

    #[test]
    fn without_a_pattern_the_default_files_are_selected_and_weights_only_once() {
        let names =
            ["README.md", "config.json", "chat_template.jinja", "original/params.json", "onnx/config.json"];
        let weights = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let unneeded = ["consolidated.safetensors", "pytorch_model.bin", "model-q4.gguf"];
        let all = [&names[..], &weights[..], &unneeded[..], &[INDEX]].concat();
        let expected = ["config.json", "chat_template.jinja", INDEX, weights[0], weights[1]];
        assert_eq!(choose_names(&all, &[]).unwrap(), expected);
        assert_eq!(
            choose_names(&["model.safetensors", "other.safetensors"], &[]).unwrap(),
            ["model.safetensors"]
        );
        assert_eq!(choose_names(&["other.safetensors"], &[]).unwrap(), ["other.safetensors"]);
        assert_eq!(choose_names(&["config.json", "m.gguf"], &[]).unwrap(), ["config.json", "m.gguf"]);
    }

    #[test]
    fn one_of_several_gguf_files_must_be_named() {
        let refused = error_message(&["a-q4.gguf", "a-q8.gguf", "config.json"], &[]);
        assert!(refused.contains("  a-q4.gguf   1.50 MB\n  a-q8.gguf   1.50 MB\n"), "{refused}");
        assert!(refused.contains("hint: name one: `--file 'a-q4.gguf'`"), "{refused}");
        assert_eq!(choose_names(&["a-q4.gguf", "a-q8.gguf"], &["*q8*"]).unwrap(), ["a-q8.gguf"]);
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_refused_with_a_list_of_the_files() {
        let refused = error_message(&["config.json", "m.gguf"], &["*.gguf", "*.safetensors"]);
        assert!(refused.contains("`*.safetensors`") && refused.contains("  config.json"), "{refused}");
    }

    #[test]
    fn a_file_that_may_run_code_is_never_selected() {
        assert_eq!(choose_names(&["a.bin", "B.PT", "c.json", "d.h5"], &["*"]).unwrap(), ["c.json"]);
        assert!(error_message(&["a.bin", "c.json"], &["*.bin"]).contains("`a.bin` may run code"));
        assert!(error_message(&["pytorch_model.bin", "config.json"], &[]).contains("may run code"));
        assert!(error_message(&["README.md"], &[]).contains("neither `*.safetensors` nor"));
    }
}
