//! A report as columns and cells of text, for every format that people read. Facts that are the same in all rows move to
//! the caption, and empty columns are left out.

use std::collections::BTreeSet;

use super::caption::{has_missing_samples, headlines, several_engines};
use super::document::{Column, ColumnKind, ExplainedFailure, Layout, Line, Table};
use super::factors::{FACTORS, FactorId, varies};
use super::headings::{self, Heading};
use super::labels::{Labels, name_of};
use super::limits;
use super::marks::{MIN_VALUES_FOR_P99, Mark};
use super::outputs;
use super::ranking::why_no_values;
use super::rows::{Engine, FailedConfiguration, FailureSummary, Row, group_by_key, with_prefix_caches};
use super::run_report::{Report, View};
use super::verdict_lines;
use crate::analysis::metric::{METRICS, Metric, MetricId, Scale, Shown, Unit, by_id};
use crate::record::FailureKind;
use crate::shell::pasteable;
use crate::text::shorten;
use stats::Summary;

const DATA_SHEET_TITLE: &str = "of data\nsheet";
const EXPLANATIONS: &str = "explanations: `orchestrate explain`, `orchestrate metrics`";

/// The table of a report, and the marks in its cells.
pub struct Grid<'a> {
    report: &'a Report,
    pub table: Table,
    marks: BTreeSet<Mark>,
}

struct Cell {
    text: String,
    mark: Option<Mark>,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, mark: None }
    }
}

impl<'a> Grid<'a> {
    /// A line for each row and for each configuration that failed as a whole.
    pub fn of(report: &'a Report, view: &View, layout: Layout) -> Self {
        let table = Table { lines: blank_lines(report), gap: layout.gap, ..Table::default() };
        let mut grid = Self { report, table, marks: BTreeSet::new() };
        grid.add_name_columns(layout);
        grid.add_fact_columns(layout);
        grid.add_value_columns(view);
        let table = &mut grid.table;
        let has_values = table.columns.iter().any(|column| column.kind == ColumnKind::Value);
        if !has_values && table.lines.iter().any(|line| line.failure.is_some()) {
            // The text of a failure takes the place of values, so it needs a column of values.
            table.columns.push(Column { kind: ColumnKind::Value, ..Column::named(headings::OUTCOME) });
            table.lines.iter_mut().for_each(|line| line.cells.push(String::new()));
        }
        grid
    }

    fn add_name_columns(&mut self, layout: Layout) {
        let report = self.report;
        let labels = Labels::of(report, layout);
        if !report.rows.is_empty() {
            let case = |row: &Row| shorten(&row.case.label, layout.max_word);
            self.add_name_column(Column::named(headings::CASE), case, |_| "-".into());
        }
        if several_engines(report, layout) {
            let name = |engine: &Engine| labels.short(&name_of(engine, layout));
            self.add_name_column(Column::named(headings::ENGINE), |row| name(&row.engine), name);
        }
        for factor in FACTORS
            .iter()
            .filter(|factor| layout.columns_of_varying_options && factor.requests_differ(report.engines()))
        {
            let of_failed = |engine: &Engine| match factor.id {
                FactorId::Model => labels.short(&engine.model),
                _ => factor.cell_of_failed_row(engine, layout.max_word),
            };
            let of_row = |row: &Row| match row.failure {
                None if factor.id != FactorId::Model => {
                    let mark = (factor.reported)(&row.engine).is_none().then_some(Mark::Unreported);
                    Cell { text: factor.cell_of_measured_row(&row.engine, layout.max_word), mark }
                }
                _ => of_failed(&row.engine).into(),
            };
            let is_text = factor.id != FactorId::Threads;
            self.add_name_column(Column { is_text, ..Column::named(factor.heading) }, of_row, of_failed);
        }
    }

