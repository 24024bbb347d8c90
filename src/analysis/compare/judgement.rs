//! Judges the changes between two records: lists them, and decides whether they pass.

mod changes;

use serde::Serialize;

use crate::analysis::metric;
use crate::analysis::values::{Values, workloads as workloads_of};
use crate::plan::scenario::{self, Kind};
use crate::record::{CalibratedFloor, End, RunRecord};
use crate::text;
use stats::{Severity, SeverityThresholds, Verdict};

use super::between::{ComparedRecord, compare_between};
use super::comparable::{Difference, Incomparable, differences, shared_workloads};
use super::matching::{Matching, differing_settings, matching};
use super::within::{compare_within, rerun_pairs};

pub use changes::{Change, Mean, Outcome, PerplexityChange, REFUSES_IN_BOTH};

/// All changes from a base to a new record, with notes. Every text is one line without control characters.
#[derive(Debug, Clone)]
pub struct Judgement {
    pub base: Side,
    pub new: Side,
    /// Whether the programs of the base were measured again, interleaved with the new programs.
    pub side_by_side: bool,
    /// The differences that make the records incomparable. Empty unless the user forces the comparison.
    pub forced_differences: Vec<Difference>,
    /// Messages that come before everything else.
    pub notices: Vec<String>,
    /// The changes by workload in the order of the new plan, then by metric, then by configuration.
    pub changes: Vec<Change>,
    /// The mean of each configuration over its workloads, if there are several.
    pub means: Vec<Mean>,
    /// Notes on the circumstances of the comparison.
    pub notes: Vec<String>,
}

/// Whether a judgement's gating metrics pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    Passed,
    Worse,
    /// No gating metric fails. But one is inconclusive or was not compared, or no change of a gating metric is known.
    Inconclusive,
}

/// The name of a record in a judgement. JSON has these fields: add, never rename.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Side {
    /// The user's name for the record: a path, or the name of a baseline. By default the id of the record.
    pub name: String,
    /// The id of the record.
    pub record: String,
    pub started: String,
}

/// Judges the changes between two records that were measured at different times.
pub fn judge(
    base: &RunRecord,
    new: &RunRecord,
    thresholds: SeverityThresholds,
    force: bool,
) -> Result<Judgement, Incomparable> {
    let matching = matching(&base.header.plan, &new.header.plan);
    let (of_base, of_new) = (Values::of(base), Values::of(new));
    let differences = differences(&of_base, &of_new, &matching);
    if !(differences.is_empty() || force) {
        return Err(Incomparable { differences });
    }
    let (of_base, of_new) = (ComparedRecord::of(&of_base), ComparedRecord::of(&of_new));
    let comparisons = compare_between(&of_base, &of_new, &matching);
    let changes = changes::of_pairs(&of_base, &of_new, &matching.pairs, &comparisons, thresholds);
    let mut notes = setting_notes(base, new, &matching);
    notes.extend(unmatched(base, new, &matching));
    notes.extend(uncalibrated(base, new, &matching));
    let sides = [("the base", base), ("the new record", new)];
    let unknown = |(name, record)| Some(format!("{name}: {}", metric::unknown_metrics(record)?));
    notes.extend(sides.into_iter().filter_map(unknown));
    Ok(Judgement {
        base: Side::of(base),
        new: Side::of(new),
        side_by_side: false,
        forced_differences: differences,
        notices: sides.into_iter().filter_map(unfinished).collect(),
        means: changes::means(&changes),
        changes,
        notes,
    })
}

/// Judges the changes from the programs of a baseline to the new programs. Their rounds were interleaved, so the noise of the
/// machine affected both alike.
pub fn judge_within(record: &RunRecord, thresholds: SeverityThresholds) -> Judgement {
    let reruns = rerun_pairs(&record.header.plan);
    let both = ComparedRecord::of(&Values::of(record));
    let is_correct = |it: &usize| both.wrong_output(*it).is_none();
    let compared: Vec<(usize, usize)> =
        reruns.iter().copied().filter(|(new, base)| is_correct(new) && is_correct(base)).collect();
    let comparisons = compare_within(&both.measured, &compared).into_iter().map(changes::of_within).collect();
    let pairs: Vec<(usize, usize)> = reruns.into_iter().map(|(new, base)| (base, new)).collect();
    let changes = changes::of_pairs(&both, &both, &pairs, &comparisons, thresholds);
    let matching = Matching { pairs, ..Matching::default() };
    Judgement {
        base: Side::of(record),
        new: Side::of(record),
        side_by_side: true,
        forced_differences: Vec::new(),
        notices: unfinished(("the run", record)).into_iter().collect(),
        means: changes::means(&changes),
        changes,
        notes: setting_notes(record, record, &matching),
    }
}

