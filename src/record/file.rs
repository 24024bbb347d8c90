//! Run records as files: read whole, written entry by entry.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};

use super::entry::{Entry, Header};
use super::run_record::RunRecord;

/// A record that is being written: every entry in memory is also on disk.
pub struct Recorder {
    pub record: RunRecord,
    pub path: PathBuf,
    file: File,
}

impl Recorder {
    /// Creates `DIR/ID.jsonl` with its header.
    pub fn create(dir: &Path, header: Header) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create `{}`", dir.display()))?;
        let path = dir.join(format!("{}.jsonl", header.id));
        let file = OpenOptions::new().create_new(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot create the run record `{}`", path.display()))?;
        let record = RunRecord { header: header.clone(), ..RunRecord::default() };
        let mut recorder = Self { record, path, file };
        recorder.append(&Entry::Header(Box::new(header)))?;
        Ok(recorder)
    }

    /// Adds the entry to the file and to the record in memory.
    pub fn take(&mut self, entry: Entry) -> Result<()> {
        self.append(&entry)?;
        self.record.take(entry);
        Ok(())
    }

    /// Writes each entry with a single call, so that only the last line can be incomplete.
    fn append(&mut self, entry: &Entry) -> Result<()> {
        let line = protocol::encode(entry);
        self.file.write_all(&line).with_context(|| format!("cannot write to `{}`", self.path.display()))
    }
}

pub fn read(path: &Path) -> Result<RunRecord> {
    let file =
        File::open(path).with_context(|| format!("cannot open the run record `{}`", path.display()))?;
    RunRecord::parse(BufReader::new(file)).with_context(|| format!("in the run record `{}`", path.display()))
}

/// The id of a new run. Ids sort by time, and two runs of the same second have different ids.
pub fn new_id() -> String {
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace(':', "-");
    format!("{time}-{}", std::process::id())
}

/// Checks that a record can be written to a folder, before a run starts.
pub fn check_writable(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create `{}`", dir.display()))?;
    let probe = dir.join(format!(".writable-{}", std::process::id()));
    let written = File::create(&probe);
    written.with_context(|| format!("cannot write to `{}`\nhint: --results DIR", dir.display()))?;
    std::fs::remove_file(&probe).with_context(|| format!("cannot remove `{}`", probe.display()))
}

/// `results/` of the checkout that this program was built in, else of the user's data directory.
pub fn results_dir() -> Result<PathBuf> {
    match paths::checkout() {
        Some(root) => Ok(root.join("results")),
        None => Ok(paths::data_dir()?.join("results")),
    }
}

/// The latest record of a folder: ids sort by time. `None` for a folder without records, or an absent one.
pub fn latest_in(folder: &Path) -> Result<Option<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read `{}`", folder.display())),
    };
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths.filter(|path| path.extension().is_some_and(|it| it == "jsonl") && path.is_file()).max())
}
