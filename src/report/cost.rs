//! The cost of generated tokens, from a price of the machine per hour, and the ratios of the costs of two configurations.

use serde::Serialize;

use super::document::{Column, Item, Layout, Line, List, Section, Table};
use super::headings;
use super::labels::Labels;
use super::rows::Row;
use super::run_report::Report;
use crate::analysis::metric::{MetricId, by_id};
use crate::text::{significant_digits, three_digits};

const SECONDS_PER_HOUR: f64 = 3600.0;
const TOKENS: f64 = 1e6;

/// The cost of a million tokens that a case generates. Money is in the unit of the price. JSON has these names: add, never rename.
#[derive(Debug, Clone, Serialize)]
pub struct Cost<'a> {
    pub case: &'a str,
    pub engine: &'a str,
    /// Of whole requests, one after the other.
    pub tokens_per_second: f64,
    pub million_tokens: f64,
    pub reference: Option<&'a str>,
    /// Against each other configuration of the case. Empty for output that is not verified and for a contradicted claim: an engine
    /// that runs no model would be the cheapest.
    #[serde(rename = "returns")]
    pub ratios: Vec<CostRatio<'a>>,
    #[serde(skip)]
    pub row: &'a Row,
}

/// The cost of a configuration in relation to that of another one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CostRatio<'a> {
    pub against: &'a str,
    /// The money that a million tokens save; negative for a more expensive configuration.
    pub saved: f64,
    /// The quotient of both costs, above 1 for a cheaper configuration.
    pub times_cheaper: f64,
}

impl Cost<'_> {
    fn is_reference(&self) -> bool {
        self.reference == Some(self.engine)
    }

    fn against(&self, engine: &str) -> Option<&CostRatio<'_>> {
        self.ratios.iter().find(|it| it.against == engine)
    }
}

/// The cost of each case that generates tokens, unless it failed or its output is wrong.
pub fn costs(report: &Report, price_per_hour: f64) -> Vec<Cost<'_>> {
    let cost = |row: &Row| {
        let is_measured = row.failure.is_none() && !report.is_wrong(row);
        let has = |id| row.summary(id).is_some();
        let generates = has(MetricId::DECODE_RATE) || has(MetricId::EFFECTIVE_RATE);
        let rate = row.summary(MetricId::THROUGHPUT).filter(|_| is_measured && generates)?.estimate;
        (rate > 0.0).then(|| (rate, price_per_hour / SECONDS_PER_HOUR / rate * TOKENS))
    };
    let is_trusted =
        |row: &Row| !row.contradicted && report.output_of(row).is_some_and(|it| !it.is_unverified());
    let of_row = |row| {
        let (tokens_per_second, million_tokens) = cost(row)?;
        let others = report.rows.iter().filter(|other| {
            let is_other = other.engine.label != row.engine.label && other.case.label == row.case.label;
            is_other && is_trusted(row) && is_trusted(other)
        });
        let of_other = |other: &'_ Row| cost(other).map(|(_, of_other)| of_other);
        let ratios = others.filter_map(|other| {
            let of_other = of_other(other)?;
            let times_cheaper = of_other / million_tokens;
            Some(CostRatio { against: &other.engine.label, saved: of_other - million_tokens, times_cheaper })
        });
        Some(Cost {
            case: &row.case.label,
            engine: &row.engine.label,
            tokens_per_second,
            million_tokens,
            reference: row.reference.as_deref(),
            ratios: ratios.collect(),
            row,
        })
    };
    report.rows.iter().filter_map(of_row).collect()
}

