//! The table of distributions: the headline metric of each case by mean, deviation, range and percentiles, with the latency of
//! whole requests and the peak memory. If an engine has several workloads of a scenario, a last line has their means.

use super::document::{Column, Layout, Line, Section, Table};
use super::headings::{self, Heading, MAX, MEAN, MIN, P50, P95, P99, STD};
use super::labels::{Labels, name_of};
use super::marks::{MIN_VALUES_FOR_P95, MIN_VALUES_FOR_P99, Mark};
use super::rows::{Row, group_by_key};
use super::run_report::Report;
use crate::analysis::metric::{self, Better, Metric, MetricId, Scale, Unit};
use crate::text::shorten;
use stats::Summary;

pub struct DistributionTable<'a> {
    report: &'a Report,
    /// Each headline metric, with the rows that have it.
    parts: Vec<(&'static Metric, Vec<&'a Row>)>,
    bytes: Scale,
}

/// The statistics of a metric, in the order of `Numbers::values`.
const OF_METRIC: [Heading; 7] = [MEAN, STD, MIN, MAX, P50, P95, P99];
/// The statistics of a rate. A high percentile of a rate is one of the best values, so the times of requests have them instead.
const OF_RATE: &[Heading] = &[MEAN, STD, MIN, MAX];
/// The statistics of the time of a request, in the order of `Numbers::requests`.
const OF_REQUESTS: [Heading; 4] = [MEAN, P50, P95, P99];

/// The numbers of a line. A line of averages has the means of the lines above it.
struct Numbers {
    values: Vec<f64>,
    requests: Vec<f64>,
    memory: Option<f64>,
    /// The number of values. A line of averages has none.
    count: Option<usize>,
    /// The fewest values of a line that this line is from.
    fewest: usize,
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

    fn table_of(&self, metric: &'static Metric, rows: &[&Row], layout: Layout) -> Table {
        let layout = Layout { columns_of_varying_options: false, ..layout };
        let labels = Labels::of(self.report, layout);
        let numbers: Vec<Numbers> = rows.iter().filter_map(|row| Numbers::of(row)).collect();
        let values = numbers.iter().flat_map(|it| it.values.iter().copied());
        let scale = metric.fixed_scale().unwrap_or_else(|| Scale::of(metric.unit, values));
        let requests_scale =
            Scale::of(Unit::Nanoseconds, numbers.iter().flat_map(|it| it.requests.iter().copied()));
        let is_rate = metric.better == Better::Higher;
        let of_metric = if is_rate { OF_RATE } else { &OF_METRIC };
        let of_requests = match numbers.iter().all(|it| it.requests.iter().all(|it| it.is_nan())) {
            // Queries have no time of a request beside their own.
            true => &[],
            false if is_rate => &OF_REQUESTS[..],
            false => &OF_REQUESTS[..1],
        };
        let grouped = |group, scale: Scale| {
            move |heading: &Heading| Column { group: Some(group), ..Column::value(*heading, scale.symbol) }
        };
        let mut columns = vec![
            Column::named(headings::CASE),
            Column::named(headings::ENGINE),
            Column::value(headings::SAMPLES, ""),
        ];
        columns.extend(of_metric.iter().map(grouped(metric.title, scale)));
        columns.extend(of_requests.iter().map(grouped(headings::REQUEST.title, requests_scale)));
        columns.push(Column::value(metric::by_id(MetricId::PEAK_MEMORY), self.bytes.symbol));
        let line = |case: String, engine: &str, it: &Numbers| {
            let count = it.count.map_or_else(String::new, |count| count.to_string());
            let mut cells = vec![shorten(&case, layout.max_word), labels.short(engine), count];
            let write = |headings: &[Heading], values: &[f64], scale: Scale| -> Vec<String> {
                let cells = headings.iter().zip(values).map(|(heading, value)| match value.is_finite() {
                    true => format!("{}{}", mark(*heading, it.fewest), scale.write(*value)),
                    false => Mark::NotAvailable.to_string(),
                });
                cells.collect()
            };
            cells.extend(write(of_metric, &it.values, scale));
            cells.extend(write(of_requests, &it.requests, requests_scale));
            cells.push(it.memory.map_or_else(|| "n/a".into(), |it| self.bytes.write(it)));
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
        let is_marked = lines
            .iter()
            .flat_map(|line: &Line| &line.cells)
            .any(|cell| cell.starts_with(Mark::FewValues.sign()));
        let notes = is_marked
            .then(|| format!("{}; hint: more `--iterations` or `--blocks`", Mark::FewValues.legend()));
        let of_request = (!of_requests.is_empty()).then(|| {
            let Heading { title, about } = headings::REQUEST;
            format!("{title}: {}", about.trim_end_matches('.'))
        });
        let has_one_value = numbers.iter().any(|it| it.fewest == 1);
        let of_one_value = has_one_value
            .then(|| format!("{}: {} of one value, which has no deviation", STD.title, Mark::NotAvailable));
        let notes = of_request.into_iter().chain(of_one_value).chain(notes).collect();
        Table { columns, lines, notes, gap: layout.gap, ..Table::default() }
    }
}

/// The headline metric of a measured row, with its summary.
/// The headline metric of a measured case. A text is scored once, so its perplexity has no distribution.
fn headline(row: &Row) -> Option<(&'static Metric, &Summary)> {
    let metric = row.case.headline.filter(|it| row.failure.is_none() && it.id != MetricId::PERPLEXITY)?;
    Some((metric, row.summary(metric.id)?))
}

impl Numbers {
    fn of(row: &Row) -> Option<Self> {
        let (_, it) = headline(row)?;
        let values = vec![it.mean, it.std.unwrap_or(f64::NAN), it.min, it.max, it.p50, it.p95, it.p99];
        let requests = row.summary(MetricId::TOTAL).map(|it| vec![it.mean, it.p50, it.p95, it.p99]);
        let requests = requests.unwrap_or_else(|| vec![f64::NAN; OF_REQUESTS.len()]);
        let memory = row.summary(MetricId::PEAK_MEMORY).map(|it| it.estimate);
        Some(Self { values, requests, memory, count: Some(it.n), fewest: it.n })
    }

