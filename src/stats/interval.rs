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
pub const FIRM: usize = 5;
/// The least number of blocks for an interval.
pub const TENTATIVE: usize = 3;

/// The way in which the number of blocks was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Design {
    /// The number was fixed beforehand.
    Fixed,
    /// Interim analyses ended the experiment when its intervals were narrow (`stopping`).
    Interim,
}

impl Design {
    /// The confidence at which the t interval is computed, so that `CONFIDENCE` holds.
    ///
    /// An experiment that ends when its interval is narrow ends more often where the blocks happen to lie close together, so a
    /// plain t interval claims too much. Under the interim analyses of `stopping`, its 95 % are 92.2 % where the deviation of a
    /// block is 1.7 times the target (Anscombe, "Sequential Estimation", Journal of the Royal Statistical Society B 15 (1953);
    /// Starr, "The Performance of a Sequential Procedure for the Fixed-Width Interval Estimation of the Mean", Annals of
    /// Mathematical Statistics 37 (1966)). So each interim analysis uses a higher confidence, as repeated confidence intervals
    /// do (Jennison and Turnbull, "Interim Analyses: The Repeated Confidence Interval Approach", Journal of the Royal
    /// Statistical Society B 51 (1989)), but chosen for this rule, which never sees the estimate. Coverage on normal noise is
    /// then between 95.0 and 96.5 % whatever its size (`tests/coverage.rs`; `scripts/simulate` prints it for other noise). The
    /// middle analyses need more, because a small deviation by chance ends the experiment there.
    pub fn computed_at(self, blocks: usize) -> f64 {
        match (self, blocks) {
            (Self::Fixed, _) => CONFIDENCE,
            (Self::Interim, 6..=19) => 0.98,
            (Self::Interim, _) => 0.965,
        }
    }

    /// A two-sided p value that is at most 1 - CONFIDENCE exactly where the interval excludes zero.
    pub fn corrected(self, p: f64, blocks: usize) -> f64 {
        corrected(p, self.computed_at(blocks))
    }
}

fn corrected(p: f64, confidence: f64) -> f64 {
    (p * (1.0 - CONFIDENCE) / (1.0 - confidence)).min(1.0)
}

/// A confidence interval: low <= estimate <= high, all finite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    estimate: f64,
    low: f64,
    high: f64,
    /// It is at most 1 - CONFIDENCE exactly where the interval excludes zero.
    p: f64,
}

impl Interval {
    /// Student's t interval over independent values: blocks, never rounds or iterations of one launch (Kalibera and Jones,
    /// "Rigorous Benchmarking in Reasonable Time", ISMM 2013; Student, "The Probable Error of a Mean", Biometrika 6 (1908)).
    /// `None` for fewer than two values, or where one is not finite.
    pub fn of_mean(values: &[f64], design: Design) -> Option<Self> {
        Self::around(Estimate::of_mean(values)?, design.computed_at(values.len()))
    }

    /// Welch's interval of the mean of `ours` less that of `theirs`, which were measured at different times. After interim
    /// analyses it uses the higher confidence of the two sides, because either spread may be small by chance. `None` where a side
    /// has fewer than two values, or one that is not finite.
    pub fn of_difference(ours: &[f64], theirs: &[f64], design: Design) -> Option<Self> {
        let confidence = design.computed_at(ours.len()).max(design.computed_at(theirs.len()));
        Self::around(Estimate::of_difference(ours, theirs)?, confidence)
    }

    fn around(estimate: Estimate, confidence: f64) -> Option<Self> {
        let (value, reach) = (estimate.value, t_critical(confidence, estimate.df) * estimate.error);
        let p = corrected(estimate.p(), confidence);
        let finite = value.is_finite() && reach.is_finite();
        finite.then_some(Self { estimate: value, low: value - reach, high: value + reach, p })
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

    /// The p value for a mean of zero.
    pub fn p(&self) -> f64 {
        self.p
    }

    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }

    pub fn lies_within(&self, epsilon: f64) -> bool {
        -epsilon <= self.low && self.high <= epsilon
    }
}

/// The strength of a pair's blocks as evidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "evidence", rename_all = "snake_case")]
pub enum Evidence {
    /// One or two blocks: the range of the rounds, which is the spread within a launch and says nothing about the next launch. No
    /// interval and no verdict.
    WithinLaunch { estimate: f64, low: f64, high: f64 },
    /// Three or four blocks: a wide interval that assumes normality. No verdict.
    Tentative(Interval),
    /// Five blocks or more.
    Firm(Interval),
}

