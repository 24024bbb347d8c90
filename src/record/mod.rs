//! The run record: the file under `results/` with the machine, the plan, every raw sample and every failure.
//!
//! A record is lines of JSON, one entry each, appended and flushed as they come: a torn last line is all that can be
//! lost. Nothing in it is derived; every number in a report is computed from it again. `file` reads records and is the only
//! writer under `results/`; everything else here is types and is pure.

mod beside;
mod check;
mod failure;
mod file;
mod proof;

use std::collections::HashSet;
use std::io::BufRead;

use anyhow::{Context, Result, anyhow, bail};
use protocol::{DeviceMemory, HelloFacts, Iteration, Loaded, Sequence};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
pub use crate::plan::Role;
pub use crate::plan::prompts::HeldOut;
use crate::plan::{MetricId, Plan};
use stats::{Floor, StoppedBy};

pub use crate::machine::observed::{Energy, GpuHeld, GpuPass, Held};
use check::Known;

pub use beside::{Idle, Late, Limits, Overhead, Pass};
pub use failure::{Failure, FailureKind, Stage};
pub use file::{Recorder, check_writable, results_dir};
pub use proof::{Continued, Kept, Opinion, Scored, Unproved};

/// Raised when the meaning of a field changes or a kind of entry is added; a new field is no new version.
pub const RECORD_VERSION: u32 = 3;
/// 3 has kinds of entries that 2 had not, and all that 2 had.
const OLDEST_VERSION: u32 = 2;

/// A record as it is read back, or as it grows during a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunRecord {
    pub header: Header,
    pub launches: Vec<Launch>,
    pub samples: Vec<Sample>,
    pub warm_ups: Vec<WarmUp>,
    pub closed: Vec<Closed>,
    pub failures: Vec<Failure>,
    pub warnings: Vec<Warning>,
    pub held_out: Vec<HeldOut>,
    pub scored: Vec<Scored>,
    pub continued: Vec<Continued>,
    pub kept: Vec<Kept>,
    pub opinions: Vec<Opinion>,
    pub unproved: Vec<Unproved>,
    pub limits: Vec<Limits>,
    pub passes: Vec<Pass>,
    pub idle: Vec<Idle>,
    pub overhead: Option<Overhead>,
    /// Absent when the run was cut off before it could say so.
    pub end: Option<End>,
}

/// One line of a record. It is read by `Entry::read` alone: serde would buffer every number of a variant with a tag inside.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum Entry {
    Header(Box<Header>),
    Launch(Box<Launch>),
    Sample(Box<Sample>),
    WarmUp(WarmUp),
    Closed(Closed),
    Failure(Failure),
    Warning(Warning),
    HeldOut(HeldOut),
    Scored(Scored),
    Continued(Continued),
    Kept(Kept),
    Opinion(Opinion),
    Unproved(Unproved),
    Limits(Limits),
    Pass(Pass),
    Idle(Idle),
    Overhead(Overhead),
    End(End),
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub record_version: u32,
    pub id: String,
    /// UTC, as RFC 3339 writes it.
    pub started: String,
    pub orchestrate_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// What the user typed.
    pub command: Vec<String>,
    pub machine: Machine,
    /// What the machine is called, for who looks for records of one: computed when it is written, and never read here.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fingerprint: String,
    pub plan: Plan,
    /// What this machine's calibration knew when the run began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub floors: Vec<KnownFloor>,
}

/// How far one configuration lies from itself on this machine, by one metric of one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KnownFloor {
    pub configuration: usize,
    /// The workload's label.
    pub workload: String,
    pub metric: MetricId,
    /// Measured side by side.
    pub paired: Floor,
    /// Measured at two times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between: Option<Floor>,
    /// When it was calibrated, as RFC 3339 writes it.
    pub since: String,
}

/// One process lifetime of an engine. Times count from just before the process was started, on the orchestrator's clock.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// Launches are numbered from 0 as they are recorded.
    pub launch: u32,
    pub configuration: usize,
    pub block: u32,
    /// It was started to prove what the engine does, and nothing was measured in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proves: bool,
    pub pid: u32,
    /// Absent for an engine that is driven with `generate` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hello: Option<HelloFacts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hello_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<Loaded>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_ns: Option<u64>,
    /// The form in which the engine was given the model, where it reads no form that the model has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub converted: Option<Converted>,
    /// What each GPU held just before its process was started; of one that is asked to compute on the CPU nobody looked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus_before: Vec<GpuHeld>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Converted {
    pub format: String,
    pub dtype: String,
    pub path: String,
}

