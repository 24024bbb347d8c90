//! The folders of baselines, and the only code that writes there. A baseline is made in a temporary folder and then
//! renamed, so that a reader never finds an unfinished one.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::shell::Usage;

const RECORD: &str = "record.jsonl";
const DESCRIPTION: &str = "baseline.json";
const PROGRAMS: &str = "programs";
const MAX_NAME_LENGTH: usize = 100;

/// Refuses a name that is no plain file name, is hidden, or looks like an option.
pub fn check_name(name: &str) -> Result<()> {
    let is_allowed = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    let valid = !name.is_empty() && name.len() <= MAX_NAME_LENGTH && name.chars().all(is_allowed);
    let rule = "letters, digits, `-`, `_` and `.`, beginning with a letter, a digit or `_`";
    let invalid = format!("invalid baseline name `{name}`\nhint: at most {MAX_NAME_LENGTH} {rule}");
    ensure!(valid && !name.starts_with(['.', '-']), Usage(invalid));
    Ok(())
}

pub fn names() -> Result<Vec<String>> {
    let folders = fs::read_dir(root()?).into_iter().flatten().flatten();
    // A folder without its description is listed too, so that the user can remove it.
    let names = folders.filter(|folder| folder.path().is_dir());
    let names = names.filter_map(|folder| folder.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| check_name(name).is_ok()).collect();
    names.sort();
    Ok(names)
}

pub fn record_path(name: &str) -> Result<PathBuf> {
    Ok(folder(name)?.join(RECORD))
}

/// The full path of a file in a baseline's folder.
pub fn copy_path(name: &str, copy: &str) -> Result<PathBuf> {
    Ok(folder(name)?.join(copy))
}

pub fn folder(name: &str) -> Result<PathBuf> {
    check_name(name)?;
    Ok(root()?.join(name))
}

/// Whether a baseline of that name exists, damaged or not.
pub fn exists(name: &str) -> Result<bool> {
    let folder = folder(name)?;
    restore(name);
    Ok(folder.is_dir())
}

/// The description of a baseline; `None` without one.
pub fn read_description(name: &str) -> Result<Option<Vec<u8>>> {
    let folder = folder(name)?;
    restore(name);
    let path = folder.join(DESCRIPTION);
    match fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => Ok(Some(read.with_context(|| format!("cannot read `{}`", path.display()))?)),
    }
}

pub fn remove(name: &str) -> Result<PathBuf> {
    let folder = folder(name)?;
    remove_leftovers(name);
    fs::remove_dir_all(&folder).with_context(|| format!("cannot remove `{}`", folder.display()))?;
    Ok(folder)
}

/// The size of all files in a baseline's folder.
pub fn bytes(name: &str) -> Result<u64> {
    fn bytes_in(folder: &Path) -> u64 {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let sizes = entries.map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_in(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        });
        sizes.sum()
    }
    Ok(bytes_in(&folder(name)?))
}

/// SHA-256 in hexadecimal digits, as `sha256sum` prints it.
pub fn digest(path: &Path) -> Result<String> {
    copy_with_digest(path, &mut std::io::sink()).with_context(|| format!("cannot read `{}`", path.display()))
}

/// An unfinished baseline. It is removed when dropped, unless `commit` has finished it.
pub struct Staged {
    path: PathBuf,
    name: String,
}

impl Staged {
    pub fn new(name: &str) -> Result<Self> {
        remove_leftovers(name);
        let path = hidden_folder(name, "new")?;
        fs::create_dir_all(path.join(PROGRAMS)).map_err(|error| {
            let (home, path) = (paths::HOME_VARIABLE, path.display());
            anyhow!("cannot create `{path}`: {error}\nhint: export {home}=/another/folder")
        })?;
        Ok(Self { path, name: name.into() })
    }

    /// Copies a program. Equal programs with the same file name share one copy. Returns the digest of the copied bytes, and the
    /// path of the copy in the folder.
    pub fn copy_program(&mut self, program: &Path) -> Result<(String, String)> {
        let partial = self.path.join(PROGRAMS).join("partial");
        let written = File::create(&partial).and_then(|mut copy| copy_with_digest(program, &mut copy));
        let digest = match written {
            Ok(digest) => digest,
            Err(error) => {
                let _ = fs::remove_file(&partial);
                return Err(error).with_context(|| format!("cannot copy `{}`", program.display()));
            }
        };
        let name = program.file_name().unwrap_or(OsStr::new("program")).to_string_lossy();
        let in_folder = format!("{PROGRAMS}/{digest}/{name}");
        let copy = self.path.join(&in_folder);
        let renamed = fs::set_permissions(&partial, fs::Permissions::from_mode(0o755))
            .and_then(|()| fs::create_dir_all(self.path.join(PROGRAMS).join(&digest)))
            .and_then(|()| fs::rename(&partial, &copy));
        renamed.with_context(|| format!("cannot write `{}`", copy.display()))?;
        Ok((digest, in_folder))
    }

