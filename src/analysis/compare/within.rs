//! Compares the configurations of one record. Their values are paired round by round, because rounds are interleaved. A
//! sequential run is not interleaved, so it gets no verdicts.

use std::collections::HashMap;

use crate::analysis::agreement;
use crate::analysis::metric::{self, METRICS, Metric, MetricId};
use crate::analysis::values::{Measured, Values};
use crate::plan::scenario::Kind;
use crate::plan::{Order, Plan, Role, Workload};
use crate::record::{CalibratedFloor, End, RunRecord};
use stats::{Analysis, Comparison, Experiment, NoRatio, NoiseFloor, Rule, Series, StoppedBy, Twin};

/// The comparison of one configuration with another, by one metric of one workload.
#[derive(Debug, Clone)]
pub struct Compared {
    /// The workload's label.
    pub workload: String,
    pub metric: &'static Metric,
    pub configuration: usize,
    pub against: usize,
    /// Whether this is the headline metric. Holm's correction counts only comparisons of headline metrics.
    pub gating: bool,
    pub result: Result<Comparison, NoRatio>,
}

/// Compares the first of each pair with the second, by every metric that both have: workloads in the plan's order, metrics in
/// that of METRICS. All gating comparisons of a call are one family of tests: with more pairs, a difference must be larger
/// to be significant.
pub fn compare_within(measured: &Measured, pairs: &[(usize, usize)]) -> Vec<Compared> {
    let (experiment, names) = experiment(measured.record, measured);
    let compared = experiment.compare(pairs).into_iter().map(|pair| {
        let stats::PairResult { series, configuration, against, result } = pair;
        let (workload, metric) = names[series];
        let gating = experiment.series[series].gating;
        Compared { workload: workload.label.clone(), metric, configuration, against, gating, result }
    });
    compared.collect()
}

/// Every pair of rows on the same model. A reference is second in its pairs; else the earlier row is first.
pub fn all_pairs(plan: &Plan) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    for earlier in plan.row_indices() {
        for later in plan.row_indices().filter(|&later| later > earlier) {
            if plan.configurations[earlier].model == plan.configurations[later].model {
                let is_swapped = plan.reference_of(later) == Some(earlier);
                pairs.push(if is_swapped { (later, earlier) } else { (earlier, later) });
            }
        }
    }
    pairs
}

/// The pairs of a row and its baseline: the configuration that measured the baseline's program again in this run.
pub fn rerun_pairs(plan: &Plan) -> Vec<(usize, usize)> {
    let baselines = plan.configurations.iter().enumerate().filter_map(|(index, it)| match it.role {
        Some(Role::Baseline { of }) => Some((of, index)),
        _ => None,
    });
    baselines.collect()
}

/// The interim analysis of a workload: whether it needs more blocks. It compares the headline metric of each row with that of
/// the row's reference and baseline. Pairs with a failure, wrong output or too few blocks do not count. A run of one engine
/// has no pairs: its headline metric must then be as precise as a ratio, because later runs are compared with it.
pub fn interim_analysis(record: &RunRecord, workload: &str, blocks: usize, rule: Rule) -> Analysis {
    let plan = &record.header.plan;
    let measured = Measured::only(&Values::of(record), |it, metric| {
        it.label == workload && metric::headline(plan, it).is_some_and(|headline| headline.id == metric.id)
    });
    let (experiment, _) = experiment(record, &measured);
    let wrong = agreement::wrong_outputs(record);
    let case = |index: usize| {
        plan.cases.iter().position(|it| it.configuration == index && it.workload.label == workload)
    };
    // A configuration without this workload, or whose case has failed, gets no more blocks.
    let is_left_out = |index: usize| wrong[index] || case(index).is_none_or(|case| record.has_failed(case));
    let planned: Vec<(usize, usize)> = plan.pairs().into_iter().chain(rerun_pairs(plan)).collect();
    if planned.is_empty() {
        let rows: Vec<usize> = plan.row_indices().filter(|&it| !is_left_out(it)).collect();
        return experiment.analyse_without_pairs(rule, blocks, &rows);
    }
    let pairs = planned.into_iter().filter(|&(a, b)| !is_left_out(a) && !is_left_out(b));
    experiment.analyse(rule, blocks, &pairs.collect::<Vec<_>>())
}

