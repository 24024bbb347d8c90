//! Tests of two samples without pairing (Mann-Whitney, Welch), and Holm's correction for many tests.

use super::distribution::{normal_above, two_sided};
use super::summary::{Moments, ascending};

/// The largest number of values in each sample for which the distribution of U is counted exactly.
const MAX_EXACT: usize = 25;

/// The two-sided p value of Mann and Whitney, "On a Test of Whether One of Two Random Variables Is Stochastically Larger than
/// the Other", Annals of Mathematical Statistics 18 (1947). It is exact for small samples without ties, and otherwise a normal
/// approximation with the corrections for ties and for continuity of Lehmann, "Nonparametrics: Statistical Methods Based on
/// Ranks" (1975), chapter 1. `None` if a sample is empty or a value is NaN.
pub fn mann_whitney(a: &[f64], b: &[f64]) -> Option<f64> {
    let (m, n) = (a.len(), b.len());
    if m == 0 || n == 0 || a.iter().chain(b).any(|value| value.is_nan()) {
        return None;
    }
    let pooled = ascending(&[a, b].concat());
    let ranks: f64 = a.iter().map(|value| midrank(&pooled, *value)).sum();
    let u = ranks - (m * (m + 1)) as f64 / 2.0;
    let pairs = (m * n) as f64;
    let larger = u.max(pairs - u);
    // The number of values in each group of equal values. Without ties, each group has one value.
    let group_sizes: Vec<f64> = pooled.chunk_by(|a, b| a == b).map(|group| group.len() as f64).collect();
    if m <= MAX_EXACT && n <= MAX_EXACT && group_sizes.len() == m + n {
        return Some((2.0 * upper_tail_of_u(larger, m, n)).min(1.0));
    }
    let all = (m + n) as f64;
    let tied: f64 = group_sizes.iter().map(|size| size.powi(3) - size).sum();
    let variance = pairs / 12.0 * (all + 1.0 - tied / (all * (all - 1.0)));
    // If all values are equal, the variance is zero and there is no evidence of a difference.
    let z = if variance > 0.0 { (larger - pairs / 2.0 - 0.5) / variance.sqrt() } else { 0.0 };
    Some((2.0 * normal_above(z)).min(1.0))
}

/// The probability of at least this many successes in independent trials, each with this probability.
pub fn binomial_tail(successes: usize, trials: usize, probability: f64) -> f64 {
    let log_odds = probability.ln() - (-probability).ln_1p();
    // The logarithm of the probability of `count` successes, from the one of `count - 1`.
    let mut log_of_count = trials as f64 * (-probability).ln_1p();
    let mut tail = if successes == 0 { log_of_count.exp() } else { 0.0 };
    for count in 1..=trials {
        log_of_count += ((trials - count + 1) as f64 / count as f64).ln() + log_odds;
        tail += if count >= successes { log_of_count.exp() } else { 0.0 };
    }
    tail.min(1.0)
}

/// The mean of the ranks of all values that equal this value; the first rank is 1.
fn midrank(sorted: &[f64], value: f64) -> f64 {
    let below = sorted.partition_point(|other| *other < value);
    let up_to = sorted.partition_point(|other| *other <= value);
    (below + up_to + 1) as f64 / 2.0
}

/// The probability of a U of at least `min`. The number of orderings of m and n values with a given U is a coefficient of a
/// Gaussian polynomial, the product of (1 - q^(n + i)) / (1 - q^i) for i from 1 to m (Andrews, "The Theory of
/// Partitions" (1976), chapter 3). All coefficients are whole numbers below 2^53, so they are exact.
fn upper_tail_of_u(min: f64, m: usize, n: usize) -> f64 {
    let mut orderings = vec![0.0; m * n + 1];
    orderings[0] = 1.0;
    for i in 1..=m {
        for power in (n + i..orderings.len()).rev() {
            orderings[power] -= orderings[power - n - i];
        }
        for power in i..orderings.len() {
            orderings[power] += orderings[power - i];
        }
    }
    let extreme: f64 = orderings[min.ceil() as usize..].iter().sum();
    extreme / orderings.iter().sum::<f64>()
}

/// The two-sided p value of Welch, "The Generalization of 'Student's' Problem When Several Different Population
/// Variances Are Involved", Biometrika 34 (1947), with the degrees of freedom of Welch and Satterthwaite. `None`
/// if a sample has fewer than two values or a value that is not finite.
pub fn welch(a: &[f64], b: &[f64]) -> Option<f64> {
    Some(Estimate::of_difference(a, b)?.p()).filter(|p| p.is_finite())
}

/// A mean, or the difference of two means, with its standard error and the degrees of freedom of that error.
#[derive(Debug, Clone, Copy)]
pub struct Estimate {
    pub value: f64,
    pub error: f64,
    pub df: f64,
}

impl Estimate {
    /// `None` for fewer than two values, or if a value is not finite.
    pub fn of_mean(values: &[f64]) -> Option<Self> {
        let Moments { n, mean, variance } = Moments::of(values)?;
        Some(Self { value: mean, error: (variance / n).sqrt(), df: n - 1.0 })
    }

