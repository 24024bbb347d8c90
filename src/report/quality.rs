//! The table of quality: for each configuration, what its precision costs (perplexity, difference from the verifier) beside what
//! it gains (memory, speed).

use super::document::{Column, Layout, Line, Table};
use super::labels::Labels;
use super::rows::Row;
use super::run_report::Report;
use crate::analysis::agreement::two_digits;
use crate::analysis::metric::{MetricId, Scale, Unit};
use crate::text::{shorten, significant_digits, three_digits};

/// The digits of a perplexity, so that a difference of 0.1 % shows.
const PERPLEXITY_DIGITS: i32 = 5;

/// A change in per cent with its sign; a change that rounds to zero has none.
fn percent(change: f64) -> String {
    if change.abs() < 0.005 { "0.00".into() } else { format!("{change:+.2}") }
}

pub struct QualityTable<'a> {
    report: &'a Report,
    /// One row for each configuration: the first one that decodes, if it has any.
    rows: Vec<&'a Row>,
}

impl<'a> QualityTable<'a> {
    /// `None` if no output was checked.
    pub fn of(report: &'a Report) -> Option<Self> {
        if report.outputs.is_empty() {
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
            Column::named("engine"),
            Column::fact("dtype"),
            Column::fact("output"),
            Column::value("loss", "nats"),
            Column::value("perplexity", ""),
            Column::value("vs f32", "%"),
            Column::value("bits/byte", ""),
            Column::value("drift", "nats"),
            Column::value("peak mem", bytes.symbol),
            Column::value("decode", "tok/s"),
        ];
        let write =
            |value: Option<f64>, text: &dyn Fn(f64) -> String| value.map_or_else(|| "n/a".into(), text);
        let line = |row: &&Row| {
            let output = self.report.outputs.iter().find(|it| it.engine == row.engine.label);
            let prediction = output.and_then(|it| it.prediction);
            let relative =
                prediction.and_then(|it| Some(100.0 * (it.perplexity / it.verifier_perplexity? - 1.0)));
            let dtype = row.engine.dtype.as_ref().map(|it| shorten(&it.to_string(), layout.max_word));
            let status = output.map_or("n/a", |it| it.agreement.status.name());
            let drift = output.and_then(|it| it.agreement.scores.as_ref()).map(|it| it.rms);
            let decode = row.summary(MetricId::DECODE_RATE).map(|it| it.estimate);
            Line::of(vec![
                labels.short(&row.engine.label),
                dtype.unwrap_or_default(),
                status.to_string(),
                write(prediction.map(|it| it.loss), &|it| significant_digits(it, PERPLEXITY_DIGITS)),
                write(prediction.map(|it| it.perplexity), &|it| significant_digits(it, PERPLEXITY_DIGITS)),
                write(relative, &percent),
                write(prediction.and_then(|it| it.bits_per_byte), &three_digits),
                write(drift, &two_digits),
                write(memory(row), &|it| bytes.write(it)),
                write(decode, &three_digits),
            ])
        };
        let notes = vec![
            "perplexity: of held-out text, in windows that do not overlap; vs f32: its change against the verifier; drift: the \
             difference of log-probabilities from the verifier's (root mean square)"
                .into(),
        ];
        let lines = self.rows.iter().map(line).collect();
        Table { columns, lines, notes, gap: layout.gap, ..Table::default() }
    }
}
