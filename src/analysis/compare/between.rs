//! Compares one configuration in two records. The records were measured at different times, so their blocks are not paired: the
//! noise of the machine did not affect both alike.
//!
//! The interval is Welch's over the logarithms of the blocks' medians. It covers the variation within each run, but not the
//! changes between runs: different load, clocks, memory layout. No number of blocks averages these changes out, so a difference
//! must exceed the highest noise floor between two runs (`highest_floor`).

use std::collections::BTreeMap;

use serde::Serialize;

use super::matching::{Matching, is_same_program};
use super::within::stopped_by;
use crate::analysis::agreement::Agreement;
use crate::analysis::metric::{self, Better, METRICS};
use crate::analysis::values::{Measured, Values};
use crate::plan::scenario::Kind;
use crate::plan::{Order, Role};
use crate::record::RunRecord;
use stats::{
    Decision, Design, Evidence, NoiseFloor, Ratios, StoppedBy, Undecided, VerdictThresholds, decide, levels,
    mann_whitney,
};

/// The name of a comparison: the workload's label, the metric's index in `METRICS`, the configurations' indices (base, new).
pub type Key = (String, usize, (usize, usize));

/// The source of a threshold that no noise floor raises.
pub const SMALLEST_THRESHOLD: &str = "smallest threshold";

/// The comparison of one metric, within a record or between two records.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetricComparison {
    /// The evidence on the log ratio: above zero is better, for every metric.
    pub evidence: Evidence,
    #[serde(flatten)]
    pub decision: Decision,
    /// The source of the noise floor that sets the threshold.
    pub threshold_source: &'static str,
    /// The number of blocks in the base, and in the new record.
    pub blocks: (usize, usize),
    /// The p value of the Mann-Whitney test; `None` without an interval for a verdict.
    pub p_mann_whitney: Option<f64>,
}

/// A comparison before the decision whether its difference counts.
struct OpenComparison {
    undecided: Undecided,
    threshold_source: &'static str,
    blocks: (usize, usize),
    p_mann_whitney: Option<f64>,
}

/// A record with its measured values.
pub struct ComparedRecord<'a> {
    pub record: &'a RunRecord,
    pub measured: Measured<'a>,
    agreements: Vec<Agreement>,
}

impl<'a> ComparedRecord<'a> {
    pub fn of(values: &Values<'a>) -> Self {
        let record = values.record;
        Self { record, measured: Measured::from(values), agreements: Agreement::of(record) }
    }

    /// The first reason why the output of a configuration is wrong; `None` if it is not wrong.
    pub fn wrong_output(&self, configuration: usize) -> Option<&str> {
        let wrong = Some(&self.agreements[configuration]).filter(|it| it.is_wrong())?;
        Some(wrong.reasons.first().map_or("", String::as_str))
    }

    pub fn workload(&self, label: &str) -> Option<usize> {
        self.measured.workloads.iter().position(|it| it.label == label)
    }

    /// The level of each block: the logarithm of the median of its rounds.
    fn levels(&self, workload: &str, metric: usize, configuration: usize) -> Option<Vec<f64>> {
        Some(levels(self.measured.blocks(self.workload(workload)?, metric, configuration)?))
    }
}

/// Compares every metric that both sides of a pair have, for every shared workload. A value that is not positive gives a reason
/// instead of a comparison. A pair with wrong output is left out.
pub fn compare_between(
    base: &ComparedRecord,
    new: &ComparedRecord,
    matching: &Matching,
) -> BTreeMap<Key, Result<MetricComparison, String>> {
    let mut open = Vec::new();
    // A score has no noise, so it has no interval.
    for workload in new.measured.workloads.iter().filter(|it| it.kind != Kind::Score) {
        let headline = metric::headline(&new.record.header.plan, workload).map(|it| it.id);
        for (index, metric) in METRICS.iter().enumerate() {
            let is_correct = |pair: &&(usize, usize)| {
                base.wrong_output(pair.0).is_none() && new.wrong_output(pair.1).is_none()
            };
            for &pair in matching.pairs.iter().filter(is_correct) {
                let key = (workload.label.clone(), index, pair);
                let gating = headline == Some(metric.id);
                open.extend(compare_metric(base, new, &key, gating).map(|result| (key, result)));
            }
        }
    }
    let undecided = open.iter().filter_map(|(_, open)| Some(open.as_ref().ok()?.undecided));
    let mut decisions = decide(&undecided.collect::<Vec<_>>()).into_iter();
    let comparisons = open.into_iter().filter_map(|(key, open)| {
        let comparison = match open {
            Ok(OpenComparison { undecided, threshold_source, blocks, p_mann_whitney }) => {
                // `decide` returns a decision for each open comparison.
                let (evidence, decision) = (undecided.evidence, decisions.next()?);
                Ok(MetricComparison { evidence, decision, threshold_source, blocks, p_mann_whitney })
            }
            Err(why) => Err(why),
        };
        Some((key, comparison))
    });
    comparisons.collect()
}

