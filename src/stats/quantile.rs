//! Quantiles by linear interpolation between order statistics: definition 7 of Hyndman and Fan, "Sample Quantiles in
//! Statistical Packages", The American Statistician 50 (1996), which is numpy's default.

/// The quantile `q` (0 to 1) of ascending values; `None` of no values.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let place = q.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (below, fraction) = (place.floor() as usize, place.fract());
    let low = *sorted.get(below)?;
    // The last value has no next one.
    let high = sorted.get(below + 1).copied().unwrap_or(low);
    Some(low + (high - low) * fraction)
}

/// The median of values in any order.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(&ascending(values), 0.5)
}

pub(super) fn ascending(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    // python3 -c 'import numpy as np; a = np.array([3.1, 1.2, 9.7, 4.4, 4.4, 2.05, 7.3, 100.5, 0.3, 5.9, 6.1]);
    //   print(np.percentile(a, [0, 12.5, 50, 90, 95, 99, 100]))'       (numpy 2.4.6)
    #[test]
    fn quantiles_are_those_of_numpy() {
        let sorted = ascending(&[3.1, 1.2, 9.7, 4.4, 4.4, 2.05, 7.3, 100.5, 0.3, 5.9, 6.1]);
        let numpy =
            [(0.0, 0.3), (0.125, 1.4125), (0.5, 4.4), (0.9, 9.7), (0.95, 55.1), (0.99, 91.42), (1.0, 100.5)];
        for (q, expected) in numpy {
            let found = quantile(&sorted, q).unwrap();
            assert!((found - expected).abs() < 1e-12, "{q}: {found}, numpy {expected}");
        }
    }

    #[test]
    fn one_value_is_every_quantile_and_no_value_has_none() {
        assert_eq!(quantile(&[5.0], 0.99), Some(5.0));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
    }
}
