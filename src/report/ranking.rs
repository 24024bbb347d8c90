//! The ranking of the rows of a workload: which rows can have a rank, and their order by the headline metric.

use super::rows::Row;
use super::run_report::Report;
use super::verdicts::PairVerdict;
use crate::analysis::metric::{Better, Metric};
use stats::{Comparison, Verdict};

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

/// The largest deviation of a ratio from the ratio of the shown values that needs no explanation.
const MAX_QUOTIENT_ERROR: f64 = 0.02;

/// Whether the ratio is the quotient of the shown values of this row and its reference.
pub fn is_quotient<'a>(mut rows: impl Iterator<Item = &'a Row>, row: &Row, ratio: f64) -> bool {
    let reference = rows.find(|other| {
        Some(&other.engine.label) == row.reference.as_ref() && other.case.label == row.case.label
    });
    reference.is_none_or(|reference| is_quotient_of(row, reference, ratio))
}

/// Whether the ratio is the quotient of the shown values of these two rows.
pub fn is_quotient_of(row: &Row, other: &Row, ratio: f64) -> bool {
    let Some(metric) = row.case.headline else { return true };
    let value = |row: &Row| row.summary(metric.id).map(|it| it.estimate);
    let Some((value, other)) = value(row).zip(value(other)) else { return true };
    let quotient = match metric.better {
        Better::Higher => value / other,
        Better::Lower => other / value,
    };
    (quotient / ratio).ln().abs() <= MAX_QUOTIENT_ERROR
}

impl<'a> Compared<'a> {
    pub fn as_stored(pair: &'a PairVerdict) -> Self {
        Self { pair, is_inverted: false }
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
