//! The cache that is shared by all programs that use the hub. The folder of a repository has three folders. `blobs/` has the
//! bytes of each file, named by their hash. `refs/` has a file with a commit for each branch or tag. `snapshots/` has a model
//! folder for each commit, made of links to blobs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{MAIN, Repository, is_commit};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    pub folder: PathBuf,
}

/// A commit of a repository in the cache: the folder of one model or of several.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Snapshot {
    pub repository: Repository,
    pub folder: PathBuf,
}

impl Cache {
    /// The folder `$HF_HUB_CACHE` (or the older `$HUGGINGFACE_HUB_CACHE`), else the folder `hub` of `home()`.
    pub fn from_environment() -> Result<Self> {
        let given = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE"));
        let folder = match given {
            Some(folder) => PathBuf::from(folder),
            None => home()?.join("hub"),
        };
        Ok(Self { folder })
    }

    /// The path of a repository's snapshot, if it was pulled. The revision may be the first 8 or more digits of a commit.
    pub fn find(&self, repository: &Repository) -> Option<PathBuf> {
        let repository_folder = self.folder_of(repository);
        let (snapshots, revision) = (repository_folder.join("snapshots"), repository.revision.as_str());
        let commit = match read_commit(&repository_folder.join("refs").join(revision)) {
            Some(commit) => commit,
            None if (SHORT_COMMIT_DIGITS..=COMMIT_DIGITS).contains(&revision.len()) => {
                let matches = |name: &String| is_commit(name) && name.starts_with(revision);
                let commits: Vec<_> = names_in(&snapshots).into_iter().filter(matches).collect();
                <[String; 1]>::try_from(commits).ok()?.into_iter().next()?
            }
            None => return None,
        };
        Some(snapshots.join(commit)).filter(|folder| folder.is_dir())
    }

    /// Finds `OWNER/NAME`, `OWNER/NAME@REVISION`, or one of several GGUF files: `OWNER/NAME/FILE.gguf`.
    pub fn find_named(&self, name: &str) -> Option<PathBuf> {
        if let Some(folder) = Repository::parse(name).ok().and_then(|repository| self.find(&repository)) {
            return Some(folder);
        }
        let (slash, _) = name.match_indices('/').nth(1)?;
        let (repository, file) = (&name[..slash], &name[slash + 1..]);
        let is_inside =
            file.ends_with(".gguf") && file.split('/').all(|part| !matches!(part, "" | "." | ".."));
        let folder = self.find(&Repository::parse(repository).ok()?)?;
        Some(folder.join(file)).filter(|path| is_inside && path.is_file())
    }

    /// Every snapshot of every repository: once for each branch or tag that names its commit, or once if none does.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        let mut snapshots = BTreeSet::new();
        for name in names_in(&self.folder) {
            let Some(repository) = Repository::of_folder_name(&name) else { continue };
            let repository_folder = self.folder.join(&name);
            let mut named_folders = BTreeSet::new();
            for revision in revisions_in(&repository_folder.join("refs"), "", MAX_REVISION_DEPTH) {
                let Ok(repository) = Repository::parse(&format!("{}@{revision}", repository.id)) else {
                    continue;
                };
                if let Some(folder) = self.find(&repository) {
                    named_folders.insert(folder.clone());
                    snapshots.insert(Snapshot { repository, folder });
                }
            }
            for commit in
                names_in(&repository_folder.join("snapshots")).into_iter().filter(|name| is_commit(name))
            {
                let folder = repository_folder.join("snapshots").join(&commit);
                if !named_folders.contains(&folder) && folder.is_dir() {
                    let revision = commit[..SHORT_COMMIT_DIGITS].to_string();
                    let repository = Repository { revision, ..repository.clone() };
                    snapshots.insert(Snapshot { repository, folder });
                }
            }
        }
        snapshots.into_iter().collect()
    }

    pub(super) fn folder_of(&self, repository: &Repository) -> PathBuf {
        self.folder.join(repository.folder_name())
    }
}

