//! A whole record with its entries by kind, and its parser. The parser checks every index except a failure's launch, so other
//! code uses indices directly.

use std::collections::{HashMap, HashSet};
use std::io::BufRead;

use anyhow::{Context, Result, anyhow, bail, ensure};
use protocol::HelloFacts;

use super::entry::{
    CheckedOutput, Closed, Continued, DtypeCosts, End, Entry, FEWER_BLOCKS, Header, HeldOutScores, Idle,
    Launch, Limits, NotChecked, Overhead, Pass, ReferenceAnswers, ReferenceToken, RunEnd, Sample, WarmUp,
    Warning,
};
use super::failure::{Failure, FailureKind, Stage};
use crate::plan::prompts::held_out::HeldOut;
use crate::plan::{RequestKind, Role};
use stats::{MIN_VERDICT_BLOCKS, StoppedBy};

/// The version of the record format. It rises when a field changes its name or meaning, or a kind of entry is added, but not
/// for a new field.
pub const RECORD_VERSION: u32 = 5;
/// The oldest version that this program reads. Versions 3 and 5 added kinds of entries. Version 4 renamed fields and entries, and
/// the old names are read as aliases.
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
    pub scored: Vec<HeldOutScores>,
    pub continued: Vec<Continued>,
    pub reference_answers: Vec<ReferenceAnswers>,
    pub reference_tokens: Vec<ReferenceToken>,
    pub checked_outputs: Vec<CheckedOutput>,
    pub dtype_costs: Vec<DtypeCosts>,
    pub not_checked: Vec<NotChecked>,
    pub limits: Vec<Limits>,
    pub passes: Vec<Pass>,
    pub idle: Vec<Idle>,
    pub overhead: Option<Overhead>,
    /// Absent when the run was cut off.
    pub end: Option<End>,
    /// The time of the whole run after the set-up, where the record has it.
    pub elapsed_ns: Option<u64>,
    /// The time for the check of the measured tokens, where the record has it.
    pub token_check_ns: Option<u64>,
    /// The budget that the run proposes, if something had too little time.
    pub needs_budget: Option<String>,
}

impl RunRecord {
    /// The launches in which a configuration was measured, without those for output checks.
    pub fn launches_of(&self, configuration: usize) -> impl Iterator<Item = &Launch> + Clone {
        self.launches.iter().filter(move |it| it.configuration == configuration && !it.for_output_checks)
    }

    /// The first answer of a configuration to `hello`. A one-shot process gives none, but the launch for its output check does.
    pub fn hello_of(&self, configuration: usize) -> Option<&HelloFacts> {
        let all = self.launches.iter().filter(move |it| it.configuration == configuration);
        self.launches_of(configuration).chain(all).find_map(|launch| launch.hello.as_ref())
    }

    /// The index of the sequence of a sample whose tokens the verifier checks: the next one in each round, through all blocks.
    pub fn checked_sequence(&self, sample: &Sample) -> usize {
        let sequences = sample.iteration.sequences.len();
        if sequences <= 1 {
            return 0;
        }
        let block = self.launches.iter().find(|it| it.launch == sample.launch).map_or(0, |it| it.block);
        let rounds = self.header.plan.cases.get(sample.case).map_or(1, |it| it.workload.rounds);
        (block as usize * rounds as usize + sample.index as usize) % sequences
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
        all.filter(move |(_, it)| is_measurement(it, || for_checks.contains(&it.launch)))
    }

    /// The measured requests of one launch, newest first. Only the last `searched` samples of the record are searched.
    pub fn latest_measured(&self, launch: &Launch, searched: usize) -> impl Iterator<Item = &Sample> {
        let of_launch = self.samples.iter().rev().take(searched).filter(|it| it.launch == launch.launch);
        of_launch.filter(|it| is_measurement(it, || launch.for_output_checks))
    }

    /// Whether a case failed at any time, alone or with its whole configuration.
    pub fn has_failed(&self, case: usize) -> bool {
        let configuration = self.header.plan.cases[case].configuration;
        self.failures.iter().any(|it| match it.case {
            Some(failed) => failed == case,
            None => it.configuration == configuration,
        })
    }

    /// Whether a warning is about a twin, and the record has the same one about its row. Details after a colon may differ.
    pub fn is_repeated_by_twin(&self, warning: &Warning) -> bool {
        let role = warning.configuration.and_then(|index| self.header.plan.configurations[index].role);
        let Some(Role::Twin { of }) = role else { return false };
        let subject = |it: &Warning| it.message.split(':').next().map(String::from);
        self.warnings.iter().any(|it| it.configuration == Some(of) && subject(it) == subject(warning))
    }

