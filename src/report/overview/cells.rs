//! Values and ratios as text, in the units and the precision of the default report.

use stats::{Comparison, MetricKind, Obstacle, Verdict, worse};

use crate::analysis::metric::{Scale, Unit};
use crate::report::ranking::Compared;
use crate::text::significant_digits;

/// An interval whose half width is a larger share of its ratio supports two digits of the ratio, not three.
const MAX_SHARE_OF_THREE_DIGITS: f64 = 0.005;
/// The smallest inverse of a ratio below 1 that is written with two digits (`1.4x slower`). Smaller inverses have the digits that
/// the interval supports.
const MIN_WITH_TWO_DIGITS: f64 = 1.1;

/// The scale of a unit, which is the same in every record.
pub fn scale(unit: Unit) -> Scale {
    match unit {
        Unit::Nanoseconds => Scale { divisor: 1e6, symbol: "ms" },
        Unit::Bytes => Scale { divisor: 1e6, symbol: "MB" },
        Unit::TokensPerSecond | Unit::Share | Unit::Joules => Scale::of(unit, [1.0]),
    }
}

pub fn number_with_unit(value: f64, unit: Unit) -> String {
    let scale = scale(unit);
    format!("{} {}", scale.write(value), scale.symbol)
}

/// A speed-up with the digits that its interval supports: `59x`. A ratio below 1 is written as its inverse with a word that
/// depends on `kind`, and with two digits unless the difference is small: `1.2x slower`.
pub fn ratio(ratio: f64, bounds: Option<(f64, f64)>, kind: MetricKind) -> String {
    let digits = digits(ratio, bounds);
    // Two digits keep the column of ratios narrow. Small differences need more.
    let of_inverse = if ratio.recip() < MIN_WITH_TWO_DIGITS { digits } else { 2 };
    let inverse = significant_digits(ratio.recip(), of_inverse);
    // A ratio that is printed as 1.0 or 1.00 has no direction, so it gets no word.
    let is_one = inverse.trim_end_matches(['0', '.']) == "1";
    match ratio < 1.0 {
        true if is_one => format!("{inverse}x"),
        true => format!("{inverse}x {}", worse(kind)),
        false => format!("{}x", significant_digits(ratio, digits)),
    }
}

/// `[54, 66]`; with `is_inverse`, of the inverse ratio.
pub fn interval(ratio: f64, (low, high): (f64, f64), is_inverse: bool) -> String {
    let digits = digits(ratio, Some((low, high)));
    let write = |end: f64| significant_digits(end, digits);
    match is_inverse {
        true => format!("[{}, {}]", write(high.recip()), write(low.recip())),
        false => format!("[{}, {}]", write(low), write(high)),
    }
}

fn digits(ratio: f64, bounds: Option<(f64, f64)>) -> i32 {
    let is_wide = |(low, high): (f64, f64)| (high - low) / 2.0 > MAX_SHARE_OF_THREE_DIGITS * ratio;
    if bounds.is_some_and(is_wide) { 2 } else { 3 }
}

/// Follows a ratio that differs from the ratio of the shown values.
pub const NOT_A_QUOTIENT: &str = "*";

/// A comparison in a few words: `2.1x beacon [1.9, 2.4]`, `same as beacon [0.99, 1.01]`, `inconclusive: beacon [0.92, 1.3]`.
/// Without `other`, the column names the other side. `is_quotient`: the ratio is that of the shown values.
pub fn comparison(compared: &Compared, other: Option<&str>, is_quotient: bool) -> String {
    let Some(value) = compared.ratio() else { return "n/a".into() };
    let bounds = compared.bounds();
    let verdict = compared.verdict();
    // The interval of an inconclusive ratio may contain 1, so the ratio has no direction and is not inverted.
    let is_inverse = value < 1.0 && matches!(verdict, Some(Verdict::Faster | Verdict::Slower));
    let interval =
        bounds.map_or_else(String::new, |bounds| format!(" {}", interval(value, bounds, is_inverse)));
    let mark = if is_quotient { "" } else { NOT_A_QUOTIENT };
    let times = format!("{}{mark}", ratio(value, bounds, compared.pair.metric.kind()));
    let name = other.map_or_else(String::new, |other| match value < 1.0 && verdict != Some(Verdict::Same) {
        true if verdict != Some(Verdict::Inconclusive) => format!(" than {other}"),
        _ => format!(" {other}"),
    });
    match verdict {
        Some(Verdict::Faster | Verdict::Slower) => format!("{times}{name}{interval}"),
        Some(Verdict::Same) if other.is_some() => format!("same as{name}{interval}"),
        Some(Verdict::Same) => format!("same{interval}"),
        Some(Verdict::Inconclusive) if other.is_some() => {
            format!("inconclusive:{name}{interval}{}", why_inconclusive(compared))
        }
        Some(Verdict::Inconclusive) => format!("inconclusive{interval}"),
        None => format!("{times}?{name}"),
    }
}

