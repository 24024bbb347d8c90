//! Pulls a model from the hub into the cache: first the bytes, then the links that form its folder, and last the ref with
//! its name. So a ref names a folder with all files of a pull. A download resumes an earlier try. A file gets its final name
//! only after its hash was verified.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use ureq::http::StatusCode;

use super::Repository;
use super::connection::{Hub, RequestError, Retries, SYNTH_HINT, Settings, header};
use super::listing::{Listing, RemoteFile, RunningHash, choose};
use crate::size;
use crate::write::{cannot_write, free_bytes, write_atomically};

/// The events of a pull, for a display.
#[derive(Debug)]
pub enum Event<'a> {
    /// The files are known: their number and bytes, and how many of these the cache already has.
    Planned {
        commit: &'a str,
        files: usize,
        cached_files: usize,
        bytes: u64,
        cached_bytes: u64,
    },
    FileStarted {
        name: &'a str,
        bytes: u64,
    },
    /// The bytes of the complete files of this pull, and of the file in progress.
    Progress {
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

/// Fetches the files that an engine needs, or the files that match the patterns, and returns their folder.
pub fn pull(
    settings: &Settings,
    repository: &Repository,
    patterns: &[String],
    report: &mut dyn FnMut(Event),
) -> Result<PathBuf> {
    with_missing(settings, repository, patterns, report, fetch_missing)
}

/// Reports what `pull` would fetch, as `Event::Planned`, and fetches nothing. It fails where a pull would fail before its first
/// file.
pub fn plan(
    settings: &Settings,
    repository: &Repository,
    patterns: &[String],
    report: &mut dyn FnMut(Event),
) -> Result<()> {
    with_missing(settings, repository, patterns, report, |_, _, _, _| Ok(()))
}

/// Finds the files to pull and the missing ones among them, then calls `then` with both.
fn with_missing<T>(
    settings: &Settings,
    repository: &Repository,
    patterns: &[String],
    report: &mut dyn FnMut(Event),
    then: impl FnOnce(&Blobs, &[&RemoteFile], Vec<&RemoteFile>, &mut dyn FnMut(Event)) -> Result<T>,
) -> Result<T> {
    let cache_hint = || match settings.cache.find(repository) {
        Some(_) => format!(
            "\nhint: `{repository}` is in the cache from an earlier pull, and can be used by that name"
        ),
        None => format!("\n{SYNTH_HINT}"),
    };
    if settings.offline {
        bail!("`HF_HUB_OFFLINE` is set, so nothing is fetched{}", cache_hint());
    }
    let hub = Hub::new(settings);
    let Listing { commit, files } =
        hub.listing(repository, &mut |why, wait| report(Event::Waiting { why, wait }))?;
    let chosen = choose(&files, patterns).with_context(|| format!("`{repository}`"))?;
    let repository_folder = settings.cache.folder_of(repository);
    let locks = settings.cache.folder.join(".locks").join(repository.folder_name());
    let blobs =
        Blobs { hub: &hub, repository, commit: &commit, folder: repository_folder.join("blobs"), locks };
    let missing = missing_files(&blobs, &chosen, report, &settings.cache.folder)?;
    then(&blobs, &chosen, missing, report)
}

fn fetch_missing(
    blobs: &Blobs,
    chosen: &[&RemoteFile],
    missing: Vec<&RemoteFile>,
    report: &mut dyn FnMut(Event),
) -> Result<PathBuf> {
    let mut done_bytes: u64 =
        chosen.iter().filter(|file| !missing.contains(file)).map(|file| file.bytes).sum();
    for file in missing {
        report(Event::FileStarted { name: &file.name, bytes: file.bytes });
        blobs.fetch(file, &mut |step| match step {
            Step::Progress(bytes) => report(Event::Progress { bytes: done_bytes + bytes }),
            Step::Waiting { why, wait } => report(Event::Waiting { why, wait }),
        })?;
        done_bytes += file.bytes;
        report(Event::FileDone { name: &file.name, bytes: file.bytes });
    }
    let (repository, commit) = (blobs.repository, blobs.commit);
    let repository_folder = blobs.folder.parent().unwrap_or(&blobs.folder);
    let snapshot = repository_folder.join("snapshots").join(commit);
    for file in chosen {
        link(&snapshot, file)?;
    }
    if repository.revision != commit {
        let ref_file = repository_folder.join("refs").join(&repository.revision);
        write_atomically(&ref_file, |path| std::fs::write(path, commit))?;
    }
    Ok(snapshot)
}

/// The missing files, after a check of the free space.
fn missing_files<'a>(
    blobs: &Blobs,
    chosen: &[&'a RemoteFile],
    report: &mut dyn FnMut(Event),
    cache: &Path,
) -> Result<Vec<&'a RemoteFile>> {
    let total = chosen.iter().try_fold(0_u64, |sum, file| sum.checked_add(file.bytes));
    let bytes = total.with_context(|| format!("`{}`: the sizes of its files overflow", blobs.repository))?;
    let cached_bytes = chosen.iter().map(|file| blobs.cached_bytes(file)).sum();
    let missing: Vec<_> = chosen.iter().filter(|file| !blobs.is_complete(file)).copied().collect();
    let (files, cached_files) = (chosen.len(), chosen.len() - missing.len());
    report(Event::Planned { commit: blobs.commit, files, cached_files, bytes, cached_bytes });
    if !missing.is_empty() {
        let (needed, free) = (bytes - cached_bytes, free_bytes(cache)?);
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
    if std::fs::read_link(&link).is_ok_and(|current| current.as_os_str() == target.as_str()) {
        return Ok(());
    }
    write_atomically(&link, |path| std::os::unix::fs::symlink(&target, path))
}

/// The blob folder of a repository.
struct Blobs<'a> {
    hub: &'a Hub<'a>,
    repository: &'a Repository,
    commit: &'a str,
    folder: PathBuf,
    /// The folder of the lock files. Other programs that use the hub lock the same files.
    locks: PathBuf,
}