/// All series that have values, each with its workload and metric.
fn experiment<'a>(
    record: &RunRecord,
    measured: &Measured<'a>,
) -> (Experiment, Vec<(&'a Workload, &'static Metric)>) {
    let plan = &record.header.plan;
    let floors = stored_floors(record);
    let all_configurations = || 0..plan.configurations.len();
    let (mut series, mut names) = (Vec::new(), Vec::new());
    // A score is measured once and has no noise, so it has no rounds to pair.
    let workloads = measured.workloads.iter().enumerate().filter(|(_, it)| it.kind != Kind::Score);
    for (workload_index, workload) in workloads {
        let headline = metric::headline(plan, workload);
        for (metric_index, metric) in METRICS.iter().enumerate() {
            let configurations = measured.blocks_by_configuration(workload_index, metric_index);
            if configurations.iter().all(|blocks| blocks.is_empty()) {
                continue;
            }
            let floor =
                |configuration| floors.get(&(configuration, workload.label.as_str(), metric.id)).copied();
            series.push(Series {
                better: metric.better,
                gating: headline.is_some_and(|it| it.id == metric.id),
                stopped_by: stopped_by(record, &workload.label),
                floors: all_configurations()
                    .map(|it| floor(it).or_else(|| floor(row_of(plan, it))))
                    .collect(),
                configurations,
            });
            names.push((*workload, metric));
        }
    }
    let twins = plan.configurations.iter().enumerate().filter_map(|(twin, it)| match it.role {
        Some(Role::Twin { of }) => Some(Twin { twin, of }),
        _ => None,
    });
    let interleaved = plan.order == Order::Interleaved;
    (Experiment { interleaved, seed: Some(plan.seed), twins: twins.collect(), series }, names)
}

/// The row that a twin or baseline belongs to: the twin or baseline has the same noise. Else the configuration itself.
pub(super) fn row_of(plan: &Plan, configuration: usize) -> usize {
    match plan.configurations[configuration].role {
        Some(Role::Twin { of } | Role::Baseline { of }) => of,
        Some(Role::Verifier | Role::NullEngine) | None => configuration,
    }
}

/// The calibrated noise floor of a configuration, or else of the row that it belongs to.
pub fn stored_floor<'a>(
    record: &'a RunRecord,
    configuration: usize,
    workload: &str,
    metric: MetricId,
) -> Option<&'a CalibratedFloor> {
    let of = |configuration: usize| {
        // As in `stored_floors`, the last of several floors counts.
        let mut stored = record.header.noise_floors.iter().rev();
        stored.find(|it| (it.configuration, &*it.workload, it.metric) == (configuration, workload, metric))
    };
    of(configuration).or_else(|| of(row_of(&record.header.plan, configuration)))
}

/// The calibrated noise floors in the record's header, by configuration, workload and metric.
pub(super) fn stored_floors(record: &RunRecord) -> HashMap<(usize, &str, MetricId), NoiseFloor> {
    let stored = record.header.noise_floors.iter();
    stored.map(|it| ((it.configuration, it.workload.as_str(), it.metric), it.paired)).collect()
}

/// The reason why a workload has no more blocks. If the record does not state it, the requested number of blocks was measured
/// (`Fixed`), or the run ended, perhaps after interim analyses (`Time`).
pub fn stopped_by(record: &RunRecord, workload: &str) -> StoppedBy {
    let closed = record.closed.iter().rev().find(|it| it.workload == workload).map(|it| it.by);
    // A user who interrupts a run may have seen results, so the number of blocks is not fixed.
    let is_fixed = record.header.plan.extent.blocks.is_some() && record.end == Some(End::Finished);
    closed.unwrap_or(if is_fixed { StoppedBy::Fixed } else { StoppedBy::Time })
}

#[cfg(test)]
mod tests;
