//! Compares a run with a baseline: opens the baseline, adds its programs to the plan, and judges the run afterwards.

use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Result, bail, ensure};

use super::description::{Baseline, damaged};
use super::rerun::{self, Rerun};
use crate::analysis::compare::{self, Judgement};
use crate::analysis::values::Values;
use crate::cli::{BaselineArgs, JudgeArgs};
use crate::machine::Machine;
use crate::plan::{Plan, Role};
use crate::record::{End, Header, RunRecord, Warning};
use crate::shell::{Usage, this_command_with};

/// The baseline or program that a run is compared with.
pub enum ComparisonBase {
    /// A saved baseline: its stored values, or with `measure_again` its programs.
    Saved { baseline: Box<Baseline>, record: Box<RunRecord>, measure_again: bool },
    /// A program, known by its path alone: it is always measured again.
    Program(PathBuf),
}

impl ComparisonBase {
    /// Opens the baseline before anything is built. An unknown name is refused here.
    pub fn open(arguments: &BaselineArgs) -> Result<Option<Self>> {
        let Some(name) = &arguments.baseline else { return Ok(None) };
        let measure_again = arguments.rerun_baseline;
        if !name.contains('/') {
            let baseline = Box::new(Baseline::read(name)?);
            let record = Box::new(baseline.record().map_err(|error| damaged(name, &format!("{error:#}")))?);
            // An unfinished run never becomes a baseline, so a record without its end is damaged.
            ensure!(
                measure_again || record.end == Some(End::Finished),
                damaged(name, "its record was cut off")
            );
            return Ok(Some(Self::Saved { baseline, record, measure_again }));
        }
        let path = std::path::absolute(name)?;
        ensure!(path.is_file(), Usage(format!("no program at `{name}`")));
        let no_values = format!(
            "`{name}` is a program and has no stored values\nhint: {}",
            this_command_with(&["--rerun-baseline"])
        );
        ensure!(measure_again, Usage(no_values));
        Ok(Some(Self::Program(path)))
    }

    /// Refuses an impossible comparison before anything is measured. Returns the plan with the programs that are measured
    /// again, and warnings for the record.
    pub fn join(&self, plan: Plan, here: &Machine, judge: &JudgeArgs) -> Result<(Plan, Vec<Warning>)> {
        let reruns = match self {
            Self::Program(path) => vec![rerun::from_program(path, &plan)?],
            Self::Saved { baseline, record, measure_again: true } => {
                check_architecture(baseline, here)?;
                rerun::reruns(baseline, &record.header.plan, &plan)?
            }
            Self::Saved { baseline, record, measure_again: false } => {
                let warnings = check_comparable(baseline, record, &plan, here, judge)?;
                return Ok((plan, warnings));
            }
        };
        let mut warnings = Vec::new();
        for rerun in &reruns {
            warnings.extend(self.warnings(rerun, &plan, judge)?);
        }
        Ok((reruns.into_iter().fold(plan, |plan, rerun| rerun.join(plan)), warnings))
    }

    /// The warnings about a program that is measured again. Without `--force`, a change of its dependencies or of the model is an
    /// error.
    fn warnings(&self, rerun: &Rerun, plan: &Plan, judge: &JudgeArgs) -> Result<Vec<Warning>> {
        let Some(Role::Baseline { of }) = rerun.configuration.role else { return Ok(Vec::new()) };
        let label = &plan.configurations[of].label;
        let changes = rerun.changes.join("; ");
        let refused = format!(
            "the baseline of `{label}` cannot be measured as before: {changes}\nhint: {}",
            this_command_with(&["--force"])
        );
        ensure!(judge.force || changes.is_empty(), Usage(refused));
        let note = match self {
            Self::Saved { baseline, .. } => {
                format!("{}: {}", baseline.summary(SystemTime::now()), rerun.note)
            }
            Self::Program(_) => rerun.note.clone(),
        };
        let forced = rerun.changes.iter().map(|change| format!("--force: {change}"));
        let warning = |message| Warning { configuration: Some(of), message };
        Ok(std::iter::once(note).chain(forced).map(warning).collect())
    }

    /// The judgement after the run, with notes about the baseline.
    pub fn judge(&self, record: &RunRecord, judge: &JudgeArgs) -> Result<Judgement> {
        let thresholds = judge.thresholds()?;
        let mut judgement = match self {
            Self::Saved { record: base, measure_again: false, .. } => {
                let judged = compare::judge(base, record, thresholds, judge.force);
                // Some differences show only in the answers, for example different tokens of a prompt.
                judged.map_err(|incomparable| Usage(incomparable.to_string()))?
            }
            Self::Saved { measure_again: true, .. } | Self::Program(_) => {
                compare::judge_within(record, thresholds)
            }
        };
        let notices = match self {
            Self::Saved { baseline, measure_again: false, .. } => baseline.notices(),
            // The stored values are not used, so their age needs no warning.
            _ => vec![self.summary()],
        };
        if let Self::Saved { baseline, .. } = self {
            judgement.base.name = baseline.name.clone();
        }
        judgement.notices.splice(0..0, notices);
        Ok(judgement)
    }

    /// The line above a judgement.
    fn summary(&self) -> String {
        match self {
            Self::Saved { baseline, measure_again, .. } => {
                let measure_again = if *measure_again { ", its programs measured again" } else { "" };
                format!("{}{measure_again}", baseline.summary(SystemTime::now()))
            }
            Self::Program(path) => format!("baseline `{}`, measured in turn with this run", path.display()),
        }
    }
}

fn check_architecture(baseline: &Baseline, here: &Machine) -> Result<()> {
    let (name, built_for) = (&baseline.name, &baseline.machine.architecture);
    let here = &here.architecture;
    let foreign = format!("baseline `{name}`: its programs are for `{built_for}`, this machine is `{here}`");
    ensure!(built_for == here, Usage(foreign));
    Ok(())
}

/// Refuses a comparison that is known to be impossible, before the time for the measurement is spent.
fn check_comparable(
    baseline: &Baseline,
    base: &RunRecord,
    plan: &Plan,
    here: &Machine,
    judge: &JudgeArgs,
) -> Result<Vec<Warning>> {
    let header = Header { plan: plan.clone(), machine: here.clone(), ..Header::default() };
    let new = RunRecord { header, ..RunRecord::default() };
    let matching = compare::matching(&base.header.plan, plan);
    let differences = compare::differences(&Values::of(base), &Values::of(&new), &matching);
    if !differences.is_empty() && !judge.force {
        let name = &baseline.name;
        let differences: String = differences.iter().map(|difference| format!("\n  {difference}")).collect();
        let [rerun, force] = ["--rerun-baseline", "--force"].map(|option| this_command_with(&[option]));
        let hints =
            format!("hint: {rerun} # measures its programs again\nhint: {force} # compares regardless");
        bail!(Usage(format!("baseline `{name}` is not comparable with this run:{differences}\n{hints}")));
    }
    let warning = |message| Warning { configuration: None, message };
    Ok(baseline.warnings(SystemTime::now()).into_iter().map(warning).collect())
}