    fn mean(lines: &[Self]) -> Self {
        let mean = |value: &dyn Fn(&Self) -> Option<f64>| {
            let values: Option<Vec<f64>> = lines.iter().map(value).collect();
            values.map(|values| values.iter().sum::<f64>() / values.len() as f64)
        };
        let means = |values: &dyn Fn(&Self) -> &Vec<f64>| -> Vec<f64> {
            let columns = lines.first().map_or(0, |it| values(it).len());
            let of_column = |column: usize| mean(&|it| values(it).get(column).copied()).unwrap_or(f64::NAN);
            (0..columns).map(of_column).collect()
        };
        Self {
            values: means(&|it| &it.values),
            requests: means(&|it| &it.requests),
            memory: mean(&|it| it.memory),
            count: None,
            fewest: lines.iter().map(|it| it.fewest).min().unwrap_or(0),
        }
    }
}

/// The mark of a percentile of this many values.
fn mark(heading: Heading, values: usize) -> &'static str {
    let needed = match heading {
        P95 => MIN_VALUES_FOR_P95,
        P99 => MIN_VALUES_FOR_P99,
        _ => 0,
    };
    if values < needed { Mark::FewValues.sign() } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_averages_has_the_mean_of_each_column() {
        let line = |value: f64, memory, count| Numbers {
            values: vec![value, value + 1.0],
            requests: vec![10.0 * value],
            memory,
            count: Some(count),
            fewest: count,
        };
        let mean = Numbers::mean(&[line(1.0, Some(8.0), 5), line(3.0, None, 200)]);
        assert_eq!((mean.values, mean.requests, mean.memory), (vec![2.0, 3.0], vec![20.0], None));
        // A mean of estimates is an estimate.
        assert_eq!((mean.count, mark(P99, mean.fewest)), (None, "~"));
    }

    #[test]
    fn a_percentile_of_few_values_is_an_estimate() {
        let marked = |values| [P50, P95, P99, MAX].map(|heading| mark(heading, values) == "~");
        assert_eq!(marked(3), [false, true, true, false]);
        assert_eq!(marked(20), [false, false, true, false]);
        assert_eq!(marked(100), [false; 4]);
    }
}
