//! The table of overlapping requests: the percentiles of their times, and how many of them wait for their first token over a round.

use super::document::{Column, Keep, Layout, Line, Section, Table};
use super::headings::{self, Heading, P50, P95, P99};
use super::labels::Labels;
use super::marks::{MIN_VALUES_FOR_P95, MIN_VALUES_FOR_P99, Mark};
use super::rows::Row;
use super::run_report::Report;
use crate::analysis::metric::{Metric, MetricId, by_id};
use crate::text::{shorten, significant_digits};
use stats::Summary;

/// A percentile of a metric.
struct Percentile {
    heading: Heading,
    /// With fewer values, it is uncertain.
    min_values: usize,
    of: fn(&Summary) -> f64,
}

const PERCENTILES: [Percentile; 3] = [
    Percentile { heading: P50, min_values: 0, of: |it| it.p50 },
    Percentile { heading: P95, min_values: MIN_VALUES_FOR_P95, of: |it| it.p95 },
    Percentile { heading: P99, min_values: MIN_VALUES_FOR_P99, of: |it| it.p99 },
];

/// The least mean wait that counts. It is longer than the time to write a request.
const MIN_WAIT_NS: f64 = 1e6;

/// The metrics, each with the columns of its percentiles that a narrow terminal leaves out.
const OF_REQUESTS: [(MetricId, [Keep; 3]); 5] = [
    (MetricId::FIRST_TOKEN, [Keep::Always, Keep::Standard(3), Keep::Always]),
    (MetricId::FIRST_TOKEN_SINCE_SENT, [Keep::Standard(3), Keep::Extra(1), Keep::Standard(3)]),
    (MetricId::INTER_TOKEN, [Keep::Always, Keep::Standard(4), Keep::Always]),
    (MetricId::TIME_PER_TOKEN, [Keep::Extra(3), Keep::Extra(2), Keep::Extra(3)]),
    (MetricId::TOTAL, [Keep::Standard(1), Keep::Standard(5), Keep::Standard(1)]),
];

pub struct ServingTable<'a> {
    report: &'a Report,
    rows: Vec<&'a Row>,
}

impl<'a> ServingTable<'a> {
    /// `None` if no requests overlap.
    pub fn of(report: &'a Report) -> Option<Self> {
        let serves = |row: &&Row| row.failure.is_none() && row.queue_over_time.is_some();
        let rows: Vec<&Row> = report.rows.iter().filter(serves).collect();
        (!rows.is_empty()).then_some(Self { report, rows })
    }

    pub fn sections(&self, layout: Layout) -> Vec<Section> {
        let heading = "latency of overlapping requests, since their arrival:";
        vec![Section::Heading(heading.into()), Section::Table(self.table(layout))]
    }

    /// The percentiles of each metric that has values.
    pub fn table(&self, layout: Layout) -> Table {
        let mut table = self.names(layout);
        for (id, keeps) in OF_REQUESTS {
            let metric = by_id(id);
            let has_values = self.rows.iter().any(|row| row.summary(id).is_some());
            let repeats_others = id == MetricId::FIRST_TOKEN_SINCE_SENT && !self.has_waits();
            if !has_values || repeats_others {
                continue;
            }
            for (percentile, keep) in PERCENTILES.iter().zip(keeps) {
                let column = Column::value(percentile.heading, metric.scale().symbol);
                table.columns.push(Column { group: Some(metric.title), keep, ..column });
                for (row, line) in self.rows.iter().zip(&mut table.lines) {
                    line.cells.push(percentile.cell(metric, row.summary(id)));
                }
            }
        }
        let column = Column { is_text: true, ..Column::value(headings::QUEUE_OVER_TIME, "requests") };
        table.columns.push(Column { keep: Keep::Standard(2), ..column });
        for (row, line) in self.rows.iter().zip(&mut table.lines) {
            let parts = row.queue_over_time.iter().flatten().map(|mean| significant_digits(*mean, 2));
            line.cells.push(parts.collect::<Vec<_>>().join(", "));
        }
        let mut cells = table.lines.iter().flat_map(|line| &line.cells);
        if cells.any(|cell| cell.starts_with(Mark::FewValues.sign())) {
            table.notes.push(format!("{}; hint: more `--requests` or `--blocks`", Mark::FewValues.legend()));
        }
        table
    }

    /// Whether requests of a row waited before they were sent, so that its TTFT since then is another one.
    fn has_waits(&self) -> bool {
        let mean = |row: &Row, id| row.summary(id).map(|it| it.mean);
        let waits = |row: &&Row| {
            let (all, since_sent) =
                (mean(row, MetricId::FIRST_TOKEN), mean(row, MetricId::FIRST_TOKEN_SINCE_SENT));
            all.zip(since_sent).is_some_and(|(all, since_sent)| all - since_sent > MIN_WAIT_NS)
        };
        self.rows.iter().any(waits)
    }

    /// A table with the case and the engine of each row.
    fn names(&self, layout: Layout) -> Table {
        let layout = Layout { columns_of_varying_options: false, ..layout };
        let labels = Labels::of(self.report, layout);
        let columns = vec![Column::named(headings::CASE), Column::named(headings::ENGINE)];
        let line = |row: &&Row| {
            Line::of(vec![shorten(&row.case.label, layout.max_word), labels.short(&row.engine.label)])
        };
        Table { columns, lines: self.rows.iter().map(line).collect(), gap: layout.gap, ..Table::default() }
    }
}

impl Percentile {
    fn cell(&self, metric: &Metric, summary: Option<&Summary>) -> String {
        let Some(summary) = summary else { return Mark::NotAvailable.to_string() };
        let mark = if summary.n < self.min_values { Mark::FewValues.sign() } else { "" };
        format!("{mark}{}", metric.scale().write((self.of)(summary)))
    }
}