    pub fn copy_record(&self, record: &Path) -> Result<()> {
        let copied = fs::copy(record, self.path.join(RECORD));
        copied.map(drop).with_context(|| format!("cannot copy the run record `{}`", record.display()))
    }

    pub fn write_description(&self, baseline: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(baseline)?;
        text.push(b'\n');
        let path = self.path.join(DESCRIPTION);
        fs::write(&path, text).with_context(|| format!("cannot write `{}`", path.display()))
    }

    /// Moves the new baseline to its final path. A folder cannot replace a folder that has files, so the old
    /// baseline is renamed first. It gets its name back if the move of the new baseline fails.
    pub fn commit(self) -> Result<PathBuf> {
        let (folder, old) = (folder(&self.name)?, hidden_folder(&self.name, "old")?);
        let replaces = folder.exists();
        let moved = match replaces {
            true => fs::rename(&folder, &old).and_then(|()| {
                fs::rename(&self.path, &folder).inspect_err(|_| drop(fs::rename(&old, &folder)))
            }),
            false => fs::rename(&self.path, &folder),
        };
        moved.with_context(|| format!("cannot write `{}`", folder.display()))?;
        if replaces {
            // The new baseline is complete; remains of the old one only cost space.
            let _ = fs::remove_dir_all(&old);
        }
        Ok(folder)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // After a commit there is nothing at this path.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn root() -> Result<PathBuf> {
    Ok(paths::data_dir()?.join("baselines"))
}

/// A hidden folder beside the folder of a baseline, for this process alone. No baseline's name begins with a dot.
fn hidden_folder(name: &str, kind: &str) -> Result<PathBuf> {
    Ok(root()?.join(format!(".{name}.{kind}.{}", std::process::id())))
}

/// Removes the folders of processes that were killed while they saved a baseline, even if this process now has the id of the
/// killed one. The folders of other running processes stay.
fn remove_leftovers(name: &str) {
    restore(name);
    for (path, pid, _) in hidden_folders(name) {
        if has_ended(pid) || pid == std::process::id() as i32 {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Restores the old baseline of a process that was killed between the two renames of `commit`.
fn restore(name: &str) {
    let Ok(folder) = folder(name) else { return };
    let mut old = hidden_folders(name).into_iter().filter(|(_, pid, kind)| *kind == "old" && has_ended(*pid));
    if let Some((path, ..)) = old.next().filter(|_| !folder.exists()) {
        // If this fails, the baseline is missing, and the caller reports that.
        let _ = fs::rename(path, folder);
    }
}

/// The hidden folders of a baseline, each with its path, the id of its process, and `new` or `old`.
fn hidden_folders(name: &str) -> Vec<(PathBuf, i32, &'static str)> {
    let entries = root().and_then(|root| Ok(fs::read_dir(root)?)).into_iter().flatten().flatten();
    let hidden = entries.filter_map(|entry| {
        let file_name = entry.file_name().to_string_lossy().into_owned();
        let suffix = file_name.strip_prefix('.')?.strip_prefix(name)?;
        let pid_and_kind =
            |kind: &'static str| Some((suffix.strip_prefix(&format!(".{kind}."))?.parse().ok()?, kind));
        let (pid, kind) = ["new", "old"].into_iter().find_map(pid_and_kind)?;
        Some((entry.path(), pid, kind))
    });
    hidden.collect()
}

fn has_ended(pid: i32) -> bool {
    let pid = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

/// Copies a file to a writer, and returns its digest.
fn copy_with_digest(from: &Path, to: &mut impl Write) -> std::io::Result<String> {
    let (mut file, mut hasher) = (File::open(from)?, Sha256::new());
    let mut buffer = vec![0; 1 << 20];
    while let count @ 1.. = file.read(&mut buffer)? {
        hasher.update(&buffer[..count]);
        to.write_all(&buffer[..count])?;
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn baseline_names_with_paths_leading_dots_or_leading_dashes_are_refused() {
        for name in ["main", "release-1.2", "_x", "7"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        let long = "x".repeat(MAX_NAME_LENGTH + 1);
        for name in ["", ".", "..", "../x", "a/b", "/etc", ".hidden", "-rf", "a b", "é", "a\0", &long] {
            let error = check_name(name).unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains("hint: "), "{name}");
        }
    }

    #[test]
    fn the_digest_equals_that_of_sha256sum() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "hello").unwrap();
        // `printf hello | sha256sum`
        let expected = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        assert_eq!(digest(file.path()).unwrap(), expected);
    }
}
