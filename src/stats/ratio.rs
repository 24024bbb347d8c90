//! Paired log ratios: the data of a comparison of two configurations.
//!
//! Both sides of a pair were measured in the same round, moments apart, so common noise of the machine cancels in their ratio.
//! Ratios are averaged as logarithms: those of twice as fast and of half as fast have the same distance from 0 (Fleming and
//! Wallace, "How Not to Lie with Statistics", Communications of the ACM 29 (1986)).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::summary::{median, range};

/// One configuration's values of one metric, by the number of the block and then of the round.
pub type Blocks = BTreeMap<u32, Rounds>;
pub type Rounds = BTreeMap<u32, f64>;

/// The log ratios of a pair. There is at least one block, every block has at least one round, and all ratios are finite.
#[derive(Debug, Clone, PartialEq)]
pub struct Ratios {
    blocks: Vec<f64>,
    rounds: Vec<f64>,
    unpaired: usize,
}

impl Ratios {
    /// The log ratios of two configurations: for each block the median over its rounds of log(numerator / denominator). Only
    /// rounds that both sides have are paired. `unpaired` counts the blocks without such a round. A value without a logarithm
    /// is an error: leaving out the values of a broken measurement would favour that configuration.
    pub fn paired(numerator: &Blocks, denominator: &Blocks) -> Result<Self, NoRatio> {
        let mut ratios = Self { blocks: Vec::new(), rounds: Vec::new(), unpaired: 0 };
        for (&block, numerators) in numerator {
            let Some(denominators) = denominator.get(&block) else { continue };
            let mut rounds = Vec::new();
            for (&round, &dividend) in numerators {
                let Some(&divisor) = denominators.get(&round) else { continue };
                if let Some(value) = [dividend, divisor].into_iter().find(|it| !it.is_finite() || *it <= 0.0)
                {
                    return Err(NoRatio::UnusableValue { block, round, value });
                }
                // A difference of logarithms does not overflow where a ratio would.
                rounds.push(dividend.ln() - divisor.ln());
            }
            if let Some(log_ratio) = median(&rounds) {
                ratios.blocks.push(log_ratio);
                ratios.rounds.extend(rounds);
            }
        }
        let all_blocks: BTreeSet<u32> = numerator.keys().chain(denominator.keys()).copied().collect();
        ratios.unpaired = all_blocks.len() - ratios.blocks.len();
        if ratios.blocks.is_empty() { Err(NoRatio::NothingShared) } else { Ok(ratios) }
    }

    /// The log ratios of blocks with one round each.
    pub fn of_blocks(blocks: &[f64]) -> Self {
        assert!(!blocks.is_empty() && blocks.iter().all(|ratio| ratio.is_finite()));
        Self { blocks: blocks.to_vec(), rounds: blocks.to_vec(), unpaired: 0 }
    }

    /// One log ratio for each block.
    pub fn blocks(&self) -> &[f64] {
        &self.blocks
    }

    /// The smallest and the largest log ratio of all rounds.
    pub fn extremes(&self) -> (f64, f64) {
        range(&self.rounds)
    }

    /// The number of blocks in which the two configurations share no round.
    pub fn unpaired(&self) -> usize {
        self.unpaired
    }
}

/// The reason why there are no ratios.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NoRatio {
    NothingShared,
    UnusableValue { block: u32, round: u32, value: f64 },
}

impl fmt::Display for NoRatio {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::NothingShared => write!(f, "no round has a value on both sides of the comparison"),
            Self::UnusableValue { block, round, value } => {
                write!(
                    f,
                    "block {block}, round {round}: `{value}` is not positive and finite, so there is no ratio"
                )
            }
        }
    }
}

impl std::error::Error for NoRatio {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{assert_close, golden};
    use crate::interval::{Design, Interval};

    fn blocks(values: &[&[f64]]) -> Blocks {
        (0..)
            .zip(values)
            .map(|(block, rounds)| (block, (0..).zip(rounds.iter().copied()).collect()))
            .collect()
    }

    #[test]
    fn ratios_of_blocks_and_their_interval_agree_with_numpy_and_scipy() {
        let cases = golden().paired_ratios;
        assert!(cases.len() > 2);
        for case in cases {
            let sides = [case.numerator, case.denominator]
                .map(|rounds| blocks(&rounds.iter().map(Vec::as_slice).collect::<Vec<_>>()));
            let ratios = Ratios::paired(&sides[0], &sides[1]).unwrap();
            for (found, expected) in ratios.blocks().iter().zip(&case.blocks) {
                assert_close(*found, *expected, 1e-12, "ratio");
            }
            let interval = Interval::of_mean(ratios.blocks(), Design::Fixed).unwrap();
            assert_close(interval.low(), case.low, 1e-11, "low");
            assert_close(interval.high(), case.high, 1e-11, "high");
        }
    }