    /// Whether nothing was measured because of the command line: every engine refused one of its values, such as an option or a
    /// dtype, or cannot run here, or is a program that is no engine. An engine that was started and then failed is a result, and so is
    /// a broken model.
    pub fn is_refused(&self) -> bool {
        let [start, hello, load] = [Stage::Start, Stage::Hello, Stage::Load].map(|stage| stage.to_string());
        let is_refusal = |it: &Failure| match it.kind {
            FailureKind::Unavailable => it.when == start,
            FailureKind::Unsupported | FailureKind::BadRequest => [&start, &hello, &load].contains(&&it.when),
            _ => it.is_no_engine,
        };
        self.samples.is_empty() && !self.failures.is_empty() && self.failures.iter().all(is_refusal)
    }

    /// Parses a record. An incomplete last line is ignored, because the run was cut off there. Every index in the result is
    /// valid, except the launch of a failure.
    pub fn parse(mut lines: impl BufRead) -> Result<Self> {
        let mut parsed: Option<(Self, Indices)> = None;
        let mut unparsed: Option<usize> = None;
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            if lines.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            if let Some(number) = unparsed {
                bail!(
                    "line {number} is damaged: it is not an entry of a run record\nhint: restore the file, or see the other records with `orchestrate report --list`"
                );
            }
            let at_line = |error: anyhow::Error| anyhow!("line {number}: {error}");
            match (Entry::read(&line), &mut parsed) {
                (Ok(Entry::Header(header)), None) => {
                    let version = header.record_version;
                    if !(OLDEST_VERSION..=RECORD_VERSION).contains(&version) {
                        bail!(
                            "record version {version}: this program reads versions {OLDEST_VERSION} to {RECORD_VERSION}\nhint: orchestrate report --list"
                        );
                    }
                    let indices = Indices::of(&header).map_err(at_line)?;
                    parsed = Some((Self { header: *header, ..Self::default() }, indices));
                }
                (Ok(_), None) => bail!("line {number}: the first entry is not a header"),
                (Ok(entry), Some((record, indices))) => {
                    indices.check(&entry).map_err(at_line)?;
                    record.take(entry);
                }
                (Err(_), _) => unparsed = Some(number),
            }
        }
        let record = parsed.map(|(record, _)| record);
        record.with_context(|| match unparsed {
            Some(_) => "its first line, the header, is cut off or damaged\nhint: restore the file, or see the other records with `orchestrate report --list`".to_string(),
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
            Entry::ReferenceAnswers(answers) => self.reference_answers.push(answers),
            Entry::ReferenceToken(reference) => self.reference_tokens.push(reference),
            Entry::CheckedOutput(checked) => self.checked_outputs.push(checked),
            Entry::DtypeCosts(costs) => self.dtype_costs.push(costs),
            Entry::NotChecked(not_checked) => self.not_checked.push(not_checked),
            Entry::Limits(limits) => self.limits.push(limits),
            Entry::Pass(pass) => self.passes.push(pass),
            Entry::Idle(idle) => self.idle.push(idle),
            Entry::Overhead(overhead) => self.overhead = Some(overhead),
            Entry::End(RunEnd { end, elapsed_ns, token_check_ns, needs_budget }) => {
                (self.end, self.elapsed_ns, self.token_check_ns) = (Some(end), elapsed_ns, token_check_ns);
                if let Some(budget) = needs_budget {
                    self.propose(&budget);
                    self.needs_budget = Some(budget);
                }
            }
        }
    }

    /// Gives each entry about a lack of time the same hint. A sufficient budget is known only at the end of the run.
    fn propose(&mut self, budget: &str) {
        let option = format!("--budget {budget}");
        for failure in self.failures.iter_mut().filter(|it| it.kind == FailureKind::NoTime) {
            let others = failure.hint.take().map_or_else(String::new, |others| format!("\n{others}"));
            failure.hint = Some(format!("{option}{others}"));
        }
        for not_checked in self.not_checked.iter_mut().filter(|it| it.needs_time) {
            not_checked.hint = Some(option.clone());
        }
        for warning in self.warnings.iter_mut().filter(|it| it.message == FEWER_BLOCKS) {
            warning.message = format!("{FEWER_BLOCKS}; hint: `{option}`");
        }
        let is_short =
            |it: &&mut Closed| it.by == StoppedBy::Time && (it.blocks as usize) < MIN_VERDICT_BLOCKS;
        self.closed.iter_mut().filter(is_short).for_each(|it| it.needs_budget = Some(budget.into()));
    }
}

fn is_measurement(sample: &Sample, is_for_output_checks: impl FnOnce() -> bool) -> bool {
    sample.kind == RequestKind::Measured && !is_for_output_checks()
}