impl Snapshot {
    /// The models of the snapshot, each with its name, path and bytes. A folder with several GGUF files, and without
    /// safetensors at its top, holds several models.
    pub fn models(&self) -> Vec<(String, PathBuf, u64)> {
        let files = files_under(&self.folder, "", MAX_FOLDER_DEPTH);
        let with_ending =
            |end: &str| files.iter().filter(|(name, _)| name.ends_with(end)).collect::<Vec<_>>();
        let ggufs = with_ending(".gguf");
        if ggufs.len() < 2 || with_ending(".safetensors").iter().any(|(name, _)| !name.contains('/')) {
            let bytes = files.iter().map(|(_, bytes)| bytes).sum();
            return vec![(self.repository.to_string(), self.folder.clone(), bytes)];
        }
        let model = |(name, bytes): &(String, u64)| {
            (format!("{}/{name}", self.repository), self.folder.join(name), *bytes)
        };
        ggufs.into_iter().map(model).collect()
    }
}

/// The readable name of a snapshot, or of a file in a snapshot: the name of the folder itself is a commit.
pub fn name_of(path: &Path) -> Option<String> {
    let path = std::path::absolute(path).ok()?;
    let (folder, file) = match path.extension() {
        Some(_) if !is_commit(path.file_name()?.to_str()?) => (path.parent()?, path.file_stem()),
        _ => (path.as_path(), None),
    };
    let commit = folder.file_name()?.to_str().filter(|name| is_commit(name))?;
    let snapshots = folder.parent().filter(|folder| folder.ends_with("snapshots"))?;
    let repository_folder = snapshots.parent()?;
    let repository = Repository::of_folder_name(repository_folder.file_name()?.to_str()?)?;
    if let Some(file) = file {
        return Some(format!("{}/{}", repository.id, file.to_str()?));
    }
    let is_main = read_commit(&repository_folder.join("refs").join(MAIN)).is_some_and(|main| main == commit);
    Some(if is_main {
        repository.id
    } else {
        format!("{}@{}", repository.id, &commit[..SHORT_COMMIT_DIGITS])
    })
}

/// The folder that is shared by all programs that use the hub: `$HF_HOME`, else `huggingface` in the user's cache folder.
pub(super) fn home() -> Result<PathBuf> {
    variable("HF_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("XDG_CACHE_HOME").map(|dir| PathBuf::from(dir).join("huggingface")))
        .or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".cache/huggingface")))
        .context("no home directory: set `HF_HOME` to a folder for models")
}

pub(super) fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

const SHORT_COMMIT_DIGITS: usize = 8;
const COMMIT_DIGITS: usize = 40;
/// Revisions such as `refs/pr/1` are in nested folders.
const MAX_REVISION_DEPTH: usize = 4;
const MAX_FOLDER_DEPTH: usize = 16;
/// A longer ref file is not read: a valid one has one commit.
const MAX_REF_BYTES: u64 = 100;

fn read_commit(path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.is_file() || metadata.len() > MAX_REF_BYTES {
        return None;
    }
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_string()).filter(|text| is_commit(text))
}

/// The names in a folder; none for a missing folder.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn revisions_in(folder: &Path, prefix: &str, max_depth: usize) -> Vec<String> {
    let mut revisions = Vec::new();
    for name in names_in(folder) {
        let (path, revision) = (folder.join(&name), format!("{prefix}{name}"));
        match path.is_dir() {
            true if max_depth > 0 => {
                revisions.extend(revisions_in(&path, &format!("{revision}/"), max_depth - 1))
            }
            true => {}
            false => revisions.push(revision),
        }
    }
    revisions
}