    fn add_fact_columns(&mut self, layout: Layout) {
        let report = self.report;
        for factor in FACTORS.iter().filter(|factor| layout.version_column || factor.id != FactorId::Version)
        {
            let is_name = layout.columns_of_varying_options && factor.requests_differ(report.engines());
            if factor.reports_differ(&report.rows) && !is_name {
                let reported = |row: &Row| (factor.reported)(&row.engine).unwrap_or_else(|| "?".into());
                let is_text = factor.id != FactorId::Threads;
                let column = Column { is_text, ..Column::fact(factor.heading) };
                self.add_column(column, |row| shorten(&reported(row), layout.max_word));
            }
        }
        if outputs::needs_column(&report.outputs) {
            let cell = |row: &Row| report.output_of(row).map_or_else(|| "?".into(), |it| it.agreement.cell());
            self.add_column(Column::fact(headings::OUTPUT), cell);
        }
        if has_missing_samples(report) {
            self.add_column(Column { is_text: false, ..Column::fact(headings::SAMPLES) }, |row| {
                row.samples.to_string()
            });
        }
    }

    fn add_value_columns(&mut self, view: &View) {
        let report = self.report;
        for metric in METRICS {
            let shown = |row: &Row| match metric.shown {
                Shown::AsHeadline => row.case.headline.is_some_and(|headline| headline.id == metric.id),
                Shown::Beside(id) => row.case.headline.is_some_and(|headline| headline.id == id),
                Shown::Estimate | Shown::Percentiles => true,
                // All shares of limits are in one column, and all shares of data sheets in another.
                Shown::OfLimit(_) | Shown::OfDataSheet(_) => false,
            };
            let measured = || report.rows.iter().filter(|row| row.failure.is_none());
            if !measured().any(|row| shown(row) && row.summary(metric.id).is_some()) {
                continue;
            }
            if metric.shown == Shown::Percentiles {
                self.add_percentile_columns(metric);
                continue;
            }
            let scale = metric.scale();
            let column = Column::value(metric, scale.symbol);
            self.add_metric_column(metric, column, |it| scale.write(it.estimate));
        }
        let of_limit = Column::value(by_id(MetricId::BANDWIDTH_SHARE), "");
        self.add_share_column(of_limit, Shown::OfLimit);
        let of_data_sheet = Column::value(by_id(MetricId::BANDWIDTH_DATA_SHEET_SHARE), "");
        self.add_share_column(of_data_sheet.titled(DATA_SHEET_TITLE.into()), Shown::OfDataSheet);
        if has_ratios(report) {
            let cell = |row: &Row| verdict_lines::cell(report, row, view.pairs);
            self.add_column(Column::value(headings::VS_REFERENCE, ""), cell);
        }
    }

    /// A column of shares: a row's headline against the limit of the machine, or against the peak of its data sheet.
    fn add_share_column(&mut self, column: Column, shown: fn(MetricId) -> Shown) {
        let share_metric = |row: &Row| {
            let headline = row.case.headline.filter(|_| row.failure.is_none())?.id;
            METRICS.iter().find(|metric| metric.shown == shown(headline))
        };
        let share = |row: &Row| row.summary(share_metric(row)?.id).map(|it| it.estimate);
        if !self.report.rows.iter().any(|row| share(row).is_some()) {
            return;
        }
        let scale = Scale::of(Unit::Share, []);
        let cell = |row: &Row| match (share_metric(row), share(row)) {
            (_, Some(share)) => scale.write(share),
            (Some(_), None) => Mark::NotAvailable.to_string(),
            (None, None) => String::new(),
        };
        self.add_column(Column { unit: scale.symbol, ..column }, cell);
    }

    fn add_percentile_columns(&mut self, metric: &'static Metric) {
        let scale = metric.scale();
        let column =
            |heading: Heading| Column { group: Some(metric.title), ..Column::value(heading, scale.symbol) };
        self.add_metric_column(metric, column(headings::P50), |it| scale.write(it.p50));
        self.add_metric_column(metric, column(headings::P95), |it| scale.write(it.p95));
        self.add_metric_column(metric, column(headings::P99), |it| {
            let written = scale.write(it.p99);
            match it.n < MIN_VALUES_FOR_P99 {
                true => Cell { text: format!("{}{written}", Mark::FewValues), mark: Some(Mark::FewValues) },
                false => written.into(),
            }
        });
    }

