//! Mann and Whitney's test: does one side tend to give larger values than the other?

use super::super::quantile::ascending;
use super::super::special::normal_above;

/// The most values on either side, without ties, for which the distribution of U is counted exactly.
const EXACT: usize = 25;

/// The two-sided p value of Mann and Whitney, "On a Test of Whether One of Two Random Variables Is Stochastically
/// Larger than the Other", Annals of Mathematical Statistics 18 (1947). Exact for small samples without ties;
/// otherwise normal, with the corrections for ties and for continuity of Lehmann, "Nonparametrics: Statistical
/// Methods Based on Ranks" (1975), chapter 1. `None` where a side is empty or a value is no number.
pub fn mann_whitney(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    let (m, n) = (ours.len(), theirs.len());
    if m == 0 || n == 0 || ours.iter().chain(theirs).any(|value| value.is_nan()) {
        return None;
    }
    let pooled = ascending(&[ours, theirs].concat());
    let ranks: f64 = ours.iter().map(|value| middle_rank(&pooled, *value)).sum();
    let u = ranks - (m * (m + 1)) as f64 / 2.0;
    let pairs = (m * n) as f64;
    let larger = u.max(pairs - u);
    let ties: Vec<f64> = pooled.chunk_by(|one, other| one == other).map(|group| group.len() as f64).collect();
    if m <= EXACT && n <= EXACT && ties.len() == m + n {
        return Some((2.0 * at_least(larger, m, n)).min(1.0));
    }
    let all = (m + n) as f64;
    let tied: f64 = ties.iter().map(|count| count.powi(3) - count).sum();
    let variance = pairs / 12.0 * (all + 1.0 - tied / (all * (all - 1.0)));
    // If all values are equal, there is no evidence for either side.
    let z = if variance > 0.0 { (larger - pairs / 2.0 - 0.5) / variance.sqrt() } else { 0.0 };
    Some((2.0 * normal_above(z)).min(1.0))
}

/// The middle of the ranks that a value shares with its equals; the first rank is 1.
fn middle_rank(sorted: &[f64], value: f64) -> f64 {
    let below = sorted.partition_point(|other| *other < value);
    let up_to = sorted.partition_point(|other| *other <= value);
    (below + up_to + 1) as f64 / 2.0
}

/// The probability of a U of at least `least`. The numbers of orders of m and n values with each U are the coefficients of
/// a Gaussian polynomial, the product of (1 - q^(n + i)) / (1 - q^i) for i from 1 to m (Andrews, "The Theory of
/// Partitions" (1976), chapter 3). All are whole numbers below 2^53, so they are exact.
fn at_least(least: f64, m: usize, n: usize) -> f64 {
    let mut orders = vec![0.0; m * n + 1];
    orders[0] = 1.0;
    for i in 1..=m {
        for power in (n + i..orders.len()).rev() {
            orders[power] -= orders[power - n - i];
        }
        for power in i..orders.len() {
            orders[power] += orders[power - i];
        }
    }
    let extreme: f64 = orders[least.ceil() as usize..].iter().sum();
    extreme / orders.iter().sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::super::super::golden;
    use super::*;

    #[test]
    fn p_values_are_those_of_scipy_exact_and_normal_with_and_without_ties() {
        let golden = golden::mann_whitney();
        assert!(
            golden.iter().any(|case| case.method == "exact")
                && golden.iter().any(|case| case.method == "asymptotic")
        );
        for case in golden {
            golden::close(mann_whitney(&case.ours, &case.theirs).unwrap(), case.p, 1e-12, &case.method);
            golden::close(mann_whitney(&case.theirs, &case.ours).unwrap(), case.p, 1e-12, &case.method);
        }
    }

    #[test]
    fn equal_values_speak_for_neither_and_no_values_for_nothing() {
        assert_eq!(mann_whitney(&[1.0; 9], &[1.0; 30]), Some(1.0));
        assert_eq!(mann_whitney(&[1.0], &[1.0]), Some(1.0));
        assert_eq!((mann_whitney(&[], &[1.0]), mann_whitney(&[f64::NAN], &[1.0])), (None, None));
    }

    #[test]
    fn the_largest_samples_that_are_counted_out_are_counted_exactly() {
        let counts = at_least(0.0, EXACT, EXACT);
        assert_eq!(counts, 1.0);
        // One order of C(50, 25) has every value of one side above the other's.
        let all = (1..=25).fold(1.0, |product: f64, i| product * f64::from(25 + i) / f64::from(i));
        golden::close(at_least(625.0, EXACT, EXACT), 1.0 / all, 1e-12, "the last order");
    }
}