/// The indices that are valid after the entries read so far. The launch of a failure is not checked, because in older records it
/// may have no entry. Names of metrics are not checked here: `analysis::metric::unknown_metrics` reports unknown ones.
struct Indices {
    /// The configuration of each case.
    cases: Vec<usize>,
    /// The configuration of each launch.
    launches: HashMap<u32, usize>,
    /// The model of each configuration.
    models: Vec<String>,
    /// The number of held-out texts of each model.
    texts: HashMap<String, usize>,
}

impl Indices {
    /// Checks the indices in the header.
    fn of(header: &Header) -> Result<Self> {
        let plan = &header.plan;
        let indices = Self {
            cases: plan.cases.iter().map(|it| it.configuration).collect(),
            launches: HashMap::new(),
            models: plan.configurations.iter().map(|it| it.model.path.clone()).collect(),
            texts: HashMap::new(),
        };
        for (index, case) in plan.cases.iter().enumerate() {
            indices.check_configuration(&format!("plan.cases[{index}].configuration"), case.configuration)?;
        }
        for (index, it) in plan.configurations.iter().enumerate() {
            if let Some(Role::Twin { of } | Role::Baseline { of }) = it.role {
                indices.check_configuration(&format!("plan.configurations[{index}].role.of"), of)?;
            }
        }
        for (index, floor) in header.noise_floors.iter().enumerate() {
            indices
                .check_configuration(&format!("noise_floors[{index}].configuration"), floor.configuration)?;
        }
        Ok(indices)
    }

    /// Checks the indices of the next entry. Later entries can then refer to this entry.
    fn check(&mut self, entry: &Entry) -> Result<()> {
        match entry {
            Entry::Launch(it) => {
                self.check_configuration("configuration", it.configuration)?;
                let (launch, earlier) = (it.launch, self.launches.insert(it.launch, it.configuration));
                ensure!(earlier.is_none(), "`launch` is {launch}, and an earlier launch has that number");
            }
            Entry::Sample(it) => self.check_case_in_launch(it.case, it.launch)?,
            Entry::WarmUp(it) => self.check_case_in_launch(it.case, it.launch)?,
            Entry::Pass(it) => self.check_case_in_launch(it.case, it.launch)?,
            Entry::Failure(it) => {
                self.check_configuration("configuration", it.configuration)?;
                it.case.map_or(Ok(()), |case| self.check_case(case))?;
            }
            Entry::Warning(Warning { configuration: Some(it), .. })
            | Entry::NotChecked(NotChecked { configuration: Some(it), .. }) => {
                self.check_configuration("configuration", *it)?;
            }
            Entry::HeldOut(it) => {
                self.texts.insert(it.model.clone(), it.sequences.len());
            }
            Entry::Scored(it) => {
                self.check_configuration("configuration", it.configuration)?;
                self.check_launch(it.launch)?;
                let texts = self.texts.get(&self.models[it.configuration]).copied().unwrap_or(0);
                check_index("sequence", it.sequence, texts, "held-out texts of its model")?;
            }
            Entry::Continued(it) => {
                self.check_configuration("configuration", it.configuration)?;
                self.check_launch(it.launch)?;
            }
            Entry::ReferenceToken(it) => {
                self.check_configuration("verifier", it.verifier)?;
                self.check_case_in_launch(it.case, it.launch)?;
            }
            Entry::CheckedOutput(it) => {
                self.check_configuration("verifier", it.verifier)?;
                self.check_case_in_launch(it.case, it.launch)?;
            }
            Entry::Warning(_)
            | Entry::DtypeCosts(_)
            | Entry::NotChecked(_)
            | Entry::Header(_)
            | Entry::Closed(_)
            | Entry::ReferenceAnswers(_)
            | Entry::Limits(_)
            | Entry::Idle(_)
            | Entry::Overhead(_)
            | Entry::End(_) => {}
        }
        Ok(())
    }

    fn check_configuration(&self, field: &str, index: usize) -> Result<()> {
        check_index(field, index, self.models.len(), "configurations in the plan")
    }

    fn check_case(&self, case: usize) -> Result<()> {
        check_index("case", case, self.cases.len(), "cases in the plan")
    }

    fn check_launch(&self, launch: u32) -> Result<()> {
        let is_known = self.launches.contains_key(&launch);
        ensure!(is_known, "`launch` is {launch}, and no earlier launch has that number");
        Ok(())
    }

    /// Checks that the case and the launch have the same configuration.
    fn check_case_in_launch(&self, case: usize, launch: u32) -> Result<()> {
        self.check_case(case)?;
        self.check_launch(launch)?;
        let (planned, launched) = (self.cases[case], self.launches[&launch]);
        ensure!(
            planned == launched,
            "`case` {case} is of configuration {planned}, and `launch` {launch} of configuration {launched}"
        );
        Ok(())
    }
}

fn check_index(field: &str, index: usize, count: usize, counted: &str) -> Result<()> {
    ensure!(index < count, "`{field}` is {index}, but the number of {counted} is {count}");
    Ok(())
}
