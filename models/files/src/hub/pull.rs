//! Pulls a model from the hub into the cache: first the bytes, then the links that form its folder, and last the ref with
//! its name. So a model that can be found is complete.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::choose::choose;
use super::connection::{Hub, SYNTH_HINT};
use super::fetch::{Blobs, Step, cannot_write};
use super::listing::{Listing, RemoteFile};
use super::repository::Repository;
use super::settings::Settings;
use crate::size;
use crate::write::free_bytes;

/// The events of a pull, for a display.
#[derive(Debug)]
pub enum Event<'a> {
    /// The plan is known: the number of files and bytes, and how many are already here.
    Planned {
        commit: &'a str,
        files: usize,
        files_here: usize,
        bytes: u64,
        bytes_here: u64,
    },
    FileStarted {
        name: &'a str,
        bytes: u64,
    },
    /// The bytes of all files that are here.
    At {
        bytes: u64,
    },
    FileDone {
        name: &'a str,
        bytes: u64,
    },
    /// A failure that may pass; the pull retries after this time.
    Waiting {
        why: &'a str,
        wait: Duration,
    },
}

/// Fetches the files that an engine needs, or those that match the patterns, and returns their folder.
pub fn pull(
    settings: &Settings,
    repository: &Repository,
    patterns: &[String],
    tell: &mut dyn FnMut(Event),
) -> Result<PathBuf> {
    let here_hint = || match settings.cache.find(repository) {
        Some(_) => format!("\nhint: `{repository}` is here from an earlier pull, and is found by that name"),
        None => format!("\n{SYNTH_HINT}"),
    };
    if settings.offline {
        bail!("`HF_HUB_OFFLINE` is set, so nothing is fetched{}", here_hint());
    }
    let hub = Hub::new(settings);
    let Listing { commit, files } =
        hub.listing(repository, &mut |why, wait| tell(Event::Waiting { why, wait }))?;
    let chosen = choose(&files, patterns).with_context(|| format!("`{repository}`"))?;
    let own = settings.cache.folder_of(repository);
    let locks = settings.cache.folder.join(".locks").join(repository.folder_name());
    let blobs = Blobs { hub: &hub, repository, commit: &commit, folder: own.join("blobs"), locks };
    let missing = plan(&blobs, &chosen, tell, &settings.cache.folder)?;
    let mut done: u64 = chosen.iter().filter(|file| !missing.contains(file)).map(|file| file.bytes).sum();
    for file in missing {
        tell(Event::FileStarted { name: &file.name, bytes: file.bytes });
        blobs.fetch(file, &mut |step| match step {
            Step::At(bytes) => tell(Event::At { bytes: done + bytes }),
            Step::Waiting { why, wait } => tell(Event::Waiting { why, wait }),
        })?;
        done += file.bytes;
        tell(Event::FileDone { name: &file.name, bytes: file.bytes });
    }
    let snapshot = own.join("snapshots").join(&commit);
    for file in &chosen {
        link(&snapshot, file)?;
    }
    if repository.revision != commit {
        let reference = own.join("refs").join(&repository.revision);
        write_whole(&reference, |path| std::fs::write(path, &commit))?;
    }
    Ok(snapshot)
}

/// The missing files, after a check of the free space.
fn plan<'a>(
    blobs: &Blobs,
    chosen: &[&'a RemoteFile],
    tell: &mut dyn FnMut(Event),
    cache: &Path,
) -> Result<Vec<&'a RemoteFile>> {
    let total = chosen.iter().try_fold(0_u64, |sum, file| sum.checked_add(file.bytes));
    let bytes = total.with_context(|| format!("`{}`: the sizes of its files overflow", blobs.repository))?;
    let bytes_here = chosen.iter().map(|file| blobs.bytes_here(file)).sum();
    let missing: Vec<_> = chosen.iter().filter(|file| !blobs.is_whole(file)).copied().collect();
    let (files, files_here) = (chosen.len(), chosen.len() - missing.len());
    tell(Event::Planned { commit: blobs.commit, files, files_here, bytes, bytes_here });
    if !missing.is_empty() {
        let (needed, free) = (bytes - bytes_here, free_bytes(cache)?);
        ensure!(
            needed <= free,
            "`{}` needs {} more, and the disk of `{}` has {} free\nhint: `HF_HUB_CACHE` names another folder to pull into",
            blobs.repository,
            size(needed),
            cache.display(),
            size(free)
        );
    }
    Ok(missing)
}

/// Links the file under its name in the snapshot. The link is relative, so that the cache can be moved.
fn link(snapshot: &Path, file: &RemoteFile) -> Result<()> {
    let up = "../".repeat(2 + file.name.matches('/').count());
    let target = format!("{up}blobs/{}", file.digest.as_str());
    let link = snapshot.join(&file.name);
    if std::fs::read_link(&link).is_ok_and(|it| it.as_os_str() == target.as_str()) {
        return Ok(());
    }
    write_whole(&link, |path| std::os::unix::fs::symlink(&target, path))
}

/// Writes under a temporary name beside the path, then renames it.
fn write_whole(path: &Path, write: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let half = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let folder = path.parent().unwrap_or(Path::new("/"));
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| write(&half))
        .and_then(|()| std::fs::rename(&half, path));
    if written.is_err() {
        // Best effort: the first error matters more.
        let _ = std::fs::remove_file(&half);
    }
    written.with_context(|| cannot_write(path))
}
