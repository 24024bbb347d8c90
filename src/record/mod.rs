//! The run record: the file under `results/` with the machine, the plan, every raw sample and every failure.
//!
//! A record is lines of JSON, one entry each, appended and flushed at once: only a torn last line can be lost. Nothing in it
//! is derived: a report computes every number from it again. `file` reads records and is the only writer under `results/`;
//! everything else here is pure types.

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

/// Raised when the meaning of a field changes or a kind of entry is added, but not for a new field.
pub const RECORD_VERSION: u32 = 3;
/// Version 3 adds kinds of entries to those of version 2.
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
    /// Absent when the run was cut off.
    pub end: Option<End>,
}

/// One line of a record. `Entry::read` reads it: serde would buffer every number of a variant with an inner tag.
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
    /// The command line that the user typed.
    pub command: Vec<String>,
    pub machine: Machine,
    /// The name of the machine, for a search among records. It is written and never read here.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fingerprint: String,
    pub plan: Plan,
    /// The noise floors that this machine's calibration knew when the run began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub floors: Vec<KnownFloor>,
}

/// The calibrated noise floor of one configuration on this machine, by one metric of one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KnownFloor {
    pub configuration: usize,
    /// The workload's label.
    pub workload: String,
    pub metric: MetricId,
    /// For measurements side by side.
    pub paired: Floor,
    /// For measurements at two times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between: Option<Floor>,
    /// The time of the calibration, in RFC 3339.
    pub since: String,
}

/// One process lifetime of an engine. Times count from just before the process was started, on the orchestrator's clock.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// Launches are numbered from 0 as they are recorded.
    pub launch: u32,
    pub configuration: usize,
    pub block: u32,
    /// It was started for output checks, and nothing was measured in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proves: bool,
    pub pid: u32,
    /// Absent for an engine that supports only `generate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hello: Option<HelloFacts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hello_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<Loaded>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_ns: Option<u64>,
    /// The format conversion, where the engine reads no format that the model has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub converted: Option<Converted>,
    /// The memory in use on each GPU just before the process was started. Empty for an engine on the CPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus_before: Vec<GpuHeld>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Converted {
    pub format: String,
    pub dtype: String,
    pub path: String,
}

/// One request: the facts that the engine reported, and those that the orchestrator observed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub launch: u32,
    pub case: usize,
    /// Counts the requests of this case, launch and role: for a measured request it is the round.
    pub index: u32,
    pub role: Role,
    /// A digest of the prompt's ids (or of its text, where ids could not be sent).
    pub prompt_hash: String,
    /// The time of sending, since the start of the process.
    pub sent_ns: u64,
    /// The arrival of the answer's bytes, since the start of the process.
    pub answered_ns: u64,
    pub iteration: Iteration,
    /// The peak of the engine's process tree so far, as the kernel counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_resident_bytes: Option<u64>,
    /// The memory of the process tree after the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// As the engine reports it with its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<DeviceMemory>,
    /// CPU time of the process tree from the request to its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<u64>,
    /// The time that its threads were ready to run but had no core, because another process used it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ns: Option<u64>,
    /// Present for a streamed request.
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
    /// As many requests as an earlier launch needed.
    AsBefore,
    /// The time for the warm-up was over before the requests agreed.
    Time,
    /// The user set the number of requests.
    Asked,
}

/// The end of a workload's measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// The workload's label.
    pub workload: String,
    /// The number of blocks until then.
    pub blocks: u32,
    pub by: StoppedBy,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<usize>,
    /// Includes the remedy.
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

/// The number of new tokens of a sequence: of its ids, or as the engine reports it.
pub fn output_tokens(sequence: &Sequence) -> u64 {
    match (&sequence.output_ids, sequence.output_tokens) {
        (Some(ids), _) => ids.len() as u64,
        (None, Some(count)) => u64::from(count),
        (None, None) => 0,
    }
}

impl RunRecord {
    /// The launches in which a configuration was measured, without those for output checks.
    pub fn launches_of(&self, configuration: usize) -> impl Iterator<Item = &Launch> + Clone {
        self.launches.iter().filter(move |it| it.configuration == configuration && !it.proves)
    }

    /// The measured requests in the order of sending, without launches for output checks.
    pub fn measured(&self) -> impl Iterator<Item = &Sample> + Clone {
        let proofs: HashSet<u32> = self.launches.iter().filter(|it| it.proves).map(|it| it.launch).collect();
        self.samples.iter().filter(move |it| counts(it, || proofs.contains(&it.launch)))
    }

    /// The measured requests of one launch that are among the latest requests, last one first.
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

    /// Reads a record. A torn last line is left out: the run was cut off while writing it. Every index in the result is valid.
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
            // A second header means that a record was appended to another; the first header counts.
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
    /// Reads the tag first, then the entry of that kind, both straight from the line.
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
