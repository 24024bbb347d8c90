//! The ranking of the rows of a workload: which rows can have a rank, and their order by the headline metric.

use std::collections::BTreeSet;

use super::rows::Row;
use super::run_report::Report;
use super::verdicts::PairVerdict;
use crate::analysis::metric::{Better, Metric, MetricId};
use stats::{Comparison, Verdict, ratios_with_same_digits};

/// The rows of one workload on one model, by the workload's headline.
#[derive(Debug)]
pub struct Ranking<'a> {
    /// The workload's label.
    pub case: &'a str,
    pub model: &'a str,
    pub metric: &'static Metric,
    /// The rows with a rank, best first.
    pub ranked: Vec<&'a Row>,
    /// The rows without a rank, best first; rows without a value are last.
    pub unranked: Vec<(&'a Row, Unranked)>,
}

/// The reason why a row has no rank. Of several reasons, the first in this order counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unranked {
    Failed,
    /// The row has no value by the headline.
    NoValue,
    Wrong,
    /// An observation contradicts a claim of the engine.
    Contradicted,
    Unverified,
}

/// The comparison of a first row with a second one. The stored comparison may have the inverse direction.
#[derive(Debug, Clone, Copy)]
pub struct Compared<'a> {
    pub pair: &'a PairVerdict,
    is_inverted: bool,
}

/// The ranking of each workload and model, in the order of the report's rows.
pub fn rankings(report: &Report) -> Vec<Ranking<'_>> {
    let mut rankings: Vec<Ranking> = Vec::new();
    for row in &report.rows {
        let (case, model) = (row.case.label.as_str(), row.engine.model.as_str());
        let Some(metric) = row.case.headline else { continue };
        if !rankings.iter().any(|it| (it.case, it.model) == (case, model)) {
            rankings.push(Ranking::of(report, case, model, metric));
        }
    }
    rankings
}

impl<'a> Ranking<'a> {
    fn of(report: &'a Report, case: &'a str, model: &'a str, metric: &'static Metric) -> Self {
        let rows = report.rows.iter().filter(|row| row.case.label == case && row.engine.model == model);
        let (mut with_value, without_value): (Vec<&Row>, Vec<&Row>) =
            rows.partition(|row| value(row, metric).is_some());
        with_value.sort_by(|a, b| {
            let (a, b) = (value(a, metric).unwrap_or_default(), value(b, metric).unwrap_or_default());
            match metric.better {
                Better::Higher => b.total_cmp(&a),
                Better::Lower => a.total_cmp(&b),
            }
        });
        let (mut ranked, mut unranked) = (Vec::new(), Vec::new());
        for row in with_value.into_iter().chain(without_value) {
            match why_unranked(report, row, metric) {
                None => ranked.push(row),
                Some(why) => unranked.push((row, why)),
            }
        }
        Self { case, model, metric, ranked, unranked }
    }

    pub fn best(&self) -> Option<&'a Row> {
        self.ranked.first().copied()
    }

    pub fn next_best(&self) -> Option<&'a Row> {
        self.ranked.get(1).copied()
    }
}

/// The reason why a row can have no rank. Without output checks no row has a rank, because an engine that runs no model would be
/// the fastest.
pub fn why_unranked(report: &Report, row: &Row, metric: &Metric) -> Option<Unranked> {
    if row.failure.is_some() {
        return Some(Unranked::Failed);
    }
    if value(row, metric).is_none() {
        return Some(Unranked::NoValue);
    }
    if report.is_wrong(row) {
        return Some(Unranked::Wrong);
    }
    if row.contradicted {
        return Some(Unranked::Contradicted);
    }
    report.is_unverified(row).then_some(Unranked::Unverified)
}

/// The reason why a row without a failure has no value by its headline, as a sentence about the row.
pub fn why_no_value(metric: &Metric) -> String {
    match metric.id {
        MetricId::DECODE_RATE | MetricId::EFFECTIVE_RATE => {
            format!("{} needs a second token that arrives after the first", metric.title)
        }
        _ => format!("the answers have nothing from which {} could be computed", metric.title),
    }
}

/// The reasons why rows have no value by their headline, each once.
pub fn why_no_values(rows: &[Row]) -> Vec<String> {
    let without = rows.iter().filter(|row| row.failure.is_none() && !row.case.scores_text);
    let metrics = without.filter_map(|row| row.case.headline.filter(|metric| value(row, metric).is_none()));
    let reasons: BTreeSet<String> = metrics.map(why_no_value).collect();
    reasons.into_iter().map(|why| format!("n/a: {why}")).collect()
}

