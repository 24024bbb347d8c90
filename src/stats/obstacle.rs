//! The reason why a comparison is inconclusive, and the number of blocks that would probably decide it.

use super::distribution::t_critical;
use super::experiment::Comparison;
use super::interval::{CONFIDENCE, Design, Interval};
use super::stopping::StoppedBy;
use super::verdict::Verdict;

/// More blocks than this are no practical remedy.
const MAX_PROPOSED_BLOCKS: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Obstacle {
    /// The interval includes faster and slower. About `blocks` blocks with the same spread would decide; `None` if they are too
    /// many.
    WideInterval { blocks: Option<usize> },
    /// The estimate is near zero, and the interval is too wide for `same`.
    TooWideForSame { blocks: Option<usize> },
    /// The estimate does not exceed the noise floor. No number of blocks with the same mean helps.
    NoiseFloor,
    /// The difference is certain on its own, but not among all gating comparisons (Holm's correction).
    ManyComparisons { blocks: Option<usize> },
}

impl Obstacle {
    /// The number of blocks that would probably decide the comparison. `None` if no number or only a very large one would.
    pub fn sufficient_blocks(self) -> Option<usize> {
        match self {
            Self::WideInterval { blocks }
            | Self::TooWideForSame { blocks }
            | Self::ManyComparisons { blocks } => blocks,
            Self::NoiseFloor => None,
        }
    }
}

impl Comparison {
    /// The reason for the verdict `Inconclusive`; `None` for any other verdict. The number of blocks assumes that further
    /// blocks have the same mean and the same spread.
    pub fn obstacle(&self) -> Option<Obstacle> {
        let decision = &self.decision;
        let interval = self.evidence.interval_of_enough_blocks()?;
        let estimate = interval.estimate().abs();
        let (difference, same) = (decision.thresholds.difference(), decision.thresholds.same());
        match decision.verdict {
            Some(Verdict::Inconclusive) if decision.lost_to_correction => {
                let (p, adjusted) = (decision.p?, decision.p_adjusted?);
                let significance = (1.0 - CONFIDENCE) * (p / adjusted).min(1.0);
                let blocks = self.blocks_for(&interval, estimate, 1.0 - significance);
                Some(Obstacle::ManyComparisons { blocks })
            }
            Some(Verdict::Inconclusive) if estimate > difference => {
                Some(Obstacle::WideInterval { blocks: self.blocks_for(&interval, estimate, CONFIDENCE) })
            }
            // The noise floor does not widen the zone of equality, so more blocks can still give `Same`.
            Some(Verdict::Inconclusive) if estimate < same => {
                let blocks = self.blocks_for(&interval, same - estimate, CONFIDENCE);
                Some(Obstacle::TooWideForSame { blocks })
            }
            Some(Verdict::Inconclusive) => Some(Obstacle::NoiseFloor),
            _ => None,
        }
    }

