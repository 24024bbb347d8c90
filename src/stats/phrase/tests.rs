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

/// The phrase for the verdict on an interval between two log ratios, with this noise floor.
fn phrase_above(floor: Option<NoiseFloor>, low: f64, high: f64, kind: MetricKind) -> Phrase {
    let (interval, thresholds) = (interval(low, high), VerdictThresholds::above_floor(floor));
    let verdict = Verdict::of(&interval, thresholds);
    Phrase::of(verdict, &interval, &decision(verdict, thresholds), kind)
}

fn decision(verdict: Verdict, thresholds: VerdictThresholds) -> Decision {
    Decision { thresholds, verdict: Some(verdict), lost_to_correction: false, p: None, p_adjusted: None }
}

/// The phrase for the verdict on an interval between two ratios.
fn phrase(low: f64, high: f64, kind: MetricKind) -> String {
    phrase_above(None, low.ln(), high.ln(), kind).to_string()
}

fn phrase_without_verdict(log_ratios_of_blocks: &[f64], kind: MetricKind) -> Phrase {
    let evidence = Evidence::of(&Ratios::of_blocks(log_ratios_of_blocks), Design::Fixed);
    Phrase::without_verdict(&evidence, kind)
}

#[test]
fn a_large_difference_is_a_multiple_and_a_small_one_per_cent() {
    assert_eq!(phrase(3.9, 4.31, MetricKind::Speed), "4.1x as fast [3.9, 4.3]");
    assert_eq!(phrase(0.58, 0.62, MetricKind::Speed), "1.67x slower [1.61, 1.72]");
    assert_eq!(phrase(1.0 / 1.056, 1.0 / 1.01, MetricKind::Speed), "3 % slower [1, 6]");
    assert_eq!(phrase(1.04, 1.08, MetricKind::Speed), "6 % faster [4, 8]");
    assert_eq!(phrase(1.11, 1.17, MetricKind::Speed), "1.14x as fast [1.11, 1.17]");
}

#[test]
fn the_printed_factor_turns_one_value_into_the_other() {
    // A time that is 1.48 times as long is 1.48x slower, and not 32.4 % slower.
    for (ratio, words) in [
        (1.0 / 1.48, "1.48x slower"),
        (1.48, "1.48x as fast"),
        (1.0 / 1.04, "4.0 % slower"),
        (1.04, "4.0 % faster"),
    ] {
        let phrase = Phrase::of_ratio(ratio, (ratio, ratio), MetricKind::Speed);
        assert_eq!(phrase.change, words);
    }
    let amount = |ratio| Phrase::of_ratio(ratio, (ratio, ratio), MetricKind::Amount).change;
    assert_eq!([amount(2.0), amount(0.5)], ["2.00x less", "2.00x as much"]);
}

#[test]
fn a_ratio_below_one_is_written_as_its_inverse() {
    assert_eq!(phrase(0.232, 0.256, MetricKind::Speed), "4.1x slower [3.9, 4.3]");
    assert_eq!(phrase(0.00386, 0.00406, MetricKind::Speed), "253x slower [246, 259]");
    // A log ratio above zero is better, so ln 10 is a tenth of the amount.
    assert_eq!(phrase(9.5, 10.5, MetricKind::Amount), "10.0x less [9.5, 10.5]");
}

#[test]
fn a_cell_has_the_same_number_as_a_sentence_and_no_words_for_a_speed_up() {
    let cell = |ratio, bounds, kind| Phrase::in_cell(ratio, bounds, kind).to_string();
    let speed = |ratio| cell(ratio, None, MetricKind::Speed);
    assert_eq!(
        [11.04, 1.5, 0.604, 1.0 / 252.0, 0.96, 0.999].map(speed),
        ["11.0x", "1.50x", "1.66x slower", "252x slower", "4.2 % slower", "1.00x"]
    );
    assert_eq!(cell(0.01, None, MetricKind::Amount), "100x as much");
    let with_bounds = |ratio, low, high| cell(ratio, Some((low, high)), MetricKind::Speed);
    assert_eq!(with_bounds(11.0, 10.9, 11.1), "11.0x [10.9, 11.1]");
    assert_eq!(with_bounds(1.0 / 250.0, 1.0 / 260.0, 1.0 / 240.0), "250x slower [240, 260]");
    assert_eq!(with_bounds(1e-9, 0.0, 1e-8), "over 1,000,000x slower [over 1,000,000, over 1,000,000]");
    assert_eq!(speed(1234.0), "1,230x");
    assert_eq!(bounds_in_cell((0.92, 1.3), MetricKind::Speed), "[8.7 % slower, 1.3x]");
    assert_eq!(bounds_in_cell((0.5, 0.8), MetricKind::Speed), "[2.0x slower, 1.3x slower]");
}

