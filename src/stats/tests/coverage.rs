//! Coverage: the share of experiments whose last interval contains the truth.

use super::noise::{Machine, Noise};
use crate::distribution::{normal_above, t_critical};
use crate::interval::Design;
use crate::random::Random;
use crate::stopping::{INTERIM_ANALYSES, Rule};

/// The share of experiments whose interval contains zero, the true log ratio. `scale` is the deviation of a block, divided by
/// the half width that the rule demands.
pub fn coverage(noise: Noise, scale: f64, design: Design, experiments: u32) -> f64 {
    let rule = Rule::default();
    let mut machine = Machine::new(noise, scale * rule.half_width(), 2026);
    let covered = (0..experiments).filter(|_| {
        let (interval, _) = machine.experiment(rule, design, 0.0);
        !interval.excludes_zero()
    });
    covered.count() as f64 / f64::from(experiments)
}

/// The coverage on normal noise (Starr, 1966). The rule depends only on the spread of the blocks, and on normal noise their
/// mean is independent of this spread. So only spreads are simulated: the last half width gives the probability that the
/// interval contains zero. This needs far fewer experiments than counting intervals.
fn coverage_by_half_widths(scale: f64, design: Design, experiments: u32) -> f64 {
    let mut random = Random::seeded(1);
    let critical =
        INTERIM_ANALYSES.map(|blocks| t_critical(design.t_confidence(blocks), (blocks - 1) as f64));
    let mut sum = 0.0;
    for _ in 0..experiments {
        let (mut squares, mut df) = (0.0, 0);
        for (blocks, critical) in INTERIM_ANALYSES.into_iter().zip(critical) {
            squares += random.chi_square(blocks - 1 - df);
            df = blocks - 1;
            // As a multiple of the true standard error of the mean.
            let half_width = critical * (squares / df as f64).sqrt();
            if half_width * scale <= (blocks as f64).sqrt() || blocks == INTERIM_ANALYSES[3] {
                sum += 1.0 - 2.0 * normal_above(half_width);
                break;
            }
        }
    }
    sum / f64::from(experiments)
}

#[test]
fn coverage_on_normal_noise_is_95_to_96_5_percent() {
    for scale in [0.1, 0.3, 0.6, 0.8, 1.0, 1.2, 1.4, 1.55, 1.7, 2.0, 2.5, 3.5, 5.0, 20.0] {
        let share = coverage_by_half_widths(scale, Design::Interim, 6_000);
        // The bounds leave room for the random error, which is about 0.0007.
        assert!((0.948..0.967).contains(&share), "{scale}: {share}");
    }
}

#[test]
fn a_plain_t_interval_is_too_narrow_under_interim_analyses() {
    // 92.2 % by the comment on `Design::t_confidence`.
    let share = coverage_by_half_widths(1.7, Design::Fixed, 6_000);
    assert!((0.918..0.927).contains(&share), "{share}");
}

#[test]
fn coverage_under_the_stopping_rule_is_95_percent_or_more_on_symmetric_noise() {
    let noises = [
        (Noise::Normal, 0.97),
        (Noise::HeavyTailed, 0.985),
        // Both engines have the same skewed noise, so their ratio is symmetric.
        (Noise::SkewedTimes, 0.985),
        (Noise::Plateaus, 0.985),
        (Noise::HitOnEitherSide, 0.995),
    ];
    for (noise, max) in noises {
        for scale in [0.3, 1.5, 5.0] {
            let share = coverage(noise, scale, Design::Interim, 1_500);
            // The random error is about 0.006.
            assert!((0.93..max).contains(&share), "{noise:?} {scale}: {share}");
        }
    }
}

/// With few blocks, strong skew lowers the coverage of any interval. Real ratios have little skew, because both engines have
/// the same noise.
#[test]
fn strong_skew_lowers_the_coverage_but_not_below_80_percent() {
    for (sigma, min) in [(0.5, 0.90), (1.0, 0.80)] {
        for scale in [0.3, 1.5, 5.0] {
            let share = coverage(Noise::Skewed(sigma), scale, Design::Interim, 2_000);
            assert!((min..0.97).contains(&share), "{sigma} {scale}: {share}");
        }
    }
}