    /// The least fixed number of blocks, above the present number, whose interval has at most this half width.
    fn blocks_for(&self, interval: &Interval, half_width: f64, confidence: f64) -> Option<usize> {
        let design = if self.stopped_by == StoppedBy::Fixed { Design::Fixed } else { Design::Interim };
        let half_width_of = |blocks: usize, confidence: f64, deviation: f64| {
            t_critical(confidence, blocks as f64 - 1.0) * deviation / (blocks as f64).sqrt()
        };
        let unit = half_width_of(self.blocks, design.t_confidence(self.blocks), 1.0);
        let deviation = interval.half_width() / unit;
        let mut candidates = self.blocks + 1..=MAX_PROPOSED_BLOCKS;
        candidates.find(|&blocks| half_width_of(blocks, confidence, deviation) <= half_width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Better, Experiment, Series};
    use crate::noise_floor::NoiseFloor;
    use crate::ratio::{Blocks, Rounds};

    /// Two configurations over five blocks: the first is faster by `log_ratio` on average, and no block differs from that by more
    /// than `spread`. The experiment has `others` more comparisons.
    fn compared(log_ratio: f64, spread: f64, floor: Option<f64>, others: usize) -> Comparison {
        compared_in(5, log_ratio, spread, floor, others)
    }

    fn compared_in(
        blocks: u32,
        log_ratio: f64,
        spread: f64,
        floor: Option<f64>,
        others: usize,
    ) -> Comparison {
        let shape = [-1.0, 1.0, -0.5, 0.5, 0.0];
        let column = |log_ratio: f64, spread: f64| -> Blocks {
            let time = |block: u32| (-(log_ratio + spread * shape[block as usize % 5])).exp();
            (0..blocks).map(|block| (block, Rounds::from([(0, time(block))]))).collect()
        };
        let configurations =
            std::iter::once(column(0.0, 0.0)).chain((0..=others).map(|_| column(log_ratio, spread)));
        let series = Series {
            better: Better::Lower,
            gating: true,
            stopped_by: StoppedBy::Fixed,
            floors: vec![floor.and_then(|floor| NoiseFloor::of(&[floor; 20]))],
            configurations: configurations.collect(),
        };
        let experiment =
            Experiment { interleaved: true, seed: None, twins: Vec::new(), series: vec![series] };
        let pairs: Vec<(usize, usize)> = (1..=others + 1).map(|it| (it, 0)).collect();
        experiment.compare(&pairs).remove(0).result.unwrap()
    }

    #[test]
    fn a_decided_comparison_has_no_obstacle() {
        assert_eq!(compared(0.5, 0.01, None, 0).obstacle(), None);
        assert_eq!(compared(0.0, 0.001, None, 0).obstacle(), None);
        assert_eq!(compared_in(4, 0.5, 0.5, None, 0).obstacle(), None, "too few blocks have no verdict");
    }

    #[test]
    fn a_wide_interval_needs_more_blocks_and_they_decide() {
        let Some(Obstacle::WideInterval { blocks: Some(blocks) }) = compared(0.1, 0.12, None, 0).obstacle()
        else {
            panic!("no wide interval")
        };
        assert!((6..=20).contains(&blocks), "{blocks}");
        // A multiple of five has the same mean and about the same spread.
        let enough = compared_in(blocks.next_multiple_of(5) as u32, 0.1, 0.12, None, 0);
        assert_eq!(enough.decision.verdict, Some(Verdict::Faster));
        assert_eq!(
            compared(0.021, 0.9, None, 0).obstacle(),
            Some(Obstacle::WideInterval { blocks: None }),
            "too many blocks"
        );
        let near_zero = compared(0.0, 0.03, None, 0).obstacle();
        assert!(matches!(near_zero, Some(Obstacle::TooWideForSame { blocks: Some(_) })), "{near_zero:?}");
    }

    #[test]
    fn more_blocks_do_not_help_a_difference_below_the_noise_floor() {
        assert_eq!(compared(0.1, 0.01, Some(0.2), 0).obstacle(), Some(Obstacle::NoiseFloor));
        assert_eq!(compared(0.1, 0.01, Some(0.05), 0).obstacle(), None);
    }

    #[test]
    fn a_difference_that_is_lost_to_the_correction_needs_more_blocks() {
        let alone = compared(0.1, 0.08, None, 0);
        assert_eq!(alone.decision.verdict, Some(Verdict::Faster));
        let among_many = compared(0.1, 0.08, None, 30);
        let Some(Obstacle::ManyComparisons { blocks: Some(blocks) }) = among_many.obstacle() else {
            panic!("{among_many:?}")
        };
        assert!((6..=30).contains(&blocks), "{blocks}");
        let enough = compared_in(blocks.next_multiple_of(5) as u32, 0.1, 0.08, None, 30);
        assert_eq!(enough.decision.verdict, Some(Verdict::Faster));
    }
}
