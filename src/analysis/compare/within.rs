//! The configurations of one record against each other: they were measured in turn, so that they are paired round by
//! round.

use std::collections::HashMap;

use crate::analysis::agreement;
use crate::analysis::metric::{self, METRICS, Metric, MetricId};
use crate::analysis::values::{Measured, Values};
use crate::plan::{Beside, Order, Plan, Workload};
use crate::record::{End, RunRecord};
use stats::{Comparison, Experiment, Floor, Look, Refusal, Rule, Series, StoppedBy, Twin};

/// One configuration against another, by one metric of one workload.
#[derive(Debug, Clone)]
pub struct Compared {
    /// The workload's label.
    pub workload: String,
    pub metric: &'static Metric,
    pub configuration: usize,
    pub against: usize,
    /// What engines are compared by here: only these share in the risk of a false alarm.
    pub gating: bool,
    pub result: Result<Comparison, Refusal>,
}

/// The first of each pair against its second, by every metric that both have: workloads in the plan's order, metrics in the
/// table's. A difference in a gating metric holds among all gating comparisons that are asked for here, so that whoever
/// asks for more pairs is told fewer small differences.
pub fn within(measured: &Measured, pairs: &[(usize, usize)]) -> Vec<Compared> {
    let (experiment, named) = experiment(measured.record, measured);
    let found = experiment.compare(pairs).into_iter().map(|found| {
        let (series, configuration, against, result) = match found {
            Ok(it) => (it.series, it.configuration, it.against, Ok(it)),
            Err(it) => (it.series, it.configuration, it.against, Err(it.refusal)),
        };
        let (workload, metric) = named[series];
        let gating = experiment.series[series].gating;
        Compared { workload: workload.label.clone(), metric, configuration, against, gating, result }
    });
    found.collect()
}

/// Every two rows on the same model: each with its reference where it is one of the two, else the earlier with the later.
pub fn all_pairs(plan: &Plan) -> Vec<(usize, usize)> {
    let rows: Vec<usize> =
        (0..plan.configurations.len()).filter(|&it| plan.configurations[it].beside.is_none()).collect();
    let mut pairs = Vec::new();
    for (place, &one) in rows.iter().enumerate() {
        for &other in &rows[place + 1..] {
            if plan.configurations[one].model == plan.configurations[other].model {
                let turned = plan.reference_of(other) == Some(one);
                pairs.push(if turned { (other, one) } else { (one, other) });
            }
        }
    }
    pairs
}

/// Each configuration of which the program of a baseline was measured beside it, with that one.
pub fn rerun_pairs(plan: &Plan) -> Vec<(usize, usize)> {
    let stands_in = |(index, it): (usize, &crate::plan::Configuration)| match it.beside {
        Some(Beside::Baseline { of }) => Some((of, index)),
        _ => None,
    };
    plan.configurations.iter().enumerate().filter_map(stands_in).collect()
}

/// Whether a workload needs more blocks: by its headline alone, over each row with its reference and with the program of its
/// baseline. A pair that failed, is wrong, or has too few blocks, has no say. Where there is no pair, in a run of one engine, its own
/// figure is to be known as well as a ratio would be: a stored baseline is held against it.
pub fn look(record: &RunRecord, workload: &str, blocks: usize, rule: Rule) -> Look {
    let plan = &record.header.plan;
    let measured = Measured::only(&Values::of(record), |it, metric| {
        it.label == workload && metric::headline(plan, it).is_some_and(|headline| headline.id == metric.id)
    });
    let (experiment, _) = experiment(record, &measured);
    let wrong = agreement::wrong(record);
    let case = |index: usize| {
        plan.cases.iter().position(|it| it.configuration == index && it.workload.label == workload)
    };
    let fails = |index: usize| wrong[index] || case(index).is_some_and(|case| record.has_failed(case));
    let planned: Vec<(usize, usize)> = plan.pairs().into_iter().chain(rerun_pairs(plan)).collect();
    let pairs = planned.iter().copied();
    let pairs: Vec<(usize, usize)> = pairs.filter(|&(one, other)| !fails(one) && !fails(other)).collect();
    if planned.is_empty() {
        let rows = (0..plan.configurations.len()).filter(|&it| plan.configurations[it].beside.is_none());
        return experiment.look_at_levels(rule, blocks, &rows.filter(|&it| !fails(it)).collect::<Vec<_>>());
    }
    experiment.look(rule, blocks, &pairs)
}

/// Every series that has values, with what it is called.
fn experiment<'a>(
    record: &RunRecord,
    measured: &Measured<'a>,
) -> (Experiment, Vec<(&'a Workload, &'static Metric)>) {
    let plan = &record.header.plan;
    let floors = stored_floors(record);
    let (mut all, mut named) = (Vec::new(), Vec::new());
    for (place, workload) in measured.workloads.iter().enumerate() {
        let headline = metric::headline(plan, workload);
        for (index, metric) in METRICS.iter().enumerate() {
            let configurations = measured.configurations(place, index);
            if configurations.iter().all(|blocks| blocks.is_empty()) {
                continue;
            }
            let floor =
                |configuration| floors.get(&(configuration, workload.label.as_str(), metric.id)).copied();
            all.push(Series {
                better: metric.better,
                gating: headline.is_some_and(|it| it.id == metric.id),
                stopped_by: stopped_by(record, &workload.label),
                floors: (0..plan.configurations.len())
                    .map(|it| floor(it).or_else(|| floor(itself(plan, it))))
                    .collect(),
                configurations,
            });
            named.push((*workload, metric));
        }
    }
    let twins = plan.configurations.iter().enumerate().filter_map(|(twin, it)| match it.beside {
        Some(Beside::Twin { of }) => Some(Twin { twin, of }),
        _ => None,
    });
    let interleaved = plan.order == Order::Interleaved;
    (Experiment { interleaved, seed: Some(plan.seed), twins: twins.collect(), series: all }, named)
}

/// What stands beside a configuration is as noisy as that one.
fn itself(plan: &Plan, configuration: usize) -> usize {
    match plan.configurations[configuration].beside {
        Some(Beside::Twin { of } | Beside::Baseline { of }) => of,
        Some(Beside::Witness) | None => configuration,
    }
}

/// What calibration knew when the run began, by configuration, workload and metric.
fn stored_floors(record: &RunRecord) -> HashMap<(usize, &str, MetricId), Floor> {
    let known = record.header.floors.iter();
    known.map(|it| ((it.configuration, it.workload.as_str(), it.metric), it.paired)).collect()
}

/// What ended a workload. One that was never closed was ended by the number of blocks that was asked for, or by the end of
/// the run, whatever that was: its blocks may have been looked at.
pub fn stopped_by(record: &RunRecord, workload: &str) -> StoppedBy {
    let closed = record.closed.iter().rev().find(|it| it.workload == workload).map(|it| it.by);
    // Whoever interrupts a run has seen how it stands.
    let asked = record.header.plan.extent.blocks.is_some() && record.end == Some(End::Finished);
    closed.unwrap_or(if asked { StoppedBy::Asked } else { StoppedBy::Time })
}

#[cfg(test)]
mod tests;