/// The progress of a download.
enum Step<'a> {
    /// The number of downloaded bytes of the file.
    Progress(u64),
    Waiting {
        why: &'a str,
        wait: Duration,
    },
}

const BUFFER_BYTES: usize = 256 << 10;

impl Blobs<'_> {
    fn path(&self, file: &RemoteFile) -> PathBuf {
        self.folder.join(file.digest.as_str())
    }

    /// The number of bytes of the file that are already downloaded.
    fn cached_bytes(&self, file: &RemoteFile) -> u64 {
        let length =
            |path: &Path| path.metadata().ok().map(|m| m.len()).filter(|&length| length <= file.bytes);
        match self.is_complete(file) {
            true => file.bytes,
            false => length(&self.partial_path(file)).unwrap_or(0),
        }
    }

    /// Whether the file is complete. A file with its final name was verified; another length means later damage.
    fn is_complete(&self, file: &RemoteFile) -> bool {
        self.path(file).metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() == file.bytes)
    }

    fn fetch(&self, file: &RemoteFile, report: &mut dyn FnMut(Step)) -> Result<()> {
        for folder in [&self.folder, &self.locks] {
            std::fs::create_dir_all(folder).with_context(|| cannot_write(folder))?;
        }
        let _lock = self.lock(file)?;
        // Another program may have finished first.
        if self.is_complete(file) {
            return Ok(());
        }
        let mut partial = Partial::open(self.partial_path(file), file, report)?;
        let (mut retries, mut most_bytes) = (Retries::default(), partial.bytes);
        while partial.bytes < file.bytes {
            let received = self.receive(&mut partial, file, report);
            // A server that always starts at the first byte makes no progress.
            if partial.bytes > most_bytes {
                most_bytes = partial.bytes;
                retries.reset();
            }
            if let Err(error) = received {
                retries
                    .wait(error, &mut |why, wait| report(Step::Waiting { why, wait }))
                    .with_context(|| format!("`{}`", file.name))?;
            }
        }
        partial.finish(file, &self.path(file))
    }

    /// The path of an incomplete file, the same in all programs that use the hub, so that one can resume another's download.
    fn partial_path(&self, file: &RemoteFile) -> PathBuf {
        self.folder.join(format!("{}.incomplete", file.digest.as_str()))
    }

    /// Locks the file: two programs that append to it would corrupt it.
    fn lock(&self, file: &RemoteFile) -> Result<File> {
        let path = self.locks.join(format!("{}.lock", file.digest.as_str()));
        let lock = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let lock = lock.with_context(|| cannot_write(&path))?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(std::fs::TryLockError::WouldBlock) => bail!(
                "another program is fetching `{}` (it locks `{}`)\nhint: wait until it is done; the same command then continues",
                file.name,
                path.display()
            ),
            Err(std::fs::TryLockError::Error(error)) => Err(error).with_context(|| cannot_write(&path)),
        }
    }

    /// Makes one request and appends the bytes of its answer.
    fn receive(
        &self,
        partial: &mut Partial,
        file: &RemoteFile,
        report: &mut dyn FnMut(Step),
    ) -> Result<(), RequestError> {
        let from = partial.bytes;
        let response = self.hub.file(self.repository, self.commit, &file.name, from)?;
        let resumes = response.status() == StatusCode::PARTIAL_CONTENT
            && header(&response, "content-range")
                .is_some_and(|range| range.starts_with(&format!("bytes {from}-")));
        if !resumes {
            partial.restart(file)?;
            report(Step::Progress(0));
            if response.status() != StatusCode::OK {
                return Err(RequestError::Transient {
                    why: "the hub sent another range than requested".into(),
                    wait: None,
                });
            }
        }
        let mut body = response.into_body().into_reader();
        let mut piece = vec![0; BUFFER_BYTES];
        loop {
            let read = body.read(&mut piece).map_err(|error| self.hub.connection_error(&error.into()))?;
            if read == 0 && partial.bytes < file.bytes {
                return Err(RequestError::Transient {
                    why: format!("the connection ended after {} of {} bytes", partial.bytes, file.bytes),
                    wait: None,
                });
            }
            if read == 0 {
                return Ok(());
            }
            if read as u64 > file.bytes - partial.bytes {
                partial.remove();
                return Err(anyhow!("the hub sends more than the {} bytes that it lists", file.bytes).into());
            }
            partial.append(&piece[..read])?;
            report(Step::Progress(partial.bytes));
        }
    }
}

