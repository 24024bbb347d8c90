//! The table of quality: for each configuration, the cost of its precision (perplexity, difference from the verifier) beside the
//! gain (memory, speed).

use std::ops::RangeInclusive;

use super::document::{Column, Layout, Line, Table};
use super::headings;
use super::labels::Labels;
use super::marks::Mark;
use super::outputs::{Output, without_perplexity};
use super::rows::Row;
use super::run_report::Report;
use crate::analysis::agreement::two_digits;
use crate::analysis::metric::{MetricId, Scale, Unit, by_id};
use crate::text::{five_digits, plural, shorten, three_digits, with_commas};

/// A change in per cent with its sign; a change that rounds to zero has none.
pub fn percent(change: f64) -> String {
    if change.abs() < 0.005 { "0.00".into() } else { format!("{change:+.2}") }
}

pub fn write(value: Option<f64>, text: &dyn Fn(f64) -> String) -> String {
    value.map_or_else(|| "n/a".into(), text)
}

/// Removes those of the columns about scored text that are `n/a` in every row. Returns a note with their titles and the reason.
pub fn without_unavailable(
    report: &Report,
    table: &mut Table,
    of_text: RangeInclusive<usize>,
) -> Option<String> {
    let is_unavailable =
        |at: usize| table.lines.iter().all(|line| line.cells[at] == Mark::NotAvailable.sign());
    let unavailable: Vec<usize> = of_text.filter(|at| is_unavailable(*at)).collect();
    let titles: Vec<String> =
        unavailable.iter().map(|at| table.columns[*at].title.replace('\n', " ")).collect();
    for at in unavailable.into_iter().rev() {
        table.columns.remove(at);
        table.lines.iter_mut().for_each(|line| drop(line.cells.remove(at)));
    }
    let is_scored = report.rows.iter().any(|row| row.scored_text.is_some());
    let why = if is_scored { "" } else { "; the scenario `perplexity` has them, and was not measured" };
    (!titles.is_empty()).then(|| format!("n/a in every row: {}{why}", titles.join(", ")))
}

/// The values of one configuration: those of the scored text if the run has one, or else those of the output check.
#[derive(Default)]
struct Values {
    loss: Option<f64>,
    perplexity: Option<f64>,
    /// In per cent.
    change: Option<f64>,
    bits_per_byte: Option<f64>,
    drift: Option<f64>,
}

impl Values {
    fn of_scored_text(row: &Row) -> Self {
        let value = |metric: MetricId| row.summary(metric).map(|it| it.estimate);
        Self {
            loss: value(MetricId::LOSS),
            perplexity: value(MetricId::PERPLEXITY),
            change: value(MetricId::PERPLEXITY_CHANGE).map(|it| 100.0 * it),
            bits_per_byte: value(MetricId::BITS_PER_BYTE),
            drift: value(MetricId::DRIFT),
        }
    }

    fn of_output_check(output: &Output) -> Self {
        let drift = output.agreement.scores.as_ref().map(|it| it.rms);
        let Some(prediction) = output.prediction else { return Self { drift, ..Self::default() } };
        let change =
            prediction.perplexity.zip(prediction.verifier_perplexity).map(|(own, other)| own / other - 1.0);
        Self {
            loss: Some(prediction.loss),
            perplexity: prediction.perplexity,
            change: change.filter(|it| it.is_finite()).map(|it| 100.0 * it),
            bits_per_byte: prediction.bits_per_byte,
            drift,
        }
    }
}

pub struct QualityTable<'a> {
    report: &'a Report,
    /// One row for each configuration: the first one that decodes, if it has any.
    rows: Vec<&'a Row>,
}

impl<'a> QualityTable<'a> {
    /// `None` if no output was checked and no text was scored.
    pub fn of(report: &'a Report) -> Option<Self> {
        if report.outputs.is_empty() && report.rows.iter().all(|row| row.scored_text.is_none()) {
            return None;
        }
        let mut rows: Vec<&Row> = Vec::new();
        for row in report.rows.iter().filter(|row| row.failure.is_none()) {
            let decodes = |row: &Row| row.summary(MetricId::DECODE_RATE).is_some();
            match rows.iter_mut().find(|it| it.engine.label == row.engine.label) {
                Some(known) if decodes(row) && !decodes(known) => *known = row,
                Some(_) => {}
                None => rows.push(row),
            }
        }
        (!rows.is_empty()).then_some(Self { report, rows })
    }

