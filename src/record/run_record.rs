//! A whole record: its entries by kind, and how they are read.

use std::collections::HashSet;
use std::io::BufRead;

use anyhow::{Context, Result, anyhow, bail};

use super::check::Known;
use super::conditions::{Idle, Limits, Overhead, Pass};
use super::entry::{Closed, End, Entry, Header, Launch, Sample, WarmUp, Warning};
use super::failure::Failure;
use super::output_checks::{Continued, NotChecked, ReferenceToken, Scored, StoredAnswers};
use crate::plan::RequestKind;
use crate::plan::prompts::held_out::HeldOut;

/// Raised when the meaning of a field changes or a kind of entry is added, but not for a new field.
pub const RECORD_VERSION: u32 = 4;
/// The oldest version that this program reads. Version 3 added kinds of entries. Version 4 renamed fields and entries, and the
/// old names are read as aliases.
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
    pub stored_answers: Vec<StoredAnswers>,
    pub reference_tokens: Vec<ReferenceToken>,
    pub not_checked: Vec<NotChecked>,
    pub limits: Vec<Limits>,
    pub passes: Vec<Pass>,
    pub idle: Vec<Idle>,
    pub overhead: Option<Overhead>,
    /// Absent when the run was cut off.
    pub end: Option<End>,
}

impl RunRecord {
    /// The launches in which a configuration was measured, without those for output checks.
    pub fn launches_of(&self, configuration: usize) -> impl Iterator<Item = &Launch> + Clone {
        self.launches.iter().filter(move |it| it.configuration == configuration && !it.for_output_checks)
    }

    /// The measured requests in the order of sending, without launches for output checks.
    pub fn measured(&self) -> impl Iterator<Item = &Sample> + Clone {
        self.measured_with_index().map(|(_, sample)| sample)
    }

    /// The measured requests as in `measured`, each with its index in `samples`.
    pub fn measured_with_index(&self) -> impl Iterator<Item = (usize, &Sample)> + Clone {
        let for_checks: HashSet<u32> =
            self.launches.iter().filter(|it| it.for_output_checks).map(|it| it.launch).collect();
        let all = self.samples.iter().enumerate();
        all.filter(move |(_, it)| counts(it, || for_checks.contains(&it.launch)))
    }

    /// The measured requests of one launch among the `latest` newest samples of the record, newest first.
    pub fn measured_lately(&self, launch: &Launch, latest: usize) -> impl Iterator<Item = &Sample> {
        let here = self.samples.iter().rev().take(latest).filter(|it| it.launch == launch.launch);
        here.filter(|it| counts(it, || launch.for_output_checks))
    }

    /// Whether a case failed at any time, alone or with its whole configuration.
    pub fn has_failed(&self, case: usize) -> bool {
        let configuration = self.header.plan.cases[case].configuration;
        self.failures.iter().any(|it| match it.case {
            Some(failed) => failed == case,
            None => it.configuration == configuration,
        })
    }

    /// Reads a record, without an incomplete last line: the run was cut off while writing it. Every index in the result is valid.
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
            Entry::StoredAnswers(kept) => self.stored_answers.push(kept),
            Entry::ReferenceToken(reference) => self.reference_tokens.push(reference),
            Entry::NotChecked(not_checked) => self.not_checked.push(not_checked),
            Entry::Limits(limits) => self.limits.push(limits),
            Entry::Pass(pass) => self.passes.push(pass),
            Entry::Idle(idle) => self.idle.push(idle),
            Entry::Overhead(overhead) => self.overhead = Some(overhead),
            Entry::End(end) => self.end = Some(end),
        }
    }
}

fn counts(sample: &Sample, is_for_output_checks: impl FnOnce() -> bool) -> bool {
    sample.kind == RequestKind::Measured && !is_for_output_checks()
}