#[test]
fn a_mean_over_workloads_is_worded_as_better_or_worse() {
    assert_eq!(
        [1.8, 1.123, 1.0, 0.6, 0.4].map(|ratio| quality(ratio, "before")),
        [
            "1.8x as good as before",
            "1.1x as good as before",
            "as good as before",
            "1.7x worse than before",
            "2.5x worse than before",
        ]
    );
}

#[test]
fn a_ratio_of_amounts_is_worded_as_more_or_less() {
    // A log ratio above zero is better, so ln 2 is half the amount.
    assert_eq!(phrase(1.9, 2.1, MetricKind::Amount), "2.00x less [1.90, 2.10]");
    assert_eq!(phrase(3.9, 4.1, MetricKind::Amount), "4.00x less [3.90, 4.10]");
    assert_eq!(phrase(1.0 / 1.17, 1.0 / 1.11, MetricKind::Amount), "1.14x as much [1.11, 1.17]");
    assert_eq!(phrase(1.11, 1.17, MetricKind::Amount), "1.14x less [1.11, 1.17]");
}

#[test]
fn an_inconclusive_verdict_states_no_direction_and_no_estimate() {
    for (low, high, bounds) in [
        (0.979, 1.047, "between 2 % slower and 5 % faster"),
        (0.6, 2.3, "between 1.7x slower and 2.3x as fast"),
        (0.02, 1.4, "between 50x slower and 1.4x as fast"),
    ] {
        let expected = format!("inconclusive ({bounds}; a difference must exceed 2 %)");
        assert_eq!(phrase(low, high, MetricKind::Speed), expected);
    }
}

#[test]
fn an_inconclusive_interval_without_zero_is_compared_with_the_noise() {
    for (low, high, bounds) in [
        (1.005, 1.031, "between 0.5 and 3.1 % faster"),
        (1.0 / 1.031, 1.0 / 1.005, "between 0.5 and 3.1 % slower"),
    ] {
        let expected =
            format!("inconclusive ({bounds}): difference not beyond the noise of this machine (±2 %)");
        assert_eq!(phrase(low, high, MetricKind::Speed), expected);
    }
    let noisy = NoiseFloor::of(&[1.97_f64.ln(); 5]);
    let words = phrase_above(noisy, 1.2_f64.ln(), 1.9_f64.ln(), MetricKind::Speed).to_string();
    let range = "between 1.2x and 1.9x as fast";
    assert_eq!(
        words,
        format!("inconclusive ({range}): difference not beyond the noise of this machine (±97 %)")
    );
    let very_noisy = NoiseFloor::of(&[2.3_f64.ln(); 5]);
    let words = phrase_above(very_noisy, 1.2_f64.ln(), 1.9_f64.ln(), MetricKind::Speed).to_string();
    assert!(words.ends_with(" the noise of this machine (a factor of 2.3)"), "{words}");
    // The correction for many comparisons is another reason than noise.
    let (interval, thresholds) = (interval(0.1, 0.2), VerdictThresholds::above_floor(None));
    let lost = Decision { lost_to_correction: true, ..decision(Verdict::Inconclusive, thresholds) };
    let words = Phrase::of(Verdict::Inconclusive, &interval, &lost, MetricKind::Speed).to_string();
    assert_eq!(
        words,
        "inconclusive (between 1.11x and 1.22x as fast): not significant among all comparisons of the run"
    );
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
    let words = phrase_above(NoiseFloor::of(&[0.05; 5]), -0.01, 0.2, MetricKind::Speed);
    assert!(words.bounds.ends_with("; a difference must exceed 5.2 %)"), "{words}");
}

#[test]
fn bounds_on_both_sides_of_zero_are_worded_without_signs() {
    let change = |estimate: f64, low: f64, high: f64| {
        Phrase::of_change(estimate.ln(), low.ln(), high.ln(), MetricKind::Speed).to_string()
    };
    assert_eq!(change(0.9, 0.6, 1.5), "1.11x slower [1.7x slower, 1.5x as fast]");
    assert_eq!(change(1.6, 0.96, 2.8), "1.6x as fast [4.2 % slower, 2.8x as fast]");
    // The estimate is zero in all digits that the interval supports.
    assert_eq!(change(0.999, 0.2, 4.1), "no difference seen [5.0x slower, 4.1x as fast]");
    let bounds = "[25,000x slower, over 1,000,000x as fast]";
    assert_eq!(change(0.999, 0.00004, 4e9), format!("no difference seen {bounds}"));
    // If the bounds are on one side of zero, a bound above `MIN_MULTIPLE_OF_BOUND` turns the change into a multiple.
    assert_eq!(change(1.08, 1.01, 2.3), "1.1x as fast [1.0 % faster, 2.3x as fast]");
    let words = phrase_without_verdict(&[0.1, -0.9, 0.9], MetricKind::Amount);
    assert_eq!(words.to_string(), "no difference seen [9.7x less, 9.1x as much] (tentative)");
}