/// The reason why an interval without 1 is inconclusive: ` (noise ±97 %)`, ` (not significant)`.
fn why_inconclusive(compared: &Compared) -> String {
    compared.pair.comparison().map_or_else(String::new, |comparison| match comparison.obstacle() {
        Some(Obstacle::ManyComparisons { .. }) => " (not significant)".into(),
        _ if excludes_one(comparison) => {
            format!(" (noise {})", stats::noise(comparison.decision.thresholds.difference()))
        }
        _ => String::new(),
    })
}

fn excludes_one(comparison: &Comparison) -> bool {
    comparison.evidence.interval_of_enough_blocks().is_some_and(|interval| interval.excludes_zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::specimen::{BEACON, ORIGINAL, measured};
    use crate::report::run_report::Report;
    use crate::report::tests::decoding;

    #[test]
    fn an_inconclusive_comparison_names_the_noise_or_the_correction() {
        let engines = decoding(&["patient-original", "beacon"]);
        let report = Report::of(&measured(&engines, &[ORIGINAL, BEACON]));
        let mut pair = report.verdicts.against_reference.iter().find(|it| it.is_headline).unwrap().clone();
        let mut text = |lost_to_correction: bool| {
            let decision = &mut pair.result.as_mut().unwrap().decision;
            decision.verdict = Some(Verdict::Inconclusive);
            decision.lost_to_correction = lost_to_correction;
            comparison(&Compared::as_stored(&pair), Some("reed"), true)
        };
        assert!(text(false).contains("] (noise ±"), "{}", text(false));
        assert!(text(true).ends_with("] (not significant)"), "{}", text(true));
    }

    #[test]
    fn a_ratio_has_two_or_three_digits() {
        let ratio = |value, bounds| ratio(value, bounds, MetricKind::Speed);
        assert_eq!(ratio(59.18, Some((53.5, 65.5))), "59x");
        assert_eq!(ratio(59.18, Some((59.0, 59.3))), "59.2x");
        assert_eq!(ratio(1234.0, None), "1,230x");
        assert_eq!(interval(59.18, (53.5, 65.5), false), "[54, 66]");
    }

    #[test]
    fn a_ratio_below_one_has_its_direction_in_words() {
        let speed = |value, bounds| ratio(value, bounds, MetricKind::Speed);
        assert_eq!(speed(0.871, Some((0.6, 1.1))), "1.1x slower");
        assert_eq!(speed(0.7, None), "1.4x slower");
        assert_eq!(speed(0.00396, None), "250x slower");
        assert_eq!(speed(0.999, None), "1.00x");
        assert_eq!(ratio(0.5, None, MetricKind::Amount), "2.0x more");
        assert_eq!([0.95, 2.5].map(|it| speed(it, None)), ["1.05x slower", "2.50x"]);
        assert_eq!(interval(0.004, (0.002, 0.005), true), "[200, 500]");
    }

    #[test]
    fn values_of_every_size_have_the_same_unit() {
        let shown = [
            number_with_unit(18.9e6, Unit::Nanoseconds),
            number_with_unit(4.26e9, Unit::Nanoseconds),
            number_with_unit(93.5e3, Unit::Nanoseconds),
            number_with_unit(10_210.0, Unit::TokensPerSecond),
            number_with_unit(16.1e9, Unit::Bytes),
        ];
        assert_eq!(shown, ["18.9 ms", "4,260 ms", "0.0935 ms", "10,200 tok/s", "16,100 MB"]);
    }
}
