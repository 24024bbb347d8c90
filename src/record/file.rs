//! Run records as files: found, read, and written entry by entry.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::entry::{Entry, Header};
use super::run_record::RunRecord;
use crate::shell::{access_hint, did_you_mean_file, file_problem, pasteable};

/// The extension of a record's file.
const EXTENSION: &str = "jsonl";

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
        let path = dir.join(format!("{}.{EXTENSION}", header.id));
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

    /// Removes the file. The record in memory stays.
    pub fn discard(&mut self) -> Result<()> {
        std::fs::remove_file(&self.path).with_context(|| format!("cannot remove `{}`", self.path.display()))
    }

    /// Writes each entry with a single call, so that only the last line can be incomplete.
    fn append(&mut self, entry: &Entry) -> Result<()> {
        let line = protocol::encode(entry);
        self.file.write_all(&line).map_err(|error| {
            anyhow!("cannot write to `{}`: {}", self.path.display(), file_problem(&error, &self.path))
        })
    }
}

/// Reads a record. The error of a file that is no record says what the file is.
pub fn read(path: &Path) -> Result<RunRecord> {
    if path.is_dir() {
        let folder = pasteable(&[path.display().to_string()]);
        return Err(not_a_record(path, "it is a folder", &format!("{LIST_COMMAND} --results {folder}")));
    }
    RunRecord::parse(BufReader::new(open(path)?)).map_err(|error| {
        // A pipe cannot be read again.
        match open(path).ok().filter(|_| path.is_file()).and_then(description) {
            Some(other) => not_a_record(path, other, LIST_COMMAND),
            None => error.context(format!("in the run record `{}`", path.display())),
        }
    })
}

/// Reads only the header of a record.
pub fn header(path: &Path) -> Result<Header> {
    let mut line = Vec::new();
    BufReader::new(open(path)?).read_until(b'\n', &mut line)?;
    match Entry::read(&line) {
        Ok(Entry::Header(header)) => Ok(*header),
        // Reading the whole file gives an error with the reason.
        _ => read(path).map(|record| record.header),
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => {
                format!("\nhint: {}", did_you_mean_file(path).unwrap_or_else(|| LIST_COMMAND.into()))
            }
            _ => access_hint(&error, path, "u+r"),
        };
        anyhow!("cannot open the run record `{}`: {error}{hint}", path.display())
    })
}

fn not_a_record(path: &Path, description: &str, hint: &str) -> anyhow::Error {
    anyhow!("`{}` is not a run record: {description}\nhint: {hint}", path.display())
}

/// The command that lists the records of the results folder.
const LIST_COMMAND: &str = "orchestrate report --list";

/// The most bytes from the start of a file that are read to describe it.
const MAX_DESCRIBED_BYTES: u64 = 1 << 20;

/// A description of a file that is no record. `None` for a file that begins as a record does.
fn description(file: File) -> Option<&'static str> {
    let mut start = Vec::new();
    file.take(MAX_DESCRIBED_BYTES).read_to_end(&mut start).ok()?;
    let first_value = || serde_json::Deserializer::from_slice(&start).into_iter::<Value>().next();
    if start.is_empty() {
        return Some("it is empty");
    }
    if start.contains(&0) || std::str::from_utf8(&start).is_err_and(|error| error.error_len().is_some()) {
        return Some("it is a binary file");
    }
    match first_value() {
        Some(Ok(value)) if value["entry"] == "header" => None,
        Some(Ok(value)) if value.get("entry").is_some() => Some("its first line is not a header"),
        Some(Ok(value)) if value.get("report_version").is_some() => {
            Some("it is a report in JSON, which is made from a record")
        }
        Some(Ok(_)) => Some("it is JSON with other content"),
        // A record that was cut off in its header.
        Some(Err(error)) if error.is_eof() && start.starts_with(b"{\"entry\":\"header\"") => None,
        _ => Some("it is text, not lines of JSON"),
    }
}

/// The id of a new run. Ids sort by time, and two runs of the same second have different ids.
pub fn new_id() -> String {
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace(':', "-");
    format!("{time}-{}", std::process::id())
}

