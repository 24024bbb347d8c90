//! The lock of the cores that a run uses. Two runs on the same cores disturb each other, and neither notices the cause.
//!
//! Each run has a file in one folder of the machine, with its cores and its command, and keeps the file locked until it ends.
//! The kernel releases the lock of a process that was killed, so a leftover file blocks no run.

use std::collections::BTreeSet;
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};

use crate::cli::OtherRuns;
use crate::machine::cpu;
use crate::record::CoreLockState;
use crate::shell::{PROGRAM, this_command_with};
use crate::text;

/// The environment variable with the folder of the locks; `off` turns them off, which tests need.
const VARIABLE: &str = "ORCHESTRATE_CORE_LOCK";
const OFF: &str = "off";
/// All users of the machine share this folder, so it does not depend on TMPDIR.
const FOLDER: &str = "/tmp/orchestrate-runs";
/// The file that is locked while files of runs are examined and made.
const FOLDER_LOCK: &str = "folder.lock";

/// The most characters of another run's command in a message.
const MAX_COMMAND_CHARS: usize = 80;

/// The cores of a run, locked until this is dropped.
pub struct CoreLock {
    pub state: CoreLockState,
    /// A warning for the record.
    pub warning: Option<String>,
    held: Option<(File, PathBuf)>,
}

/// A run as its file describes it to others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Holder {
    pid: u32,
    /// UTC, as RFC 3339 writes it.
    since: String,
    command: String,
    /// Empty if the cores are unknown: then all cores count.
    cores: BTreeSet<u32>,
}

impl CoreLock {
    /// Locks the cores that this process may use. `on_wait` gets a message before each wait for another run.
    pub fn acquire(run: &str, other_runs: OtherRuns, mut on_wait: impl FnMut(&str)) -> Result<Self> {
        let setting = std::env::var(VARIABLE).ok().filter(|value| !value.is_empty());
        if setting.as_deref() == Some(OFF) {
            return Ok(Self { state: CoreLockState::Off, warning: None, held: None });
        }
        let folder = PathBuf::from(setting.as_deref().unwrap_or(FOLDER));
        let own = Holder::of_this_process();
        loop {
            let locked = LockedFolder::open(&folder).and_then(|locked| Ok((locked.holders(&own)?, locked)));
            let (holders, locked) = match locked {
                Ok(found) => found,
                Err(error) => {
                    let message = format!(
                        "machine: other runs were not excluded, because `{}` cannot be used: {error:#}; \
                         hint: `export {VARIABLE}=DIR`",
                        folder.display()
                    );
                    return Ok(Self {
                        state: CoreLockState::Unavailable,
                        warning: Some(message),
                        held: None,
                    });
                }
            };
            let Some((holder, file)) = holders.into_iter().next() else {
                return locked.hold(run, &own, CoreLockState::Held, None);
            };
            let problem = format!("another run uses the same cores: {}", holder.described());
            match other_runs {
                OtherRuns::Refuse => {
                    let command = this_command_with(&["--wait"]);
                    return Err(anyhow!(
                        "{problem}\nhint: {command} # or --anyway, and both runs disturb each other"
                    ));
                }
                OtherRuns::Ignore => {
                    // The description of the other run is too long for a warning.
                    let pid = holder.pid;
                    let warning = format!(
                        "machine: another run uses the same cores (process {pid}); measure again when it has ended"
                    );
                    return locked.hold(run, &own, CoreLockState::Shared, Some(warning));
                }
                OtherRuns::Wait => {
                    // The folder is unlocked, so that other runs can begin or end while this one waits.
                    drop(locked);
                    on_wait(&problem);
                    file.lock_shared().context("cannot wait for another run")?;
                }
            }
        }
    }
}

