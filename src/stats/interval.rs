//! Confidence intervals of the mean over blocks.

use serde::Serialize;

use super::distribution::{normal_above, t_critical};
use super::random::Random;
use super::ratio::Ratios;
use super::significance::Estimate;
use super::summary::{ascending, mean, quantile, range};

/// The confidence of an interval: the share of experiments in which it contains the truth.
pub const CONFIDENCE: f64 = 0.95;
/// The least number of blocks for an interval that carries a verdict.
pub const MIN_VERDICT_BLOCKS: usize = 5;
/// The least number of blocks for an interval.
const MIN_INTERVAL_BLOCKS: usize = 3;

/// The way in which the number of blocks was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Design {
    /// The number was fixed beforehand.
    Fixed,
    /// Interim analyses could end the experiment as soon as its intervals were narrow (`stopping`).
    Interim,
}

impl Design {
    /// The confidence at which the t interval is computed, so that `CONFIDENCE` holds.
    ///
    /// An experiment that ends when its interval is narrow ends more often where the blocks happen to lie close together, so a
    /// plain t interval claims too much. Under the interim analyses of `stopping`, a plain interval of 95 % covers 92.2 % if
    /// the deviation of a block is 1.7 times the target (Anscombe, "Sequential Estimation", Journal of the Royal Statistical
    /// Society B 15 (1953); Starr, "The Performance of a Sequential Procedure for the Fixed-Width Interval Estimation of the
    /// Mean", Annals of Mathematical Statistics 37 (1966)). So each interim analysis uses a higher confidence, as repeated
    /// confidence intervals do (Jennison and Turnbull, "Interim Analyses: The Repeated Confidence Interval Approach", Journal
    /// of the Royal Statistical Society B 51 (1989)). It is chosen for `Rule`, which never sees the estimate. Coverage on
    /// normal noise is then between 95.0 and 96.5 % for every size of the noise (`tests/coverage.rs`; `scripts/simulate` prints
    /// the coverage for other noise). The middle analyses need a higher confidence, because a deviation that is small by chance
    /// ends the experiment there.
    pub fn t_confidence(self, blocks: usize) -> f64 {
        match (self, blocks) {
            (Self::Fixed, _) => CONFIDENCE,
            (Self::Interim, 6..=19) => 0.98,
            (Self::Interim, _) => 0.965,
        }
    }

    /// Corrects a two-sided p value for interim analyses: a p value of 1 - `t_confidence` becomes 1 - CONFIDENCE.
    pub fn correct_p(self, p: f64, blocks: usize) -> f64 {
        correct_p(p, self.t_confidence(blocks))
    }
}

fn correct_p(p: f64, confidence: f64) -> f64 {
    (p * (1.0 - CONFIDENCE) / (1.0 - confidence)).min(1.0)
}

/// A confidence interval: low <= estimate <= high, all finite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    estimate: f64,
    low: f64,
    high: f64,
    /// The p value for a mean of zero: at most 1 - CONFIDENCE exactly if the interval excludes zero.
    p: f64,
}

impl Interval {
    /// Student's t interval over independent values: blocks, never rounds or iterations of one launch (Kalibera and Jones,
    /// "Rigorous Benchmarking in Reasonable Time", ISMM 2013; Student, "The Probable Error of a Mean", Biometrika 6 (1908)).
    /// `None` for fewer than two values, or where a value is not finite.
    pub fn of_mean(values: &[f64], design: Design) -> Option<Self> {
        Self::from_estimate(Estimate::of_mean(values)?, design.t_confidence(values.len()))
    }

    /// Welch's interval of the mean of `a` less the mean of `b`, which were measured at different times. After interim analyses
    /// it uses the higher confidence of the two sides, because either spread may be small by chance. `None` if a side has fewer
    /// than two values or a value that is not finite.
    pub fn of_difference(a: &[f64], b: &[f64], design: Design) -> Option<Self> {
        let confidence = design.t_confidence(a.len()).max(design.t_confidence(b.len()));
        Self::from_estimate(Estimate::of_difference(a, b)?, confidence)
    }

    fn from_estimate(estimate: Estimate, confidence: f64) -> Option<Self> {
        let (value, half_width) = (estimate.value, t_critical(confidence, estimate.df) * estimate.error);
        let p = correct_p(estimate.p(), confidence);
        let finite = value.is_finite() && half_width.is_finite();
        finite.then_some(Self { estimate: value, low: value - half_width, high: value + half_width, p })
    }

