//! The verdict on an interval of a log ratio, and the severity of a change. A log ratio above zero is better.

use serde::Serialize;

use super::interval::{CONFIDENCE, Interval};
use super::noise_floor::VerdictThresholds;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Faster, or better for a metric that is not a speed.
    Faster,
    /// Slower, or worse for a metric that is not a speed.
    Slower,
    /// Equal, or with a difference too small to count.
    Same,
    /// Neither a difference nor equality is shown.
    Inconclusive,
}

impl Verdict {
    /// `Same` if the whole interval lies within the threshold of equality, as in tests of equivalence (Schuirmann, "A
    /// Comparison of the Two One-Sided Tests Procedure and the Power Approach", Journal of Pharmacokinetics and
    /// Biopharmaceutics 15 (1987): his test at 2.5 % uses the interval of 95 %). A difference if the interval excludes zero and
    /// the estimate exceeds the threshold of a difference. Otherwise `Inconclusive`.
    pub(crate) fn of(interval: &Interval, thresholds: VerdictThresholds) -> Self {
        let estimate = interval.estimate();
        if interval.lies_within(thresholds.same()) {
            return Self::Same;
        }
        if !interval.excludes_zero() || estimate.abs() <= thresholds.difference() {
            return Self::Inconclusive;
        }
        if estimate > 0.0 { Self::Faster } else { Self::Slower }
    }

    /// The verdict after the correction for many comparisons. A difference becomes inconclusive if its adjusted p value is not
    /// significant.
    pub(crate) fn after_correction(self, p_adjusted: f64) -> Self {
        if self.is_a_difference() && p_adjusted > 1.0 - CONFIDENCE { Self::Inconclusive } else { self }
    }

    /// The verdict with both sides exchanged.
    pub fn inverted(self) -> Self {
        match self {
            Self::Faster => Self::Slower,
            Self::Slower => Self::Faster,
            verdict => verdict,
        }
    }

    pub fn is_a_difference(self) -> bool {
        matches!(self, Self::Faster | Self::Slower)
    }
}

/// The kind of quantity that a metric measures. A log ratio above zero is better: faster, or less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    Speed,
    /// Memory or energy.
    Amount,
}

impl MetricKind {
    /// The factor that turns a log ratio into the log change of the speed (1) or of the amount (-1): a better amount is a
    /// smaller one.
    pub(crate) fn sign(self) -> f64 {
        if self == Self::Speed { 1.0 } else { -1.0 }
    }

    /// The share by which the metric became worse: the lost share of speed, or the additional share of memory. It is negative if
    /// the metric became better.
    pub fn worsening(self, log_ratio: f64) -> f64 {
        -self.sign() * (self.sign() * log_ratio).exp_m1()
    }
}

/// The severity of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Informative,
    Warning,
    Critical,
}

/// Shares of worsening: a warning begins at `warning`, and above `critical` a change is critical. 0 < warning <= critical.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeverityThresholds {
    warning: f64,
    critical: f64,
}

impl Default for SeverityThresholds {
    fn default() -> Self {
        Self { warning: 0.1, critical: 0.2 }
    }
}

impl SeverityThresholds {
    pub fn new(warning: f64, critical: f64) -> Option<Self> {
        (warning > 0.0 && warning <= critical && critical.is_finite()).then_some(Self { warning, critical })
    }
}

impl Severity {
    /// The severity by the share of worsening. Only the verdict `Slower` gives more than `Informative`. An inconclusive
    /// result has an exit code of its own.
    pub fn of(verdict: Verdict, log_ratio: f64, kind: MetricKind, thresholds: SeverityThresholds) -> Self {
        let worsening = kind.worsening(log_ratio);
        match verdict {
            Verdict::Slower if worsening > thresholds.critical => Self::Critical,
            Verdict::Slower if worsening >= thresholds.warning => Self::Warning,
            _ => Self::Informative,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interval::Design;
    use crate::noise_floor::NoiseFloor;

    /// The interval of five blocks in a fixed design, with this mean and this half width.
    fn interval(estimate: f64, half_width: f64) -> Interval {
        let shape = [-1.0, -0.5, 0.0, 0.5, 1.0];
        let unit = Interval::of_mean(&shape, Design::Fixed).unwrap().half_width();
        Interval::of_mean(&shape.map(|it| estimate + it * half_width / unit), Design::Fixed).unwrap()
    }

    /// The verdict on a difference with this half width and this noise floor, all in per cent.
    fn verdict(difference: f64, half_width: f64, floor: f64) -> Verdict {
        let interval = interval((difference / 100.0).ln_1p(), half_width / 100.0);
        Verdict::of(&interval, VerdictThresholds::above_floor(NoiseFloor::of(&[floor / 100.0])))
    }

    #[test]
    fn a_difference_must_be_certain_and_large_enough() {
        assert_eq!(verdict(310.0, 5.0, 0.0), Verdict::Faster);
        assert_eq!(verdict(-3.0, 1.0, 0.0), Verdict::Slower);
        // In this order: large but uncertain, certain but small, certain but below the noise floor.
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

    fn severity(verdict: Verdict, speed_ratio: f64) -> Severity {
        Severity::of(verdict, speed_ratio.ln(), MetricKind::Speed, SeverityThresholds::default())
    }

    #[test]
    fn a_certain_worsening_is_classified_by_its_size() {
        let severities =
            [0.95, 0.905, 0.895, 0.805, 0.795, 0.1].map(|speed_ratio| severity(Verdict::Slower, speed_ratio));
        use Severity::{Critical, Informative, Warning};
        assert_eq!(severities, [Informative, Informative, Warning, Warning, Critical, Critical]);
    }

    #[test]
    fn improvements_and_inconclusive_results_are_informative() {
        assert_eq!(severity(Verdict::Faster, 4.0), Severity::Informative);
        assert_eq!(
            [Verdict::Same, Verdict::Inconclusive].map(|it| severity(it, 0.5)),
            [Severity::Informative; 2]
        );
    }

    #[test]
    fn more_memory_is_judged_by_the_share_that_is_printed() {
        let severity_of_increase = |factor: f64| {
            Severity::of(Verdict::Slower, -factor.ln(), MetricKind::Amount, SeverityThresholds::default())
        };
        assert_eq!(
            [1.09, 1.19, 1.21].map(severity_of_increase),
            [Severity::Informative, Severity::Warning, Severity::Critical]
        );
    }

    #[test]
    fn thresholds_are_accepted_only_in_ascending_order() {
        let strict = SeverityThresholds::new(0.01, 0.05).unwrap();
        assert_eq!(
            Severity::of(Verdict::Slower, 0.94f64.ln(), MetricKind::Speed, strict),
            Severity::Critical
        );
        let invalid = [(0.2, 0.1), (0.0, 0.1), (f64::NAN, 0.2), (0.1, f64::INFINITY)];
        assert_eq!(invalid.map(|(warning, critical)| SeverityThresholds::new(warning, critical)), [None; 4]);
    }
}
