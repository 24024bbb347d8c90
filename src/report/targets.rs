//! The targets of a run file with the results that they are about. A missed target is a row, and gives an exit code.

use anyhow::{Result, bail};
use serde::Serialize;

use super::document::{Column, Line, Overflow, Table};
use super::headings::{CASE, ENGINE, MET, RESULT, TARGET, WANTED};
use super::outputs::Output;
use super::rows::{FailureSummary, Row};
use super::tone::Tone;
use crate::analysis::metric::{self, Better, Metric, Unit};
use crate::plan::selection::distinct;
use crate::plan::targets::Target;
use crate::plan::{Case, Configuration, Plan, engine_name};
use crate::shell::Usage;
use crate::text::{line, plural, quoted};
use stats::Summary;

/// A target and one case that it names. JSON has these names: add, never rename.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TargetResult {
    pub engine: String,
    pub case: String,
    pub metric: &'static str,
    #[serde(skip)]
    pub title: &'static str,
    /// The percentile over all values of the case that the bounds are about; `None`: the estimate.
    pub percentile: Option<u8>,
    pub unit: &'static str,
    pub at_least: Option<f64>,
    pub at_most: Option<f64>,
    /// `None` if the case has no value of this metric.
    pub value: Option<f64>,
    /// The number of values of the case.
    pub values: usize,
    /// Whether the values are too few for the percentile, so that it depends on one or two of them.
    pub is_estimate: bool,
    pub is_met: bool,
    /// The reason why a target is missed, if its value is not the reason: there is no value, or it is not trusted.
    pub reason: Option<&'static str>,
    #[serde(skip)]
    of: Unit,
}

/// The metric of a target in one case.
fn metric_of(plan: &Plan, target: &Target, case: &Case) -> Option<&'static Metric> {
    match target.metric {
        Some(id) => metric::find(id),
        None => metric::headline(plan, &case.workload),
    }
}

/// Refuses a target that names no case of the plan, or has another unit than its metric.
pub fn check(plan: &Plan) -> Result<()> {
    for (index, target) in plan.targets.iter().enumerate() {
        let number = index + 1;
        let mut named = cases_of(plan, target).map(|(_, case)| case).peekable();
        if named.peek().is_none() {
            let rows: Vec<&str> =
                plan.row_indices().map(|index| plan.configurations[index].label.as_str()).collect();
            let cases: Vec<&str> = plan.cases.iter().map(|case| case.workload.label.as_str()).collect();
            let (engines, cases) = (quoted(&distinct(&rows)), quoted(&distinct(&cases)));
            let hint = format!("the engines are {engines}, and the cases {cases}");
            bail!(Usage(format!("target {number} of the run file names no case of this run\nhint: {hint}")));
        }
        for metric in named.filter_map(|case| metric_of(plan, target, case)) {
            if metric.unit.symbol() != target.unit {
                let (name, unit) = (metric.name(), metric.unit.symbol());
                let problem = format!(
                    "target {number} of the run file: the unit of `{name}` is {unit}, not {}",
                    target.unit
                );
                bail!(Usage(format!(
                    "{problem}\nhint: name another `metric`, or write the bound in this unit"
                )));
            }
            if let Some(percentile) = target.percentile.filter(|_| metric.better == Better::Higher) {
                let problem = format!(
                    "target {number} of the run file: the p{percentile} of `{}` is one of its best values",
                    metric.name()
                );
                let hint = "a time, such as `metric = \"total\"`, or no `percentile`";
                bail!(Usage(format!("{problem}\nhint: {hint}")));
            }
        }
    }
    Ok(())
}

/// Removes the targets that name no case, and returns their numbers. An option of the command line may have replaced the engines,
/// models or scenarios of the file.
pub fn leave_out_unnamed(plan: &mut Plan) -> Vec<usize> {
    let targets = std::mem::take(&mut plan.targets);
    let (named, unnamed): (Vec<_>, Vec<_>) =
        targets.into_iter().enumerate().partition(|(_, target)| cases_of(plan, target).next().is_some());
    plan.targets = named.into_iter().map(|(_, target)| target).collect();
    unnamed.into_iter().map(|(index, _)| index + 1).collect()
}

/// The cases of rows that a target names, each with its index.
fn cases_of<'a>(plan: &'a Plan, target: &'a Target) -> impl Iterator<Item = (usize, &'a Case)> {
    let is_named = |case: &Case| {
        let Configuration { label, engine, preset, model, role, .. } =
            &plan.configurations[case.configuration];
        let with_preset = engine_name(engine, preset.as_deref());
        let (engines, models) = ([label, engine, &with_preset], [&model.name, &model.path]);
        let cases = [&case.workload.label, &case.workload.scenario];
        role.is_none()
            && target.names(
                &engines.map(String::as_str),
                &models.map(String::as_str),
                &cases.map(String::as_str),
            )
    };
    plan.cases.iter().enumerate().filter(move |(_, case)| is_named(case))
}