/// The table of costs, and with `pairs` the saving of each configuration over each more expensive one. Empty without a case that generates
/// tokens.
pub fn sections(report: &Report, price_per_hour: f64, pairs: bool, layout: Layout) -> Vec<Section> {
    let costs = costs(report, price_per_hour);
    if costs.is_empty() {
        return Vec::new();
    }
    let labels = Labels::of(report, Layout { columns_of_varying_options: false, ..layout });
    let mut sections = vec![Section::Table(table(&costs, price_per_hour, layout))];
    let ratios = costs.iter().flat_map(|cost| cost.ratios.iter().map(move |it| (cost, it)));
    let items = ratios.filter(|(_, it)| it.saved > 0.0).map(|(cost, it)| {
        Item::Listed(format!(
            "`{}` saves {} over `{}` ({}, {})",
            labels.label(cost.engine),
            significant_digits(it.saved, 3),
            labels.label(it.against),
            cost.case,
            in_words(it.times_cheaper)
        ))
    });
    let items: Vec<Item> = items.collect();
    if pairs && !items.is_empty() {
        let heading = "saving of each configuration over a more expensive one, for a million tokens:";
        sections.push(Section::List(List { heading: Some(heading.into()), items, is_close: false }));
    }
    sections
}

fn table(costs: &[Cost], price_per_hour: f64, layout: Layout) -> Table {
    let line = |cost: &Cost| {
        let to_reference = cost.reference.and_then(|reference| cost.against(reference));
        let [saved, against] = match to_reference {
            _ if cost.is_reference() => [String::new(), "ref".to_string()],
            Some(it) => [significant_digits(it.saved, 3), in_words(it.times_cheaper)],
            None => ["n/a", "n/a"].map(String::from),
        };
        Line::of(vec![
            cost.case.to_string(),
            cost.engine.to_string(),
            three_digits(cost.tokens_per_second),
            significant_digits(cost.million_tokens, 3),
            saved,
            against,
        ])
    };
    let columns = vec![
        Column::cases(),
        Column::engines(),
        Column::value(by_id(MetricId::THROUGHPUT), "tok/s"),
        Column::value(headings::COST_OF_TOKENS, ""),
        Column::value(headings::SAVED, ""),
        Column::value(headings::VS_REFERENCE, ""),
    ];
    let notes = vec![format!(
        "cost: of a million generated tokens, one request after the other, if an hour of this machine costs {price_per_hour}; \
         saved: the difference to the reference; vs ref: the quotient of both costs; both are n/a for output that is not \
         verified, for a contradicted claim, and without a reference; costs have no interval: the verdicts say which differences \
         exceed the noise"
    )];
    Table { columns, lines: costs.iter().map(line).collect(), notes, gap: layout.gap, ..Table::default() }
}

/// `2.1x cheaper`, `1.4x more expensive`; in per cent below 1.1.
fn in_words(times_cheaper: f64) -> String {
    let word = if times_cheaper >= 1.0 { "cheaper" } else { "more expensive" };
    match times_cheaper.max(times_cheaper.recip()) {
        times if times < 1.1 => format!("{} % {word}", significant_digits(100.0 * (times - 1.0), 2)),
        times => format!("{}x {word}", significant_digits(times, 2)),
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
        let all = costs(&report, 3.6);
        let [first, second] = &all[..] else { panic!("{all:?}") };
        for cost in [first, second] {
            // At 3.6 an hour, a second costs 0.001.
            assert!((cost.million_tokens * cost.tokens_per_second / 1000.0 - 1.0).abs() < 1e-9, "{cost:?}");
        }
        assert!(first.is_reference());
        let [of_second] = &second.ratios[..] else { panic!("{second:?}") };
        assert_eq!(of_second.against, first.engine);
        assert!((of_second.saved - (first.million_tokens - second.million_tokens)).abs() < 1e-12);
        assert!((of_second.times_cheaper - first.million_tokens / second.million_tokens).abs() < 1e-12);
        assert!(of_second.saved > 0.0 && first.ratios[0].saved == -of_second.saved, "{first:?}");
        // Without output checks, no engine is cheaper than another.
        let unchecked = Report::of(&measured(&decoding(&names), &engines));
        assert!(costs(&unchecked, 3.6).iter().all(|it| it.ratios.is_empty()));
        assert_eq!(
            [2.13, 0.5, 1.042].map(in_words),
            ["2.1x cheaper", "2.0x more expensive", "4.2 % cheaper"]
        );
    }
}