/// The facts about one request as the engine stated them, plus what the orchestrator's own clock saw.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub launch: u32,
    pub case: usize,
    /// Counts the requests of this case in this launch that have this role: of measured ones it is the round.
    pub index: u32,
    pub role: Role,
    /// Names the prompt's ids (or its text, where ids could not be sent).
    pub prompt_hash: String,
    /// Since the process was started.
    pub sent_ns: u64,
    /// Since the process was started: when the answer's bytes arrived.
    pub answered_ns: u64,
    pub iteration: Iteration,
    /// Over the engine's process tree, as the kernel counted it so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_resident_bytes: Option<u64>,
    /// What the process tree held when it had answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// As the engine states it with its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<DeviceMemory>,
    /// CPU time of the process tree from the request to its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<u64>,
    /// How long its threads meanwhile could have run and had no core, because something else had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ns: Option<u64>,
    /// Of a request that was streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Late>,
}

/// How the warm-up of a case ended in a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmUp {
    pub launch: u32,
    pub case: usize,
    pub requests: u32,
    pub ended_by: WarmUpEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarmUpEnd {
    /// Three windows of three requests agreed within 10 %.
    Steady,
    /// As many requests as it took in an earlier launch.
    AsBefore,
    /// They did not agree in the time that they had.
    Time,
    /// There were as many as the user asked for.
    Asked,
}

/// From here on a workload is not measured any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// The workload's label.
    pub workload: String,
    /// After so many blocks.
    pub blocks: u32,
    pub by: StoppedBy,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<usize>,
    /// Says the remedy too.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum End {
    Finished,
    Interrupted,
}

impl Sample {
    /// From the request to its answer, on the orchestrator's clock.
    pub fn elapsed_ns(&self) -> u64 {
        self.answered_ns.saturating_sub(self.sent_ns)
    }
}

/// The new tokens of a sequence: as many as its ids, or as the engine says.
pub fn output_tokens(sequence: &Sequence) -> u64 {
    match (&sequence.output_ids, sequence.output_tokens) {
        (Some(ids), _) => ids.len() as u64,
        (None, Some(count)) => u64::from(count),
        (None, None) => 0,
    }
}

impl RunRecord {
    /// The launches of a configuration in which it was measured: none of those that only proved something.
    pub fn launches_of(&self, configuration: usize) -> impl Iterator<Item = &Launch> + Clone {
        self.launches.iter().filter(move |it| it.configuration == configuration && !it.proves)
    }

    /// Requests that count, in the order in which they were asked: none of a launch that only proved something.
    pub fn measured(&self) -> impl Iterator<Item = &Sample> + Clone {
        let proofs: HashSet<u32> = self.launches.iter().filter(|it| it.proves).map(|it| it.launch).collect();
        self.samples.iter().filter(move |it| counts(it, || proofs.contains(&it.launch)))
    }

    /// Those of them in one launch that are among the latest requests, the last one first.
    pub fn measured_lately(&self, launch: &Launch, latest: usize) -> impl Iterator<Item = &Sample> {
        let here = self.samples.iter().rev().take(latest).filter(|it| it.launch == launch.launch);
        here.filter(|it| counts(it, || launch.proves))
    }

    /// Whether a case failed at some time, by itself or with its whole configuration.
    pub fn has_failed(&self, case: usize) -> bool {
        let configuration = self.header.plan.cases[case].configuration;
        self.failures.iter().any(|it| match it.case {
            Some(failed) => failed == case,
            None => it.configuration == configuration,
        })
    }

