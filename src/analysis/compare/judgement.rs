//! The changes between two records, line by line, and whether they pass.

mod changes;

use serde::Serialize;

use crate::analysis::metric;
use crate::analysis::values::{Values, workloads as workloads_of};
use crate::record::{CalibratedFloor, End, RunRecord};
use crate::text;
use stats::{Class, Thresholds, Verdict};

use super::between::{ComparedRecord, between};
use super::comparable::{Difference, Incomparable, differences, shared};
use super::matching::{Matching, differing, matching};
use super::within::{rerun_pairs, within};

pub use changes::{Change, Mean, Outcome};

/// All changes from a base to a new record, with notes. Every text in it is one safe line.
#[derive(Debug, Clone)]
pub struct Judgement {
    pub base: Side,
    pub new: Side,
    /// The base's programs were measured again, in turn with the new ones.
    pub side_by_side: bool,
    /// The differences that make the two incomparable, where the user forces the comparison.
    pub forced: Vec<Difference>,
    /// Messages that come before everything else.
    pub notices: Vec<String>,
    /// By workload, in the order of the new plan; then by metric, then by configuration.
    pub lines: Vec<Change>,
    /// One for each configuration, over its workloads.
    pub means: Vec<Mean>,
    /// Notes that a reader needs for the rest.
    pub notes: Vec<String>,
}

/// Whether a judgement's gating metrics pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    Passed,
    Worse,
    /// None is known to be worse, but at least one is inconclusive or missing.
    Inconclusive,
}

/// The name of a record in a judgement. JSON has these fields: add, never rename.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Side {
    /// The user's name for it: a path, or the name of a baseline. At first it is the name of the record.
    pub name: String,
    pub record: String,
    pub started: String,
}

/// Judges the changes from one record to another that was measured at another time.
pub fn judge(
    base: &RunRecord,
    new: &RunRecord,
    thresholds: Thresholds,
    force: bool,
) -> Result<Judgement, Incomparable> {
    let matching = matching(&base.header.plan, &new.header.plan);
    let (of_base, of_new) = (Values::of(base), Values::of(new));
    let differences = differences(&of_base, &of_new, &matching);
    if !(differences.is_empty() || force) {
        return Err(Incomparable { differences });
    }
    let (of_base, of_new) = (ComparedRecord::of(&of_base), ComparedRecord::of(&of_new));
    let found = between(&of_base, &of_new, &matching);
    let lines = changes::lines(&of_base, &of_new, &matching.pairs, &found, thresholds);
    let mut notes = on_purpose(base, new, &matching);
    notes.extend(unmatched(base, new, &matching));
    notes.extend(uncalibrated(base, new, &matching));
    let sides = [("the base", base), ("the new one", new)];
    let unknown = |(name, record)| Some(format!("{name}: {}", metric::unknown(record)?));
    notes.extend(sides.into_iter().filter_map(unknown));
    Ok(Judgement {
        base: Side::of(base),
        new: Side::of(new),
        side_by_side: false,
        forced: differences,
        notices: sides.into_iter().filter_map(unfinished).collect(),
        means: changes::means(&lines),
        lines,
        notes,
    })
}

/// Judges the changes from the programs of a baseline to the new ones. Both were measured in turn, block by block, so noise of
/// the machine affected both alike.
pub fn judge_within(record: &RunRecord, thresholds: Thresholds) -> Judgement {
    let reruns = rerun_pairs(&record.header.plan);
    let opened = ComparedRecord::of(&Values::of(record));
    let sound = |it: &usize| opened.wrong(*it).is_none();
    let compared: Vec<(usize, usize)> =
        reruns.iter().copied().filter(|(of, base)| sound(of) && sound(base)).collect();
    let found = within(&opened.measured, &compared).into_iter().map(changes::of_within).collect();
    let pairs: Vec<(usize, usize)> = reruns.into_iter().map(|(of, base)| (base, of)).collect();
    let lines = changes::lines(&opened, &opened, &pairs, &found, thresholds);
    let matching = Matching { pairs, ..Matching::default() };
    Judgement {
        base: Side::of(record),
        new: Side::of(record),
        side_by_side: true,
        forced: Vec::new(),
        notices: unfinished(("the run", record)).into_iter().collect(),
        means: changes::means(&lines),
        lines,
        notes: on_purpose(record, record, &matching),
    }
}

impl Judgement {
    /// `fail_on`: the lowest class of change that does not pass.
    pub fn conclusion(&self, fail_on: Class) -> Conclusion {
        let gating = || self.lines.iter().filter(|line| line.gating);
        if gating().any(|line| line.class >= fail_on) {
            Conclusion::Worse
        } else if gating().any(Change::is_inconclusive) || !gating().any(Change::is_known) {
            Conclusion::Inconclusive
        } else {
            Conclusion::Passed
        }
    }
}

