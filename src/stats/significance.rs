//! The well-known tests without pairing, each side's blocks on their own, and the correction for many tests at once.

use super::distribution::{normal_above, two_sided};
use super::summary::{Moments, ascending};

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

/// The two-sided p value of Welch, "The Generalization of 'Student's' Problem When Several Different Population
/// Variances Are Involved", Biometrika 34 (1947), with the degrees of freedom of Welch and Satterthwaite. `None`
/// where a side has fewer than two values or one that is not finite.
pub fn welch(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    Some(Estimate::of_difference(ours, theirs)?.p()).filter(|p| p.is_finite())
}

/// A mean, or the difference of two means, with its standard error and the degrees of freedom of that error.
#[derive(Debug, Clone, Copy)]
pub struct Estimate {
    pub value: f64,
    pub error: f64,
    pub df: f64,
}

impl Estimate {
    /// `None` for fewer than two values, or where one is not finite.
    pub fn of_mean(values: &[f64]) -> Option<Self> {
        let Moments { n, mean, variance } = Moments::of(values)?;
        Some(Self { value: mean, error: (variance / n).sqrt(), df: n - 1.0 })
    }

    /// The mean of `ours` less that of `theirs`, two independent samples. The degrees of freedom are those of Satterthwaite, "An
    /// Approximate Distribution of Estimates of Variance Components", Biometrics Bulletin 2 (1946). For samples without any
    /// spread they are those of the smaller one: there is nothing to weigh.
    pub fn of_difference(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let (ours, theirs) = (Moments::of(ours)?, Moments::of(theirs)?);
        let [(square, df), (other_square, other_df)] =
            [&ours, &theirs].map(|it| (it.variance / it.n, it.n - 1.0));
        let of_both = square + other_square;
        let freedom = of_both.powi(2) / (square.powi(2) / df + other_square.powi(2) / other_df);
        let df = if of_both > 0.0 { freedom } else { df.min(other_df) };
        Some(Self { value: ours.mean - theirs.mean, error: of_both.sqrt(), df })
    }

    /// The two-sided p value for a value of zero.
    pub fn p(&self) -> f64 {
        if self.value == 0.0 { 1.0 } else { two_sided(self.value / self.error, self.df) }
    }
}

/// The p values adjusted for their number, in the order given: Holm, "A Simple Sequentially Rejective Multiple Test
/// Procedure", Scandinavian Journal of Statistics 6 (1979). Rejecting values up to a level then rejects any true hypothesis with
/// at most that probability. The tests may depend on each other, as metrics of one run do. NaN counts as 1.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let known = |p: f64| if p.is_nan() { 1.0 } else { p };
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&one, &other| known(p_values[one]).total_cmp(&known(p_values[other])));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut largest: f64 = 0.0;
    for (rank, index) in order.into_iter().enumerate() {
        // The hypotheses not rejected before this one.
        let remaining = (p_values.len() - rank) as f64;
        largest = largest.max((known(p_values[index]) * remaining).min(1.0));
        adjusted[index] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{close, golden};

    #[test]
    fn p_values_are_those_of_scipy_exact_and_normal_with_and_without_ties() {
        let cases = golden().mann_whitney;
        assert!(cases.iter().any(|case| case.method == "exact"));
        assert!(cases.iter().any(|case| case.method == "asymptotic"));
        for case in cases {
            close(mann_whitney(&case.ours, &case.theirs).unwrap(), case.p, 1e-12, &case.method);
            close(mann_whitney(&case.theirs, &case.ours).unwrap(), case.p, 1e-12, &case.method);
        }
    }

    #[test]
    fn equal_values_have_a_p_of_1_and_no_values_have_none() {
        assert_eq!(mann_whitney(&[1.0; 9], &[1.0; 30]), Some(1.0));
        assert_eq!(mann_whitney(&[1.0], &[1.0]), Some(1.0));
        assert_eq!((mann_whitney(&[], &[1.0]), mann_whitney(&[f64::NAN], &[1.0])), (None, None));
    }

    #[test]
    fn the_largest_samples_with_an_exact_p_are_counted_exactly() {
        let counts = at_least(0.0, EXACT, EXACT);
        assert_eq!(counts, 1.0);
        // One order of C(50, 25) has every value of one side above the other's.
        let all = (1..=25).fold(1.0, |product: f64, i| product * f64::from(25 + i) / f64::from(i));
        close(at_least(625.0, EXACT, EXACT), 1.0 / all, 1e-12, "the last order");
    }

    #[test]
    fn welch_accepts_sides_without_spread_and_refuses_single_values() {
        assert_eq!((welch(&[1.0; 3], &[1.0; 4]), welch(&[1.0; 3], &[2.0; 4])), (Some(1.0), Some(0.0)));
        assert_eq!((welch(&[1.0], &[1.0, 2.0]), welch(&[1.0, f64::NAN], &[1.0, 2.0])), (None, None));
    }

    #[test]
    fn adjusted_p_values_are_those_of_statsmodels() {
        let cases = golden().holm;
        assert!(cases.len() > 3);
        for case in cases {
            for (found, expected) in holm(&case.p).into_iter().zip(case.adjusted) {
                close(found, expected, 1e-14, "holm");
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
