//! Downloads one file from the hub into the cache: it resumes an earlier try, verifies the hash, and renames the file last.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use ureq::http::StatusCode;

use super::connection::{Hub, Patience, Trouble, header};
use super::digest::Running;
use super::listing::RemoteFile;
use super::repository::Repository;

/// The blob folder of a repository.
pub struct Blobs<'a> {
    pub hub: &'a Hub<'a>,
    pub repository: &'a Repository,
    pub commit: &'a str,
    pub folder: PathBuf,
    /// The lock folder: other programs lock a file here while they fetch it.
    pub locks: PathBuf,
}

/// The progress of a download.
pub enum Step<'a> {
    /// The number of bytes downloaded.
    At(u64),
    Waiting {
        why: &'a str,
        wait: Duration,
    },
}

/// The bytes to read and write at once.
const PIECE: usize = 256 << 10;

impl Blobs<'_> {
    pub fn path(&self, file: &RemoteFile) -> PathBuf {
        self.folder.join(file.digest.as_str())
    }

    /// The number of bytes that are already downloaded.
    pub fn bytes_here(&self, file: &RemoteFile) -> u64 {
        let length = |path: &Path| path.metadata().ok().map(|it| it.len()).filter(|&it| it <= file.bytes);
        match self.is_whole(file) {
            true => file.bytes,
            false => length(&self.unfinished(file)).unwrap_or(0),
        }
    }

    /// Whether the file is complete. A file under its own name was verified; another length means later damage.
    pub fn is_whole(&self, file: &RemoteFile) -> bool {
        self.path(file).metadata().is_ok_and(|it| it.is_file() && it.len() == file.bytes)
    }

    pub fn fetch(&self, file: &RemoteFile, tell: &mut dyn FnMut(Step)) -> Result<()> {
        for folder in [&self.folder, &self.locks] {
            std::fs::create_dir_all(folder).with_context(|| cannot_write(folder))?;
        }
        let _lock = self.lock(file)?;
        // Another program may have finished first.
        if self.is_whole(file) {
            return Ok(());
        }
        let mut unfinished = Unfinished::open(self.unfinished(file), file, tell)?;
        let (mut patience, mut furthest) = (Patience::default(), unfinished.bytes);
        while unfinished.bytes < file.bytes {
            let received = self.receive(&mut unfinished, file, tell);
            // A server that starts again each time makes no progress, however much it sends.
            if unfinished.bytes > furthest {
                furthest = unfinished.bytes;
                patience.renew();
            }
            if let Err(trouble) = received {
                patience
                    .wait(trouble, &mut |why, wait| tell(Step::Waiting { why, wait }))
                    .with_context(|| format!("`{}`", file.name))?;
            }
        }
        unfinished.finish(file, &self.path(file))
    }

    /// The name that the hub's other programs use, so that each resumes another's download.
    fn unfinished(&self, file: &RemoteFile) -> PathBuf {
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
                "another program is fetching `{}` (it holds `{}`)\nhint: wait until it is done; the same command then goes on",
                file.name,
                path.display()
            ),
            Err(std::fs::TryLockError::Error(error)) => Err(error).with_context(|| cannot_write(&path)),
        }
    }

    /// Makes one request and takes as many bytes as it gives.
    fn receive(
        &self,
        unfinished: &mut Unfinished,
        file: &RemoteFile,
        tell: &mut dyn FnMut(Step),
    ) -> Result<(), Trouble> {
        let from = unfinished.bytes;
        let response = self.hub.file(self.repository, self.commit, &file.name, from)?;
        let goes_on = response.status() == StatusCode::PARTIAL_CONTENT
            && header(&response, "content-range").is_some_and(|it| it.starts_with(&format!("bytes {from}-")));
        if !goes_on {
            unfinished.start_over(file)?;
            tell(Step::At(0));
            if response.status() != StatusCode::OK {
                return Err(Trouble::Passing {
                    why: "the hub sent another part than was asked for".into(),
                    wait: None,
                });
            }
        }
        let mut body = response.into_body().into_reader();
        let mut piece = vec![0; PIECE];
        loop {
            let read = body.read(&mut piece).map_err(|error| self.hub.broken(&error.into()))?;
            if read == 0 && unfinished.bytes < file.bytes {
                return Err(Trouble::Passing {
                    why: format!("the connection ended after {} of {} bytes", unfinished.bytes, file.bytes),
                    wait: None,
                });
            }
            if read == 0 {
                return Ok(());
            }
            if read as u64 > file.bytes - unfinished.bytes {
                unfinished.remove();
                return Err(anyhow!("the hub sends more than the {} bytes that it lists", file.bytes).into());
            }
            unfinished.append(&piece[..read])?;
            tell(Step::At(unfinished.bytes));
        }
    }
}

/// A partial file, and the hash of that part.
struct Unfinished {
    path: PathBuf,
    file: File,
    bytes: u64,
    sum: Running,
}

impl Unfinished {
    fn open(path: PathBuf, wanted: &RemoteFile, tell: &mut dyn FnMut(Step)) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.with_context(|| cannot_write(&path))?;
        let mut unfinished = Self { file, bytes: 0, sum: wanted.digest.begin(wanted.bytes), path };
        let length = unfinished.file.metadata().with_context(|| cannot_write(&unfinished.path))?.len();
        if length > wanted.bytes {
            unfinished.start_over(wanted)?;
        }
        let mut piece = vec![0; PIECE];
        loop {
            let read = unfinished.file.read(&mut piece);
            let read = read.with_context(|| format!("cannot read `{}`", unfinished.path.display()))?;
            if read == 0 {
                return Ok(unfinished);
            }
            unfinished.sum.update(&piece[..read]);
            unfinished.bytes += read as u64;
            tell(Step::At(unfinished.bytes));
        }
    }

    fn append(&mut self, piece: &[u8]) -> Result<()> {
        self.file.write_all(piece).with_context(|| cannot_write(&self.path))?;
        self.sum.update(piece);
        self.bytes += piece.len() as u64;
        Ok(())
    }

    fn start_over(&mut self, wanted: &RemoteFile) -> Result<()> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.with_context(|| cannot_write(&self.path))?;
        (self.bytes, self.sum) = (0, wanted.digest.begin(wanted.bytes));
        Ok(())
    }

    fn finish(self, wanted: &RemoteFile, path: &Path) -> Result<()> {
        self.file.sync_all().with_context(|| cannot_write(&self.path))?;
        let found = self.sum.finish();
        if found != wanted.digest {
            let error = anyhow!(
                "`{}` is not what the hub lists: its {} is `{}`, expected `{}`; it was removed\nhint: the same command fetches it again",
                wanted.name,
                found.kind(),
                found.as_str(),
                wanted.digest.as_str()
            );
            return match std::fs::remove_file(&self.path) {
                Ok(()) => Err(error),
                Err(failed) => {
                    Err(failed).with_context(|| format!("cannot remove `{}`", self.path.display()))
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

pub fn cannot_write(path: &Path) -> String {
    format!("cannot write `{}`", path.display())
}