impl Evidence {
    pub fn of(ratios: &Ratios, design: Design) -> Self {
        let blocks = ratios.blocks();
        Self::of_interval(Interval::of_mean(blocks, design), blocks.len()).unwrap_or_else(|| {
            let (low, high) = ratios.extremes();
            Self::WithinLaunch { estimate: mean(blocks), low, high }
        })
    }

    /// The evidence of levels (logarithms) that were measured at different times. Both sides need as many blocks as an interval
    /// does. `None` where a side has none, or a level is not finite.
    pub fn of_difference(ours: &[f64], theirs: &[f64], design: Design) -> Option<Self> {
        let interval = Interval::of_difference(ours, theirs, design);
        Self::of_interval(interval, ours.len().min(theirs.len())).or_else(|| {
            let ((low, high), (their_low, their_high)) = (range(ours), range(theirs));
            let (estimate, low, high) = (mean(ours) - mean(theirs), low - their_high, high - their_low);
            let finite = [estimate, low, high].iter().all(|it| it.is_finite());
            finite.then_some(Self::WithinLaunch { estimate, low, high })
        })
    }

    fn of_interval(interval: Option<Interval>, blocks: usize) -> Option<Self> {
        let interval = interval.filter(|_| blocks >= TENTATIVE)?;
        Some(if blocks >= FIRM { Self::Firm(interval) } else { Self::Tentative(interval) })
    }

    pub fn estimate(&self) -> f64 {
        match self {
            Self::WithinLaunch { estimate, .. } => *estimate,
            Self::Tentative(interval) | Self::Firm(interval) => interval.estimate,
        }
    }

    /// The ends of the interval; within a launch, of the range of all rounds.
    pub fn ends(&self) -> (f64, f64) {
        match self {
            Self::WithinLaunch { low, high, .. } => (*low, *high),
            Self::Tentative(interval) | Self::Firm(interval) => (interval.low, interval.high),
        }
    }

    /// The interval of firm evidence, which alone carries a verdict.
    pub fn firm(&self) -> Option<Interval> {
        if let Self::Firm(interval) = self { Some(*interval) } else { None }
    }
}

/// With fewer values the resampled means lie too close together, and no bootstrap repairs that. Over 3, 5 and 10 launches, a
/// percentile interval that claims 95 % covers 75, 83 and 90 %.
const MIN_RESAMPLED: usize = 20;
/// With more values the mean is nearly normal, so the bootstrap agrees with t but takes long.
const MAX_RESAMPLED: usize = 200;
/// The ends of an interval then vary by about 0.007 of its width between seeds.
const RESAMPLES: usize = 10_000;

