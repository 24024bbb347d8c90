//! Welch's test: do two sides have the same mean?

use super::super::student::two_sided;

/// The two-sided p value of Welch, "The Generalization of 'Student's' Problem When Several Different Population
/// Variances Are Involved", Biometrika 34 (1947), with the degrees of freedom of Welch and Satterthwaite. `None`
/// where a side has fewer than two values or one that is not finite.
pub fn welch(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    let p = Difference::of(ours, theirs)?.p();
    p.is_finite().then_some(p)
}

/// The difference of the means of two independent samples, with its standard error and the degrees of freedom of that error
/// (Satterthwaite, "An Approximate Distribution of Estimates of Variance Components", Biometrics Bulletin 2 (1946)).
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    pub mean: f64,
    pub error: f64,
    /// For samples without any spread, those of the smaller sample: there is nothing to weigh.
    pub df: f64,
}

impl Difference {
    pub fn of(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let (mean, error, df) = squared_error(ours)?;
        let (other_mean, other_error, other_df) = squared_error(theirs)?;
        let of_both = error + other_error;
        let freedom = of_both.powi(2) / (error.powi(2) / df + other_error.powi(2) / other_df);
        let df = if of_both > 0.0 { freedom } else { df.min(other_df) };
        Some(Self { mean: mean - other_mean, error: of_both.sqrt(), df })
    }

    /// The two-sided p value for equal means.
    pub fn p(&self) -> f64 {
        if self.mean == 0.0 { 1.0 } else { two_sided(self.mean / self.error, self.df) }
    }
}

/// The mean, the square of its standard error, and the degrees of freedom of that error.
fn squared_error(values: &[f64]) -> Option<(f64, f64, f64)> {
    let (n, df) = (values.len() as f64, values.len().checked_sub(1).filter(|&df| df > 0)? as f64);
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    squares.is_finite().then_some((mean, squares / df / n, df))
}

#[cfg(test)]
mod tests {
    use super::super::super::golden;
    use super::*;

    #[test]
    fn p_values_are_those_of_scipy() {
        let golden = golden::welch();
        assert!(golden.len() > 3);
        for case in golden {
            golden::close(welch(&case.ours, &case.theirs).unwrap(), case.p, 1e-10, "welch");
        }
    }

    #[test]
    fn sides_without_spread_are_equal_or_not_and_single_values_are_no_sides() {
        assert_eq!((welch(&[1.0; 3], &[1.0; 4]), welch(&[1.0; 3], &[2.0; 4])), (Some(1.0), Some(0.0)));
        assert_eq!((welch(&[1.0], &[1.0, 2.0]), welch(&[1.0, f64::NAN], &[1.0, 2.0])), (None, None));
    }
}