    pub fn table(&self, layout: Layout) -> Table {
        let layout = Layout { columns_of_varying_options: false, ..layout };
        let labels = Labels::of(self.report, layout);
        let memory = |row: &Row| row.summary(MetricId::PEAK_MEMORY).map(|it| it.estimate);
        let bytes = Scale::of(Unit::Bytes, self.rows.iter().filter_map(|row| memory(row)));
        let columns = vec![
            Column::named(headings::ENGINE),
            Column::fact(headings::DTYPE),
            Column::fact(headings::OUTPUT),
            Column::value(by_id(MetricId::LOSS), "nats"),
            Column::value(by_id(MetricId::PERPLEXITY), ""),
            Column::value(by_id(MetricId::PERPLEXITY_CHANGE), "%"),
            Column::value(by_id(MetricId::BITS_PER_BYTE), ""),
            Column::value(by_id(MetricId::DRIFT), "nats"),
            Column::value(by_id(MetricId::PEAK_MEMORY), bytes.symbol),
            Column::value(by_id(MetricId::DECODE_RATE), "tok/s"),
        ];
        let scored_rows = || self.report.rows.iter().filter(|row| row.scored_text.is_some());
        let line = |row: &&Row| {
            let output = self.report.outputs.iter().find(|it| it.engine == row.engine.label);
            let values = match scored_rows().next() {
                // The values of two texts are not comparable, so a table has only those of one.
                Some(first) => {
                    let is_of_row =
                        |it: &&Row| it.engine.label == row.engine.label && it.case.label == first.case.label;
                    scored_rows().find(is_of_row).map(Values::of_scored_text)
                }
                None => output.map(Values::of_output_check),
            };
            let values = values.unwrap_or_default();
            let dtype = row.engine.dtype.as_ref().map(|it| shorten(&it.to_string(), layout.max_word));
            let status = output.map_or("n/a", |it| it.agreement.status.name());
            let decode = row.summary(MetricId::DECODE_RATE).map(|it| it.estimate);
            Line::of(vec![
                labels.short(&row.engine.label),
                dtype.unwrap_or_default(),
                status.to_string(),
                write(values.loss, &five_digits),
                write(values.perplexity, &five_digits),
                write(values.change, &percent),
                write(values.bits_per_byte, &three_digits),
                write(values.drift, &two_digits),
                write(memory(row), &|it| bytes.write(it)),
                write(decode, &three_digits),
            ])
        };
        let of_check = || "of held-out text, in windows that do not overlap".to_string();
        let text = scored_rows().next().map_or_else(of_check, describe_text);
        let mut notes = vec![format!(
            "perplexity: {text}; vs f32: its change against the verifier; drift: the difference of log-probabilities from the \
             verifier's (root mean square)"
        )];
        notes.extend(without_perplexity(&self.report.rows, &self.report.outputs));
        let lines = self.rows.iter().map(line).collect();
        let mut table = Table { columns, lines, notes, gap: layout.gap, ..Table::default() };
        let unavailable = without_unavailable(self.report, &mut table, 3..=7);
        table.notes.extend(unavailable);
        table
    }
}

/// `of the text of `perplexity`: 16 windows of at most 512 tokens, 8,176 tokens scored; the last 40,212 bytes are left out`.
fn describe_text(row: &Row) -> String {
    let Some(text) = row.scored_text else { return String::new() };
    let left_out = match text.left_out_bytes {
        0 => String::new(),
        bytes => format!("; the text is longer: its last {} bytes are left out", with_commas(bytes as usize)),
    };
    format!(
        "of the text of `{}` in {} that do not overlap, each after BOS if the tokenizer has one; {} scored{left_out}",
        row.case.label,
        plural(text.windows, "window"),
        plural(with_commas(text.tokens), "token")
    )
}
