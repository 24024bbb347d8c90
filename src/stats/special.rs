//! The special functions under the distributions, each from a formula of the NIST Digital Library of Mathematical
//! Functions (DLMF, dlmf.nist.gov).

use std::f64::consts::PI;

/// The logarithm of the gamma function for positive `x`, by Stirling's series (DLMF 5.11.1). From 15 on, seven of its terms are
/// exact to the last digit; the recurrence (DLMF 5.5.1) raises smaller arguments.
pub fn ln_gamma(x: f64) -> f64 {
    const ENTRY: f64 = 15.0;
    let (mut x, mut passed) = (x, 1.0);
    while x < ENTRY {
        passed *= x;
        x += 1.0;
    }
    // B(2k) / (2k (2k - 1)).
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
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * PI).ln() + series - f64::ln(passed)
}

/// The logarithm of the beta function (DLMF 5.12.1).
pub fn ln_beta(a: f64, b: f64) -> f64 {
    ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b)
}

/// The regularised incomplete beta function I_x(a, b) by its continued fraction (DLMF 8.17.22), from the side on which
/// that converges fast (DLMF 8.17.4 turns one into the other). `y` is 1 - x, given apart so that it loses no digits.
pub fn incomplete_beta(x: f64, y: f64, a: f64, b: f64) -> f64 {
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

/// The fraction's value, by the algorithm of Lentz as Thompson and Barnett modified it ("Coulomb and Bessel functions
/// of complex arguments and order", Journal of Computational Physics 64 (1986), section 4).
fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    const TINY: f64 = 1e-300;
    const MOST_TERMS: u32 = 10_000;
    let kept = |value: f64| if value.abs() < TINY { TINY } else { value };
    let (mut value, mut c, mut d) = (1.0, 1.0, 0.0);
    for term in 1..MOST_TERMS {
        let m = f64::from(term / 2);
        let numerator = if term % 2 == 0 {
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        } else {
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        };
        d = 1.0 / kept(1.0 + numerator * d);
        c = kept(1.0 + numerator / c);
        value *= c * d;
        if (c * d - 1.0).abs() < 1e-16 {
            break;
        }
    }
    1.0 / value
}

/// The probability that a standard normal variable lies above `x`. Near the middle it uses the series DLMF 7.6.2, whose terms are
/// all positive. Further out the continued fraction DLMF 7.9.1 keeps the digits of small probabilities.
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

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    #[test]
    fn special_functions_are_those_of_scipy() {
        let golden = golden::special();
        assert!(
            golden.ln_gamma.len() > 20 && golden.incomplete_beta.len() > 20 && golden.normal_above.len() > 20
        );
        for (x, expected) in golden.ln_gamma {
            // At 1 and 2 the function is zero, so only the rounding of larger terms is left.
            assert!(
                (ln_gamma(x) - expected).abs() < 1e-14 * (1.0 + expected.abs()),
                "ln gamma {x}: {}",
                ln_gamma(x)
            );
        }
        for (x, a, b, expected) in golden.incomplete_beta {
            golden::close(incomplete_beta(x, 1.0 - x, a, b), expected, 1e-12, &format!("I {x} {a} {b}"));
        }
        for (x, expected) in golden.normal_above {
            golden::close(normal_above(x), expected, 1e-12, &format!("normal above {x}"));
        }
    }

    #[test]
    fn at_the_ends_of_its_range_the_incomplete_beta_function_is_nothing_and_all() {
        assert_eq!((incomplete_beta(0.0, 1.0, 2.0, 3.0), incomplete_beta(1.0, 0.0, 2.0, 3.0)), (0.0, 1.0));
        assert_eq!((normal_above(0.0), normal_above(f64::INFINITY)), (0.5, 0.0));
    }
}
