//! The table of the default report: one row for each configuration, with the columns always in the same order. A workload that
//! was not measured has no column. A narrow terminal leaves columns out, a wide one has more of them.

use super::cells::{speed_up, toned};
use super::configurations::{Configuration, Overview};
use crate::analysis::metric::{Better, METRICS, Metric, MetricId, Shown, by_id, share};
use crate::plan::scenario::{Kind, SCENARIOS};
use crate::report::document::{Column, ColumnKind, Keep, Line, Table};
use crate::report::headings;
use crate::report::marks::{MIN_VALUES_FOR_P99, Mark};
use crate::report::ranking::{Compared, Unranked};
use crate::report::rows::Row;
use crate::report::tone::{self, Tone};
use crate::text::shorten;
use stats::Summary;

const MAX_WORD_WIDTH: usize = 14;
/// The largest width of the word for the failure of a case.
const MAX_FAILURE_WIDTH: usize = 12;

type Statistic = fn(&Summary) -> f64;

/// A column of values. `value` gives the number of a configuration. `cell` writes it, and marks a 99th percentile of too few
/// values with its mark.
struct ValueColumn<'a> {
    title: String,
    metric: &'static Metric,
    keep: Keep,
    /// The workload whose row has the value; `None` for the largest value over all rows.
    workload: Option<&'a str>,
    statistic: Statistic,
    is_p99: bool,
}

impl ValueColumn<'_> {
    fn row<'r>(&self, configuration: &Configuration<'r>) -> Option<&'r Row> {
        let value = |row: &&&Row| row.summary(self.metric.id).map(|it| (self.statistic)(it));
        match self.workload {
            Some(workload) => configuration.row(workload),
            // Scoring a text takes other memory than generating, so its rows count only if there are no others.
            None => configuration
                .rows
                .iter()
                .filter(|row| row.failure.is_none())
                .filter(|row| {
                    !row.case.scores_text || configuration.rows.iter().all(|it| it.case.scores_text)
                })
                .max_by(|a, b| value(a).unwrap_or(0.0).total_cmp(&value(b).unwrap_or(0.0)))
                .copied(),
        }
    }

    fn value(&self, configuration: &Configuration) -> Option<f64> {
        let row = self.row(configuration).filter(|row| row.failure.is_none())?;
        row.summary(self.metric.id).map(|it| (self.statistic)(it)).filter(|it| it.is_finite())
    }

    /// The best value among the configurations with a rank, if there are several.
    fn best(&self, overview: &Overview) -> Option<f64> {
        let ranked = overview.configurations.iter().filter(|it| it.unranked.is_none());
        let values: Vec<f64> = ranked.filter_map(|it| self.value(it)).collect();
        let better = |a: f64, b: f64| match self.metric.better {
            Better::Higher => a.max(b),
            Better::Lower => a.min(b),
        };
        values.iter().copied().reduce(better).filter(|_| values.len() > 1)
    }

    fn cell(&self, configuration: &Configuration, best: Option<f64>) -> String {
        let row = self.row(configuration);
        if let Some(failure) = row.and_then(|row| row.failure.as_ref()) {
            // The reason stands once, in the column of the workload's headline.
            if row.and_then(|row| row.case.headline).is_none_or(|it| it.id != self.metric.id) {
                return String::new();
            }
            let word = failure.kind.words();
            let tone = if failure.is_expected() { Tone::Dim } else { Tone::Bad };
            return tone.of(&shorten(&word, MAX_FAILURE_WIDTH));
        }
        let Some(value) = self.value(configuration) else {
            return if row.is_some() { Tone::Dim.of(Mark::NotAvailable.sign()) } else { String::new() };
        };
        let summary = row.and_then(|row| row.summary(self.metric.id));
        let is_uncertain = self.is_p99 && summary.is_some_and(|it| it.n < MIN_VALUES_FOR_P99);
        let text = self.metric.scale().write(value);
        let text = if is_uncertain { format!("{}{text}", Mark::FewValues) } else { text };
        if best == Some(value) { Tone::Good.of(&text) } else { text }
    }
}

