//! The table of distributions: the headline metric of each case by mean, deviation, range and percentiles, with the latency of
//! whole requests and the peak memory. If an engine has several workloads of a scenario, a last line has their means.

use super::document::{Column, Layout, Line, Section, Table};
use super::grid::MIN_VALUES_FOR_P99;
use super::labels::{Labels, name_of};
use super::rows::{Row, group_by_key};
use super::run_report::Report;
use crate::analysis::metric::{self, Metric, MetricId, Scale, Unit};
use crate::text::shorten;
use stats::Summary;

pub struct DistributionTable<'a> {
    report: &'a Report,
    /// Each headline metric, with the rows that have it.
    parts: Vec<(&'static Metric, Vec<&'a Row>)>,
    bytes: Scale,
}

/// The numbers of a line. A line of averages has the means of the lines above it.
struct Numbers {
    values: Vec<f64>,
    requests: Option<f64>,
    memory: Option<f64>,
    /// The number of values. A line of averages has none.
    count: Option<usize>,
}

impl<'a> DistributionTable<'a> {
    /// `None` without a measured case.
    pub fn of(report: &'a Report) -> Option<Self> {
        let measured = report.rows.iter().filter(|row| headline(row).is_some());
        let by_metric = group_by_key(measured.filter_map(|row| Some((headline(row)?.0.id, row))));
        let parts: Vec<_> = by_metric
            .into_iter()
            .map(|(id, rows)| (metric::by_id(id), rows))
            .filter(|it| !it.1.is_empty())
            .collect();
        let memory = report.rows.iter().filter_map(|row| Some(row.summary(MetricId::PEAK_MEMORY)?.estimate));
        (!parts.is_empty()).then(|| Self { report, parts, bytes: Scale::of(Unit::Bytes, memory) })
    }

    /// A table for each headline metric, because a column has one unit.
    pub fn sections(&self, layout: Layout) -> Vec<Section> {
        let table = |(metric, rows): &(&'static Metric, Vec<&Row>)| {
            let heading = format!("distribution of {} over all requests:", metric.title);
            [Section::Heading(heading), Section::Table(self.table_of(metric, rows, layout))]
        };
        self.parts.iter().flat_map(table).collect()
    }

    /// The widest of the tables, by which a layout is chosen.
    pub fn widest(&self, layout: Layout) -> Table {
        let tables = self.parts.iter().map(|(metric, rows)| self.table_of(metric, rows, layout));
        tables.max_by_key(|table| table.columns.len()).unwrap_or_default()
    }

    fn table_of(&self, metric: &Metric, rows: &[&Row], layout: Layout) -> Table {
        let layout = Layout { columns_of_varying_options: false, ..layout };
        let labels = Labels::of(self.report, layout);
        let numbers: Vec<Numbers> = rows.iter().filter_map(|row| Numbers::of(row)).collect();
        let values = numbers.iter().flat_map(|it| it.values.iter().copied());
        let scale = metric.fixed_scale().unwrap_or_else(|| Scale::of(metric.unit, values));
        let requests_scale = Scale::of(Unit::Nanoseconds, numbers.iter().filter_map(|it| it.requests));
        let mut columns = vec![Column::named("case"), Column::named("engine"), Column::value("n", "")];
        let value = |title: &str| Column { group: Some(metric.title), ..Column::value(title, scale.symbol) };
        columns.extend(["mean", "std", "min", "max", "p50", "p95", "p99"].map(value));
        columns.push(Column::value("request", requests_scale.symbol));
        columns.push(Column::value("peak mem", self.bytes.symbol));
        let line = |case: String, engine: &str, it: &Numbers| {
            let count = it.count.map_or_else(String::new, |count| count.to_string());
            let mut cells = vec![shorten(&case, layout.max_word), labels.short(engine), count];
            cells.extend(
                it.values
                    .iter()
                    .map(|value| if value.is_finite() { scale.write(*value) } else { "n/a".into() }),
            );
            if it.count.is_some_and(|count| count < MIN_VALUES_FOR_P99)
                && let Some(last) = cells.last_mut()
            {
                last.insert(0, '~');
            }
            let write =
                |value: Option<f64>, scale: Scale| value.map_or_else(|| "n/a".into(), |it| scale.write(it));
            cells.extend([write(it.requests, requests_scale), write(it.memory, self.bytes)]);
            Line::of(cells)
        };
        let mut lines = Vec::new();
        let key = |row: &&&Row| (name_of(&row.engine, layout), row.case.scenario.clone());
        for ((engine, scenario), rows) in group_by_key(rows.iter().map(|row| (key(&row), *row))) {
            let numbers: Vec<Numbers> = rows.iter().filter_map(|row| Numbers::of(row)).collect();
            lines
                .extend(rows.iter().zip(&numbers).map(|(row, it)| line(row.case.label.clone(), &engine, it)));
            if numbers.len() > 1 {
                lines.push(line(
                    format!("{scenario}: mean of {}", numbers.len()),
                    &engine,
                    &Numbers::mean(&numbers),
                ));
            }
        }
        let notes = vec![format!(
            "request: mean time of a whole request; ~: a p99 of fewer than {MIN_VALUES_FOR_P99} values is only an estimate; \
             hint: more `--iterations` or `--blocks`"
        )];
        Table { columns, lines, notes, gap: layout.gap, ..Table::default() }
    }
}

/// The headline metric of a measured row, with its summary.
fn headline(row: &Row) -> Option<(&'static Metric, &Summary)> {
    let metric = row.case.headline.filter(|_| row.failure.is_none())?;
    Some((metric, row.summary(metric.id)?))
}

impl Numbers {
    fn of(row: &Row) -> Option<Self> {
        let (_, it) = headline(row)?;
        let values = vec![it.mean, it.std.unwrap_or(f64::NAN), it.min, it.max, it.p50, it.p95, it.p99];
        let requests = row.summary(MetricId::TOTAL).map(|it| it.mean);
        let memory = row.summary(MetricId::PEAK_MEMORY).map(|it| it.estimate);
        Some(Self { values, requests, memory, count: Some(it.n) })
    }

    fn mean(lines: &[Self]) -> Self {
        let mean = |value: &dyn Fn(&Self) -> Option<f64>| {
            let values: Option<Vec<f64>> = lines.iter().map(value).collect();
            values.map(|values| values.iter().sum::<f64>() / values.len() as f64)
        };
        let columns = lines.first().map_or(0, |it| it.values.len());
        let values =
            (0..columns).map(|column| mean(&|it| it.values.get(column).copied()).unwrap_or(f64::NAN));
        Self {
            values: values.collect(),
            requests: mean(&|it| it.requests),
            memory: mean(&|it| it.memory),
            count: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_averages_has_the_mean_of_each_column() {
        let line = |value: f64, memory| Numbers {
            values: vec![value, value + 1.0],
            requests: Some(10.0 * value),
            memory,
            count: Some(5),
        };
        let mean = Numbers::mean(&[line(1.0, Some(8.0)), line(3.0, None)]);
        assert_eq!((mean.values, mean.requests, mean.memory), (vec![2.0, 3.0], Some(20.0), None));
        assert_eq!(mean.count, None);
    }
}