#[test]
fn a_bound_of_a_multiple_below_1_1_is_written_in_per_cent() {
    assert_eq!(phrase(1.048, 1.4, MetricKind::Speed), "1.21x as fast [4.8 % faster, 1.4x as fast]");
    assert_eq!(phrase(1.0 / 1.4, 1.0 / 1.048, MetricKind::Speed), "1.21x slower [1.4x slower, 4.8 % slower]");
    let in_cell = |low, high| Phrase::in_cell(1.2, Some((low, high)), MetricKind::Speed).bounds;
    assert_eq!(in_cell(1.048, 1.4), "[4.8 % faster, 1.4x]");
    assert_eq!(in_cell(1.1, 1.3), "[1.10, 1.30]");
    let range = |low: f64, high: f64| range_in_words(low.ln(), high.ln(), MetricKind::Speed);
    assert_eq!(range(1.02, 1.3), "between 2.0 % faster and 1.3x as fast");
    assert_eq!(range(1.0, 1.3), "between no difference and 1.3x as fast");
    assert_eq!(range(1.0 / 1.3, 1.0), "between 1.3x slower and no difference");
    assert_eq!(range(1.1, 1.3), "between 1.10x and 1.30x as fast");
}

#[test]
fn the_ratios_with_the_same_digits_include_the_ratio_and_end_at_half_a_digit() {
    let same = |ratio, bounds| ratios_with_same_digits(ratio, bounds, MetricKind::Speed);
    let is_close = |found: [f64; 2], expected: [f64; 2]| {
        found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-9)
    };
    // `2.1x`, `2.08x`, `1.66x slower`, `4.2 % slower`, `1.00x`.
    assert!(is_close(same(2.08, Some((1.9, 2.4))), [2.05, 2.15]));
    assert!(is_close(same(2.08, None), [2.075, 2.085]));
    assert!(is_close(same(0.604, None), [1.0 / 1.665, 1.0 / 1.655]));
    assert!(is_close(same(0.96, None), [1.0 / 1.0425, 1.0 / 1.0415]));
    assert!(is_close(same(1.0, None), [1.0 / 1.005, 1.005]));
}

#[test]
fn a_threshold_above_100_per_cent_is_a_factor() {
    let phrase_with_floor = |floor: f64| {
        let floor = NoiseFloor::of(&[floor.ln(); 5]);
        phrase_above(floor, 0.02f64.ln(), 4f64.ln(), MetricKind::Speed).to_string()
    };
    // Per cent would give `a difference must exceed 266000 %`.
    for (floor, threshold) in [(2661.0, "a factor of 2670"), (2.3, "a factor of 2.3"), (2.0, "100 %")] {
        let range = "between 50x slower and 4.0x as fast";
        let expected = format!("inconclusive ({range}; a difference must exceed {threshold})");
        assert_eq!(phrase_with_floor(floor), expected);
    }
}

#[test]
fn equal_values_are_worded_as_no_difference_and_not_as_zero_per_cent() {
    for blocks in [&[0.0, 0.0][..], &[0.0; 3], &[1e-14, -1e-14, 0.0], &[1e-7, -1e-7, 0.0]] {
        let words = phrase_without_verdict(blocks, MetricKind::Speed);
        assert_eq!((words.change.as_str(), words.bounds.as_str()), (NO_DIFFERENCE, ""), "{blocks:?}");
    }
}

#[test]
fn evidence_from_few_blocks_is_labelled() {
    let phrase_of = |log_ratios: &[f64]| phrase_without_verdict(log_ratios, MetricKind::Speed).to_string();
    assert_eq!(phrase_of(&[1.4, 1.42]), "4.10x as fast [4.06, 4.14] (range only)");
    assert_eq!(phrase_of(&[1.4, 1.42, 1.44]), "4.1x as fast [3.9, 4.3] (tentative)");
}

#[test]
fn worsening_is_the_lost_share_of_speed_or_the_additional_share_of_an_amount() {
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
            let words = phrase_above(None, low, high, kind).to_string();
            assert!(words.contains("over 1,000,000x "), "{words}");
        }
    }
}
