//! The rows of the default report: the configurations in the order of the table, and the workloads by importance.

use crate::plan::scenario::{self, SCENARIOS};
use crate::report::ranking::{self, Ranking, Unranked};
use crate::report::rows::{Engine, FailureSummary, Row};
use crate::report::run_report::Report;
use crate::text::shorten_start;

/// The largest width of an engine's label, in columns.
pub const MAX_LABEL_WIDTH: usize = 28;

/// The order of the rows without a rank in the primary workload: the less a reader can rely on a row, the lower it stands. Rows
/// with wrong output are not in this list, because `ordered` puts them below all of these.
const ORDER: [Unranked; 4] =
    [Unranked::Contradicted, Unranked::Unverified, Unranked::NoValue, Unranked::Failed];

/// The configurations of a report in the order of the table.
pub struct Overview<'a> {
    pub report: &'a Report,
    pub rankings: Vec<Ranking<'a>>,
    /// The labels of the workloads, in rising importance.
    pub workloads: Vec<&'a str>,
    /// The workload that orders the rows and has the column of ratios.
    pub primary: Option<&'a str>,
    pub configurations: Vec<Configuration<'a>>,
}

/// One row of the table.
pub struct Configuration<'a> {
    pub engine: &'a Engine,
    pub rows: Vec<&'a Row>,
    /// The reason why the configuration as a whole has no results.
    pub failure: Option<&'a FailureSummary>,
    /// The reason why the configuration has no rank by the primary workload.
    pub unranked: Option<Unranked>,
}

impl<'a> Configuration<'a> {
    pub fn row(&self, workload: &str) -> Option<&'a Row> {
        self.rows.iter().find(|row| row.case.label == workload).copied()
    }

    /// The label, short enough for a column.
    pub fn label(&self) -> String {
        shorten_start(&self.engine.label, MAX_LABEL_WIDTH)
    }
}

impl<'a> Overview<'a> {
    pub fn of(report: &'a Report) -> Self {
        let rankings = ranking::rankings(report);
        let workloads = workloads(report);
        let has_value = |label: &&&str| {
            let mut rows = report.rows.iter().filter(|row| row.case.label == ***label);
            rows.any(|row| row.failure.is_none())
        };
        let primary = workloads.iter().rev().find(has_value).copied();
        let mut overview = Self { report, rankings, workloads, primary, configurations: Vec::new() };
        overview.configurations = overview.ordered();
        overview
    }

    /// All configurations. For each model: those with a rank in the primary workload, then those without a rank. After all
    /// models: those without a value in this workload, then those with wrong output, then those without results.
    fn ordered(&self) -> Vec<Configuration<'a>> {
        let mut ordered: Vec<Configuration> = Vec::new();
        let failure_of = |engine: &Engine| {
            let mut failed = self.report.failed.iter();
            failed.find(|it| it.engine.label == engine.label).map(|it| &it.failure)
        };
        let mut add = |engine: &'a Engine, unranked| {
            if ordered.iter().all(|other| other.engine.label != engine.label) {
                let rows = self.report.rows.iter().filter(|row| row.engine.label == engine.label).collect();
                ordered.push(Configuration { engine, rows, failure: failure_of(engine), unranked });
            }
        };
        let is_wrong = |engine: &Engine| {
            let mut unranked = self.rankings.iter().flat_map(|ranking| &ranking.unranked);
            unranked.any(|(row, why)| *why == Unranked::Wrong && row.engine.label == engine.label)
        };
        let of_primary = || self.rankings.iter().filter(|it| Some(it.case) == self.primary);
        for ranking in of_primary() {
            ranking.ranked.iter().for_each(|row| add(&row.engine, None));
            let mut unranked = ranking.unranked.clone();
            let has_no_evidence = |row: &Row| {
                let output = self.report.output_of(row);
                output.is_none_or(|it| it.agreement.scores.is_none() && it.agreement.gaps.is_none())
            };
            // An engine that runs no model would be the fastest. So engines without any checked output come after the other
            // unverified ones, in the order of the plan.
            let planned = |row: &Row| self.report.rows.iter().position(|it| std::ptr::eq(it, row));
            unranked.sort_by_key(|(row, why)| {
                let is_last = *why == Unranked::Unverified && has_no_evidence(row);
                (ORDER.iter().position(|it| it == why), is_last.then(|| planned(row)))
            });
            let others = unranked.iter().filter(|(_, why)| *why != Unranked::Wrong);
            others.for_each(|(row, why)| add(&row.engine, Some(*why)));
        }
        // Wrong output stands below every other measured engine, also below one without a value in this workload.
        let rows = || self.report.rows.iter();
        rows().filter(|row| !is_wrong(&row.engine)).for_each(|row| add(&row.engine, Some(Unranked::NoValue)));
        let wrong = of_primary().flat_map(|ranking| &ranking.unranked);
        wrong.for_each(|(row, why)| add(&row.engine, Some(*why)));
        self.report.rows.iter().for_each(|row| add(&row.engine, Some(Unranked::NoValue)));
        self.report.failed.iter().for_each(|failed| add(&failed.engine, Some(Unranked::Failed)));
        ordered
    }

    /// The title of a workload's columns: the metric, and after `@` the values of axes in the workload's label: `TTFT @512`. If
    /// two scenarios have the metric, the label itself is a part of the title or the whole title. No word stands twice.
    pub fn title(&self, workload: &str) -> String {
        let row = self.report.rows.iter().find(|row| row.case.label == workload);
        let Some((row, metric)) = row.and_then(|row| Some((row, row.case.headline?))) else {
            return workload.to_string();
        };
        let is_of_another = |other: &&Row| {
            other.case.scenario != row.case.scenario
                && other.case.headline.is_some_and(|it| it.id == metric.id)
        };
        let names_axis_values = workload.len() > row.case.scenario.len();
        let has_another = self.report.rows.iter().any(|other| is_of_another(&other));
        if names_axis_values && has_another {
            // Two scenarios have this metric, so the metric does not say which column this is.
            return workload.to_string();
        }
        let suffix = match workload.strip_prefix(row.case.scenario.as_str()).map(str::trim) {
            // The workload that searches the highest rate has the name of its metric.
            Some(length) if length == metric.title => String::new(),
            Some(length) if !length.is_empty() => format!("\n@{length}"),
            // Among several workloads of one scenario, the usual one has no words about its axes: `load` beside `load @from disk`.
            _ if has_another && workload != metric.title => format!("\n{workload}"),
            _ => String::new(),
        };
        format!("{}{suffix}", metric.title)
    }
}

/// The labels of all workloads in rising importance: first those that measure the launch, then those of a warm engine. Both parts
/// are in the order of SCENARIOS.
fn workloads(report: &Report) -> Vec<&str> {
    let position = |scenario: &str| {
        let at = SCENARIOS.iter().position(|it| it.name == scenario);
        let is_launch = at.is_some_and(|at| SCENARIOS[at].kind == scenario::Kind::Launch);
        (!is_launch, at)
    };
    let mut all: Vec<(&str, &str)> =
        report.workloads.iter().map(|it| (it.scenario.as_str(), it.workload.as_str())).collect();
    all.sort_by_key(|(scenario, _)| position(scenario));
    all.into_iter().map(|(_, label)| label).collect()
}