    pub fn estimate(&self) -> f64 {
        self.estimate
    }

    pub fn low(&self) -> f64 {
        self.low
    }

    pub fn high(&self) -> f64 {
        self.high
    }

    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    pub fn p(&self) -> f64 {
        self.p
    }

    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }

    pub fn lies_within(&self, bound: f64) -> bool {
        -bound <= self.low && self.high <= bound
    }

    fn inverted(self) -> Self {
        Self { estimate: -self.estimate, low: -self.high, high: -self.low, p: self.p }
    }
}

/// The strength of a pair's blocks as evidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "evidence", rename_all = "snake_case")]
pub enum Evidence {
    /// One or two blocks: the range of the ratios of rounds, or of levels if two records are compared. So few
    /// blocks do not show the spread between launches: there is no interval and no verdict.
    #[serde(rename = "within_launch")]
    RangeOnly { estimate: f64, low: f64, high: f64 },
    /// Three or four blocks: a wide interval that assumes normality, without a verdict.
    Tentative(Interval),
    /// Five blocks or more: an interval that carries a verdict if the rounds were interleaved.
    Firm(Interval),
}

impl Evidence {
    pub fn of(ratios: &Ratios, design: Design) -> Self {
        let blocks = ratios.blocks();
        Self::of_interval(Interval::of_mean(blocks, design), blocks.len()).unwrap_or_else(|| {
            let (low, high) = ratios.extremes();
            Self::RangeOnly { estimate: mean(blocks), low, high }
        })
    }

    /// The evidence for a difference of levels (logarithms of medians) that were measured at different times. The side with fewer
    /// blocks decides the kind of evidence. `None` if a side has no level, or if a level is not finite.
    pub fn of_difference(a: &[f64], b: &[f64], design: Design) -> Option<Self> {
        let interval = Interval::of_difference(a, b, design);
        Self::of_interval(interval, a.len().min(b.len())).or_else(|| {
            let ((a_low, a_high), (b_low, b_high)) = (range(a), range(b));
            let (estimate, low, high) = (mean(a) - mean(b), a_low - b_high, a_high - b_low);
            let finite = [estimate, low, high].iter().all(|it| it.is_finite());
            finite.then_some(Self::RangeOnly { estimate, low, high })
        })
    }

    fn of_interval(interval: Option<Interval>, blocks: usize) -> Option<Self> {
        let interval = interval.filter(|_| blocks >= MIN_INTERVAL_BLOCKS)?;
        Some(if blocks >= MIN_VERDICT_BLOCKS { Self::Firm(interval) } else { Self::Tentative(interval) })
    }

    pub fn estimate(&self) -> f64 {
        match self {
            Self::RangeOnly { estimate, .. } => *estimate,
            Self::Tentative(interval) | Self::Firm(interval) => interval.estimate,
        }
    }

    /// The ends of the interval, or of the range if there is no interval.
    pub fn ends(&self) -> (f64, f64) {
        match self {
            Self::RangeOnly { low, high, .. } => (*low, *high),
            Self::Tentative(interval) | Self::Firm(interval) => (interval.low, interval.high),
        }
    }

    /// The evidence with both sides exchanged.
    pub(crate) fn inverted(self) -> Self {
        match self {
            Self::RangeOnly { estimate, low, high } => {
                Self::RangeOnly { estimate: -estimate, low: -high, high: -low }
            }
            Self::Tentative(interval) => Self::Tentative(interval.inverted()),
            Self::Firm(interval) => Self::Firm(interval.inverted()),
        }
    }

    /// The interval of firm evidence. Weaker evidence carries no verdict, so the result is `None`.
    pub fn interval_of_enough_blocks(&self) -> Option<Interval> {
        if let Self::Firm(interval) = self { Some(*interval) } else { None }
    }
}

/// The least number of values for a bootstrap. The resampled means of fewer values lie too close together: over 3, 5 and 10
/// blocks, a percentile interval that claims 95 % covers 75, 83 and 90 %.
const MIN_RESAMPLED: usize = 20;
/// The largest number of values for a bootstrap. With more values, the bootstrap agrees with t and takes long.
const MAX_RESAMPLED: usize = 200;
/// The number of resamples. With these, the ends of an interval vary by about 0.007 of its width between seeds.
const RESAMPLES: usize = 10_000;

