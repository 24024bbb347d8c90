//! The errors of two estimators of the ratio of two engines. The simulated machine changes between two speeds; the true ratio
//! is known.

use super::noise::{Machine, Noise};
use crate::median;

const BLOCKS: usize = 5;

/// The root mean square of the error of `paired_rounds` and of `quotient_of_medians`, as a share of the true ratio.
pub fn errors(rounds_at_one_speed: f64, true_ratio: f64, experiments: usize) -> [f64; 2] {
    let mut machine = Machine::new(Noise::Plateaus, 0.005, 11);
    machine.rounds_at_one_speed = rounds_at_one_speed;
    let squares: Vec<[f64; 2]> = (0..experiments)
        .map(|_| {
            let blocks: Vec<_> = (0..BLOCKS).map(|_| machine.rounds([true_ratio.ln(), 0.0])).collect();
            let estimates = [paired_rounds(&blocks), quotient_of_medians(&blocks)];
            estimates.map(|log_ratio| (log_ratio.exp() / true_ratio - 1.0).powi(2))
        })
        .collect();
    [0, 1].map(|estimator| mean(squares.iter().map(|it| it[estimator])).sqrt())
}

/// The log ratio that verdicts use: for each block the median over its paired rounds, then the mean of the blocks.
fn paired_rounds<const N: usize>(blocks: &[[[f64; 2]; N]]) -> f64 {
    let of_block = |rounds: &[[f64; 2]; N]| median(&rounds.map(|[one, other]| one - other)).unwrap();
    mean(blocks.iter().map(of_block))
}

/// The logarithm of the quotient of the two values in a table. A value is the median of the medians of an engine's launches.
fn quotient_of_medians<const N: usize>(blocks: &[[[f64; 2]; N]]) -> f64 {
    let value = |side: usize| {
        let launches: Vec<f64> =
            blocks.iter().map(|it| median(&it.map(|round| round[side])).unwrap()).collect();
        median(&launches).unwrap()
    };
    value(0) - value(1)
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

#[test]
fn paired_rounds_are_nearer_the_truth_than_medians_if_a_speed_lasts_for_a_round_or_longer() {
    for rounds_at_one_speed in [1.0, 3.0, 10.0, 30.0] {
        let [paired, medians] = errors(rounds_at_one_speed, 1.66, 1_000);
        assert!(paired < medians, "{rounds_at_one_speed} rounds: {paired} and {medians}");
    }
}