    /// A last line that is torn is left out: the run was cut off while it was written. Every index in what is read is one of
    /// something that there is.
    pub fn parse(mut lines: impl BufRead) -> Result<Self> {
        let mut read: Option<(Self, Known)> = None;
        let mut torn: Option<(usize, serde_json::Error)> = None;
        let mut line = Vec::new();
        for number in 0.. {
            line.clear();
            if lines.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            if let Some((number, error)) = torn {
                bail!("line {}: {error}", number + 1);
            }
            match (Entry::read(&line), &mut read) {
                (Ok(Entry::Header(header)), None) => {
                    if !(OLDEST_VERSION..=RECORD_VERSION).contains(&header.record_version) {
                        bail!(
                            "record version {}, this program reads {OLDEST_VERSION} to {RECORD_VERSION}",
                            header.record_version
                        );
                    }
                    let known =
                        Known::of(&header).map_err(|wrong| anyhow!("line {}: {wrong}", number + 1))?;
                    read = Some((Self { header: *header, ..Self::default() }, known));
                }
                (Ok(_), None) => bail!("line {}: the first entry is no header", number + 1),
                (Ok(entry), Some((record, known))) => {
                    known.take(&entry).map_err(|wrong| anyhow!("line {}: {wrong}", number + 1))?;
                    record.take(entry);
                }
                (Err(error), _) => torn = Some((number, error)),
            }
        }
        let record = read.map(|(record, _)| record);
        record.with_context(|| match torn {
            Some((_, error)) => format!("no header: {error}"),
            None => "it is empty".to_string(),
        })
    }

    pub fn take(&mut self, entry: Entry) {
        match entry {
            // A second header can only be a record appended to another; the first one holds.
            Entry::Header(_) => {}
            Entry::Launch(launch) => self.launches.push(*launch),
            Entry::Sample(sample) => self.samples.push(*sample),
            Entry::WarmUp(warm_up) => self.warm_ups.push(warm_up),
            Entry::Closed(closed) => self.closed.push(closed),
            Entry::Failure(failure) => self.failures.push(failure),
            Entry::Warning(warning) => self.warnings.push(warning),
            Entry::HeldOut(held_out) => self.held_out.push(held_out),
            Entry::Scored(scored) => self.scored.push(scored),
            Entry::Continued(continued) => self.continued.push(continued),
            Entry::Kept(kept) => self.kept.push(kept),
            Entry::Opinion(opinion) => self.opinions.push(opinion),
            Entry::Unproved(unproved) => self.unproved.push(unproved),
            Entry::Limits(limits) => self.limits.push(limits),
            Entry::Pass(pass) => self.passes.push(pass),
            Entry::Idle(idle) => self.idle.push(idle),
            Entry::Overhead(overhead) => self.overhead = Some(overhead),
            Entry::End(end) => self.end = Some(end),
        }
    }
}

fn counts(sample: &Sample, is_of_proof: impl FnOnce() -> bool) -> bool {
    sample.role == Role::Measured && !is_of_proof()
}

impl Entry {
    /// Its tag first, then what the tag says, straight from the line.
    pub fn read(line: &[u8]) -> serde_json::Result<Self> {
        let Tag { entry } = serde_json::from_slice(line)?;
        Ok(match entry {
            Which::Header => Self::Header(serde_json::from_slice(line)?),
            Which::Launch => Self::Launch(serde_json::from_slice(line)?),
            Which::Sample => Self::Sample(serde_json::from_slice(line)?),
            Which::WarmUp => Self::WarmUp(serde_json::from_slice(line)?),
            Which::Closed => Self::Closed(serde_json::from_slice(line)?),
            Which::Failure => Self::Failure(serde_json::from_slice(line)?),
            Which::Warning => Self::Warning(serde_json::from_slice(line)?),
            Which::HeldOut => Self::HeldOut(serde_json::from_slice(line)?),
            Which::Scored => Self::Scored(serde_json::from_slice(line)?),
            Which::Continued => Self::Continued(serde_json::from_slice(line)?),
            Which::Kept => Self::Kept(serde_json::from_slice(line)?),
            Which::Opinion => Self::Opinion(serde_json::from_slice(line)?),
            Which::Unproved => Self::Unproved(serde_json::from_slice(line)?),
            Which::Limits => Self::Limits(serde_json::from_slice(line)?),
            Which::Pass => Self::Pass(serde_json::from_slice(line)?),
            Which::Idle => Self::Idle(serde_json::from_slice(line)?),
            Which::Overhead => Self::Overhead(serde_json::from_slice(line)?),
            Which::End => Self::End(serde_json::from_slice(line)?),
        })
    }
}

#[derive(Deserialize)]
struct Tag {
    entry: Which,
}

/// The variants of `Entry`.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Which {
    Header,
    Launch,
    Sample,
    WarmUp,
    Closed,
    Failure,
    Warning,
    HeldOut,
    Scored,
    Continued,
    Kept,
    Opinion,
    Unproved,
    Limits,
    Pass,
    Idle,
    Overhead,
    End,
}

#[cfg(test)]
pub mod specimen;
#[cfg(test)]
mod tests;