/// The estimate of a metric.
fn value(row: &Row, metric: &Metric) -> Option<f64> {
    row.summary(metric.id).map(|summary| summary.estimate).filter(|it| it.is_finite())
}

/// A row compared with another row of its workload, by the headline. Such a pair is selected by rank after the measurement, so
/// Holm's correction counts all pairs. The plan has the pairs with the reference, so `Verdicts::headline` has a weaker
/// correction.
pub fn compared<'a>(report: &'a Report, row: &Row, against: &Row) -> Option<Compared<'a>> {
    compared_in(&report.verdicts.all_pairs, row, against)
}

/// A row compared with another row of its workload, by the headline, as one of these pairs or its inverse.
pub fn compared_in<'a>(pairs: &'a [PairVerdict], row: &Row, against: &Row) -> Option<Compared<'a>> {
    let metric = row.case.headline?;
    let sides = (&row.engine.label, &against.engine.label);
    let mut of_case = pairs.iter().filter(|it| it.case == row.case.label && it.metric.id == metric.id);
    of_case.find_map(|pair| match (&pair.engine, &pair.against) {
        names if names == sides => Some(Compared { pair, is_inverted: false }),
        (engine, other) if (other, engine) == sides => Some(Compared { pair, is_inverted: true }),
        _ => None,
    })
}

/// The lowest and the highest value with the same three digits: tables show so many.
fn values_with_same_digits(value: f64) -> [f64; 2] {
    let step = 10f64.powi(value.abs().log10().floor() as i32 - 2);
    let shown = (value / step).round() * step;
    [shown - step / 2.0, shown + step / 2.0]
}

impl<'a> Compared<'a> {
    pub fn as_stored(pair: &'a PairVerdict) -> Self {
        Self { pair, is_inverted: false }
    }

    /// Whether the shown ratio is the quotient of the shown values of the first row and its reference.
    pub fn is_quotient_of_reference(&self, rows: &[Row], row: &Row) -> bool {
        let is_reference = |other: &&Row| {
            Some(&other.engine.label) == row.reference.as_ref() && other.case.label == row.case.label
        };
        rows.iter().find(is_reference).is_none_or(|reference| self.is_quotient(row, reference))
    }

    /// Whether the shown ratio is the quotient of the shown values of these two rows. Only the rounding of the three numbers
    /// may explain a difference: some values with the shown digits must have a quotient with the shown digits.
    pub fn is_quotient(&self, row: &Row, other: &Row) -> bool {
        let Some((metric, ratio)) = row.case.headline.zip(self.ratio()) else { return true };
        let value = |row: &Row| row.summary(metric.id).map(|it| values_with_same_digits(it.estimate));
        let Some((value, other)) = value(row).zip(value(other)) else { return true };
        let (faster, slower) = match metric.better {
            Better::Higher => (value, other),
            Better::Lower => (other, value),
        };
        let [least, most] = ratios_with_same_digits(ratio, self.bounds(), metric.kind());
        faster[0] / slower[1] <= most && least <= faster[1] / slower[0]
    }

    /// The comparison from the side of the first row, or the reason why there is none.
    pub fn comparison(&self) -> Result<Comparison, &'a str> {
        match &self.pair.result {
            Ok(comparison) if self.is_inverted => Ok(comparison.inverted()),
            Ok(comparison) => Ok(comparison.clone()),
            Err(why) => Err(why),
        }
    }

    /// The speed-up of the first row over the second: above 1 is better, for every metric.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.comparison().ok()?.evidence.estimate().exp()).filter(|it| it.is_finite())
    }

    /// The ends of the interval, as in `PairVerdict::bounds`.
    pub fn bounds(&self) -> Option<(f64, f64)> {
        let (low, high) = self.comparison().ok()?.evidence.ends();
        Some((low.exp(), high.exp())).filter(|(low, high)| low.is_finite() && high.is_finite())
    }

    /// `None` without a verdict: too few blocks, or sequential order.
    pub fn verdict(&self) -> Option<Verdict> {
        self.comparison().ok()?.decision.verdict
    }
}

#[cfg(test)]
mod tests;
