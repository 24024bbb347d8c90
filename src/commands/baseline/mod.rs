//! Baselines: run records under a name, with the programs that they were measured with.
//!
//! ```text
//! a run --accept--> its record and its programs --store--> $DATA/baselines/NAME/
//! NAME --open--> figures to compare with, or --stand_ins--> the programs of then, measured in turn with today's
//! ```
//!
//! A baseline's folder has the record (`record.jsonl`), its description (`baseline.json`) and the programs
//! (`programs/DIGEST/NAME`). A program keeps the name that it was started by, because it may read it.

mod accept;
mod after;
mod against;
mod age;
mod command;
mod library;
mod program;
mod stand_in;
mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::cli::RunArgs;
use crate::machine::Machine;
use crate::record::{Header, RunRecord};
use crate::shell::Usage;
use crate::text::line;

pub use accept::Refused;
pub use after::conclude;
pub use against::Against;
pub use age::Age;
pub use command::{BaselineCommand, baseline};
pub use program::Program;
pub use store::check_name;

/// Raised when the meaning of a field changes.
const BASELINE_VERSION: u32 = 1;

/// The description of a baseline.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    pub baseline_version: u32,
    pub name: String,
    /// When its run began: UTC, as RFC 3339 writes it.
    pub measured: String,
    pub machine: Machine,
    /// `Machine::fingerprint`.
    pub fingerprint: String,
    pub orchestrate_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The command line of the user.
    pub command: Vec<String>,
    pub configurations: Vec<Kept>,
}

/// A row of the baseline's run, with its program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    pub label: String,
    pub engine: String,
    pub program: Program,
}

/// A saved baseline.
#[derive(Debug)]
pub struct Saved {
    pub baseline: Baseline,
    pub folder: PathBuf,
    /// The age of the baseline that it replaced.
    pub replaced: Option<Age>,
    /// Cases without a place in it, and programs without a full copy.
    pub warnings: Vec<String>,
}

/// Refuses invalid combinations of arguments before anything is built.
pub fn check_arguments(arguments: &RunArgs) -> Result<()> {
    arguments.judge.thresholds()?;
    let Some(name) = &arguments.baseline.save_baseline else { return Ok(()) };
    check_name(name)?;
    if arguments.extent.extent().blocks.is_some_and(|blocks| blocks < 2) {
        let why = "a baseline is a run of which two blocks agree, and this run would have one";
        return Err(Usage(format!("--save-baseline: {why}\nhint: --blocks 5")).into());
    }
    Ok(())
}

/// Saves a run under a name. The error is a `Refused` where its values may not become a baseline. The run's own record
/// stays as it is.
pub fn save(name: &str, record_path: &Path, record: &RunRecord) -> Result<Saved> {
    check_name(name)?;
    let accepted = accept::accept(record)?;
    let mut staged = store::Staged::new(name)?;
    let header = &record.header;
    let mut baseline = Baseline::of(name, header);
    let mut programs: BTreeMap<_, Program> = BTreeMap::new();
    let mut warnings = accepted.left_out;
    for row in accepted.rows {
        let configuration = &header.plan.configurations[row];
        // Presets of one engine share its program.
        let started = (configuration.engine.as_str(), configuration.command.first());
        let keep = || program::keep(&mut staged, configuration, &header.started);
        let program = programs.entry(started).or_insert_with(keep).clone();
        warnings.extend(program.warnings(&configuration.label));
        let (label, engine) = (configuration.label.clone(), configuration.engine.clone());
        baseline.configurations.push(Kept { label, engine, program });
    }
    staged.copy_record(record_path)?;
    staged.write_page(&baseline)?;
    let before = Baseline::read(name).ok();
    let folder = staged.commit()?;
    let replaced = before.map(|before| before.age(SystemTime::now()));
    Ok(Saved { baseline, folder, replaced, warnings })
}

/// The hint comes last, where it can be pasted.
fn damaged(name: &str, how: &str) -> anyhow::Error {
    anyhow::anyhow!("baseline `{name}`: {how}\nhint: orchestrate baseline remove {name}")
}

impl Baseline {
    fn of(name: &str, header: &Header) -> Self {
        Self {
            baseline_version: BASELINE_VERSION,
            name: name.into(),
            measured: header.started.clone(),
            machine: header.machine.clone(),
            fingerprint: header.machine.fingerprint(),
            orchestrate_version: header.orchestrate_version.clone(),
            commit: header.commit.clone(),
            command: header.command.clone(),
            configurations: Vec::new(),
        }
    }

    /// Reads a baseline. An unknown name is the user's error, and the message lists the known ones.
    pub fn read(name: &str) -> Result<Self> {
        check_name(name)?;
        let damaged = |why: String| damaged(name, &format!("its page cannot be read: {why}"));
        let Some(page) = store::read_page(name)? else {
            if store::exists(name)? {
                return Err(damaged("it is lost".into()));
            }
            let known: Vec<_> = store::names()?.iter().map(|name| format!("`{name}`")).collect();
            let hint = match known.is_empty() {
                true => format!("there is none yet; measure one with --save-baseline {name}"),
                false => format!("there are {}", known.join(", ")),
            };
            return Err(Usage(format!("no baseline `{name}`\nhint: {hint}")).into());
        };
        let baseline: Self = serde_json::from_slice(&page).map_err(|error| damaged(error.to_string()))?;
        if baseline.baseline_version != BASELINE_VERSION {
            let (its, ours) = (baseline.baseline_version, BASELINE_VERSION);
            anyhow::bail!(
                "baseline `{name}` has version {its}, this program reads {ours}\nhint: --save-baseline {name}"
            );
        }
        Ok(baseline)
    }

    pub fn record(&self) -> Result<RunRecord> {
        RunRecord::read(&store::record_path(&self.name)?)
    }

    pub fn age(&self, now: SystemTime) -> Age {
        Age::since(&self.measured, now)
    }

    /// The first line wherever a baseline is used: `baseline `main`, 3 days old, orchestrate 0.1.0 at commit abc`.
    pub fn introduction(&self, now: SystemTime) -> String {
        let commit =
            self.commit.as_ref().map(|commit| format!(" at commit {}", line(commit))).unwrap_or_default();
        let (age, version) = (self.age(now), line(&self.orchestrate_version));
        format!("baseline `{}`, {age}, orchestrate {version}{commit}", line(&self.name))
    }

    /// The lines above a comparison with its values.
    pub fn notices(&self) -> Vec<String> {
        let now = SystemTime::now();
        std::iter::once(self.introduction(now)).chain(self.doubts(now)).collect()
    }

    /// Warnings about a comparison with it.
    pub fn doubts(&self, now: SystemTime) -> Vec<String> {
        let (name, mut doubts) = (&self.name, Vec::new());
        let age = self.age(now);
        if age.is_old() {
            doubts.push(format!(
                "baseline `{name}` is {age}: what the machine did since passes for a change of the engine; measure it anew \
                 (--save-baseline {name}), or measure its programs again (--rerun-baseline)"
            ));
        }
        let ours = env!("CARGO_PKG_VERSION");
        if self.orchestrate_version != ours {
            let its = line(&self.orchestrate_version);
            doubts.push(format!(
                "baseline `{name}` was measured by orchestrate {its}, this is {ours}: they may not measure alike; measure it \
                 anew (--save-baseline {name}), or measure its programs again (--rerun-baseline)"
            ));
        }
        doubts
    }
}
