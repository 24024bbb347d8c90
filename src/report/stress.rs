//! The engines that were in use for a set time: a line for each, with the growth of its memory and of its latency.

use std::time::Duration;

use super::document::{Item, List};
use super::rows::{Row, Stress};
use super::run_report::Report;
use super::verdict_lines::unbroken;
use crate::analysis::metric::growth::{GrowthPerMinute, MIN_LATENCY_CHANGE, MIN_MEMORY_CHANGE};
use crate::analysis::metric::{MetricId, by_id};
use crate::text::{plural, significant_digits, three_digits, time, with_commas};
use stats::Growth;

/// `None` if no engine was in use for a set time.
pub fn list(report: &Report) -> Option<List> {
    let rows = report.rows.iter().filter_map(|row| Some((row, row.stress?)));
    let items: Vec<Item> = rows.map(|(row, stress)| Item::Listed(line(row, &stress))).collect();
    let heading = format!(
        "growth in each minute of requests, in the second half of the time in use; there, {} of memory and {} of latency count:",
        unbroken(&format!("{} MB", significant_digits(MIN_MEMORY_CHANGE / 1e6, 2))),
        unbroken(&format!("{} %", significant_digits(100.0 * MIN_LATENCY_CHANGE, 1))),
    );
    (!items.is_empty()).then_some(List { heading: Some(heading), items, ..List::default() })
}

/// `toy, stress: 5,321 requests took 10 min without the checks between them, no errors; memory: no growth, 0.01 MB/min
/// [-0.02, 0.05]; latency: ...`.
fn line(row: &Row, stress: &Stress) -> String {
    let requests = plural(with_commas(stress.requests), "request");
    let used = unbroken(&time(Duration::from_nanos(stress.used_ns)));
    let errors = match stress.errors {
        0 => "no errors".into(),
        errors => plural(errors, "error"),
    };
    let growths = [("memory", MetricId::MEMORY_GROWTH), ("latency", MetricId::LATENCY_GROWTH)];
    let growths =
        growths.map(|(name, metric)| format!("; {name}: {}", growth(stress.growth(metric), metric)));
    format!(
        "{}, {}: {requests} took {used} without the checks between them, {errors}{}",
        row.engine.label,
        row.case.label,
        growths.concat()
    )
}

fn growth(growth: Option<GrowthPerMinute>, metric: MetricId) -> String {
    let Some(GrowthPerMinute { estimate, low, high, verdict }) = growth else {
        return "too few requests".into();
    };
    let word = match verdict {
        Growth::Grows => "grows",
        Growth::Falls => "falls",
        Growth::None => "no growth",
        Growth::Inconclusive => "inconclusive",
    };
    let scale = by_id(metric).scale();
    let [estimate, low, high] = [estimate, low, high].map(|it| number(it / scale.divisor));
    // The estimate of a wide interval would look like a result.
    if verdict == Growth::Inconclusive {
        let between = unbroken(&format!("between {low} and {high} {}", scale.symbol));
        return format!("{word}, {between}: a longer `--duration` may decide");
    }
    format!("{word}, {}", unbroken(&format!("{estimate} {} [{low}, {high}]", scale.symbol)))
}

/// A growth may be almost zero, so a number below ten has two decimals.
fn number(value: f64) -> String {
    match value.abs() {
        // Without the sign of a negative zero.
        ..10.0 => format!("{:.2}", (100.0 * value).round() / 100.0 + 0.0),
        _ => three_digits(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growth_has_its_interval_and_its_verdict_in_words() {
        let of = |estimate, low, high, verdict| Some(GrowthPerMinute { estimate, low, high, verdict });
        let memory = growth(of(1.02e6, 0.98e6, 12.3e6, Growth::Grows), MetricId::MEMORY_GROWTH);
        assert_eq!(memory, unbroken_after("grows, ", "1.02 MB/min [0.98, 12.3]"));
        let latency = growth(of(-1e-9, -0.004, 0.02, Growth::None), MetricId::LATENCY_GROWTH);
        assert_eq!(latency, unbroken_after("no growth, ", "0.00 %/min [-0.40, 2.00]"));
        assert_eq!(growth(None, MetricId::MEMORY_GROWTH), "too few requests");
        let wide = growth(of(-0.415, -0.986, 21.0, Growth::Inconclusive), MetricId::LATENCY_GROWTH);
        let between = unbroken_after("inconclusive, ", "between -98.6 and 2,100 %/min");
        assert_eq!(wide, between + ": a longer `--duration` may decide");
    }

    fn unbroken_after(word: &str, numbers: &str) -> String {
        word.to_string() + &unbroken(numbers)
    }
}