fn compare_metric(
    base: &ComparedRecord,
    new: &ComparedRecord,
    key: &Key,
    gating: bool,
) -> Option<Result<OpenComparison, String>> {
    let (workload, index, (of_base, of_new)) = key;
    let metric = &METRICS[*index];
    let base_levels = base.levels(workload, *index, *of_base)?;
    let new_levels = new.levels(workload, *index, *of_new)?;
    let [minuend, subtrahend] = match metric.better {
        Better::Higher => [&new_levels, &base_levels],
        // Less is better, so the ratio is inverted.
        Better::Lower => [&base_levels, &new_levels],
    };
    let is_fixed = |side: &&ComparedRecord| stopped_by(side.record, workload) == StoppedBy::Fixed;
    let design = if [base, new].iter().all(is_fixed) { Design::Fixed } else { Design::Interim };
    let Some(evidence) = Evidence::of_difference(minuend, subtrahend, design) else {
        return Some(Err("a value is not positive, so there is no ratio".into()));
    };
    let (floor, threshold_source) = highest_floor(base, new, key);
    let interleaved = [base, new].iter().all(|it| it.record.header.plan.order == Order::Interleaved);
    let undecided = Undecided { evidence, floor, interleaved, gating };
    // The stricter correction of the two sides counts, as for the interval.
    let correct = |p| design.correct_p(p, new_levels.len()).max(design.correct_p(p, base_levels.len()));
    let p_mann_whitney =
        undecided.verdict_interval().and_then(|_| mann_whitney(minuend, subtrahend)).map(correct);
    Some(Ok(OpenComparison {
        undecided,
        threshold_source,
        blocks: (base_levels.len(), new_levels.len()),
        p_mann_whitney,
    }))
}

/// The highest noise floor, with its source:
///
/// - the calibrations stored in either record: within one run, and between two runs;
/// - the difference between a twin and its original, in either run;
/// - the differences between the blocks of one run, for either run (`NoiseFloor::between_blocks`);
/// - the change of the reference between the runs, if both references have the same settings, reported version and dtype of the
///   weights (`is_same_program`): it counts as a change of the machine.
fn highest_floor(
    base: &ComparedRecord,
    new: &ComparedRecord,
    key: &Key,
) -> (Option<NoiseFloor>, &'static str) {
    let (workload, index, (of_base, of_new)) = key;
    let mut floors: Vec<(NoiseFloor, &'static str)> = Vec::new();
    for (side, configuration, source) in
        [(base, *of_base, "blocks of the base"), (new, *of_new, "blocks of the new run")]
    {
        for stored in &side.record.header.noise_floors {
            let is_of_workload = stored.configuration == configuration && stored.workload == *workload;
            if is_of_workload && stored.metric == METRICS[*index].id {
                floors.push((stored.paired, "calibration"));
                floors.extend(stored.between.map(|floor| (floor, "calibration at two times")));
            }
        }
        floors.extend(floors_of_twins(side, configuration, workload, *index).map(|floor| (floor, "twin")));
        let levels = side.levels(workload, *index, configuration);
        floors.extend(levels.and_then(|it| NoiseFloor::between_blocks(&it)).map(|floor| (floor, source)));
    }
    floors.extend(change_of_reference(base, new, key).map(|floor| (floor, "change of the reference")));
    let highest = floors.into_iter().max_by(|(a, _), (b, _)| a.log_ratio().total_cmp(&b.log_ratio()));
    match highest {
        Some((floor, source)) if !VerdictThresholds::above_floor(Some(floor)).is_smallest() => {
            (Some(floor), source)
        }
        floor => (floor.map(|(floor, _)| floor), SMALLEST_THRESHOLD),
    }
}

/// The noise floors from twins of a configuration and of its reference.
fn floors_of_twins(
    side: &ComparedRecord,
    configuration: usize,
    workload: &str,
    metric: usize,
) -> impl Iterator<Item = NoiseFloor> {
    let plan = &side.record.header.plan;
    let reference = plan.reference_of(configuration);
    let is_needed = move |of: usize| of == configuration || Some(of) == reference;
    let twins = plan.configurations.iter().enumerate().filter_map(move |(twin, it)| match it.role {
        Some(Role::Twin { of }) if is_needed(of) => Some((twin, of)),
        _ => None,
    });
    let workload = side.workload(workload);
    twins.filter_map(move |(twin, of)| {
        let blocks = |configuration| side.measured.blocks(workload?, metric, configuration);
        NoiseFloor::of_twin(&Ratios::paired(blocks(twin)?, blocks(of)?).ok()?)
    })
}

/// The change of the reference between the runs, as a noise floor.
fn change_of_reference(base: &ComparedRecord, new: &ComparedRecord, key: &Key) -> Option<NoiseFloor> {
    let (workload, metric, (of_base, of_new)) = key;
    let references = [(base, *of_base), (new, *of_new)].map(|(side, configuration)| {
        let reference = side.record.header.plan.reference_of(configuration)?;
        (reference != configuration).then_some(reference)
    });
    let [Some(base_reference), Some(new_reference)] = references else { return None };
    if !is_same_program((base.record, base_reference), (new.record, new_reference)) {
        return None;
    }
    let mean = |levels: Vec<f64>| levels.iter().sum::<f64>() / levels.len() as f64;
    let change = mean(new.levels(workload, *metric, new_reference)?)
        - mean(base.levels(workload, *metric, base_reference)?);
    NoiseFloor::of(&[change])
}

#[cfg(test)]
mod tests;
