//! Outliers by the median absolute deviation: Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993): flagged
//! where |0.6745 (x - median) / MAD| > 3.5. A flag is information; no value is ever left out because of it.

use super::quantile::median;

const LIMIT: f64 = 3.5;
/// The 0.75 quantile of the standard normal distribution: it makes the MAD comparable to a standard deviation.
const NORMAL: f64 = 0.6745;

/// A flag for each value, in their order. If more than half of the values are equal, the MAD is zero and nothing is flagged.
pub fn outliers(values: &[f64]) -> Vec<bool> {
    let centre = median(values).unwrap_or_default();
    let deviations: Vec<f64> = values.iter().map(|value| (value - centre).abs()).collect();
    let mad = median(&deviations).unwrap_or_default();
    deviations.iter().map(|deviation| mad > 0.0 && NORMAL * deviation / mad > LIMIT).collect()
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    #[test]
    fn flags_are_those_of_scipys_median_absolute_deviation() {
        let golden = golden::outliers();
        assert!(
            golden.iter().any(|case| case.flagged.len() > 3)
                && golden.iter().any(|case| case.flagged.is_empty())
        );
        for case in golden {
            let flags = outliers(&case.values);
            let flagged: Vec<usize> = (0..flags.len()).filter(|&index| flags[index]).collect();
            assert_eq!(flagged, case.flagged);
        }
    }

    // python3 -c 'import numpy as np; a = np.array([3.1, 1.2, 9.7, 4.4, 4.4, 2.05, 7.3, 100.5, 0.3, 5.9, 6.1]);
    //   m = np.median(a); print(0.6745 * (a - m) / np.median(abs(a - m)))'     (numpy 2.4.6: 27.58 at 100.5, else below 1.53)
    #[test]
    fn the_one_value_far_from_the_others_is_flagged() {
        let flags = outliers(&[3.1, 1.2, 9.7, 4.4, 4.4, 2.05, 7.3, 100.5, 0.3, 5.9, 6.1]);
        let flagged: Vec<usize> = (0..flags.len()).filter(|&index| flags[index]).collect();
        assert_eq!(flagged, [7]);
    }

    #[test]
    fn equal_values_and_no_values_flag_nothing() {
        assert_eq!(outliers(&[2.0, 2.0, 2.0, 9.0]), [false; 4]);
        assert_eq!(outliers(&[1.0]), [false]);
        assert!(outliers(&[]).is_empty());
    }
}
