//! Student's t and the normal distribution, from formulas of the NIST Digital Library of Mathematical Functions (DLMF,
//! dlmf.nist.gov).

use std::f64::consts::PI;

/// The probability that a standard normal variable lies above `x`. Near zero it uses the series DLMF 7.6.2, whose terms are all
/// positive. Further out, the continued fraction DLMF 7.9.1 keeps the digits of small probabilities.
pub fn normal_above(x: f64) -> f64 {
    if x < 0.0 {
        return 1.0 - normal_above(-x);
    }
    let z = x / 2f64.sqrt();
    if z < 2.0 {
        let mut term = z;
        let mut sum = z;
        let mut n = 0.0;
        while term > sum * 1e-17 {
            n += 1.0;
            term *= 2.0 * z * z / (2.0 * n + 1.0);
            sum += term;
        }
        return 0.5 - (-z * z).exp() / PI.sqrt() * sum;
    }
    const TERMS: u32 = 100;
    let fraction = (1..=TERMS).rev().fold(z, |below, k| z + 0.5 * f64::from(k) / below);
    0.5 * (-z * z).exp() / (PI.sqrt() * fraction)
}

/// The value below which a standard normal variable lies with this probability, by bisection.
pub fn normal_quantile(probability: f64) -> f64 {
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..64 {
        let middle = 0.5 * (low + high);
        match normal_above(-middle) < probability {
            true => low = middle,
            false => high = middle,
        }
    }
    0.5 * (low + high)
}

/// The probability that Student's t lies above `t`: Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), 26.5.27
/// and 26.7.1. The degrees of freedom may be fractional, as those of Welch are.
fn t_above(t: f64, df: f64) -> f64 {
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

/// The quantile (1 + confidence) / 2 of Student's t: a share `confidence` of the distribution lies between minus and plus this
/// value. It uses Newton's method on the upper tail, between two bounds that approach the solution.
pub fn t_critical(confidence: f64, df: f64) -> f64 {
    let tail = (1.0 - confidence) / 2.0;
    let (mut low, mut high) = (0.0, 1.0);
    while t_above(high, df) > tail && high < f64::MAX / 4.0 {
        (low, high) = (high, high * 2.0);
    }
    let mut t = 0.5 * (low + high);
    // Bisection alone would need about sixty steps for all digits; Newton's method needs six.
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

/// The logarithm of the gamma function for positive `x`, by Stirling's series (DLMF 5.11.1). For `x` of 15 or more, seven
/// terms give all digits of an f64; the recurrence (DLMF 5.5.1) raises smaller arguments.
fn ln_gamma(x: f64) -> f64 {
    const MIN_STIRLING: f64 = 15.0;
    let (mut x, mut product) = (x, 1.0);
    while x < MIN_STIRLING {
        product *= x;
        x += 1.0;
    }
    // B(2k) / (2k (2k - 1)), with the Bernoulli numbers B(2k).
    let terms = [
        1.0 / 12.0,
        -1.0 / 360.0,
        1.0 / 1260.0,
        -1.0 / 1680.0,
        1.0 / 1188.0,
        -691.0 / 360_360.0,
        1.0 / 156.0,
    ];
    let series = terms.iter().rev().fold(0.0, |sum, term| sum / (x * x) + term) / x;
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * PI).ln() + series - f64::ln(product)
}

/// The logarithm of the beta function (DLMF 5.12.1).
fn ln_beta(a: f64, b: f64) -> f64 {
    ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b)
}

/// The regularised incomplete beta function I_x(a, b) by its continued fraction (DLMF 8.17.22), for x or for
/// 1 - x, whichever converges fast (DLMF 8.17.4 relates the two). The caller passes `y` = 1 - x, so that no digits are lost.
fn incomplete_beta(x: f64, y: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || y <= 0.0 {
        return if x <= 0.0 { 0.0 } else { 1.0 };
    }
    let front = (a * x.ln() + b * y.ln() - ln_beta(a, b)).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front / a * beta_fraction(x, a, b)
    } else {
        1.0 - front / b * beta_fraction(y, b, a)
    }
}

