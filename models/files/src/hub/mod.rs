//! Models of the Hugging Face hub: finding them in the cache, and, with the feature `hub`, downloading them.
//!
//! A pulled model is found by its name without a network and without the feature. The cache has the usual location and
//! layout, so that programs share their downloads.

mod cache;
#[cfg(feature = "hub")]
mod connection;
#[cfg(feature = "hub")]
mod listing;
#[cfg(feature = "hub")]
mod pull;

use anyhow::{Result, ensure};

use crate::text::printable;
pub use cache::{Cache, Snapshot, name_of};

#[cfg(feature = "hub")]
pub use connection::Settings;
#[cfg(feature = "hub")]
pub use pull::{Event, plan, pull};

/// The path of a pulled model with this name: `OWNER/NAME`, `OWNER/NAME@REVISION`, `OWNER/NAME/FILE.gguf`.
pub fn find(name: &str) -> Option<std::path::PathBuf> {
    Cache::from_environment().ok()?.find_named(name)
}

/// The repository of a model's name, and the file of `OWNER/NAME/FILE.gguf`. `None` if the name is more likely a path.
pub fn parse_name(name: &str) -> Option<(Repository, Vec<String>)> {
    if Repository::is_likely(name) {
        return Some((Repository::parse(name).ok()?, Vec::new()));
    }
    let (slash, _) = name.match_indices('/').nth(1)?;
    let (repository, file) = (&name[..slash], &name[slash + 1..]);
    let is_file = file.ends_with(".gguf") && Repository::is_likely(repository);
    is_file.then_some((Repository::parse(repository).ok()?, vec![file.to_string()]))
}

/// The default revision.
const MAIN: &str = "main";

/// `OWNER/NAME` (old models have no owner) at a branch, a tag or a commit. It becomes part of paths and URLs, so only the
/// hub's own characters are valid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Repository {
    pub id: String,
    pub revision: String,
}

impl Repository {
    /// Parses `OWNER/NAME` or `OWNER/NAME@REVISION`.
    pub fn parse(text: &str) -> Result<Self> {
        let (id, revision) = text.split_once('@').unwrap_or((text, MAIN));
        let parts: Vec<&str> = id.split('/').collect();
        ensure!(
            parts.len() <= 2 && parts.iter().all(|part| is_name(part)),
            "`{}` is not the name of a repository\nhint: a name is `OWNER/NAME`, or `OWNER/NAME@REVISION`",
            printable(text)
        );
        ensure!(
            revision.split('/').all(is_part) && !revision.ends_with(".lock"),
            "`{}` is not the name of a revision\nhint: a revision is a branch, a tag or a commit, as in `{id}@{MAIN}`",
            printable(revision)
        );
        Ok(Self { id: id.into(), revision: revision.into() })
    }

    /// Whether a text is more likely a repository than a path: it has an owner and a name.
    pub fn is_likely(text: &str) -> bool {
        Self::parse(text).is_ok_and(|repository| repository.id.contains('/'))
    }

    fn folder_name(&self) -> String {
        format!("{MODELS_PREFIX}{}", self.id.replace('/', "--"))
    }

    /// The repository of a folder in a cache; other folders (data sets, locks) give `None`.
    fn of_folder_name(name: &str) -> Option<Self> {
        Self::parse(&name.strip_prefix(MODELS_PREFIX)?.replace("--", "/")).ok()
    }
}

impl std::fmt::Display for Repository {
    /// The form for a command line, without the default revision.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.revision.as_str() {
            MAIN => f.write_str(&self.id),
            revision => write!(f, "{}@{revision}", self.id),
        }
    }
}

/// Whether a text is a full git commit.
fn is_commit(text: &str) -> bool {
    is_hexadecimal(text, 40)
}

fn is_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

const MODELS_PREFIX: &str = "models--";
/// The longest name that the hub accepts.
const MAX_NAME_LENGTH: usize = 96;
const MAX_PART_LENGTH: usize = 200;

/// Whether a part is a valid name. Two hyphens stand for the slash in a cache's folders, so no name has them.
fn is_name(part: &str) -> bool {
    is_part(part)
        && part.len() <= MAX_NAME_LENGTH
        && !part.contains("--")
        && !part.contains("..")
        && !part.starts_with('-')
}

/// Whether a part of a path is plain: no `..`, and not hidden.
fn is_part(part: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+".contains(&byte);
    !part.is_empty() && part.len() <= MAX_PART_LENGTH && !part.starts_with('.') && part.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_has_an_owner_a_name_and_an_optional_revision() {
        let parse = |text| Repository::parse(text).unwrap();
        assert_eq!((parse("o/n").id.as_str(), parse("o/n").revision.as_str()), ("o/n", MAIN));
        assert_eq!(parse("o/n@refs/pr/1").revision, "refs/pr/1");
        for text in ["o/n", "gpt2", "Qwen/Qwen2.5-0.5B@v1.0"] {
            assert_eq!(parse(text).to_string(), text);
            let folder = parse(text).folder_name();
            assert_eq!(Repository::of_folder_name(&folder).map(|found| found.id), Some(parse(text).id));
        }
        assert_eq!(parse("o/n@main").to_string(), "o/n");
        assert!(Repository::is_likely("o/n") && !Repository::is_likely("gpt2"));
        let named =
            |text| parse_name(text).map(|(repository, files)| (repository.to_string(), files.join(" ")));
        let expected = |repository: &str, files: &str| Some((repository.to_string(), files.to_string()));
        assert_eq!(named("o/n@v1"), expected("o/n@v1", ""));
        assert_eq!(named("o/n/deep/b.gguf"), expected("o/n", "deep/b.gguf"));
        assert_eq!(["gpt2", "./o/n.gguf", "/o/n/m.gguf", "o/n/m"].map(named), [const { None }; 4]);
    }

    #[test]
    fn a_path_that_leads_out_of_a_folder_is_refused_as_a_name() {
        for text in [
            "", "/", "../n", "o/..", "/etc", "o/n/m", "o//n", ".o/n", "-o/n", "o--p/n", "o\\n", "o/n?x",
            "./n",
        ] {
            assert!(Repository::parse(text).is_err(), "{text}");
        }
        for revision in ["", "..", "../x", "/x", "x/../y", "a b", "x%2fy", ".git", "x.lock"] {
            assert!(Repository::parse(&format!("o/n@{revision}")).is_err(), "{revision}");
        }
        assert_eq!(Repository::of_folder_name("datasets--o--n"), None);
    }
}
