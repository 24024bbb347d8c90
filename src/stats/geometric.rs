//! The geometric mean: one number for many scenarios.

/// The geometric mean of ratios: the only mean that does not depend on the choice of reference (Fleming and Wallace, "How Not to
/// Lie with Statistics: The Correct Way to Summarize Benchmark Results", Communications of the ACM 29 (1986)). `None`
/// where a scenario has no value above zero: leaving it out would favour an engine that failed in it.
///
/// Caution: it does not predict time. A scenario of a millisecond counts as much as one of an hour, and a real workload may have
/// another ratio (Smith, "Characterizing Computer Performance with a Single Number", Communications of the ACM 31 (1988)).
/// Print it beside the scenarios, never in their place.
pub fn geometric_mean(scenarios: &[Option<f64>]) -> Option<f64> {
    let logarithm = |value: &Option<f64>| value.filter(|it| it.is_finite() && *it > 0.0).map(f64::ln);
    let logarithms = scenarios.iter().map(logarithm).collect::<Option<Vec<f64>>>()?;
    let mean = logarithms.iter().sum::<f64>() / logarithms.len() as f64;
    (!logarithms.is_empty()).then(|| mean.exp())
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    #[test]
    fn the_geometric_mean_is_that_of_scipy() {
        let golden = golden::geometric_means();
        assert!(golden.len() > 2);
        for case in golden {
            let values: Vec<Option<f64>> = case.values.into_iter().map(Some).collect();
            golden::close(geometric_mean(&values).unwrap(), case.mean, 1e-14, "geometric mean");
        }
    }

    #[test]
    fn a_scenario_without_a_value_leaves_no_mean() {
        for missing in [None, Some(0.0), Some(-1.0), Some(f64::NAN), Some(f64::INFINITY)] {
            assert_eq!(geometric_mean(&[Some(2.0), missing]), None, "{missing:?}");
        }
        assert_eq!(geometric_mean(&[]), None);
    }

    #[test]
    fn the_geometric_mean_does_not_overflow() {
        let mean = geometric_mean(&[Some(1e300), Some(1e300), Some(1e-300), Some(1e300)]).unwrap();
        assert!((mean / 1e150 - 1.0).abs() < 1e-12);
    }
}