    /// Adds a column for a metric. Cells are empty in failed rows, and where no row of the workload has the metric. Other missing
    /// values are `n/a`.
    fn add_metric_column<C: Into<Cell>>(
        &mut self,
        metric: &Metric,
        column: Column,
        write: impl Fn(&Summary) -> C,
    ) {
        let rows_with_metric = self.report.rows.iter().filter(|row| row.summary(metric.id).is_some());
        let workloads_with_metric: Vec<&String> = rows_with_metric.map(|row| &row.case.label).collect();
        let cell = |row: &Row| match row.summary(metric.id) {
            Some(summary) if row.failure.is_none() => write(summary).into(),
            None if row.failure.is_none() && workloads_with_metric.contains(&&row.case.label) => {
                Mark::NotAvailable.to_string().into()
            }
            _ => Cell::from(String::new()),
        };
        self.add_column(column, cell);
    }

    /// Adds a column. The configurations that failed as a whole have an empty cell.
    fn add_column<C: Into<Cell>>(&mut self, column: Column, of_row: impl Fn(&Row) -> C) {
        self.add_name_column(column, of_row, |_| String::new());
    }

    /// Adds a column that also has a cell for each configuration that failed as a whole.
    fn add_name_column<C: Into<Cell>>(
        &mut self,
        column: Column,
        of_row: impl Fn(&Row) -> C,
        of_failed: impl Fn(&Engine) -> String,
    ) {
        self.table.columns.push(column);
        let rows = self.report.rows.iter().map(|row| of_row(row).into());
        let failed = self.report.failed.iter().map(|failed| of_failed(&failed.engine).into());
        for (line, cell) in self.table.lines.iter_mut().zip(rows.chain(failed)) {
            let Cell { text, mark } = cell;
            line.cells.push(text);
            self.marks.extend(mark);
        }
    }

    /// Explanations of the marks and the columns of the table, one line each.
    pub fn legend(&self, view: &View, labels: &Labels) -> Vec<String> {
        let report = self.report;
        let mut legend: Vec<String> = with_prefix_caches(&report.rows).into_iter().collect();
        if self.marks.contains(&Mark::FewValues) {
            let remedy = rounds_for_p99(report)
                .map_or_else(String::new, |more| format!("; hint: `--iterations {more}`"));
            legend.push(format!("{}{remedy}", Mark::FewValues.legend()));
        }
        if has_ratios(report) {
            let (reference, metrics) = (reference_of_each_row(report), headlines(report));
            let title = headings::VS_REFERENCE.title;
            legend.push(format!("{title}: speed-up over {reference}, by {metrics}; above 1 is better"));
            legend.extend(verdict_lines::legend(report, view.pairs));
            legend.extend(failed_reference(report));
            legend.extend(unusable_reference(report));
        } else if varies(&report.rows, |row| row.engine.label.clone()) {
            legend.push(why_no_ratios(report));
        }
        legend.extend(why_no_values(&report.rows));
        legend.extend(limits::legend(&report.limits, &report.rows));
        let shares = report.rows.iter().filter(|row| row.failure.is_none()).filter_map(|row| {
            let name = format!("`{}` {}", labels.label(&row.engine.label), row.case.label);
            Some((name, row.limit_share()?))
        });
        legend.extend(limits::classes(shares));
        legend.extend(limits::reasons(&report.rows));
        legend.extend(limits::data_sheets(&report.rows));
        legend.extend(outputs::legend(&report.rows, &report.outputs, report.no_checks));
        if self.marks.contains(&Mark::Unreported) {
            legend.push(Mark::Unreported.legend());
        }
        let mut dtypes = report.rows.iter().filter_map(|row| row.engine.dtype.as_ref());
        if dtypes.any(|dtype| dtype.compute.is_some()) {
            legend.push("dtype a/b: weights in a, computed in b".into());
        }
        for (name, short) in &labels.0 {
            legend.push(format!("{short} is {name}"));
        }
        legend.push(EXPLANATIONS.into());
        legend
    }
}