/// The result of each target in each case that it names. `rows` has the index of each case.
pub fn results(plan: &Plan, rows: &[(usize, Row)], outputs: &[Output]) -> Vec<TargetResult> {
    let of_target = |target: &Target| {
        let results = cases_of(plan, target).filter_map(|(index, case)| {
            let metric = metric_of(plan, target, case)?;
            let row = rows.iter().find(|(case, _)| *case == index).map(|(_, row)| row);
            let unavailable = plan.configurations[case.configuration].unavailable.is_some();
            if unavailable && target.engine.is_none() {
                // With `--all`, an engine that cannot run here is only listed.
                return None;
            }
            let failure = row.and_then(|row| row.failure.as_ref());
            if failure.is_some_and(FailureSummary::is_expected) {
                return None;
            }
            let measured = row.filter(|row| row.failure.is_none());
            let summary = measured.and_then(|row| row.summary(metric.id));
            let value = summary.map(|it| value_of(it, target.percentile));
            let values = summary.map_or(0, |it| it.n);
            let label = line(&plan.configurations[case.configuration].label);
            let is_wrong = outputs.iter().any(|it| it.engine == label && it.agreement.is_wrong());
            let reason = match () {
                () if row.is_none_or(|row| row.failure.is_some()) => Some("the case failed"),
                () if value.is_none() => Some("no value"),
                () if is_wrong => Some("wrong output"),
                () if row.is_some_and(|row| row.contradicted) => Some("a claim is contradicted"),
                () => None,
            };
            Some(TargetResult {
                engine: label,
                case: line(&case.workload.label),
                metric: metric.name(),
                title: metric.title,
                percentile: target.percentile,
                unit: metric.unit.symbol(),
                at_least: target.at_least,
                at_most: target.at_most,
                value,
                values,
                is_estimate: target.percentile.is_some_and(|it| values < needed_values(it)),
                is_met: reason.is_none() && value.is_some_and(|value| target.is_met_by(value)),
                reason,
                of: metric.unit,
            })
        });
        results.collect::<Vec<_>>()
    };
    plan.targets.iter().flat_map(of_target).collect()
}

/// The value of a case that the bounds of a target are about.
fn value_of(summary: &Summary, percentile: Option<u8>) -> f64 {
    match percentile {
        Some(50) => summary.p50,
        Some(90) => summary.p90,
        Some(95) => summary.p95,
        Some(99) => summary.p99,
        // A run file has no other percentile.
        _ => summary.estimate,
    }
}

/// With fewer values, the percentile lies between the two largest ones.
fn needed_values(percentile: u8) -> usize {
    100 / usize::from(100 - percentile.min(99))
}

pub fn are_missed(targets: &[TargetResult]) -> bool {
    targets.iter().any(|it| !it.is_met)
}

/// A row for each target and case; `None` without targets.
pub fn table(targets: &[TargetResult]) -> Option<Table> {
    if targets.is_empty() {
        return None;
    }
    let [target, engine, case, wanted, result, outcome] =
        [TARGET, ENGINE, CASE, WANTED, RESULT, MET].map(Column::named);
    let columns = [target, engine, case, wanted, result, Column { overflow: Overflow::Wrapped, ..outcome }];
    let row = |it: &TargetResult| {
        let bounds = [("at least", it.at_least), ("at most", it.at_most)];
        let bounds =
            bounds.into_iter().filter_map(|(word, bound)| Some(format!("{word} {}", it.of.show(bound?))));
        let few = it.percentile.filter(|_| it.is_estimate && it.value.is_some()).map(|percentile| {
            let (values, needed) = (plural(it.values, "value"), needed_values(percentile));
            format!(" (an estimate from {values}: a p{percentile} needs {needed})")
        });
        let few = few.unwrap_or_default();
        let outcome = match (it.is_met, it.reason) {
            (true, _) => Tone::Good.of(&format!("met{few}")),
            (false, None) => Tone::Bad.of(&format!("MISSED{few}")),
            (false, Some(reason)) => Tone::Bad.of(&format!("MISSED: {reason}{few}")),
        };
        let value = it.value.map_or_else(|| "n/a".into(), |value| it.of.show(value));
        let value = if few.is_empty() { value } else { format!("~{value}") };
        let percentile = it.percentile.map_or_else(String::new, |it| format!(" p{it}"));
        Line::of(vec![
            format!("{}{percentile}", it.title),
            it.engine.clone(),
            it.case.clone(),
            bounds.collect::<Vec<_>>().join(", "),
            value,
            outcome,
        ])
    };
    let lines = targets.iter().map(row).collect();
    Some(Table { columns: columns.into(), lines, gap: 2, ..Table::default() })
}
