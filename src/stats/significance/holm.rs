//! Holm's correction for many tests at once.

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
    use super::super::super::golden;
    use super::*;

    #[test]
    fn adjusted_p_values_are_those_of_statsmodels() {
        let golden = golden::holm();
        assert!(golden.len() > 3);
        for case in golden {
            for (found, expected) in holm(&case.p).into_iter().zip(case.adjusted) {
                golden::close(found, expected, 1e-14, "holm");
            }
        }
    }

    #[test]
    fn no_tests_need_no_adjustment_and_what_is_no_number_proves_nothing() {
        assert!(holm(&[]).is_empty());
        assert_eq!(holm(&[0.01]), [0.01]);
        assert_eq!(holm(&[f64::NAN, 0.01]), [1.0, 0.02]);
    }
}
