use super::*;
use crate::interval::Design;
use crate::noise_floor::NoiseFloor;
use crate::ratio::Ratios;

/// The interval with these ends, in log ratios.
fn interval(low: f64, high: f64) -> Interval {
    let shape = [-1.0, -0.5, 0.0, 0.5, 1.0];
    let unit = Interval::of_mean(&shape, Design::Fixed).unwrap().half_width();
    let (mean, half_width) = ((low + high) / 2.0, (high - low) / 2.0);
    Interval::of_mean(&shape.map(|it| mean + it * half_width / unit), Design::Fixed).unwrap()
}

/// The phrase for the verdict on an interval between two ratios.
fn phrase(low: f64, high: f64, kind: MetricKind) -> String {
    let (interval, thresholds) = (interval(low.ln(), high.ln()), VerdictThresholds::above_floor(None));
    Phrase::of(Verdict::of(&interval, thresholds), &interval, thresholds, kind).to_string()
}

fn phrase_without_verdict(log_ratios_of_blocks: &[f64], kind: MetricKind) -> Phrase {
    let evidence = Evidence::of(&Ratios::of_blocks(log_ratios_of_blocks), Design::Fixed);
    Phrase::without_verdict(&evidence, kind)
}

#[test]
fn a_large_difference_is_a_multiple_and_a_small_one_per_cent() {
    assert_eq!(phrase(3.9, 4.31, MetricKind::Speed), "4.1 times as fast [3.9, 4.3]");
    assert_eq!(phrase(0.232, 0.256, MetricKind::Speed), "0.244 times as fast [0.232, 0.256]");
    assert_eq!(phrase(1.0 / 1.055, 1.0 / 1.01, MetricKind::Speed), "3 % slower [1, 5]");
    assert_eq!(phrase(1.11, 1.17, MetricKind::Speed), "14 % faster [11, 17]");
}

#[test]
fn a_ratio_of_amounts_is_worded_as_more_or_less() {
    // A log ratio of ln 2 is better: half the amount.
    assert_eq!(phrase(1.9, 2.1, MetricKind::Amount), "0.50 times as much [0.48, 0.53]");
    assert_eq!(phrase(1.0 / 1.17, 1.0 / 1.11, MetricKind::Amount), "14 % more [11, 17]");
    assert_eq!(phrase(1.11, 1.17, MetricKind::Amount), "12 % less [10, 15]");
}

#[test]
fn an_inconclusive_verdict_states_no_direction_and_no_estimate() {
    for (low, high, bounds) in [
        (0.979, 1.047, "between 2 % slower and 5 % faster"),
        (0.6, 2.3, "between 0.6 and 2.3 times as fast"),
        (1.005, 1.031, "between 0.5 and 3.1 % faster"),
        (1.0 / 1.031, 1.0 / 1.005, "between 0.5 and 3.0 % slower"),
    ] {
        let expected = format!("inconclusive ({bounds}; a difference must exceed 2 %)");
        assert_eq!(phrase(low, high, MetricKind::Speed), expected);
    }
}

#[test]
fn the_verdict_same_states_its_threshold() {
    assert_eq!(
        phrase(0.9962, 1.0109, MetricKind::Speed),
        "the same within 2 % (between 0.4 % slower and 1.1 % faster)"
    );
    assert_eq!(phrase(1.0, 1.0, MetricKind::Amount), "the same within 2 % (no difference seen)");
    // Rounding errors are not shown as a difference.
    assert_eq!(
        phrase(1.0 - 1e-14, 1.0 + 1e-14, MetricKind::Speed),
        "the same within 2 % (no difference seen)"
    );
}

#[test]
fn no_more_digits_are_written_than_the_interval_supports_and_never_more_than_three() {
    let digits = |estimate, half_width| write_number(estimate, decimals(estimate, half_width));
    assert_eq!(digits(4.1234, 0.2), "4.1");
    assert_eq!(digits(4.1234, 0.18), "4.12");
    assert_eq!(digits(4.1234, 0.0996), "4.12");
    assert_eq!(digits(4.1234, 0.0001), "4.12");
    assert_eq!(digits(41.234, 0.0001), "41.2");
    assert_eq!(digits(41.234, 3.0), "41");
    assert_eq!(digits(41234.0, 0.0), "41200");
    assert_eq!(digits(412.0, 30.0), "410");
    assert_eq!(digits(9.996, 0.0), "10.0");
    assert_eq!(digits(-0.004, 0.3), "0.0");
}