pub fn table(overview: &Overview) -> Table {
    let configurations = &overview.configurations;
    let mut table = Table { gap: 2, ..Table::default() };
    table.lines = configurations.iter().map(|_| Line::default()).collect();
    let mut add = |column: Column, cell: &dyn Fn(&Configuration) -> String| {
        table.columns.push(column);
        for (line, configuration) in table.lines.iter_mut().zip(configurations) {
            line.cells.push(cell(configuration));
        }
    };
    add(Column::named(headings::ENGINE), &|it| it.label());
    let version = Column { keep: Keep::Extra(5), ..Column::fact(headings::VERSION) };
    add(version, &|it| it.engine.version.as_ref().map_or_else(String::new, |it| shorten(it, MAX_WORD_WIDTH)));
    let dtype = Column { keep: Keep::Standard(5), ..Column::fact(headings::DTYPE) };
    add(dtype, &|it| {
        it.engine.dtype.as_ref().map_or_else(String::new, |it| shorten(&it.to_string(), MAX_WORD_WIDTH))
    });
    if !overview.report.outputs.is_empty() {
        add(Column { keep: Keep::Standard(1), ..Column::fact(headings::OUTPUT) }, &|it| output(overview, it));
    }
    for column in value_columns(overview) {
        let best = column.best(overview);
        let titled = Column::value(column.metric, column.metric.scale().symbol).titled(column.title.clone());
        add(Column { keep: column.keep, ..titled }, &|it| column.cell(it, best));
    }
    if configurations.iter().any(|it| limit_share(overview, it).is_some()) {
        let share = |it: &Configuration| limit_share(overview, it);
        let column = Column { keep: Keep::Extra(4), ..Column::value(by_id(MetricId::BANDWIDTH_SHARE), "%") };
        add(column, &|it| {
            share(it).map_or_else(String::new, |share| share_cell(share, it.unranked.is_none()))
        });
    }
    if let Some(primary) = overview.primary.filter(|_| has_ratios(overview)) {
        let title =
            format!("{}\n{}", overview.title(primary).replace('\n', " "), headings::VS_REFERENCE.title);
        add(Column::value(headings::VS_REFERENCE, "").titled(title), &|it| ratio_cell(overview, it, primary));
    }
    let has_no_values = table.columns.iter().all(|column| column.kind != ColumnKind::Value);
    if has_no_values {
        table.columns.push(Column { kind: ColumnKind::Value, ..Column::named(headings::OUTCOME) });
        table.lines.iter_mut().for_each(|line| line.cells.push(String::new()));
    }
    for (line, configuration) in table.lines.iter_mut().zip(configurations) {
        let of_case = || configuration.rows.iter().find_map(|row| row.failure.as_ref());
        let of_all = configuration.failure.filter(|_| configuration.rows.is_empty());
        if let Some(failure) = of_all.or_else(|| of_case().filter(|_| has_no_values)) {
            line.failure = Some(Tone::Dim.of(&failure.line()));
            line.is_failed_configuration = true;
            line.cells[1..].iter_mut().for_each(String::clear);
        }
        // Results that are not to be relied on are less prominent.
        let dimmed: Option<fn(&str) -> String> = match configuration.unranked {
            Some(Unranked::Unverified | Unranked::Contradicted) => Some(tone::plain),
            // The word `WRONG` keeps its tone.
            Some(Unranked::Wrong) => Some(|text| text.to_string()),
            _ => None,
        };
        if let Some(text_of) = dimmed {
            line.cells.iter_mut().for_each(|cell| *cell = Tone::Dim.of(&text_of(cell)));
        }
    }
    table
}

/// The columns of values, without ratios.
fn value_columns<'a>(overview: &Overview<'a>) -> Vec<ValueColumn<'a>> {
    let mut columns: Vec<ValueColumn> = Vec::new();
    let estimate: Statistic = |it| it.estimate;
    let (warm, launch): (Vec<&str>, Vec<&str>) =
        overview.workloads.iter().partition(|label| !is_launch(overview, label));
    for (at, workload) in warm.iter().enumerate() {
        let is_primary = Some(*workload) == overview.primary;
        let is_longest =
            warm[at + 1..].iter().all(|it| scenario_of(overview, it) != scenario_of(overview, workload));
        let keep = match (is_primary, is_longest) {
            (true, _) => Keep::Always,
            (false, true) => Keep::Standard(2),
            (false, false) => Keep::Standard(8),
        };
        columns.extend(headline(overview, workload, keep));
        columns.extend(beside_headline(overview, workload, keep));
        if is_primary {
            let metric = by_id(MetricId::INTER_TOKEN);
            let percentiles: [(&str, Statistic, Keep); 3] = [
                ("p50", |it| it.p50, Keep::Extra(3)),
                ("p95", |it| it.p95, Keep::Extra(2)),
                ("p99", |it| it.p99, Keep::Standard(7)),
            ];
            columns.extend(percentiles.map(|(name, statistic, keep)| ValueColumn {
                title: format!("{}\n{name}", metric.title),
                metric,
                keep,
                workload: Some(workload),
                statistic,
                is_p99: name == "p99",
            }));
            columns.push(extra(MetricId::TOTAL, Some(workload), Keep::Extra(1), estimate));
        }
    }
    for workload in launch {
        columns.extend(headline(overview, workload, Keep::Standard(6)));
        // Beside other workloads, the screen has no room for details of the launch.
        columns.extend(
            beside_headline(overview, workload, Keep::Standard(9)).into_iter().filter(|_| warm.is_empty()),
        );
        columns.push(of_workload(overview, workload, by_id(MetricId::LOAD), Keep::Standard(9)));
    }
    columns.push(extra(MetricId::PEAK_MEMORY, None, Keep::Standard(4), estimate));
    columns.push(extra(MetricId::DEVICE_MEMORY, None, Keep::Standard(4), estimate));
    // A metric that is a headline already has a column.
    let mut shown: Vec<(MetricId, Option<&str>, String)> = Vec::new();
    columns.retain(|column| {
        let id = (column.metric.id, column.workload, column.title.clone());
        let has_value = overview.configurations.iter().any(|it| column.value(it).is_some());
        let is_new = shown.iter().all(|other| *other != id);
        shown.push(id);
        has_value && is_new || column.keep == Keep::Always
    });
    columns
}