/// Whether a row has a ratio. In a run of only the reference, none has.
fn has_ratios(report: &Report) -> bool {
    let mut pairs = report.rows.iter().filter_map(|row| report.verdicts.headline(row));
    pairs.any(|pair| pair.ratio().is_some())
}

/// The reference in words. Rows on several models, devices, dtypes or threads have several references.
pub fn reference_of_each_row(report: &Report) -> String {
    let references = report.rows.iter().filter(|row| row.is_reference()).map(|row| &row.engine.label);
    match references.collect::<BTreeSet<_>>().len() {
        0 | 1 => format!("`{}`", report.reference),
        _ => format!("`{}` with the most equal settings (model, device, threads, dtype)", report.reference),
    }
}

pub fn why_no_ratios(report: &Report) -> String {
    let reference = &report.reference;
    let is_reference = |engine: &Engine| [&engine.label, &engine.name, &engine.engine].contains(&reference);
    let rows = || report.rows.iter().filter(|row| is_reference(&row.engine));
    let hint = reference_hint(report);
    let has_no_time = |row: &Row| row.failure.as_ref().is_some_and(|it| it.kind == FailureKind::NoTime);
    if report.no_checks.is_some() {
        "no ratios: outputs were not checked".into()
    } else if reference.is_empty() {
        "no ratios: no reference is named (`--reference NAME`)".into()
    } else if rows().any(|row| report.is_wrong(row)) {
        format!("no ratios: the output of the reference `{reference}` is wrong{hint}")
    } else if rows().any(|row| row.failure.is_none() && report.is_unverified(row)) {
        format!("no ratios: the output of the reference `{reference}` is unverified{hint}")
    } else if rows().any(|row| row.failure.is_none()) {
        let others = report.rows.iter().filter(|row| !is_reference(&row.engine));
        let why = match others.map(|row| why_not_compared(report, row)).collect::<BTreeSet<_>>().pop_first() {
            Some(why) => {
                format!("no other engine can be compared with the reference `{reference}`, because {why}")
            }
            None => format!("no other engine was measured beside the reference `{reference}`"),
        };
        format!("no ratios: {why}")
    } else if rows().any(has_no_time) && rows().all(has_no_time) {
        // The case's own failure names a sufficient budget.
        format!("no ratios: {}", report.budget_is_too_short_for(&format!("the reference `{reference}`")))
    } else if rows().count() > 0 || report.failed.iter().any(|failed| is_reference(&failed.engine)) {
        format!("no ratios: the reference `{reference}` failed{hint}")
    } else {
        format!("no ratios: the reference `{reference}` was not measured{hint}")
    }
}

/// The reason why a row has no ratio to a measured reference.
fn why_not_compared(report: &Report, row: &Row) -> String {
    let label = &row.engine.label;
    match &row.failure {
        Some(failure) => format!("`{label}` {}", failure.verb()),
        None if report.is_wrong(row) => format!("the output of `{label}` is wrong"),
        None if report.is_unverified(row) => format!("the output of `{label}` is unverified"),
        None => {
            let pair = row.case.headline.and_then(|metric| report.verdicts.pair(row, metric));
            let refused = pair.and_then(|pair| pair.result.as_ref().err().cloned());
            refused.unwrap_or_else(|| format!("`{label}` and the reference have no common round"))
        }
    }
}