/// A partial file, and the hash of its bytes.
struct Partial {
    path: PathBuf,
    file: File,
    bytes: u64,
    hash: RunningHash,
}

impl Partial {
    /// Opens the file and hashes the bytes that an earlier try left in it.
    fn open(path: PathBuf, listed: &RemoteFile, report: &mut dyn FnMut(Step)) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.with_context(|| cannot_write(&path))?;
        let mut partial = Self { file, bytes: 0, hash: listed.digest.begin(listed.bytes), path };
        let length = partial.file.metadata().with_context(|| cannot_write(&partial.path))?.len();
        if length > listed.bytes {
            partial.restart(listed)?;
        }
        let mut piece = vec![0; BUFFER_BYTES];
        loop {
            let read = partial.file.read(&mut piece);
            let read = read.with_context(|| format!("cannot read `{}`", partial.path.display()))?;
            if read == 0 {
                return Ok(partial);
            }
            partial.hash.update(&piece[..read]);
            partial.bytes += read as u64;
            report(Step::Progress(partial.bytes));
        }
    }

    fn append(&mut self, piece: &[u8]) -> Result<()> {
        self.file.write_all(piece).with_context(|| cannot_write(&self.path))?;
        self.hash.update(piece);
        self.bytes += piece.len() as u64;
        Ok(())
    }

    fn restart(&mut self, listed: &RemoteFile) -> Result<()> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.with_context(|| cannot_write(&self.path))?;
        (self.bytes, self.hash) = (0, listed.digest.begin(listed.bytes));
        Ok(())
    }

    fn finish(self, listed: &RemoteFile, path: &Path) -> Result<()> {
        self.file.sync_all().with_context(|| cannot_write(&self.path))?;
        let actual = self.hash.finish();
        if actual != listed.digest {
            let error = anyhow!(
                "`{}` is damaged: its {} is `{}`, and the hub lists `{}`; the file was removed\nhint: the same command fetches it again",
                listed.name,
                actual.kind(),
                actual.as_str(),
                listed.digest.as_str()
            );
            return match std::fs::remove_file(&self.path) {
                Ok(()) => Err(error),
                Err(remove_error) => {
                    Err(remove_error).with_context(|| format!("cannot remove `{}`", self.path.display()))
                }
            };
        }
        std::fs::rename(&self.path, path).with_context(|| cannot_write(path))
    }

    /// Best effort: the original error matters more.
    fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
