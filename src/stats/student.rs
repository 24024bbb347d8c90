//! Student's t distribution, for any number of degrees of freedom, whole or not (Welch's is not).

use super::special::{incomplete_beta, ln_beta};

/// The probability that a variable with `df` degrees of freedom lies above `t`: Abramowitz and Stegun, "Handbook of
/// Mathematical Functions" (1964), 26.5.27 and 26.7.1.
pub fn t_above(t: f64, df: f64) -> f64 {
    if t < 0.0 {
        return 1.0 - t_above(-t, df);
    }
    if t.is_infinite() {
        return 0.0;
    }
    let square = t * t;
    0.5 * incomplete_beta(df / (df + square), square / (df + square), df / 2.0, 0.5)
}

/// The probability of a value at least as far from zero as `t`.
pub fn two_sided(t: f64, df: f64) -> f64 {
    (2.0 * t_above(t.abs(), df)).min(1.0)
}

/// The quantile (1 + confidence) / 2: a share `confidence` of the distribution lies between minus and plus this value. It uses
/// Newton's method on the upper tail, between two bounds that close in on it.
pub fn t_critical(confidence: f64, df: f64) -> f64 {
    let tail = (1.0 - confidence) / 2.0;
    let (mut low, mut high) = (0.0, 1.0);
    while t_above(high, df) > tail && high < f64::MAX / 4.0 {
        (low, high) = (high, high * 2.0);
    }
    let mut t = 0.5 * (low + high);
    // Bisection alone would need about sixty steps for all digits; Newton's needs six.
    for _ in 0..200 {
        let excess = t_above(t, df) - tail;
        if excess > 0.0 {
            low = t
        } else {
            high = t
        }
        let newton = t + excess / density(t, df);
        let next = if newton > low && newton < high { newton } else { 0.5 * (low + high) };
        let step = (next - t).abs();
        t = next;
        if step <= 1e-15 * t {
            break;
        }
    }
    t
}

fn density(t: f64, df: f64) -> f64 {
    (-ln_beta(df / 2.0, 0.5) - 0.5 * df.ln() - (df + 1.0) / 2.0 * (t * t / df).ln_1p()).exp()
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    #[test]
    fn t_quantiles_are_those_of_scipy_for_1_to_200_degrees_of_freedom() {
        let golden = golden::student();
        assert_eq!(golden.quantiles.len(), 200);
        for (row, df) in golden.quantiles.iter().zip(1..) {
            for (expected, p) in row.iter().zip(&golden.p) {
                // 2 p - 1 is exact: p is at least a half.
                let found = t_critical(2.0 * p - 1.0, f64::from(df));
                assert!((found - expected).abs() < 1e-9, "df {df}, p {p}: {found}, scipy {expected}");
            }
        }
    }

    #[test]
    fn t_tails_are_those_of_scipy_also_between_whole_degrees_of_freedom() {
        let golden = golden::student();
        assert!(golden.above.len() > 50);
        for (t, df, expected) in golden.above {
            // Logarithms of large gamma functions cancel: with thousands of degrees of freedom, ten digits are left.
            golden::close(
                t_above(t, df),
                expected,
                if df > 500.0 { 1e-10 } else { 1e-12 },
                &format!("t {t}, df {df}"),
            );
        }
        assert_eq!((t_above(f64::INFINITY, 3.0), t_above(0.0, 3.0), two_sided(0.0, 3.0)), (0.0, 0.5, 1.0));
    }
}
