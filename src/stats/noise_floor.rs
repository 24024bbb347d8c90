//! The noise floor: the smallest difference that this machine can show.

use serde::{Deserialize, Serialize};

use super::distribution::t_critical;
use super::interval::{CONFIDENCE, MIN_VERDICT_BLOCKS};
use super::ratio::Ratios;
use super::summary::{Moments, ascending, quantile};

/// The smallest difference that counts. A change of a few bytes in a program's memory layout can cause smaller differences
/// (Mytkowicz and others, "Producing Wrong Data Without Doing Anything Obviously Wrong!", ASPLOS 2009).
const MIN_DIFFERENCE: f64 = 0.02;
/// The number of values that a 95th percentile needs. With 20 values, the percentile is close to the second largest value. With
/// fewer, it depends more on the largest value.
const MIN_RELIABLE_BLOCKS: usize = 20;

/// The noise floor of one engine. It is finite and not negative. `of` computes it from A/A, the engine
/// against itself: the 95th percentile of |log ratio| over blocks (linear interpolation as numpy's:
/// definition 7 of Hyndman and Fan, 1996).
///
/// The floor describes single blocks. It is not divided by the root of the number of blocks, because it guards against noise
/// that no number of blocks averages out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored")]
pub struct NoiseFloor {
    log_ratio: f64,
    /// The number of values from which the floor was computed.
    blocks: usize,
}

impl NoiseFloor {
    /// The noise floor of A/A log ratios in any order; `None` without values, or if a ratio is not finite.
    pub fn of(log_ratios: &[f64]) -> Option<Self> {
        let sizes: Vec<f64> = log_ratios.iter().map(|ratio| ratio.abs()).collect();
        let finite = sizes.iter().all(|size| size.is_finite());
        let log_ratio = quantile(&ascending(&sizes), 0.95).filter(|_| finite)?;
        Some(Self { log_ratio, blocks: sizes.len() })
    }

    /// The noise floor of a configuration and its twin in one run; `None` for fewer blocks than a verdict needs.
    pub fn of_twin(ratios: &Ratios) -> Option<Self> {
        Self::of(ratios.blocks()).filter(|floor| floor.blocks >= MIN_VERDICT_BLOCKS)
    }

    /// The noise floor between runs, from the levels of one configuration's blocks in one run (the logarithms of their medians).
    /// Two further blocks like these differ by at most this much in 95 of 100 cases: t s sqrt(2), where t is the quantile of
    /// Student's distribution and s the standard deviation of the levels. Whitmore ("Prediction Limits for a Univariate Normal
    /// Observation", The American Statistician 40 (1986)) treats the difference of one observation and a mean in the same way.
    /// Two runs differ at least by the noise within one run: variation between executions is added to it (Kalibera and Jones,
    /// "Quantifying Performance Changes with Effect Size Confidence Intervals", University of Kent, technical report 4-12
    /// (2012)).
    ///
    /// The 95th percentile over the ten pairs of five blocks is too small a floor. For two runs that differ as the blocks of one
    /// run do, the percentile gives 12 % false verdicts, this floor less than 3 %, and no floor 31 % (`tests/false_verdicts.rs`).
    /// `None` for fewer than two blocks, or where a level is not finite.
    pub fn between_blocks(levels: &[f64]) -> Option<Self> {
        let Moments { n, variance, .. } = Moments::of(levels)?;
        let log_ratio = t_critical(CONFIDENCE, n - 1.0) * (2.0 * variance).sqrt();
        log_ratio.is_finite().then_some(Self { log_ratio, blocks: levels.len() })
    }

    pub fn log_ratio(&self) -> f64 {
        self.log_ratio
    }

    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Whether the floor has as many values as a 95th percentile needs. `calibrate` and `explain` say so if it has fewer.
    pub fn is_reliable(&self) -> bool {
        self.blocks >= MIN_RELIABLE_BLOCKS
    }
}

/// The thresholds of a difference and of equality, as log ratios. That of a difference is never below that of equality.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct VerdictThresholds {
    difference: f64,
    same: f64,
}

impl VerdictThresholds {
    /// For a difference, the estimate must exceed 2 % and the noise floor. For `Same`, the interval must lie within 2 %,
    /// however high the floor: with a noise floor of 20 %, an engine that is 5 % slower is `Inconclusive`, not `Same`.
    pub fn above_floor(floor: Option<NoiseFloor>) -> Self {
        let same = MIN_DIFFERENCE.ln_1p();
        Self { difference: floor.map_or(0.0, |floor| floor.log_ratio).max(same), same }
    }