fn headline<'a>(overview: &Overview, workload: &'a str, keep: Keep) -> Option<ValueColumn<'a>> {
    let row = overview.report.rows.iter().find(|row| row.case.label == workload)?;
    let (title, metric) = (two_lines(&overview.title(workload)), row.case.headline?);
    Some(ValueColumn {
        title,
        metric,
        keep,
        workload: Some(workload),
        statistic: |it| it.estimate,
        is_p99: false,
    })
}

/// The columns of the metrics that are shown only beside the headline of the workload.
fn beside_headline<'a>(overview: &Overview, workload: &'a str, keep: Keep) -> Vec<ValueColumn<'a>> {
    let row = overview.report.rows.iter().find(|row| row.case.label == workload);
    let Some(headline) = row.and_then(|row| row.case.headline) else { return Vec::new() };
    let metrics = METRICS.iter().filter(|metric| metric.shown == Shown::Beside(headline.id));
    // Engines are not ranked by this value, so it may be left out even beside the primary headline.
    let keep = if keep == Keep::Always { Keep::Standard(2) } else { keep };
    metrics.map(|metric| of_workload(overview, workload, metric, keep)).collect()
}

/// The column of a metric of a workload. Of several workloads, the second line of the title names this one, as it does for the
/// headline.
fn of_workload<'a>(
    overview: &Overview,
    workload: &'a str,
    metric: &'static Metric,
    keep: Keep,
) -> ValueColumn<'a> {
    let of_headline = overview.title(workload);
    let column = extra(metric.id, Some(workload), keep, |it| it.estimate);
    let named = match of_headline.split_once('\n') {
        Some((_, named)) => Some(named),
        None => (of_headline == workload).then_some(workload),
    };
    match named {
        Some(named) => ValueColumn { title: format!("{}\n{named}", metric.title), ..column },
        None => column,
    }
}

fn extra(id: MetricId, workload: Option<&str>, keep: Keep, statistic: Statistic) -> ValueColumn<'_> {
    let metric = by_id(id);
    ValueColumn { title: two_lines(metric.title), metric, keep, workload, statistic, is_p99: false }
}

/// The title with a line break in place of its first space.
fn two_lines(title: &str) -> String {
    if title.contains('\n') { title.into() } else { title.replacen(' ', "\n", 1) }
}

fn scenario_of<'a>(overview: &Overview<'a>, workload: &str) -> Option<&'a str> {
    let mut workloads = overview.report.workloads.iter();
    workloads.find(|it| it.workload == workload).map(|it| it.scenario.as_str())
}

fn is_launch(overview: &Overview, workload: &str) -> bool {
    let scenario = scenario_of(overview, workload);
    SCENARIOS.iter().any(|it| Some(it.name) == scenario && it.kind == Kind::Launch)
}

/// The share of the machine's limit in the primary workload.
pub fn limit_share(overview: &Overview, configuration: &Configuration) -> Option<f64> {
    configuration.row(overview.primary?).filter(|row| row.failure.is_none())?.limit_share()
}

fn share_cell(share: f64, has_rank: bool) -> String {
    let text = format!("{:.0}", 100.0 * share);
    match share::Class::of(share).filter(|_| has_rank) {
        Some(share::Class::Below50) => Tone::Dim.of(&text),
        Some(share::Class::From90) => Tone::Good.of(&text),
        Some(share::Class::From50 | share::Class::From80) | None => text,
    }
}

