//! The account of wall time as columns and cells. The printed values add up.

use super::case_table;
use super::document::{Column, Layout, Section, Table};
use super::labels::Labels;
use super::rows::Row;
use super::run_report::Report;
use super::wall_time::{PARTS, TimePart, WallTime};
use crate::analysis::metric::{Scale, Unit};

/// The title of the remainder.
const REST: &str = "rest";

/// The cases of a report with an account of their wall time.
pub struct Account<'a> {
    report: &'a Report,
    rows: Vec<(&'a Row, &'a WallTime)>,
    scale: Scale,
    /// The parts that some row has.
    parts: Vec<TimePart>,
}

impl<'a> Account<'a> {
    /// `None` where there is no such case.
    pub fn of(report: &'a Report) -> Option<Self> {
        let measured = report.rows.iter().filter(|row| row.fault.is_none());
        let rows: Vec<(&Row, &WallTime)> =
            measured.filter_map(|row| Some((row, row.wall_time.as_ref()?))).collect();
        let totals = rows.iter().map(|(_, wall_time)| wall_time.total_ns as f64);
        let scale = Scale::of(Unit::Nanoseconds, totals);
        let has = |part: &TimePart| rows.iter().any(|(_, it)| it.part(*part).is_some());
        let parts = PARTS.into_iter().filter(has).collect();
        (!rows.is_empty()).then_some(Self { report, rows, scale, parts })
    }

    pub fn table(&self, layout: Layout) -> Table {
        let titles = self.parts.iter().map(|part| title(*part)).chain([REST, "total"]);
        let columns = titles.map(|title| Column::figure(title, self.scale.symbol)).collect();
        let cells = |wall_time: &WallTime| figures(wall_time, &self.parts, self.scale);
        case_table::table(self.report, layout, &self.rows, columns, cells)
    }

    pub fn parts(&self, layout: Layout) -> [Section; 2] {
        let labels = Labels::of(self.report, Layout { factors: false, ..layout });
        let said = format!("{REST}: time that neither clock assigns to a part");
        let mut notes =
            vec![said, "the first request of a launch takes longer: see the metric `first_run`".into()];
        let shortened = self.rows.iter().filter(|(_, wall_time)| wall_time.shortened > 0);
        notes.extend(shortened.map(|(row, wall_time)| {
            let WallTime { shortened, launches, requests, .. } = wall_time;
            format!(
                "`{}` `{}`: its stated times exceed the elapsed time in {shortened} of {launches} launches and {requests} \
                 requests: they were scaled down to it",
                labels.label(&row.engine.label),
                row.case.label
            )
        }));
        let heading = "wall time from the start of the engine to the end of one request, means over launches and measured \
            requests:";
        [Section::Heading(heading.into()), Section::Table(Table { notes, ..self.table(layout) })]
    }
}

/// The cells: each part, then the remainder and the total.
fn figures(wall_time: &WallTime, parts: &[TimePart], scale: Scale) -> Vec<String> {
    let claimed: Vec<Option<u64>> = parts.iter().map(|part| wall_time.part(*part)).collect();
    let mut all: Vec<u64> = claimed.iter().map(|ns| ns.unwrap_or(0)).collect();
    all.push(wall_time.unattributed_ns);
    // Four digits of the total, and not less than a nanosecond.
    let digits = wall_time.total_ns.max(1).ilog10();
    let step = 10u64.pow(digits.saturating_sub(3));
    let mut steps = apportioned(&all, step);
    steps.push(steps.iter().sum());
    let places = (scale.divisor / step as f64).log10().max(0.0).round() as usize;
    let write = |steps: u64| format!("{:.*}", places, (steps * step) as f64 / scale.divisor);
    let known = claimed.iter().map(Option::is_some).chain([true, true]);
    steps
        .into_iter()
        .zip(known)
        .map(|(steps, known)| if known { write(steps) } else { "n/a".into() })
        .collect()
}

/// The steps of each value, rounded by largest remainder so that they add up to their rounded sum.
fn apportioned(ns: &[u64], step: u64) -> Vec<u64> {
    let mut steps: Vec<u64> = ns.iter().map(|ns| ns / step).collect();
    let total = (ns.iter().sum::<u64>() + step / 2) / step;
    let missing = total.saturating_sub(steps.iter().sum());
    let mut order: Vec<usize> = (0..ns.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(ns[index] % step));
    for index in order.into_iter().take(missing as usize) {
        steps[index] += 1;
    }
    steps
}

fn title(part: TimePart) -> &'static str {
    match part {
        TimePart::Spawn => "spawn",
        TimePart::Import => "import",
        TimePart::Weights => "weights",
        TimePart::Compile => "compile",
        TimePart::Other => "other phases",
        TimePart::FirstToken => "first token",
        TimePart::SteadyState => "steady state",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_parts_add_up_to_the_total() {
        assert_eq!(apportioned(&[14, 14, 14], 10), [2, 1, 1]);
        assert_eq!(apportioned(&[15, 15], 10), [2, 1]);
        assert_eq!(apportioned(&[0, 7, 0], 10), [0, 1, 0]);
        assert_eq!(apportioned(&[0, 4, 0], 10), [0, 0, 0]);
        assert_eq!(apportioned(&[123, 456], 1), [123, 456]);
    }
}