    /// Whether no noise floor raises the threshold of a difference.
    pub fn is_smallest(self) -> bool {
        self == Self::above_floor(None)
    }

    /// The threshold that the estimate of a difference must exceed.
    pub fn difference(self) -> f64 {
        self.difference
    }

    /// The threshold within which an interval must lie for `Same`.
    pub fn same(self) -> f64 {
        self.same
    }
}

#[derive(Deserialize)]
struct Stored {
    log_ratio: f64,
    blocks: usize,
}

impl TryFrom<Stored> for NoiseFloor {
    type Error = String;

    fn try_from(stored: Stored) -> Result<Self, String> {
        let Stored { log_ratio, blocks } = stored;
        if !log_ratio.is_finite() || log_ratio < 0.0 || blocks == 0 {
            return Err(format!("invalid noise floor: `{log_ratio}` over `{blocks}` blocks"));
        }
        Ok(Self { log_ratio, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{assert_close, golden};

    #[test]
    fn the_floor_is_the_95th_percentile_of_absolute_values_by_numpy() {
        let cases = golden().floors;
        assert!(cases.len() > 2);
        for case in cases {
            let floor = NoiseFloor::of(&case.log_ratios).unwrap();
            assert_close(floor.log_ratio(), case.floor, 1e-14, "floor");
            assert_eq!(floor.blocks(), case.log_ratios.len());
        }
    }

    #[test]
    fn the_floor_between_blocks_is_students_t_for_the_difference_of_two_blocks() {
        // python3 -c 'from scipy import stats; print(stats.t.ppf(0.975, 4) * 2**0.5)'   (scipy 1.17.1; the levels have a
        // deviation of 1)
        let levels = [
            -1.264_911_064_067_351_8,
            -0.632_455_532_033_675_9,
            0.0,
            0.632_455_532_033_675_9,
            1.264_911_064_067_351_8,
        ];
        let floor = NoiseFloor::between_blocks(&levels).unwrap();
        assert!((floor.log_ratio() - 3.926_486_322_955_114).abs() < 1e-9 && floor.blocks() == 5, "{floor:?}");
        assert_eq!(NoiseFloor::between_blocks(&[0.5; 5]).unwrap().log_ratio(), 0.0);
        let none: [&[f64]; 3] = [&[], &[0.5], &[0.5, f64::NAN]];
        assert_eq!(none.map(NoiseFloor::between_blocks), [None; 3]);
    }

    #[test]
    fn a_twin_with_few_blocks_gives_no_noise_floor() {
        assert_eq!(NoiseFloor::of_twin(&Ratios::of_blocks(&[0.1; 4])), None);
        let floor = NoiseFloor::of_twin(&Ratios::of_blocks(&[0.1; 5])).unwrap();
        assert!(!floor.is_reliable() && NoiseFloor::of(&[0.1; 20]).unwrap().is_reliable());
    }

    #[test]
    fn no_values_and_invalid_values_give_no_noise_floor() {
        assert_eq!([&[][..], &[0.1, f64::NAN], &[f64::INFINITY]].map(NoiseFloor::of), [None; 3]);
        for stored in [r#"{"log_ratio":-0.1,"blocks":5}"#, r#"{"log_ratio":0.1,"blocks":0}"#] {
            let error = serde_json::from_str::<NoiseFloor>(stored).unwrap_err().to_string();
            assert!(error.contains("invalid noise floor"), "{error}");
        }
        let floor = NoiseFloor::of(&[0.1, 0.2, 0.3]).unwrap();
        let stored = serde_json::to_string(&floor).unwrap();
        assert_eq!(serde_json::from_str::<NoiseFloor>(&stored).unwrap(), floor);
    }

    #[test]
    fn a_difference_must_exceed_two_percent_even_where_the_floor_is_lower() {
        assert_eq!(VerdictThresholds::above_floor(None).difference(), 0.02f64.ln_1p());
        assert_eq!(VerdictThresholds::above_floor(NoiseFloor::of(&[0.001])).difference(), 0.02f64.ln_1p());
        assert!(VerdictThresholds::above_floor(NoiseFloor::of(&[0.001])).is_smallest());
        let thresholds = VerdictThresholds::above_floor(NoiseFloor::of(&[-0.1]));
        assert!(!thresholds.is_smallest());
        assert_eq!((thresholds.difference(), thresholds.same()), (0.1, 0.02f64.ln_1p()));
    }
}
