//! The verdict on an interval of a log ratio, by the limits of a difference and of equality. Above zero is better.

use serde::Serialize;

use super::interval::{CONFIDENCE, Interval};
use super::noise_floor::Epsilon;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better, for a metric that is not a speed.
    Faster,
    /// Worse, for a metric that is not a speed.
    Slower,
    /// Equal, or different by too little to count.
    Same,
    /// Inconclusive: the noise is too large for a decision.
    Inconclusive,
}

impl Verdict {
    /// The verdict by three zones around equality, as in tests of equivalence (Schuirmann, "A Comparison of the Two One-Sided
    /// Tests Procedure and the Power Approach", Journal of Pharmacokinetics and Biopharmaceutics 15 (1987); his test at 2.5 %
    /// is an interval of 95 % inside the zone). A certain but small difference is the same only where the whole interval lies
    /// in the zone.
    pub(crate) fn of(interval: &Interval, epsilon: Epsilon) -> Self {
        let estimate = interval.estimate();
        if interval.lies_within(epsilon.same()) {
            return Self::Same;
        }
        if !interval.excludes_zero() || estimate.abs() <= epsilon.difference() {
            return Self::Inconclusive;
        }
        if estimate > 0.0 { Self::Faster } else { Self::Slower }
    }

    /// A difference becomes inconclusive where its p value, adjusted for the other comparisons, is not significant.
    pub(crate) fn among_many(self, adjusted: f64) -> Self {
        if self.is_a_difference() && adjusted > 1.0 - CONFIDENCE { Self::Inconclusive } else { self }
    }

    pub fn is_a_difference(self) -> bool {
        matches!(self, Self::Faster | Self::Slower)
    }
}

#[cfg(test)]
mod tests {
    use super::super::interval::Design;
    use super::super::noise_floor::NoiseFloor;
    use super::*;

    /// Five blocks with that mean and, in a fixed design, that half width.
    fn interval(estimate: f64, half_width: f64) -> Interval {
        let shape = [-1.0, -0.5, 0.0, 0.5, 1.0];
        let unit = Interval::of_mean(&shape, Design::Fixed).unwrap().half_width();
        Interval::of_mean(&shape.map(|it| estimate + it * half_width / unit), Design::Fixed).unwrap()
    }

    fn verdict(percent: f64, half_width: f64, floor: f64) -> Verdict {
        let interval = interval((percent / 100.0).ln_1p(), half_width / 100.0);
        Verdict::of(&interval, Epsilon::over(NoiseFloor::of(&[floor / 100.0])))
    }

    #[test]
    fn a_difference_must_be_certain_and_large_enough() {
        assert_eq!(verdict(310.0, 5.0, 0.0), Verdict::Faster);
        assert_eq!(verdict(-3.0, 1.0, 0.0), Verdict::Slower);
        // Large and uncertain; certain and small; certain and below the noise floor.
        assert_eq!(verdict(5.0, 6.0, 0.0), Verdict::Inconclusive);
        assert_eq!(verdict(1.5, 1.0, 0.0), Verdict::Inconclusive);
        assert_eq!(verdict(5.0, 1.0, 5.5), Verdict::Inconclusive);
    }

    #[test]
    fn same_needs_the_whole_interval_within_two_percent() {
        assert_eq!(verdict(0.5, 1.0, 0.0), Verdict::Same);
        assert_eq!(verdict(0.5, 1.9, 0.0), Verdict::Inconclusive);
        // A higher noise floor does not widen the zone of equality.
        assert_eq!(verdict(0.5, 1.9, 40.0), Verdict::Inconclusive);
        // Certainly different, but by too little to count.
        assert_eq!(verdict(1.0, 0.5, 0.0), Verdict::Same);
    }
}
