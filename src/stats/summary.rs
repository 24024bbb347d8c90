//! Numbers that describe values: quantiles, means, outliers, and the distribution of a metric.

use serde::Serialize;

/// The quantile `q` (0 to 1) of ascending values; `None` without values. It interpolates between order statistics: definition 7
/// of Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician 50 (1996), which is numpy's
/// default.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let position = q.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (below, fraction) = (position.floor() as usize, position.fract());
    let low = *sorted.get(below)?;
    // After the last value there is none to interpolate with.
    let high = sorted.get(below + 1).copied().unwrap_or(low);
    Some(low + (high - low) * fraction)
}

/// The median of values in any order.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(&ascending(values), 0.5)
}

pub(crate) fn ascending(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The smallest and the largest value.
pub(crate) fn range(values: &[f64]) -> (f64, f64) {
    let ends = (f64::INFINITY, f64::NEG_INFINITY);
    values.iter().fold(ends, |(low, high), &value| (low.min(value), high.max(value)))
}

/// The number of values, their mean and their variance (with the divisor n - 1). Two passes compute the variance, so that a
/// small spread around a large mean keeps its digits.
pub(crate) struct Moments {
    pub n: f64,
    pub mean: f64,
    pub variance: f64,
}

impl Moments {
    /// `None` for fewer than two values, or if a value is not finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        let (n, mean) = (values.len() as f64, mean(values));
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        (values.len() > 1 && squares.is_finite()).then(|| Self { n, mean, variance: squares / (n - 1.0) })
    }
}

/// The geometric mean of ratios: the only mean that does not depend on the choice of reference (Fleming and Wallace, "How Not
/// to Lie with Statistics: The Correct Way to Summarize Benchmark Results", Communications of the ACM 29 (1986)). `None` if a
/// workload has no finite ratio above zero: leaving out the workload would favour an engine that failed in it.
///
/// The geometric mean does not predict time: a workload of a millisecond counts as much as a workload of an hour. A real
/// application may have another ratio (Smith, "Characterizing Computer Performance with a Single Number", Communications of the
/// ACM 31 (1988)). So show this mean only next to the ratios of the workloads.
pub fn geometric_mean(ratios: &[Option<f64>]) -> Option<f64> {
    let logarithm = |ratio: &Option<f64>| ratio.filter(|it| it.is_finite() && *it > 0.0).map(f64::ln);
    let logarithms = ratios.iter().map(logarithm).collect::<Option<Vec<f64>>>()?;
    (!logarithms.is_empty()).then(|| mean(&logarithms).exp())
}

/// The largest modified z-score, 0.6745 |x - median| / MAD, of a value that is no outlier.
const MAX_MODIFIED_Z_SCORE: f64 = 3.5;
/// The 0.75 quantile of the standard normal distribution, which makes the MAD comparable to a standard deviation.
const NORMAL_UPPER_QUARTILE: f64 = 0.6745;

/// Flags outliers by the median absolute deviation (MAD), as Iglewicz and Hoaglin do ("How to Detect and Handle Outliers",
/// 1993). Returns one flag for each value. If more than half of the values are equal, the MAD is zero and nothing is flagged.
/// A flag is information: outliers stay in all results.
pub fn outliers(values: &[f64]) -> Vec<bool> {
    let centre = median(values).unwrap_or_default();
    let deviations: Vec<f64> = values.iter().map(|value| (value - centre).abs()).collect();
    let mad = median(&deviations).unwrap_or_default();
    deviations
        .iter()
        .map(|deviation| mad > 0.0 && NORMAL_UPPER_QUARTILE * deviation / mad > MAX_MODIFIED_Z_SCORE)
        .collect()
}

/// Percentiles, mean and deviation of all values together. The estimate is the median of the launches' medians, because values
/// within a launch are not independent: the launch is the unit of replication (Kalibera and Jones, "Rigorous Benchmarking in
/// Reasonable Time", ISMM 2013).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub n: usize,
    /// The number of launches with a value.
    pub launches: usize,
    pub estimate: f64,
    pub min: f64,
    pub max: f64,
    pub mean: f64,
    /// The standard deviation (with the divisor n - 1); `None` for one value.
    pub std: Option<f64>,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    /// The number of outliers. They stay in all results.
    pub outliers: usize,
    pub launch_medians: Vec<f64>,
}

impl Summary {
    /// Summarises one list of values for each launch; `None` if no launch has a value. All values must be finite.
    pub fn of(launches: &[Vec<f64>]) -> Option<Self> {
        let launch_medians: Vec<f64> = launches.iter().filter_map(|values| median(values)).collect();
        let mut sorted = launches.concat();
        sorted.sort_unstable_by(f64::total_cmp);
        let percentile = |q| quantile(&sorted, q);
        Some(Self {
            n: sorted.len(),
            launches: launch_medians.len(),
            estimate: median(&launch_medians)?,
            min: percentile(0.0)?,
            max: percentile(1.0)?,
            mean: mean(&sorted),
            std: Moments::of(&sorted).map(|it| it.variance.sqrt()),
            p50: percentile(0.5)?,
            p90: percentile(0.9)?,
            p95: percentile(0.95)?,
            p99: percentile(0.99)?,
            outliers: outliers(&sorted).into_iter().filter(|&flagged| flagged).count(),
            launch_medians,
        })
    }