/// The value of the continued fraction, by the algorithm of Lentz as Thompson and Barnett modified it ("Coulomb and Bessel
/// functions of complex arguments and order", Journal of Computational Physics 64 (1986), section 4).
fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    const TINY: f64 = 1e-300;
    const MAX_TERMS: u32 = 10_000;
    let nonzero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let (mut value, mut c, mut d) = (1.0, 1.0, 0.0);
    for term in 1..MAX_TERMS {
        let m = f64::from(term / 2);
        let numerator = if term % 2 == 0 {
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        } else {
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        };
        d = 1.0 / nonzero(1.0 + numerator * d);
        c = nonzero(1.0 + numerator / c);
        value *= c * d;
        if (c * d - 1.0).abs() < 1e-16 {
            break;
        }
    }
    1.0 / value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{assert_close, golden};

    #[test]
    fn t_quantiles_agree_with_scipy_for_1_to_200_degrees_of_freedom() {
        let cases = golden().student;
        assert_eq!(cases.quantiles.len(), 200);
        for (row, df) in cases.quantiles.iter().zip(1..) {
            for (expected, p) in row.iter().zip(&cases.p) {
                // 2 p - 1 is exact: p is at least a half.
                let found = t_critical(2.0 * p - 1.0, f64::from(df));
                assert!((found - expected).abs() < 1e-9, "df {df}, p {p}: {found}, scipy {expected}");
            }
        }
    }

    #[test]
    fn t_tails_agree_with_scipy_for_whole_and_fractional_degrees_of_freedom() {
        let cases = golden().student;
        assert!(cases.above.len() > 50);
        for (t, df, expected) in cases.above {
            // Logarithms of large gamma functions cancel: with thousands of degrees of freedom, ten digits are left.
            let tolerance = if df > 500.0 { 1e-10 } else { 1e-12 };
            assert_close(t_above(t, df), expected, tolerance, &format!("t {t}, df {df}"));
        }
        assert_eq!((t_above(f64::INFINITY, 3.0), t_above(0.0, 3.0), two_sided(0.0, 3.0)), (0.0, 0.5, 1.0));
    }

    #[test]
    fn special_functions_agree_with_scipy() {
        let cases = golden().special_functions;
        let counts = [cases.ln_gamma.len(), cases.incomplete_beta.len(), cases.normal_above.len()];
        assert!(counts.iter().all(|&count| count > 20));
        for (x, expected) in cases.ln_gamma {
            // At 1 and 2 the function is zero, so only the rounding of larger terms is left.
            let found = ln_gamma(x);
            assert!((found - expected).abs() < 1e-14 * (1.0 + expected.abs()), "ln gamma {x}: {found}");
        }
        for (x, a, b, expected) in cases.incomplete_beta {
            assert_close(incomplete_beta(x, 1.0 - x, a, b), expected, 1e-12, &format!("I {x} {a} {b}"));
        }
        for (x, expected) in cases.normal_above {
            assert_close(normal_above(x), expected, 1e-12, &format!("normal above {x}"));
        }
    }

    #[test]
    fn the_normal_quantile_is_the_inverse_of_the_probability() {
        for x in [-3.0, -1.0, 0.0, 0.25, 2.0, 2.326_347_874_040_841] {
            let found = normal_quantile(normal_above(-x));
            assert!((found - x).abs() < 1e-10, "{x}: {found}");
        }
        let ends = [0.0, 1.0].map(normal_quantile);
        assert!(ends[0] < -30.0 && ends[1] > 8.0, "{ends:?}");
    }

    #[test]
    fn the_incomplete_beta_function_is_0_and_1_at_the_ends_of_its_range() {
        assert_eq!((incomplete_beta(0.0, 1.0, 2.0, 3.0), incomplete_beta(1.0, 0.0, 2.0, 3.0)), (0.0, 1.0));
        assert_eq!((normal_above(0.0), normal_above(f64::INFINITY)), (0.5, 0.0));
    }
}
