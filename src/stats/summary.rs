//! The distribution of a metric over its values, nested in launches.

use serde::Serialize;

use super::outliers::outliers;
use super::quantile::{ascending, median, quantile};

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
    /// The sample's standard deviation (over n - 1); `None` for one value.
    pub std: Option<f64>,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    /// The number of values far from the others. None of them is left out.
    pub outliers: usize,
    pub launch_medians: Vec<f64>,
}

impl Summary {
    /// A summary with one inner list for each launch; `None` where no launch has a value. Values are finite, as metrics are.
    pub fn of(launches: &[Vec<f64>]) -> Option<Self> {
        let launch_medians: Vec<f64> = launches.iter().filter_map(|values| median(values)).collect();
        // A long run has millions of values: they are copied once and sorted in place.
        let mut sorted = launches.concat();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |q| quantile(&sorted, q);
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        Some(Self {
            n: sorted.len(),
            launches: launch_medians.len(),
            estimate: median(&launch_medians)?,
            min: at(0.0)?,
            max: at(1.0)?,
            mean,
            std: standard_deviation(&sorted, mean),
            p50: at(0.5)?,
            p90: at(0.9)?,
            p95: at(0.95)?,
            p99: at(0.99)?,
            outliers: outliers(&sorted).into_iter().filter(|&flagged| flagged).count(),
            launch_medians,
        })
    }

    /// The largest median of a launch divided by the smallest; `None` for one launch, or where the smallest is not positive.
    pub fn launch_spread(&self) -> Option<f64> {
        let sorted = ascending(&self.launch_medians);
        match (sorted.first(), sorted.last()) {
            (Some(&low), Some(&high)) if sorted.len() > 1 && low > 0.0 => Some(high / low),
            _ => None,
        }
    }
}

/// The standard deviation in two passes, so that a small spread around a large mean keeps its digits.
fn standard_deviation(values: &[f64], mean: f64) -> Option<f64> {
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    // python3 -c 'import numpy as np; a = np.array([3.1, 1.2, 9.7, 4.4, 4.4, 2.05, 7.3, 100.5, 0.3, 5.9, 6.1]);
    //   print(repr(a.mean()), repr(a.std(ddof=1)), np.percentile(a, [50, 90, 95, 99]))'       (numpy 2.4.6)
    #[test]
    fn one_launch_is_summarised_as_numpy_does() {
        let summary = Summary::of(&[vec![3.1, 1.2, 9.7, 4.4, 4.4, 2.05, 7.3, 100.5, 0.3, 5.9, 6.1]]).unwrap();
        let close = |found: f64, numpy: f64| assert!((found - numpy).abs() < 1e-12, "{found}, numpy {numpy}");
        close(summary.mean, 13.177_272_727_272_73);
        close(summary.std.unwrap(), 29.092_381_851_924_426);
        close(summary.p50, 4.4);
        close(summary.p90, 9.7);
        close(summary.p95, 55.1);
        close(summary.p99, 91.42);
        assert_eq!((summary.n, summary.launches, summary.outliers), (11, 1, 1));
        assert_eq!((summary.min, summary.max, summary.estimate), (0.3, 100.5, 4.4));
    }

    #[test]
    fn the_estimate_is_the_median_of_launch_medians_whatever_their_sizes() {
        // The median of all values would be 1, because the large launch has most of them.
        let summary = Summary::of(&[vec![1.0; 10], vec![5.0, 7.0], vec![8.0]]).unwrap();
        assert_eq!(summary.launch_medians, [1.0, 6.0, 8.0]);
        assert_eq!((summary.estimate, summary.p50), (6.0, 1.0));
        assert_eq!((summary.n, summary.launches), (13, 3));
    }

    #[test]
    fn launches_are_as_far_apart_as_their_medians() {
        let spread = |launches: &[Vec<f64>]| Summary::of(launches).unwrap().launch_spread();
        // The values of the second launch reach further than its median.
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
}