/// Checks that records can be written to a folder, before anything is built or started. The folder need not exist.
pub fn check_writable(folder: &Path) -> Result<()> {
    let absolute = std::path::absolute(folder)?;
    let existing = absolute.ancestors().find(|it| it.exists()).unwrap_or(&absolute);
    let writable = match existing.is_dir() {
        // Permissions are not enough: no one can write to some file systems, such as `/proc`.
        true => create_and_remove(&existing.join(format!(".writable-{}", new_id()))),
        false => Err(ErrorKind::NotADirectory.into()),
    };
    writable.map_err(|error| {
        let hint = format!("--results DIR, or: export {RESULTS_VARIABLE}=DIR");
        anyhow!("cannot write records to the folder `{}`: {error}\nhint: {hint}", folder.display())
    })
}

fn create_and_remove(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir(folder)?;
    std::fs::remove_dir(folder)
}

/// The variable that names the folder for records.
pub const RESULTS_VARIABLE: &str = "ORCHESTRATE_RESULTS";

/// The folder for records: the one that the command line names, else the one of `ORCHESTRATE_RESULTS`, else `results` of the
/// current folder. All commands that write or read records use it.
pub fn results_dir(named: Option<&Path>) -> PathBuf {
    let variable = || std::env::var_os(RESULTS_VARIABLE).filter(|it| !it.is_empty()).map(PathBuf::from);
    named.map(Path::to_path_buf).or_else(variable).unwrap_or_else(|| "results".into())
}

/// Other folders that have records: those in which earlier versions of this program wrote them.
pub fn earlier_results_dirs(results: &Path) -> Vec<PathBuf> {
    let folders = [paths::checkout(), paths::data_dir().ok()].into_iter().flatten();
    let same = |folder: &PathBuf| folder.canonicalize().ok() == results.canonicalize().ok();
    let with_records = folders.map(|folder| folder.join("results"));
    with_records.filter(|folder| !same(folder) && !files_in(folder).unwrap_or_default().is_empty()).collect()
}

/// The files of a folder that may be records: those with the extension of records. A missing folder has none.
pub fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            let hint = access_hint(&error, folder, "u+rx");
            bail!("cannot read the folder of records `{}`: {error}{hint}", folder.display())
        }
        Ok(entries) => entries,
    };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|it| it == EXTENSION) && path.is_file());
    // Names begin with the time of the run.
    files.sort();
    Ok(files)
}

/// The record that a command without a file reads.
pub struct Latest {
    pub path: PathBuf,
    /// Later records without a measurement, the newest first.
    pub skipped: Vec<PathBuf>,
}

/// The folder's latest record with a measurement, or else its latest record. Files that are no record are ignored.
pub fn latest_in(folder: &Path) -> Result<Option<Latest>> {
    let mut paths = newest_first(folder)?;
    // An unreadable record counts: the command that reads it reports the error.
    let counts = |path: &PathBuf| read(path).map_or(true, |record| record.measured().next().is_some());
    let at = paths.iter().position(counts).unwrap_or_default();
    let skipped = paths.drain(..at).collect();
    Ok(paths.into_iter().next().map(|path| Latest { path, skipped }))
}

/// The folder's latest record, even if it has no measurement.
pub fn newest_in(folder: &Path) -> Result<Option<PathBuf>> {
    Ok(newest_first(folder)?.into_iter().next())
}

fn newest_first(folder: &Path) -> Result<Vec<PathBuf>> {
    let headers = files_in(folder)?.into_iter().filter_map(|path| Some((header(&path).ok()?, path)));
    let mut newest_first: Vec<_> = headers.map(|(header, path)| (order_key(&header), path)).collect();
    newest_first.sort_by(|(a, _), (b, _)| b.cmp(a));
    Ok(newest_first.into_iter().map(|(_, path)| path).collect())
}

/// The key by which records are sorted: the start of the run. Two runs of the same second differ in their ids.
pub fn order_key(header: &Header) -> (Option<SystemTime>, String) {
    (humantime::parse_rfc3339(&header.started).ok(), header.id.clone())
}