/// Files with their sizes. Links are followed; broken links are left out.
fn files_under(folder: &Path, prefix: &str, max_depth: usize) -> Vec<(String, u64)> {
    let mut files = Vec::new();
    for name in names_in(folder) {
        let (path, full) = (folder.join(&name), format!("{prefix}{name}"));
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() && max_depth > 0 => {
                files.extend(files_under(&path, &format!("{full}/"), max_depth - 1));
            }
            Ok(metadata) if metadata.is_file() => files.push((full, metadata.len())),
            _ => {}
        }
    }
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    const SECOND_COMMIT: &str = "89abcdef0123456789abcdef0123456789abcdef";

    /// A cache with the repository `o/n`: two refs name its first commit, and none its second commit.
    fn cache() -> (tempfile::TempDir, Cache) {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().to_path_buf();
        let repository_folder = folder.join("models--o--n");
        for path in [
            "refs/refs/pr",
            "blobs",
            &format!("snapshots/{FIRST_COMMIT}"),
            &format!("snapshots/{SECOND_COMMIT}"),
        ] {
            std::fs::create_dir_all(repository_folder.join(path)).unwrap();
        }
        for revision in ["main", "refs/pr/1"] {
            std::fs::write(repository_folder.join("refs").join(revision), format!("{FIRST_COMMIT}\n"))
                .unwrap();
        }
        std::fs::write(repository_folder.join("blobs/b"), b"12345").unwrap();
        std::os::unix::fs::symlink(
            "../../blobs/b",
            repository_folder.join(format!("snapshots/{FIRST_COMMIT}/config.json")),
        )
        .unwrap();
        (scratch, Cache { folder })
    }

    #[test]
    fn a_snapshot_is_found_by_its_branch_or_its_commit() {
        let (_scratch, cache) = cache();
        let find = |name: &str| cache.find(&Repository::parse(name).unwrap());
        let snapshots = cache.folder.join("models--o--n/snapshots");
        assert_eq!(find("o/n"), Some(snapshots.join(FIRST_COMMIT)));
        assert_eq!(find("o/n@refs/pr/1"), Some(snapshots.join(FIRST_COMMIT)));
        assert_eq!(find(&format!("o/n@{SECOND_COMMIT}")), Some(snapshots.join(SECOND_COMMIT)));
        assert_eq!(find("o/n@89abcdef"), Some(snapshots.join(SECOND_COMMIT)));
        assert_eq!(find("o/n@ffffffff"), None);
        assert_eq!((find("o/n@v2"), find("o/m"), find("n")), (None, None, None));
        // A ref with a path instead of a commit finds nothing.
        std::fs::write(cache.folder.join("models--o--n/refs/main"), "../../..").unwrap();
        assert_eq!(find("o/n"), None);
    }

    #[test]
    fn a_snapshot_is_listed_under_each_of_its_refs_or_else_its_commit() {
        let (_scratch, cache) = cache();
        std::fs::create_dir_all(cache.folder.join("datasets--o--d/snapshots").join(FIRST_COMMIT)).unwrap();
        let listed = cache.snapshots();
        let names: Vec<_> = listed.iter().map(|snapshot| snapshot.repository.to_string()).collect();
        assert_eq!(names, ["o/n@89abcdef", "o/n", "o/n@refs/pr/1"]);
        assert_eq!(listed[1].models(), [("o/n".into(), listed[1].folder.clone(), 5)]);
        assert_eq!(Cache { folder: cache.folder.join("none") }.snapshots(), []);
    }

    #[test]
    fn each_of_several_gguf_files_is_a_model() {
        let (_scratch, cache) = cache();
        let folder = cache.find(&Repository::parse("o/n").unwrap()).unwrap();
        std::fs::create_dir(folder.join("more")).unwrap();
        std::fs::write(folder.join("a.gguf"), b"1").unwrap();
        let models = |cache: &Cache| cache.snapshots()[1].models();
        assert_eq!(models(&cache), [("o/n".into(), folder.clone(), 6)]);
        std::fs::write(folder.join("more/b.gguf"), b"22").unwrap();
        let expected = [("a.gguf", 1), ("more/b.gguf", 2)]
            .map(|(name, bytes)| (format!("o/n/{name}"), folder.join(name), bytes));
        assert_eq!(models(&cache), expected);
        assert_eq!(cache.find_named("o/n/more/b.gguf"), Some(folder.join("more/b.gguf")));
        assert_eq!(cache.find_named("o/n@main/a.gguf"), Some(folder.join("a.gguf")));
        for name in ["o/n/none.gguf", "o/n/../a.gguf", "o/n/config.json", "o/n//a.gguf"] {
            assert_eq!(cache.find_named(name), None, "{name}");
        }
    }

    #[test]
    fn a_snapshot_has_the_name_of_its_repository() {
        let (_scratch, cache) = cache();
        let snapshots = cache.folder.join("models--o--n/snapshots");
        assert_eq!(name_of(&snapshots.join(FIRST_COMMIT)).as_deref(), Some("o/n"));
        assert_eq!(name_of(&snapshots.join(SECOND_COMMIT)).as_deref(), Some("o/n@89abcdef"));
        assert_eq!(
            name_of(&snapshots.join(SECOND_COMMIT).join("n-Q4_K.gguf")).as_deref(),
            Some("o/n/n-Q4_K")
        );
        assert_eq!(name_of(&cache.folder), None);
    }
}