/// A bootstrap interval of the mean, without an assumption on the shape of the noise: the expanded percentile interval of
/// Hesterberg, "What Teachers Should Know About the Bootstrap: Resampling in the Undergraduate Statistics Curriculum", The
/// American Statistician 69 (2015). Its percentiles of the resampled means lie further out, so that normal noise gives
/// the t interval. `None` for fewer than 20 values or more than 200, or if a value is not finite.
///
/// BCa (Efron, "Better Bootstrap Confidence Intervals", JASA 82 (1987)) covers less than t on the mean of 20 blocks, except under
/// strong skew (`uv run src/stats/golden/why_not_bca.py`). This interval covers more than t only where noise is skewed, so it
/// carries no verdict. If it differs from the t interval, the blocks are skewed and the last digits of both are unreliable.
pub fn bootstrap(values: &[f64], confidence: f64, seed: u64) -> Option<(f64, f64)> {
    if !(MIN_RESAMPLED..=MAX_RESAMPLED).contains(&values.len())
        || values.iter().any(|value| !value.is_finite())
    {
        return None;
    }
    let n = values.len() as f64;
    let tail = normal_above(t_critical(confidence, n - 1.0) * (n / (n - 1.0)).sqrt());
    let mut random = Random::seeded(seed);
    let mut mean = || (0..values.len()).map(|_| values[random.below(values.len())]).sum::<f64>() / n;
    let means = ascending(&(0..RESAMPLES).map(|_| mean()).collect::<Vec<f64>>());
    Some((quantile(&means, tail)?, quantile(&means, 1.0 - tail)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{assert_close, golden};
    use crate::significance::welch;
    use crate::stopping::INTERIM_ANALYSES;

    #[test]
    fn the_interval_of_a_mean_agrees_with_scipy() {
        let cases = golden().intervals;
        assert!(cases.len() > 3);
        for case in cases {
            let interval = Interval::of_mean(&case.values, Design::Fixed).unwrap();
            assert_close(interval.low(), case.low, 1e-12, "low");
            assert_close(interval.high(), case.high, 1e-12, "high");
            assert_close(interval.p(), case.p.unwrap(), 1e-10, "p");
        }
    }

    #[test]
    fn the_interval_of_a_difference_agrees_with_scipy() {
        let cases = golden().welch;
        assert!(cases.len() > 3);
        for case in cases {
            let interval = Interval::of_difference(&case.a, &case.b, Design::Fixed).unwrap();
            assert_close(interval.low(), case.low.unwrap(), 1e-11, "low");
            assert_close(interval.high(), case.high.unwrap(), 1e-11, "high");
            assert_close(interval.p(), case.p, 1e-10, "p");
            assert_close(welch(&case.a, &case.b).unwrap(), case.p, 1e-10, "welch");
        }
    }

    #[test]
    fn a_difference_uses_the_stricter_correction_of_its_two_sides() {
        let values = |count: u32| -> Vec<f64> { (0..count).map(|it| f64::from(it % 4)).collect() };
        let half_width =
            |design, a, b| Interval::of_difference(&values(a), &values(b), design).unwrap().half_width();
        assert!(half_width(Design::Interim, 5, 8) > 1.1 * half_width(Design::Fixed, 5, 8));
        assert_eq!(half_width(Design::Interim, 5, 8), half_width(Design::Interim, 8, 5));
    }

    #[test]
    fn two_sides_without_spread_have_a_p_of_0_if_they_differ_and_of_1_if_equal() {
        let interval = |level| Interval::of_difference(&[0.5; 5], &[level; 7], Design::Interim).unwrap();
        assert_eq!((interval(0.25).low(), interval(0.25).high(), interval(0.25).p()), (0.25, 0.25, 0.0));
        assert!(!interval(0.5).excludes_zero() && interval(0.5).p() == 1.0);
        assert_eq!(Interval::of_difference(&[1.0], &[1.0, 2.0], Design::Fixed), None);
        assert_eq!(Interval::of_difference(&[1.0, f64::NAN], &[1.0, 2.0], Design::Fixed), None);
    }

    #[test]
    fn both_sides_of_a_difference_need_five_blocks_for_firm_evidence() {
        let values = [0.1, 0.3, 0.2, 0.1, 0.2];
        let evidence =
            |a: usize, b: usize| Evidence::of_difference(&values[..a], &values[..b], Design::Fixed);
        assert!(evidence(5, 5).unwrap().interval_of_enough_blocks().is_some());
        assert!(matches!(evidence(5, 4), Some(Evidence::Tentative(_))));
        let Some(Evidence::RangeOnly { estimate, low, high }) = evidence(5, 1) else { panic!() };
        let is_close = |actual: f64, expected: f64| (actual - expected).abs() < 1e-12;
        assert!(is_close(estimate, 0.08) && is_close(low, 0.0) && is_close(high, 0.2));
        assert_eq!((evidence(0, 5), evidence(5, 0)), (None, None));
    }

    #[test]
    fn the_p_value_and_the_interval_never_contradict_each_other() {
        for design in [Design::Fixed, Design::Interim] {
            for blocks in INTERIM_ANALYSES {
                let values = |shift: f64| -> Vec<f64> { (0..blocks).map(|it| shift + it as f64).collect() };
                let half_width = Interval::of_mean(&values(0.0), design).unwrap().half_width();
                let mean = (blocks - 1) as f64 / 2.0;
                for (offset, excludes) in [(1e-6, true), (-1e-6, false)] {
                    let interval = Interval::of_mean(&values(half_width - mean + offset), design).unwrap();
                    assert_eq!((interval.excludes_zero(), interval.p() <= 0.05), (excludes, excludes));
                }
            }
        }
    }

    #[test]
    fn interim_analyses_widen_the_interval() {
        let values = [1.0, 1.5, 0.7, 1.1, 0.9];
        let half_width = |design| Interval::of_mean(&values, design).unwrap().half_width();
        assert!(half_width(Design::Interim) > 1.1 * half_width(Design::Fixed));
    }

    #[test]
    fn equal_blocks_have_an_interval_without_width() {
        let interval = Interval::of_mean(&[0.5; 5], Design::Interim).unwrap();
        assert_eq!((interval.low(), interval.high(), interval.p()), (0.5, 0.5, 0.0));
        let interval = Interval::of_mean(&[0.0; 5], Design::Interim).unwrap();
        assert_eq!((interval.low(), interval.high(), interval.p()), (0.0, 0.0, 1.0));
        assert!(!interval.excludes_zero() && interval.lies_within(0.0));
    }

    #[test]
    fn single_or_infinite_values_have_no_interval() {
        for values in
            [&[][..], &[1.0], &[1.0, f64::NAN], &[1.0, f64::INFINITY], &[f64::MAX, f64::MAX, -f64::MAX]]
        {
            assert_eq!(Interval::of_mean(values, Design::Fixed), None, "{values:?}");
        }
    }

    #[test]
    fn fewer_blocks_give_weaker_evidence() {
        let evidence = |blocks: usize| {
            let ratios = [0.1, 0.3, 0.2, 0.1, 0.2];
            Evidence::of(&Ratios::of_blocks(&ratios[..blocks]), Design::Fixed)
        };
        assert_eq!(evidence(2), Evidence::RangeOnly { estimate: 0.2, low: 0.1, high: 0.3 });
        assert!([3, 4].iter().all(|&it| matches!(evidence(it), Evidence::Tentative(_))));
        assert!(
            evidence(4).interval_of_enough_blocks().is_none()
                && evidence(5).interval_of_enough_blocks().is_some()
        );
        assert!((evidence(5).estimate() - 0.18).abs() < 1e-12);
    }

    #[test]
    fn the_bootstrap_agrees_with_scipy_within_the_error_of_resampling() {
        let cases = golden().bootstraps;
        assert!(cases.len() > 1);
        for case in cases {
            let (low, high) = bootstrap(&case.values, 0.95, 7).unwrap();
            // scipy uses a million resamples; the error of `bootstrap` at these percentiles is about 0.007 of the width.
            let width = case.high - case.low;
            assert!((low - case.low).abs() < 0.03 * width, "low {low}, scipy {}", case.low);
            assert!((high - case.high).abs() < 0.03 * width, "high {high}, scipy {}", case.high);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_interval_and_few_values_give_none() {
        let values: Vec<f64> = (0..20).map(|it| f64::from(it * it)).collect();
        assert_eq!(bootstrap(&values, 0.95, 3), bootstrap(&values, 0.95, 3));
        assert_ne!(bootstrap(&values, 0.95, 3), bootstrap(&values, 0.95, 4));
        assert_eq!(bootstrap(&values[1..], 0.95, 3), None);
        assert_eq!(bootstrap(&[f64::NAN; 20], 0.95, 3), None);
        assert_eq!(bootstrap(&[2.0; 20], 0.95, 3), Some((2.0, 2.0)));
    }
}