/// The result of a comparison, in a word for programs.
pub fn verdict_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Compared(found, _) => match found.decision.verdict {
            Some(Verdict::Faster) => "better",
            Some(Verdict::Slower) => "worse",
            Some(Verdict::Same) => "same",
            Some(Verdict::Inconclusive) => "inconclusive",
            None => "no_verdict",
        },
        Outcome::FailsNow(_) => "fails_now",
        Outcome::FailedBefore(_) => "failed_before",
        Outcome::FailedInBoth(_) => "fails_as_before",
        Outcome::Nothing(_) => "not_compared",
    }
}

pub fn class_name(class: Class) -> &'static str {
    match class {
        Class::Informative => "informative",
        Class::Warning => "warning",
        Class::Critical => "critical",
    }
}

impl Side {
    fn of(record: &RunRecord) -> Self {
        let (id, started) = (text::line(&record.header.id), text::line(&record.header.started));
        Self { name: id.clone(), record: id, started }
    }
}

fn unfinished((what, record): (&str, &RunRecord)) -> Option<String> {
    let how = match record.end {
        Some(End::Finished) => return None,
        Some(End::Interrupted) => "was interrupted",
        None => "was cut off before its end",
    };
    Some(format!("{what} {how}: only its recorded samples are compared"))
}

/// Notes on the factors that differ on purpose, for each configuration.
fn on_purpose(base: &RunRecord, new: &RunRecord, matching: &Matching) -> Vec<String> {
    let note = |&(of_base, of_new): &(usize, usize)| {
        let factors = differing((base, of_base), (new, of_new)).join("; ");
        let label = text::line(&new.header.plan.configurations[of_new].label);
        (!factors.is_empty()).then(|| format!("`{label}`: {factors}"))
    };
    matching.pairs.iter().filter_map(note).collect()
}

fn unmatched(base: &RunRecord, new: &RunRecord, matching: &Matching) -> Vec<String> {
    let labels = |record: &RunRecord, which: &[usize]| {
        let of = |&it: &usize| format!("`{}`", text::line(&record.header.plan.configurations[it].label));
        which.iter().map(of).collect::<Vec<_>>().join(", ")
    };
    let workloads = |record: &RunRecord, other: &RunRecord| {
        let others = workloads_of(&other.header.plan);
        let own = workloads_of(&record.header.plan).into_iter();
        let alone = own.filter(|it| others.iter().all(|other| other.label != it.label));
        alone.map(|it| format!("`{}`", text::line(&it.label))).collect::<Vec<_>>().join(", ")
    };
    let all = [
        ("configurations only in the base", labels(base, &matching.only_base)),
        ("configurations only in the new run", labels(new, &matching.only_new)),
        ("scenarios only in the base", workloads(base, new)),
        ("scenarios only in the new run", workloads(new, base)),
    ];
    let named = all.into_iter().filter(|(_, names)| !names.is_empty());
    named.map(|(what, names)| format!("{what}: {names}")).collect()
}

/// A note on missing calibration: the noise floor then comes from the two runs alone. The remedy names the missing parts as the
/// command line takes them.
fn uncalibrated(base: &RunRecord, new: &RunRecord, matching: &Matching) -> Option<String> {
    let known = |record: &RunRecord, configuration: usize, workload: &str| {
        let of = |it: &CalibratedFloor| it.configuration == configuration && it.workload == workload;
        record.header.noise_floors.iter().any(|it| of(it) && it.between.is_some())
    };
    let plan = &new.header.plan;
    let (mut engines, mut scenarios) = (Vec::<String>::new(), Vec::<String>::new());
    for &(of_base, of_new) in &matching.pairs {
        let configuration = &plan.configurations[of_new];
        for (_, workload) in shared(&base.header.plan, plan) {
            let label = &workload.label;
            let calibrated = known(base, of_base, label) || known(new, of_new, label);
            if calibrated || configuration.unavailable.is_some() {
                continue;
            }
            let (engine, scenario) = (configuration.engine_argument(), workload.scenario.clone());
            engines.extend((!engines.contains(&engine)).then_some(engine));
            scenarios.extend((!scenarios.contains(&scenario)).then_some(scenario));
        }
    }
    let flags = |flag: &'static str, names: Vec<String>| {
        names.into_iter().flat_map(move |name| [flag.to_string(), name])
    };
    let words: Vec<String> = flags("-e", engines).chain(flags("-s", scenarios)).collect();
    let remedy = format!("`orchestrate calibrate {}`", text::line(&words.join(" ")));
    (!words.is_empty()).then(|| {
        format!(
            "no calibration: the noise floor between two runs is estimated from these two; hint: {remedy}"
        )
    })
}

#[cfg(test)]
mod tests;