fn output(overview: &Overview, configuration: &Configuration) -> String {
    let found = overview.report.outputs.iter().find(|it| it.engine == configuration.engine.label);
    let Some(output) = found else { return String::new() };
    let word = output.agreement.status.name();
    match () {
        () if output.agreement.is_wrong() => Tone::Bad.of(&word.to_uppercase()),
        () if output.is_unverified() && overview.report.is_running => {
            Tone::Dim.of(Mark::NotYetChecked.sign())
        }
        () if output.is_unverified() => Tone::Dim.of(&word.to_uppercase()),
        () => word.into(),
    }
}

fn has_ratios(overview: &Overview) -> bool {
    let mut pairs = overview.report.rows.iter().filter_map(|row| overview.report.verdicts.headline(row));
    pairs.any(|pair| pair.ratio().is_some())
}

/// The speed-up over the reference in the primary workload.
fn ratio_cell(overview: &Overview, configuration: &Configuration, primary: &str) -> String {
    let report = overview.report;
    let Some(row) = configuration.row(primary).filter(|row| row.failure.is_none()) else {
        return String::new();
    };
    if report.is_wrong(row) {
        return String::new();
    }
    if row.is_reference() {
        return format!("{}{}", Mark::Reference, contradicted_mark(row));
    }
    // The column `output` says why.
    if report.is_unverified(row) {
        return String::new();
    }
    let pair = report.verdicts.headline(row).filter(|pair| !pair.has_failed(&report.rows));
    let Some(pair) = pair.filter(|pair| pair.ratio().is_some()) else {
        return Tone::Dim.of(Mark::NotAvailable.sign());
    };
    let compared = Compared::as_stored(pair);
    let is_quotient = compared.is_quotient_of_reference(&report.rows, row);
    toned(&compared, &speed_up(&compared, is_quotient, contradicted_mark(row)))
}

fn contradicted_mark(row: &Row) -> &'static str {
    if row.contradicted { Mark::Contradicted.sign() } else { "" }
}

/// The only argument of `--sort` that names no column of values.
pub const BY_ENGINE: &str = "engine";

/// Sorts the configurations by their label if `name` is `engine`. Otherwise sorts them by the column of values with this
/// workload, scenario, metric or title: the best first, and those without a rank last. Returns whether the table has such a
/// column.
pub fn sort(overview: &mut Overview, name: &str) -> bool {
    if name == BY_ENGINE {
        overview.configurations.sort_by(|a, b| a.engine.label.cmp(&b.engine.label));
        return true;
    }
    let columns = value_columns(overview);
    // The column `decode vs ref` is sorted by the values of `decode`.
    let name = name.strip_suffix(headings::VS_REFERENCE.title).map_or(name, str::trim_end);
    let is_workload = |column: &ValueColumn| {
        let is_named = |label: &str| label == name || scenario_of(overview, label) == Some(name);
        column.workload.is_some_and(is_named) && is_headline(overview, column)
    };
    // Of several prompt lengths of a scenario, the last one counts.
    let by_workload = columns.iter().rev().find(|column| is_workload(column));
    // A title as in the head of the table, `TTFT @512` or `TTFT@512`, or as in a scenario's name, `cold-start`; or its first word, `TTFT`, for the last such column.
    let separates = |it: char| it.is_whitespace() || it == '-';
    let without_spaces = |text: &str| text.to_lowercase().split(separates).collect::<String>();
    let wanted = without_spaces(name);
    let has_title = |column: &&ValueColumn| {
        let first_word = column.title.split_whitespace().next().unwrap_or_default();
        without_spaces(&column.title) == wanted || without_spaces(first_word) == wanted
    };
    let by_title = || columns.iter().rev().find(has_title);
    let by_metric = || columns.iter().find(|column| column.metric.name() == name);
    let column = by_workload.or_else(by_metric).or_else(by_title);
    let Some(column) = column else { return false };
    let key = |configuration: &Configuration| {
        let value = column.value(configuration);
        let value = value.map(|value| if column.metric.better == Better::Higher { -value } else { value });
        (configuration.unranked.is_some(), value.unwrap_or(f64::INFINITY))
    };
    let mut configurations = std::mem::take(&mut overview.configurations);
    configurations.sort_by(|a, b| {
        let (a, b) = (key(a), key(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    overview.configurations = configurations;
    true
}

fn is_headline(overview: &Overview, column: &ValueColumn) -> bool {
    let mut rows = overview.report.rows.iter().filter(|row| Some(row.case.label.as_str()) == column.workload);
    rows.any(|row| row.case.headline.is_some_and(|it| it.id == column.metric.id))
}