/// The explanation of `n/a` in the cases in which the reference failed.
fn failed_reference(report: &Report) -> Option<String> {
    let row = report.rows.iter().find(|row| row.is_reference() && row.failure.is_some())?;
    let verb = row.failure.as_ref()?.verb();
    let mut others = report.rows.iter().filter(|other| other.case.label == row.case.label);
    others.any(|row| row.failure.is_none()).then_some(())?;
    let (label, hint) = (&row.engine.label, reference_hint(report));
    Some(format!("n/a: the reference `{label}` {verb} in this case{hint}"))
}

/// The explanation of `n/a` in rows whose own reference has wrong or unverified output. Rows on several models, devices, dtypes or
/// threads have several references. If no row has a ratio, `why_no_ratios` explains it.
fn unusable_reference(report: &Report) -> Option<String> {
    let is_unusable = |row: &&Row| row.is_reference() && row.failure.is_none() && !is_verified(report, row);
    let row = report.rows.iter().find(is_unusable)?;
    let (label, hint) = (&row.engine.label, reference_hint(report));
    let status = if report.is_wrong(row) { "wrong" } else { "unverified" };
    Some(format!("n/a: the output of the reference `{label}` is {status}{hint}"))
}

fn is_verified(report: &Report, row: &Row) -> bool {
    !report.is_wrong(row) && !report.is_unverified(row)
}

/// A hint that names a usable reference, or nothing. The named engine never failed, its output is verified, and another
/// row can be compared with it.
fn reference_hint(report: &Report) -> String {
    let is_sound = |row: &Row| row.failure.is_none() && is_verified(report, row);
    let fails = |engine: &str| {
        report.rows.iter().any(|row| row.engine.label == engine && !is_sound(row))
            || report.failed.iter().any(|failed| failed.engine.label == engine)
    };
    let candidate = report.rows.iter().find(|row| !row.is_reference() && !fails(&row.engine.label));
    let label = candidate.map(|row| &row.engine.label);
    let is_compared =
        |label: &&String| report.rows.iter().any(|row| row.engine.label != **label && is_sound(row));
    let argument = label.filter(is_compared).map(|label| pasteable(std::slice::from_ref(label)));
    argument.map_or_else(String::new, |argument| format!("; hint: `--reference {argument}`"))
}

/// The number of rounds in each block that gives every row enough values for a 99th percentile.
pub fn rounds_for_p99(report: &Report) -> Option<usize> {
    let percentiles = METRICS.iter().filter(|metric| metric.shown == Shown::Percentiles);
    let needed = percentiles.flat_map(|metric| {
        report.rows.iter().filter_map(move |row| {
            let n = row.summary(metric.id)?.n;
            let enough = n >= MIN_VALUES_FOR_P99 || row.failure.is_some();
            // The number of values grows with the number of rounds.
            (!enough && n > 0).then(|| (row.case.rounds as usize * MIN_VALUES_FOR_P99).div_ceil(n))
        })
    });
    needed.max()
}

fn blank_lines(report: &Report) -> Vec<Line> {
    let of_row =
        |row: &Row| Line { failure: row.failure.as_ref().map(FailureSummary::line), ..Line::default() };
    let of_failed = |failed: &FailedConfiguration| Line {
        cells: Vec::new(),
        failure: Some(failed.failure.line()),
        is_failed_configuration: true,
    };
    report.rows.iter().map(of_row).chain(report.failed.iter().map(of_failed)).collect()
}

/// The failures below the table. Equal failures are listed once, with the names of all their rows.
pub fn failures(report: &Report, labels: &Labels) -> Vec<ExplainedFailure> {
    let of_rows = report.rows.iter().filter_map(|row| {
        let name = format!("{}, {}", labels.label(&row.engine.label), row.case.label);
        Some((row.failure.as_ref()?, name))
    });
    let of_failed = report.failed.iter().map(|failed| (&failed.failure, labels.label(&failed.engine.label)));
    let groups = group_by_key(of_rows.chain(of_failed)).into_iter();
    groups.map(|(failure, names)| ExplainedFailure { names, failure: failure.clone() }).collect()
}
