//! The cost of generated tokens, from a price of the machine per hour.

use super::document::{Column, Layout, Line, Table};
use super::labels::Labels;
use super::rows::Row;
use super::run_report::Report;
use crate::analysis::metric::MetricId;
use crate::text::{shorten, significant_digits, three_digits};

const SECONDS_PER_HOUR: f64 = 3600.0;
const TOKENS: f64 = 1e6;

/// A row for each case that generates tokens, unless it failed or its output is wrong: the tokens per second of whole requests,
/// the cost of a million tokens, and its ratio to the cost with the reference. `None` without such a case.
pub fn table(report: &Report, price_per_hour: f64, layout: Layout) -> Option<Table> {
    let layout = Layout { columns_of_varying_options: false, ..layout };
    let labels = Labels::of(report, layout);
    let cost = |row: &Row| {
        let is_measured = row.failure.is_none() && !report.is_wrong(row);
        let has = |id| row.summary(id).is_some();
        let generates = has(MetricId::DECODE_RATE) || has(MetricId::EFFECTIVE_RATE);
        let rate = row.summary(MetricId::THROUGHPUT).filter(|_| is_measured && generates)?.estimate;
        (rate > 0.0).then(|| (rate, price_per_hour / SECONDS_PER_HOUR / rate * TOKENS))
    };
    let line = |row: &Row| {
        let (rate, cost_of_row) = cost(row)?;
        let is_reference =
            |it: &&Row| Some(&it.engine.label) == row.reference.as_ref() && it.case.label == row.case.label;
        let reference = report.rows.iter().find(is_reference).and_then(cost);
        // An engine that runs no model would be the cheapest.
        let is_trusted = !row.contradicted && report.output_of(row).is_some_and(|it| !it.is_unverified());
        let against = match reference {
            _ if row.is_reference() => "ref".to_string(),
            _ if !is_trusted => "n/a".into(),
            Some((_, of_reference)) => against(of_reference / cost_of_row),
            None => "n/a".into(),
        };
        Some(Line::of(vec![
            shorten(&row.case.label, layout.max_word),
            labels.short(&row.engine.label),
            three_digits(rate),
            significant_digits(cost_of_row, 3),
            against,
        ]))
    };
    let lines: Vec<Line> = report.rows.iter().filter_map(line).collect();
    if lines.is_empty() {
        return None;
    }
    let columns = vec![
        Column::named("case"),
        Column::named("engine"),
        Column::value("throughput", "tok/s"),
        Column::value("cost of\n1 M tokens", ""),
        Column::value("vs ref", ""),
    ];
    let notes = vec![format!(
        "cost: of a million generated tokens, one request after the other, if an hour of this machine costs {price_per_hour}; \
         vs ref: the quotient of both costs, n/a for output that is not verified, for a contradicted claim, and without a \
         reference"
    )];
    Some(Table { columns, lines, notes, gap: layout.gap, ..Table::default() })
}

/// `2.1x cheaper`, `1.4x dearer`.
fn against(times_cheaper: f64) -> String {
    match times_cheaper {
        times if times >= 1.0 => format!("{}x cheaper", significant_digits(times, 2)),
        times => format!("{}x dearer", significant_digits(times.recip(), 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::agreement::specimen::with_deviations;
    use crate::record::specimen::{BEACON, ORIGINAL, measured};
    use crate::report::tests::decoding;

    #[test]
    fn a_million_tokens_cost_the_time_that_they_take() {
        let (engines, names) = ([ORIGINAL, BEACON], ["patient-original", "beacon"]);
        let report = Report::of(&with_deviations(decoding(&names), &engines, &[0.0, 0.0]));
        let layout = Layout {
            version_column: false,
            max_label: 40,
            columns_of_varying_options: false,
            max_word: 40,
            gap: 2,
        };
        let table = table(&report, 3.6, layout).unwrap();
        let [first, second] = &table.lines[..] else { panic!("{table:?}") };
        let number = |text: &str| text.replace(',', "").parse::<f64>().unwrap();
        for line in [first, second] {
            // At 3.6 an hour, a second costs 0.001.
            let expected = 1000.0 / number(&line.cells[2]);
            assert!((number(&line.cells[3]) / expected - 1.0).abs() < 0.01, "{table:?}");
        }
        assert_eq!(first.cells[4], "ref");
        assert!(second.cells[4].ends_with("x cheaper"), "{table:?}");
        // Without output checks, no engine is cheaper than another.
        let unchecked =
            super::table(&Report::of(&measured(&decoding(&names), &engines)), 3.6, layout).unwrap();
        assert_eq!(unchecked.lines[1].cells[4], "n/a");
        assert_eq!([2.13, 0.5].map(against), ["2.1x cheaper", "2.0x dearer"]);
    }
}