    #[test]
    fn a_round_that_is_slow_on_both_sides_does_not_change_the_ratios() {
        let numerator = blocks(&[&[200.0, 88.0, 200.0], &[50.0, 200.0, 200.0]]);
        let denominator = blocks(&[&[100.0, 44.0, 100.0], &[25.0, 100.0, 100.0]]);
        let ratios = Ratios::paired(&numerator, &denominator).unwrap();
        assert!(ratios.blocks().iter().all(|ratio| (ratio.exp() - 2.0).abs() < 1e-12), "{ratios:?}");
    }

    #[test]
    fn a_block_has_the_median_of_ratios_not_the_ratio_of_medians() {
        // The ratio of the medians 30 and 20 would be 1.5.
        let ratios = Ratios::paired(&blocks(&[&[10.0, 30.0, 50.0]]), &blocks(&[&[5.0, 60.0, 20.0]])).unwrap();
        assert!((ratios.blocks()[0] - 2f64.ln()).abs() < 1e-12);
        let (low, high) = ratios.extremes();
        assert!((low - 0.5f64.ln()).abs() < 1e-12 && (high - 2.5f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn values_that_are_not_positive_and_finite_are_refused_with_block_and_round() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            for (numerator, denominator) in [([1.0, bad], [1.0, 1.0]), ([1.0, 1.0], [1.0, bad])] {
                let refused =
                    Ratios::paired(&blocks(&[&[1.0], &numerator]), &blocks(&[&[1.0], &denominator]))
                        .unwrap_err();
                assert!(matches!(refused, NoRatio::UnusableValue { block: 1, round: 1, .. }), "{refused:?}");
            }
        }
        let refused = Ratios::paired(&blocks(&[&[0.0]]), &blocks(&[&[1.0]])).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "block 0, round 0: `0` is not positive and finite, so there is no ratio"
        );
    }

    #[test]
    fn rounds_are_paired_by_number_and_a_round_of_one_side_is_left_out() {
        let numerator = Blocks::from([(0, Rounds::from([(0, 2.0), (1, 60.0), (2, 8.0)]))]);
        let denominator = Blocks::from([(0, Rounds::from([(0, 1.0), (2, 4.0), (3, 9.0)]))]);
        let ratios = Ratios::paired(&numerator, &denominator).unwrap();
        let (low, high) = ratios.extremes();
        let is_ln_2 = |ratio: f64| (ratio - 2f64.ln()).abs() < 1e-12;
        assert!(
            ratios.blocks().len() == 1 && is_ln_2(ratios.blocks()[0]) && is_ln_2(low) && is_ln_2(high),
            "{ratios:?}"
        );
        assert_eq!(ratios.unpaired(), 0);
    }

    #[test]
    fn sides_without_a_shared_round_are_refused() {
        let refused = |numerator: &[&[f64]], denominator: &[&[f64]]| {
            Ratios::paired(&blocks(numerator), &blocks(denominator)).unwrap_err()
        };
        assert_eq!(refused(&[&[]], &[&[]]), NoRatio::NothingShared);
        assert_eq!(refused(&[], &[&[1.0]]), NoRatio::NothingShared);
    }

    #[test]
    fn a_block_without_a_shared_round_is_counted_as_unpaired() {
        let round = |round: u32, value: f64| Rounds::from([(round, value)]);
        let numerator =
            Blocks::from([(0, round(0, 2.0)), (1, round(0, 2.0)), (3, round(0, 2.0)), (4, round(1, 2.0))]);
        let denominator =
            Blocks::from([(1, round(0, 1.0)), (2, round(0, 1.0)), (3, round(0, 1.0)), (4, round(0, 1.0))]);
        let ratios = Ratios::paired(&numerator, &denominator).unwrap();
        assert_eq!((ratios.blocks().len(), ratios.unpaired()), (2, 3));
    }

    #[test]
    fn the_largest_and_the_smallest_float_have_a_finite_ratio() {
        let ratios = Ratios::paired(&blocks(&[&[f64::MAX]]), &blocks(&[&[f64::MIN_POSITIVE]])).unwrap();
        assert!(ratios.blocks()[0].is_finite());
    }
}