impl Judgement {
    /// Whether the gating metrics pass. `fail_on` is the lowest severity that does not pass.
    pub fn conclusion(&self, fail_on: Severity) -> Conclusion {
        let gating = || self.changes.iter().filter(|it| it.gating);
        if gating().any(|it| it.severity >= fail_on) {
            Conclusion::Worse
        } else if gating().any(Change::is_inconclusive) || !gating().any(Change::is_known) {
            Conclusion::Inconclusive
        } else {
            Conclusion::Passed
        }
    }
}

/// The result of a comparison, as a word for machine-readable reports.
pub fn verdict_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Compared(..) | Outcome::Exact(_) => match outcome.verdict() {
            Some(Verdict::Faster) => "better",
            Some(Verdict::Slower) => "worse",
            Some(Verdict::Same) => "same",
            Some(Verdict::Inconclusive) => "inconclusive",
            None => "no_verdict",
        },
        Outcome::FailsNow(_) => "fails_now",
        Outcome::FailedBefore(_) => "failed_before",
        Outcome::FailedInBoth(_) => "fails_as_before",
        Outcome::RefusedInBoth(_) => "refuses_as_before",
        Outcome::NotCompared(_) => "not_compared",
    }
}

pub fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Informative => "informative",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}

impl Side {
    fn of(record: &RunRecord) -> Self {
        let (id, started) = (text::line(&record.header.id), text::line(&record.header.started));
        Self { name: id.clone(), record: id, started }
    }
}

fn unfinished((name, record): (&str, &RunRecord)) -> Option<String> {
    let how = match record.end {
        Some(End::Finished) => return None,
        Some(End::Interrupted) => "was interrupted",
        None => "was cut off before its end",
    };
    Some(format!("{name} {how}: only its recorded samples are compared"))
}

/// A note for each configuration whose settings, version or dtype of the weights differ.
fn setting_notes(base: &RunRecord, new: &RunRecord, matching: &Matching) -> Vec<String> {
    let note = |&(of_base, of_new): &(usize, usize)| {
        let settings = differing_settings((base, of_base), (new, of_new)).join("; ");
        let label = text::line(&new.header.plan.configurations[of_new].label);
        (!settings.is_empty()).then(|| format!("`{label}`: {settings}"))
    };
    matching.pairs.iter().filter_map(note).collect()
}

fn unmatched(base: &RunRecord, new: &RunRecord, matching: &Matching) -> Vec<String> {
    let labels = |record: &RunRecord, indices: &[usize]| {
        let label = |&it: &usize| format!("`{}`", text::line(&record.header.plan.configurations[it].label));
        indices.iter().map(label).collect::<Vec<_>>().join(", ")
    };
    let workloads = |record: &RunRecord, other: &RunRecord| {
        let others = workloads_of(&other.header.plan);
        let workloads = workloads_of(&record.header.plan).into_iter();
        let unshared = workloads.filter(|it| others.iter().all(|other| other.label != it.label));
        unshared.map(|it| format!("`{}`", text::line(&it.label))).collect::<Vec<_>>().join(", ")
    };
    let all = [
        ("configurations only in the base", labels(base, &matching.only_base)),
        ("configurations only in the new run", labels(new, &matching.only_new)),
        ("workloads only in the base", workloads(base, new)),
        ("workloads only in the new run", workloads(new, base)),
    ];
    let notes = all.into_iter().filter(|(_, names)| !names.is_empty());
    notes.map(|(description, names)| format!("{description}: {names}")).collect()
}

/// A note on missing calibration, without which the noise floor comes only from the two runs. The hint is a command for the
/// missing configurations and scenarios.
fn uncalibrated(base: &RunRecord, new: &RunRecord, matching: &Matching) -> Option<String> {
    let is_calibrated = |record: &RunRecord, configuration: usize, workload: &str| {
        let is_about = |it: &CalibratedFloor| it.configuration == configuration && it.workload == workload;
        record.header.noise_floors.iter().any(|it| is_about(it) && it.between.is_some())
    };
    let plan = &new.header.plan;
    let mut cases = Vec::new();
    for &(of_base, of_new) in &matching.pairs {
        let configuration = &plan.configurations[of_new];
        let shared = shared_workloads(&base.header.plan, plan);
        // A score has no noise.
        for (_, workload) in shared.filter(|(_, it)| it.kind != Kind::Score) {
            let label = &workload.label;
            let has_floor = is_calibrated(base, of_base, label) || is_calibrated(new, of_new, label);
            // `calibrate` has no scenarios of run files.
            let is_own = !scenario::is_in_table(&workload.scenario);
            if has_floor || is_own || configuration.unavailable.is_some() {
                continue;
            }
            cases.extend(
                plan.cases
                    .iter()
                    .position(|case| case.configuration == of_new && case.workload.label == *label),
            );
        }
    }
    (!cases.is_empty()).then(|| {
        let command = text::line(&format!("orchestrate calibrate {}", plan.arguments_of(&cases)));
        format!(
            "no calibration: the noise floor between two runs is estimated from these two; hint: `{command}`"
        )
    })
}

#[cfg(test)]
mod tests;
