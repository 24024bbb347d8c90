//! The table of precisions: for each engine with several precisions, the gain (speed, memory) and the loss (perplexity, drift) of
//! each against the widest.

use std::collections::{BTreeMap, BTreeSet};

use super::document::{Column, Layout, Line, Table};
use super::headings;
use super::labels::Labels;
use super::outputs::without_perplexity;
use super::overview::comparison;
use super::precision::PrecisionImpact;
use super::quality::{percent, without_unavailable, write};
use super::ranking::Compared;
use super::rows::Row;
use super::run_report::Report;
use super::settings_table::untrusted;
use super::verdicts::PairVerdict;
use crate::analysis::agreement::two_digits;
use crate::analysis::metric::{MetricId, by_id};
use crate::text::{five_digits, shorten};

/// The comparisons of a precision with the widest one of its engine. The widest one itself has none.
#[derive(Default)]
pub struct Gain<'a> {
    pub decode_rate: Option<&'a PairVerdict>,
    /// The memory of the GPU, if the engine reports it, because the weights are there; otherwise the peak memory.
    pub memory: Option<&'a PairVerdict>,
}

pub fn gain<'a>(report: &'a Report, impact: &PrecisionImpact) -> Gain<'a> {
    let Some(decode) = row_with(report, &impact.engine, MetricId::DECODE_RATE) else {
        return Gain::default();
    };
    let pair = |metric: MetricId| {
        let mut pairs = report.verdicts.against_widest.iter();
        let pair = pairs.find(|it| {
            (&it.engine, &it.against, it.metric.id) == (&impact.engine, &impact.widest, metric)
                && decode.case.label == it.case
        });
        pair.filter(|pair| !pair.has_failed(&report.rows))
    };
    let of_device = row_with(report, &impact.engine, MetricId::DEVICE_MEMORY);
    let memory = of_device.map_or(MetricId::PEAK_MEMORY, |_| MetricId::DEVICE_MEMORY);
    Gain { decode_rate: pair(MetricId::DECODE_RATE), memory: pair(memory) }
}

/// The first row of an engine that has a value of the metric.
pub fn row_with<'a>(report: &'a Report, engine: &str, metric: MetricId) -> Option<&'a Row> {
    let mut rows = report.rows.iter().filter(|row| row.engine.label == engine && row.failure.is_none());
    rows.find(|row| row.summary(metric).is_some())
}

/// The table; `None` if no engine was measured in several dtypes.
pub fn table(report: &Report, layout: Layout) -> Option<Table> {
    let layout = Layout { columns_of_varying_options: false, ..layout };
    let labels = Labels::of(report, layout);
    let estimate = |row: Option<&Row>, metric| row.and_then(|it| it.summary(metric)).map(|it| it.estimate);
    let impacts = &report.precisions;
    let columns = vec![
        Column::engines(),
        Column::fact(headings::DTYPE),
        Column::fact(headings::OUTPUT),
        Column::value(headings::DECODE_SPEED, ""),
        Column::value(headings::MEMORY_USED, ""),
        Column::value(by_id(MetricId::PERPLEXITY), ""),
        Column::value(headings::CHANGE, "%"),
        Column::value(headings::DRIFT_FROM_WIDEST, "nats"),
    ];
    let ratio = |impact: &PrecisionImpact, pair: Option<&PairVerdict>| {
        if impact.engine == impact.widest {
            return "widest".to_string();
        }
        let pair = pair.filter(|pair| pair.is_verified);
        pair.map_or_else(|| "n/a".into(), |pair| comparison(&Compared::as_stored(pair), None, true))
    };
    let line = |impact: &PrecisionImpact| {
        let decode = row_with(report, &impact.engine, MetricId::DECODE_RATE);
        let scored = row_with(report, &impact.engine, MetricId::PERPLEXITY);
        let gain = gain(report, impact);
        let engine = decode.or(scored).map(|row| &row.engine);
        let dtype =
            engine.and_then(|it| it.dtype.as_ref()).map(|it| shorten(&it.to_string(), layout.max_word));
        let output = report.outputs.iter().find(|it| it.engine == impact.engine);
        Line::of(vec![
            impact.engine.clone(),
            dtype.unwrap_or_default(),
            output.map_or("n/a", |it| it.agreement.status.name()).to_string(),
            ratio(impact, gain.decode_rate),
            ratio(impact, gain.memory),
            write(estimate(scored, MetricId::PERPLEXITY), &five_digits),
            write(impact.perplexity_change.map(|it| 100.0 * it), &percent),
            write(impact.drift_from_widest, &two_digits),
        ])
    };
    let lines: Vec<Line> = impacts.iter().map(line).collect();
    // The meaning of a mark stands only below a table that has it.
    let is_marked = lines.iter().any(|line| line.cells[3..=4].iter().any(|cell| cell.contains('?')));
    let mark = if is_marked { "; `?`: no verdict, because there are fewer than five blocks" } else { "" };
    let mut notes = vec![format!(
        "speed, memory used, change of the perplexity and drift: against the widest precision of the same engine; the brackets are \
         the 95 % interval{mark}"
    )];
    notes.extend(without_perplexity(&report.rows, &report.outputs));
    let left_out =
        left_out(report).into_iter().map(|(engine, why)| format!("{} ({why})", labels.short(engine)));
    let left_out: Vec<String> = left_out.collect();
    notes.extend((!left_out.is_empty()).then(|| format!("not in this table: {}", left_out.join(", "))));
    let mut table = Table { columns, lines, notes, gap: layout.gap, ..Table::default() };
    let unavailable = without_unavailable(report, &mut table, 5..=7);
    table.notes.extend(unavailable);
    (!table.lines.is_empty()).then_some(table)
}

/// The other measured rows of the engines in the table, each with the reason.
fn left_out(report: &Report) -> BTreeMap<&str, &'static str> {
    let is_listed = |row: &Row| report.precisions.iter().any(|it| it.engine == row.engine.label);
    let engines: BTreeSet<&str> =
        report.rows.iter().filter(|row| is_listed(row)).map(|row| row.engine.engine.as_str()).collect();
    let rows = report.rows.iter().filter(|row| row.failure.is_none() && !is_listed(row));
    let of_engines = rows.filter(|row| engines.contains(row.engine.engine.as_str()));
    let why = |row: &Row| untrusted(report, row).unwrap_or("more than the precision differs");
    of_engines.map(|row| (row.engine.label.as_str(), why(row))).collect()
}
