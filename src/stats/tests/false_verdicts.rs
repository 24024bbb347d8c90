//! The share of false differences between equal engines, and of real differences that are found.

use super::noise::{ALL, Machine, Noise};
use crate::interval::{CONFIDENCE, Design};
use crate::noise_floor::{Epsilon, NoiseFloor};
use crate::ratio::Ratios;
use crate::stopping::Rule;
use crate::verdict::Verdict;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Known {
    /// No noise floor: 2 % count.
    Nothing,
    /// The twin of the reference, in the same blocks.
    Twin,
    /// The twin and forty blocks of calibration.
    Calibration,
}

/// The share of experiments with each verdict: faster, slower, same, inconclusive.
pub fn verdicts(noise: Noise, scale: f64, known: Known, shift: f64, experiments: u32) -> [f64; 4] {
    let rule = Rule::default();
    verdicts_under(rule, Machine::new(noise, scale * rule.half_width(), 99), known, shift, experiments)
}

pub fn verdicts_under(
    rule: Rule,
    mut machine: Machine,
    known: Known,
    shift: f64,
    experiments: u32,
) -> [f64; 4] {
    let mut counts = [0u32; 4];
    for _ in 0..experiments {
        let (interval, blocks) = machine.experiment(rule, Design::Interim, shift);
        let mut again = |blocks: usize| -> Vec<f64> { (0..blocks).map(|_| machine.block()).collect() };
        let twin =
            NoiseFloor::of_twin(&Ratios::of_blocks(&again(blocks))).filter(|_| known != Known::Nothing);
        let stored = if known == Known::Calibration { NoiseFloor::of(&again(40)) } else { None };
        let verdict = Verdict::of(&interval, Epsilon::over(NoiseFloor::highest([stored, twin])));
        counts[verdict as usize] += 1;
    }
    counts.map(|count| f64::from(count) / f64::from(experiments))
}

#[test]
fn equal_pairs_differ_no_more_often_than_the_stated_rate() {
    for noise in ALL {
        for scale in [0.8, 1.7] {
            for known in [Known::Nothing, Known::Twin, Known::Calibration] {
                // Skew, or noise that always hits the same engine, needs a calibrated noise floor.
                let lopsided = matches!(noise, Noise::Skewed(_) | Noise::HitOnOneSide);
                if !lopsided || known == Known::Calibration {
                    let [faster, slower, ..] = verdicts(noise, scale, known, 0.0, 1_000);
                    assert!(
                        faster + slower <= 1.0 - CONFIDENCE,
                        "{noise:?} {scale} {known:?}: {faster} {slower}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_planted_five_percent_is_found_where_the_noise_allows_and_inconclusive_where_it_does_not() {
    let slower = 0.95f64.ln();
    let [faster, found, same, _] = verdicts(Noise::Normal, 0.5, Known::Twin, slower, 500);
    assert!(found > 0.97 && faster == 0.0 && same == 0.0, "{found}");
    let [faster, found, same, inconclusive] = verdicts(Noise::Normal, 5.0, Known::Twin, slower, 500);
    assert!(inconclusive > 0.9 && faster == 0.0, "{faster} {found} {same} {inconclusive}");
}