impl Drop for CoreLock {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.held {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The folder of the locks. While this exists, no other run examines the folder.
struct LockedFolder<'a> {
    folder: &'a Path,
    _lock: File,
}

impl<'a> LockedFolder<'a> {
    fn open(folder: &'a Path) -> Result<Self> {
        if !folder.is_dir() {
            std::fs::create_dir_all(folder)?;
            // Every user of the machine makes files here, and removes only their own.
            std::fs::set_permissions(folder, Permissions::from_mode(0o1777))?;
        }
        let path = folder.join(FOLDER_LOCK);
        // An existing file may belong to another user, who alone may write to it. So it is opened for reading.
        let lock = File::open(&path).or_else(|_| create_readable(&path))?;
        lock.lock()?;
        Ok(Self { folder, _lock: lock })
    }

    /// The runs that share a core with `own`, each with its open file. Removes the files of runs that were killed.
    fn holders(&self, own: &Holder) -> Result<Vec<(Holder, File)>> {
        let mut holders = Vec::new();
        for entry in std::fs::read_dir(self.folder)?.flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let Ok(mut file) = File::open(&path) else { continue };
            if file.try_lock_shared().is_ok() {
                // The run of this file was killed. A file of another user stays.
                let _ = std::fs::remove_file(&path);
                continue;
            }
            let mut text = String::new();
            let _ = file.read_to_string(&mut text);
            let holder: Holder = serde_json::from_str(&text).unwrap_or_default();
            if holder.shares_cores_with(own) {
                holders.push((holder, file));
            }
        }
        Ok(holders)
    }

    fn hold(
        &self,
        run: &str,
        own: &Holder,
        state: CoreLockState,
        warning: Option<String>,
    ) -> Result<CoreLock> {
        let path = self.folder.join(format!("{run}.json"));
        let write = || {
            let mut file = create_readable(&path)?;
            file.lock()?;
            file.write_all(serde_json::to_string(own)?.as_bytes())?;
            anyhow::Ok(file)
        };
        let file = write().with_context(|| format!("cannot write the lock `{}`", path.display()))?;
        Ok(CoreLock { state, warning, held: Some((file, path)) })
    }
}

impl Holder {
    fn of_this_process() -> Self {
        Self {
            pid: std::process::id(),
            since: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
            command: this_command_with(&[]).trim_end().into(),
            cores: cpu::allowed_cores().unwrap_or_default(),
        }
    }

    fn shares_cores_with(&self, other: &Self) -> bool {
        self.cores.is_empty() || other.cores.is_empty() || !self.cores.is_disjoint(&other.cores)
    }

    /// The run's process, arguments and start. The program's name is left out, because the reader should not run this command.
    fn described(&self) -> String {
        let (command, since) = (text::line(&self.command), text::line(&self.since));
        let arguments = command.strip_prefix(PROGRAM).unwrap_or(&command).trim_start();
        let start: String = arguments.chars().take(MAX_COMMAND_CHARS).collect();
        let with = match arguments {
            "" => String::new(),
            _ if start == arguments => format!(" with `{start}`"),
            _ => format!(" with `{start}...`"),
        };
        format!("process {}{with}, since {since}", self.pid)
    }
}

/// Creates a file that all users can read, and so lock.
fn create_readable(path: &Path) -> std::io::Result<File> {
    let file = File::create(path)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_on_other_cores_do_not_conflict_and_unknown_cores_are_all() {
        let on = |cores: &[u32]| Holder { cores: cores.iter().copied().collect(), ..Holder::default() };
        assert!(on(&[0, 1]).shares_cores_with(&on(&[1, 2])));
        assert!(!on(&[0, 1]).shares_cores_with(&on(&[2, 3])));
        assert!(on(&[]).shares_cores_with(&on(&[2])) && on(&[2]).shares_cores_with(&on(&[])));
    }

    #[test]
    fn another_run_is_described_by_its_arguments() {
        let described = |command: &str| {
            let holder =
                Holder { pid: 7, command: command.into(), since: "noon".into(), ..Holder::default() };
            holder.described()
        };
        assert_eq!(described("orchestrate -s decode"), "process 7 with `-s decode`, since noon");
        assert_eq!(described("orchestrate"), "process 7, since noon");
        let long = described(&format!("orchestrate {}", "x".repeat(500)));
        assert!(long.contains("x...`, since noon"), "{long}");
    }
}