/// A bootstrap interval of the mean, without an assumption on the shape of the noise: the expanded percentile interval of
/// Hesterberg, "What Teachers Should Know About the Bootstrap: Resampling in the Undergraduate Statistics Curriculum", The
/// American Statistician 69 (2015). Its percentiles of the resampled means lie further out, so that normal noise gives Student's
/// t. `None` for fewer than 20 values or more than 200.
///
/// BCa (Efron, "Better Bootstrap Confidence Intervals", JASA 82 (1987)) covers less than t on the mean of 20 blocks, except
/// under strong skew (`uv run src/stats/golden/why_not_bca.py`). This interval covers more than t only where noise is skewed, so
/// it carries no verdict. If the two differ, the blocks are skewed and the last digit of neither is reliable.
pub fn bootstrap(values: &[f64], confidence: f64, seed: u64) -> Option<(f64, f64)> {
    if !(MIN_RESAMPLED..=MAX_RESAMPLED).contains(&values.len())
        || values.iter().any(|value| !value.is_finite())
    {
        return None;
    }
    let n = values.len() as f64;
    let outward = normal_above(t_critical(confidence, n - 1.0) * (n / (n - 1.0)).sqrt());
    let mut random = Random::seeded(seed);
    let mut mean = || (0..values.len()).map(|_| values[random.below(values.len())]).sum::<f64>() / n;
    let means = ascending(&(0..RESAMPLES).map(|_| mean()).collect::<Vec<f64>>());
    Some((quantile(&means, outward)?, quantile(&means, 1.0 - outward)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{close, golden};
    use crate::significance::welch;
    use crate::stopping::INTERIM_ANALYSES;

    #[test]
    fn the_interval_of_a_mean_is_that_of_scipy() {
        let cases = golden().intervals;
        assert!(cases.len() > 3);
        for case in cases {
            let found = Interval::of_mean(&case.values, Design::Fixed).unwrap();
            close(found.low(), case.low, 1e-12, "low");
            close(found.high(), case.high, 1e-12, "high");
            close(found.p(), case.p.unwrap(), 1e-10, "p");
        }
    }

    #[test]
    fn the_interval_of_a_difference_is_that_of_scipy() {
        let cases = golden().welch;
        assert!(cases.len() > 3);
        for case in cases {
            let found = Interval::of_difference(&case.ours, &case.theirs, Design::Fixed).unwrap();
            close(found.low(), case.low.unwrap(), 1e-11, "low");
            close(found.high(), case.high.unwrap(), 1e-11, "high");
            close(found.p(), case.p, 1e-10, "p");
            close(welch(&case.ours, &case.theirs).unwrap(), case.p, 1e-10, "welch");
        }
    }

    #[test]
    fn a_difference_uses_the_stricter_correction_of_its_two_sides() {
        let values = |count: u32| -> Vec<f64> { (0..count).map(|it| f64::from(it % 4)).collect() };
        let width = |design, ours, theirs| {
            Interval::of_difference(&values(ours), &values(theirs), design).unwrap().half_width()
        };
        assert!(width(Design::Interim, 5, 8) > 1.1 * width(Design::Fixed, 5, 8));
        assert_eq!(width(Design::Interim, 5, 8), width(Design::Interim, 8, 5));
    }

    #[test]
    fn sides_without_spread_differ_certainly_or_not_at_all() {
        let found = |theirs| Interval::of_difference(&[0.5; 5], &[theirs; 7], Design::Interim).unwrap();
        assert_eq!((found(0.25).low(), found(0.25).high(), found(0.25).p()), (0.25, 0.25, 0.0));
        assert!(!found(0.5).excludes_zero() && found(0.5).p() == 1.0);
        assert_eq!(Interval::of_difference(&[1.0], &[1.0, 2.0], Design::Fixed), None);
        assert_eq!(Interval::of_difference(&[1.0, f64::NAN], &[1.0, 2.0], Design::Fixed), None);
    }

    #[test]
    fn both_sides_of_a_difference_need_the_blocks_of_a_verdict() {
        let values = [0.1, 0.3, 0.2, 0.1, 0.2];
        let evidence = |ours: usize, theirs: usize| {
            Evidence::of_difference(&values[..ours], &values[..theirs], Design::Fixed)
        };
        assert!(evidence(5, 5).unwrap().firm().is_some());
        assert!(matches!(evidence(5, 4), Some(Evidence::Tentative(_))));
        let Some(Evidence::WithinLaunch { estimate, low, high }) = evidence(5, 1) else { panic!() };
        let close = |found: f64, expected: f64| (found - expected).abs() < 1e-12;
        assert!(close(estimate, 0.08) && close(low, 0.0) && close(high, 0.2));
        assert_eq!((evidence(0, 5), evidence(5, 0)), (None, None));
    }

    #[test]
    fn the_p_value_and_the_interval_never_contradict_each_other() {
        for design in [Design::Fixed, Design::Interim] {
            for blocks in INTERIM_ANALYSES {
                let values = |shift: f64| -> Vec<f64> { (0..blocks).map(|it| shift + it as f64).collect() };
                let reach = Interval::of_mean(&values(0.0), design).unwrap().half_width();
                let middle = (blocks - 1) as f64 / 2.0;
                for (nudge, excludes) in [(1e-6, true), (-1e-6, false)] {
                    let interval = Interval::of_mean(&values(reach - middle + nudge), design).unwrap();
                    assert_eq!((interval.excludes_zero(), interval.p() <= 0.05), (excludes, excludes));
                }
            }
        }
    }

    #[test]
    fn interim_analyses_widen_the_interval() {
        let values = [1.0, 1.5, 0.7, 1.1, 0.9];
        let width = |design| Interval::of_mean(&values, design).unwrap().half_width();
        assert!(width(Design::Interim) > 1.1 * width(Design::Fixed));
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
        assert_eq!(evidence(2), Evidence::WithinLaunch { estimate: 0.2, low: 0.1, high: 0.3 });
        assert!([3, 4].iter().all(|&it| matches!(evidence(it), Evidence::Tentative(_))));
        assert!(evidence(4).firm().is_none() && evidence(5).firm().is_some());
        assert!((evidence(5).estimate() - 0.18).abs() < 1e-12);
    }

    #[test]
    fn the_bootstrap_is_that_of_scipy_as_far_as_resampling_allows() {
        let cases = golden().bootstraps;
        assert!(cases.len() > 1);
        for case in cases {
            let (low, high) = bootstrap(&case.values, 0.95, 7).unwrap();
            // scipy uses a million resamples; our error at these percentiles is about 0.007 of the width.
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