#[test]
fn the_threshold_is_rounded_up() {
    assert_eq!(
        [0.02, 0.0201, 0.03456, 0.1, 0.123, 2.5].map(percent_rounded_up),
        ["2", "2.1", "3.5", "10", "12.3", "250"]
    );
    let floor = NoiseFloor::of(&[0.05; 5]);
    let (interval, thresholds) = (interval(-0.01, 0.01), VerdictThresholds::above_floor(floor));
    let words = Phrase::of(Verdict::Inconclusive, &interval, thresholds, MetricKind::Speed);
    assert!(words.bounds.ends_with("; a difference must exceed 5.2 %)"), "{words}");
}

#[test]
fn a_bound_that_is_a_multiple_turns_the_change_into_multiples() {
    // Per cent would give `0 % slower [-310, 80]` and `0 % slower [-900, 100]`.
    let phrase_with_bounds =
        |low: f64, high: f64| Phrase::of_change(-0.001, low.ln(), high.ln(), MetricKind::Speed).to_string();
    assert_eq!(phrase_with_bounds(0.2, 4.1), "1.0 times as fast [0.2, 4.1]");
    assert_eq!(phrase_with_bounds(0.04, 10.0), "1 times as fast [0.04, 10]");
    assert_eq!(phrase_with_bounds(0.00004, 4e9), "1 times as fast [under 0.001, over 1000000]");
    assert_eq!(phrase_with_bounds(0.55, 1.9), "0 % slower [-90, 40]");
    // The upper bound is above `MIN_MULTIPLE_OF_BOUND`.
    assert_eq!(phrase_with_bounds(0.6, 2.3), "1.0 times as fast [0.6, 2.3]");
    let words = phrase_without_verdict(&[0.1, -0.9, 0.9], MetricKind::Amount);
    assert_eq!(words.to_string(), "1 times as much [0.1, 9] tentative");
}

#[test]
fn a_wide_interval_does_not_begin_with_zero_and_its_threshold_is_a_factor() {
    let phrase_with_floor = |floor: f64| {
        let thresholds = VerdictThresholds::above_floor(NoiseFloor::of(&[floor.ln(); 5]));
        let interval = interval(0.02f64.ln(), 4f64.ln());
        Phrase::of(Verdict::Inconclusive, &interval, thresholds, MetricKind::Speed).to_string()
    };
    // Per cent would give `between 0 and 4 times as fast; a difference must exceed 266000 %`.
    for (floor, threshold) in [(2661.0, "a factor of 2670"), (2.3, "a factor of 2.3"), (2.0, "100 %")] {
        let expected = format!(
            "inconclusive (between 0.02 and 4.0 times as fast; a difference must exceed {threshold})"
        );
        assert_eq!(phrase_with_floor(floor), expected);
    }
}

#[test]
fn no_difference_is_not_printed_as_zero_per_cent() {
    for blocks in [&[0.0, 0.0][..], &[0.0; 3], &[1e-14, -1e-14, 0.0], &[1e-7, -1e-7, 0.0]] {
        let words = phrase_without_verdict(blocks, MetricKind::Speed);
        assert_eq!((words.change.as_str(), words.bounds.as_str()), (NO_DIFFERENCE, ""), "{blocks:?}");
    }
}

#[test]
fn evidence_from_few_blocks_is_labelled() {
    let phrase_of = |log_ratios: &[f64]| phrase_without_verdict(log_ratios, MetricKind::Speed).to_string();
    assert_eq!(phrase_of(&[1.4, 1.42]), "4.10 times as fast [4.06, 4.14] range only");
    assert_eq!(phrase_of(&[1.4, 1.42, 1.44]), "4.1 times as fast [3.9, 4.3] tentative");
}

#[test]
fn worsening_is_the_share_that_the_words_print() {
    let assert_close =
        |actual: f64, expected: f64| assert!((actual - expected).abs() < 1e-12, "{actual} {expected}");
    assert_close(MetricKind::Speed.worsening(0.8f64.ln()), 0.2);
    assert_close(MetricKind::Amount.worsening((1.0f64 / 1.2).ln()), 0.2);
    assert_close(MetricKind::Speed.worsening(1.2f64.ln()), -0.2);
}

#[test]
fn extreme_differences_are_written_without_a_panic() {
    for (low, high) in [(-700.0, 700.0), (700.0, 705.0), (-705.0, -700.0), (-1e6, 1e6), (1e6, 1e6)] {
        for kind in [MetricKind::Speed, MetricKind::Amount] {
            let (interval, thresholds) = (interval(low, high), VerdictThresholds::above_floor(None));
            let words = Phrase::of(Verdict::of(&interval, thresholds), &interval, thresholds, kind);
            assert!(words.to_string().contains("times as"), "{words}");
        }
    }
}