    /// The largest of the launch medians divided by the smallest; `None` for one launch, or if the smallest is not positive.
    pub fn launch_spread(&self) -> Option<f64> {
        let sorted = ascending(&self.launch_medians);
        match (sorted.first(), sorted.last()) {
            (Some(&low), Some(&high)) if sorted.len() > 1 && low > 0.0 => Some(high / low),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{assert_close, golden};

    #[test]
    fn a_summary_agrees_with_numpy() {
        let cases = golden().summaries;
        assert!(cases.len() > 4);
        for case in cases {
            let found = Summary::of(std::slice::from_ref(&case.values)).unwrap();
            assert_close(found.mean, case.mean, 1e-13, "mean");
            assert_eq!(found.std.is_some(), case.std.is_some());
            assert_close(found.std.unwrap_or(1.0), case.std.unwrap_or(1.0), 1e-12, "deviation");
            assert_eq!((found.n, found.launches), (case.values.len(), 1));
            assert_eq!((found.min, found.max), (case.min, case.max));
            assert_close(found.estimate, case.median, 1e-14, "median");
            for (found, expected) in
                [(found.p50, case.p50), (found.p90, case.p90), (found.p95, case.p95), (found.p99, case.p99)]
            {
                assert_close(found, expected, 1e-13, "percentile");
            }
        }
    }

    #[test]
    fn the_estimate_is_the_median_of_the_medians_of_launches() {
        // The median of all values would be 1, because the large launch has most of them.
        let summary = Summary::of(&[vec![1.0; 10], vec![5.0, 7.0], vec![8.0]]).unwrap();
        assert_eq!(summary.launch_medians, [1.0, 6.0, 8.0]);
        assert_eq!((summary.estimate, summary.p50), (6.0, 1.0));
        assert_eq!((summary.n, summary.launches), (13, 3));
    }

    #[test]
    fn the_spread_of_launches_is_the_ratio_of_their_extreme_medians() {
        let spread = |launches: &[Vec<f64>]| Summary::of(launches).unwrap().launch_spread();
        // The largest value of the second launch has no effect.
        assert_eq!(spread(&[vec![2.0, 3.0, 4.0], vec![1.0, 1.5, 100.0], vec![4.5]]), Some(3.0));
        assert_eq!(spread(&[vec![2.0], vec![2.0]]), Some(1.0));
        assert_eq!((spread(&[vec![1.0, 9.0]]), spread(&[vec![0.0], vec![1.0]])), (None, None));
    }

    #[test]
    fn a_launch_without_values_is_not_counted_and_no_values_have_no_summary() {
        let summary = Summary::of(&[vec![], vec![2.0]]).unwrap();
        assert_eq!((summary.n, summary.launches, summary.estimate, summary.std), (1, 1, 2.0, None));
        assert_eq!(Summary::of(&[vec![], vec![]]), None);
        assert_eq!(Summary::of(&[]), None);
    }

    // python3 -c 'import numpy as np; print(np.array([1e9 + 1, 1e9 + 2, 1e9 + 3]).std(ddof=1))'
    #[test]
    fn a_small_spread_around_a_large_mean_keeps_its_digits() {
        let summary = Summary::of(&[vec![1e9 + 1.0, 1e9 + 2.0, 1e9 + 3.0]]).unwrap();
        assert_eq!(summary.std, Some(1.0));
    }

    #[test]
    fn a_single_value_is_its_own_quantile_and_no_values_have_no_quantile() {
        assert_eq!(quantile(&[5.0], 0.99), Some(5.0));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!((median(&[]), median(&[4.0, 1.0])), (None, Some(2.5)));
    }

    #[test]
    fn outliers_agree_with_the_median_absolute_deviation_of_scipy() {
        let cases = golden().outliers;
        assert!(cases.iter().any(|case| case.flagged.len() > 3));
        assert!(cases.iter().any(|case| case.flagged.is_empty()));
        for case in cases {
            let flags = outliers(&case.values);
            let flagged: Vec<usize> = (0..flags.len()).filter(|&index| flags[index]).collect();
            assert_eq!(flagged, case.flagged);
            assert_eq!(Summary::of(&[case.values]).unwrap().outliers, case.flagged.len());
        }
    }

    #[test]
    fn mostly_equal_values_and_no_values_have_no_outliers() {
        assert_eq!(outliers(&[2.0, 2.0, 2.0, 9.0]), [false; 4]);
        assert_eq!(outliers(&[1.0]), [false]);
        assert!(outliers(&[]).is_empty());
    }

    #[test]
    fn the_geometric_mean_agrees_with_scipy() {
        let cases = golden().geometric_means;
        assert!(cases.len() > 2);
        for case in cases {
            let values: Vec<Option<f64>> = case.values.into_iter().map(Some).collect();
            assert_close(geometric_mean(&values).unwrap(), case.mean, 1e-14, "geometric mean");
        }
    }

    #[test]
    fn one_workload_without_a_positive_ratio_leaves_no_geometric_mean() {
        for missing in [None, Some(0.0), Some(-1.0), Some(f64::NAN), Some(f64::INFINITY)] {
            assert_eq!(geometric_mean(&[Some(2.0), missing]), None, "{missing:?}");
        }
        assert_eq!(geometric_mean(&[]), None);
    }

    #[test]
    fn the_geometric_mean_does_not_overflow() {
        let mean = geometric_mean(&[Some(1e300), Some(1e300), Some(1e-300), Some(1e300)]).unwrap();
        assert!((mean / 1e150 - 1.0).abs() < 1e-12);
    }
}