    /// The mean of `a` less the mean of `b`, two independent samples. The degrees of freedom are those of Satterthwaite, "An
    /// Approximate Distribution of Estimates of Variance Components", Biometrics Bulletin 2 (1946). For samples without any
    /// spread, they are those of the smaller sample.
    pub fn of_difference(a: &[f64], b: &[f64]) -> Option<Self> {
        let (a, b) = (Moments::of(a)?, Moments::of(b)?);
        let [(a_square, a_df), (b_square, b_df)] = [&a, &b].map(|it| (it.variance / it.n, it.n - 1.0));
        let square = a_square + b_square;
        let satterthwaite = square.powi(2) / (a_square.powi(2) / a_df + b_square.powi(2) / b_df);
        let df = if square > 0.0 { satterthwaite } else { a_df.min(b_df) };
        Some(Self { value: a.mean - b.mean, error: square.sqrt(), df })
    }

    /// The two-sided p value for a true value of zero.
    pub fn p(&self) -> f64 {
        if self.value == 0.0 { 1.0 } else { two_sided(self.value / self.error, self.df) }
    }
}

/// The p values adjusted for the number of tests, in the given order: Holm, "A Simple Sequentially Rejective Multiple Test
/// Procedure", Scandinavian Journal of Statistics 6 (1979). If the hypotheses with an adjusted p value
/// up to a level are rejected, the probability of any false rejection is at most that level. The tests may depend on each
/// other, as metrics of one run do. NaN counts as 1.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let without_nan = |p: f64| if p.is_nan() { 1.0 } else { p };
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| without_nan(p_values[a]).total_cmp(&without_nan(p_values[b])));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut largest: f64 = 0.0;
    for (rank, index) in order.into_iter().enumerate() {
        // The number of tests with this rank or a later one.
        let remaining = (p_values.len() - rank) as f64;
        largest = largest.max((without_nan(p_values[index]) * remaining).min(1.0));
        adjusted[index] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{assert_close, golden};

    /// The expected values were computed with exact fractions.
    #[test]
    fn a_binomial_tail_is_the_sum_of_its_probabilities() {
        let tails = [(0, 5), (5, 5), (3, 5), (6, 5)]
            .map(|(successes, trials)| binomial_tail(successes, trials, 0.25));
        for (tail, expected) in tails.into_iter().zip([1.0, 1.0 / 1024.0, 106.0 / 1024.0, 0.0]) {
            assert!((tail - expected).abs() < 1e-12, "{tails:?}");
        }
        assert!((binomial_tail(7, 30, 0.02) / 1.778e-6 - 1.0).abs() < 0.1, "{}", binomial_tail(7, 30, 0.02));
    }

    #[test]
    fn p_values_agree_with_scipy_exact_and_normal_with_and_without_ties() {
        let cases = golden().mann_whitney;
        assert!(cases.iter().any(|case| case.method == "exact"));
        assert!(cases.iter().any(|case| case.method == "asymptotic"));
        for case in cases {
            assert_close(mann_whitney(&case.a, &case.b).unwrap(), case.p, 1e-12, &case.method);
            assert_close(mann_whitney(&case.b, &case.a).unwrap(), case.p, 1e-12, &case.method);
        }
    }

    #[test]
    fn equal_values_have_a_p_of_1_and_an_empty_sample_or_nan_has_no_p() {
        assert_eq!(mann_whitney(&[1.0; 9], &[1.0; 30]), Some(1.0));
        assert_eq!(mann_whitney(&[1.0], &[1.0]), Some(1.0));
        assert_eq!((mann_whitney(&[], &[1.0]), mann_whitney(&[f64::NAN], &[1.0])), (None, None));
    }

    #[test]
    fn the_largest_samples_with_an_exact_p_are_counted_exactly() {
        let total = upper_tail_of_u(0.0, MAX_EXACT, MAX_EXACT);
        assert_eq!(total, 1.0);
        // Of C(50, 25) orderings, one has every value of one sample above all values of the other.
        let all = (1..=25).fold(1.0, |product: f64, i| product * f64::from(25 + i) / f64::from(i));
        assert_close(upper_tail_of_u(625.0, MAX_EXACT, MAX_EXACT), 1.0 / all, 1e-12, "the last order");
    }

    #[test]
    fn welch_accepts_sides_without_spread_and_refuses_single_values() {
        assert_eq!((welch(&[1.0; 3], &[1.0; 4]), welch(&[1.0; 3], &[2.0; 4])), (Some(1.0), Some(0.0)));
        assert_eq!((welch(&[1.0], &[1.0, 2.0]), welch(&[1.0, f64::NAN], &[1.0, 2.0])), (None, None));
    }

    #[test]
    fn adjusted_p_values_agree_with_statsmodels() {
        let cases = golden().holm;
        assert!(cases.len() > 3);
        for case in cases {
            for (found, expected) in holm(&case.p).into_iter().zip(case.adjusted) {
                assert_close(found, expected, 1e-14, "holm");
            }
        }
    }

    #[test]
    fn one_p_value_is_not_adjusted_and_nan_counts_as_1() {
        assert!(holm(&[]).is_empty());
        assert_eq!(holm(&[0.01]), [0.01]);
        assert_eq!(holm(&[f64::NAN, 0.01]), [1.0, 0.02]);
    }
}
