//! A log ratio in words for people: `4.1 times as fast [3.9, 4.3]`, `1.8 % slower [0.4, 3.1]`.
//!
//! A number has at most three digits. Its last decimal place is that of the first digit of the interval's half width, or of the
//! second digit if the first is 1. A difference without a verdict is never stated as certain.

use std::fmt;

use super::decision::Decision;
use super::interval::{Evidence, Interval};
use super::noise_floor::VerdictThresholds;
use super::verdict::{MetricKind, Verdict};

/// The smallest factor of a change that is written as a multiple. Smaller changes are written in per cent.
const MIN_MULTIPLE: f64 = 1.5;
/// The smallest factor of a bound that turns the whole change into multiples: `[-310, 80]` per cent is hard to read.
const MIN_MULTIPLE_OF_BOUND: f64 = 2.0;
/// The smallest and the largest multiple that are printed as numbers.
const PRINTED_MULTIPLES: [f64; 2] = [0.001, 1e6];

/// The text in place of a change and its bounds, if both sides have the same values.
pub const NO_DIFFERENCE: &str = "no difference seen";

/// A change and its bounds. The name of the other side is printed between them: `4.1 times as fast`, then `as b`, then `[3.9,
/// 4.3]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phrase {
    pub change: String,
    pub bounds: String,
    /// The reason why there is no verdict: `tentative` or `range only`. Empty for a verdict.
    pub caution: &'static str,
}

impl fmt::Display for Phrase {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.change)?;
        let parts = [self.bounds.as_str(), self.caution];
        parts.into_iter().filter(|part| !part.is_empty()).try_for_each(|part| write!(f, " {part}"))
    }
}

impl Phrase {
    /// The phrase for a decision: its verdict, or its evidence where there is no verdict.
    pub fn of_decision(decision: &Decision, evidence: &Evidence, kind: MetricKind) -> Self {
        match (decision.verdict, evidence.interval_of_enough_blocks()) {
            (Some(verdict), Some(interval)) => Self::of(verdict, &interval, decision.thresholds, kind),
            _ => Self::without_verdict(evidence, kind),
        }
    }

    /// The phrase for a verdict, with its interval.
    fn of(verdict: Verdict, interval: &Interval, thresholds: VerdictThresholds, kind: MetricKind) -> Self {
        let (low, high) = (interval.low(), interval.high());
        match verdict {
            Verdict::Faster | Verdict::Slower => Self::of_change(interval.estimate(), low, high, kind),
            Verdict::Same => {
                let percent = percent_rounded_up(thresholds.same().exp_m1());
                let bounds = format!("({})", bounds_in_words(low, high, kind));
                Self { change: format!("the same within {percent} %"), bounds, caution: "" }
            }
            Verdict::Inconclusive => {
                let difference = smallest_difference(thresholds);
                let bounds =
                    format!("({}; a difference must exceed {difference})", bounds_in_words(low, high, kind));
                Self { change: "inconclusive".into(), bounds, caution: "" }
            }
        }
    }

    /// The phrase for evidence without a verdict: there are too few blocks, or the rounds were not interleaved (then firm
    /// evidence counts as tentative).
    fn without_verdict(evidence: &Evidence, kind: MetricKind) -> Self {
        let caution = match evidence {
            Evidence::WithinLaunch { .. } => "range only",
            Evidence::Tentative(_) | Evidence::Firm(_) => "tentative",
        };
        let (low, high) = evidence.ends();
        Self { caution, ..Self::of_change(evidence.estimate(), low, high, kind) }
    }

    fn of_change(estimate: f64, low: f64, high: f64, kind: MetricKind) -> Self {
        let [estimate, low, high] = [estimate, low, high].map(without_rounding_error);
        // A log ratio above zero is better. The printed factor is that of the metric: less memory is a factor below one.
        let sign_of_metric = kind.sign();
        let factor = (sign_of_metric * estimate).exp();
        let ends = [(sign_of_metric * low).exp(), (sign_of_metric * high).exp()];
        if exceeds_factor(MIN_MULTIPLE, factor)
            || ends.into_iter().any(|end| exceeds_factor(MIN_MULTIPLE_OF_BOUND, end))
        {
            let [change, bounds] = with_bounds(factor, ends, write_multiple);
            return Self { change: format!("{change} {}", kind.multiple_words()), bounds, caution: "" };
        }
        let sign = if factor < 1.0 { -1.0 } else { 1.0 };
        let percent = |factor: f64| sign * (factor - 1.0) * 100.0;
        let [change, bounds] = with_bounds(percent(factor), ends.map(percent), write_number);
        if [&change, &bounds].into_iter().all(|it| is_zero(it)) {
            return Self { change: NO_DIFFERENCE.into(), bounds: String::new(), caution: "" };
        }
        Self { change: format!("{change} % {}", kind.comparative(factor)), bounds, caution: "" }
    }
}

/// The bounds without an estimate: `between 2.1 % slower and 4.7 % faster`, `between 0.6 and 2.3 times as fast`.
fn bounds_in_words(low: f64, high: f64, kind: MetricKind) -> String {
    let [low, high] = [low, high].map(without_rounding_error);
    if low == 0.0 && high == 0.0 {
        return NO_DIFFERENCE.into();
    }
    let sign = kind.sign();
    let mut factors = [(sign * low).exp(), (sign * high).exp()];
    factors.sort_unstable_by(f64::total_cmp);
    let is_multiple = factors.iter().any(|factor| exceeds_factor(MIN_MULTIPLE, *factor));
    let half_width = (factors[1] - factors[0]) / 2.0;
    if is_multiple {
        let [low, high] = factors.map(|factor| write_multiple(factor, decimals(factors[1], half_width)));
        return format!("between {low} and {high} {}", kind.multiple_words());
    }
    let percents = factors.map(|factor| 100.0 * (factor - 1.0));
    let largest = percents[0].abs().max(percents[1].abs());
    let [low, high] =
        percents.map(|percent| write_number(percent.abs(), decimals(largest, 100.0 * half_width)));
    let [word_of_low, word_of_high] = factors.map(|factor| kind.comparative(factor));
    if word_of_low == word_of_high {
        let (least, most) = if factors[0] < 1.0 { (high, low) } else { (low, high) };
        return format!("between {least} and {most} % {word_of_high}");
    }
    format!("between {low} % {word_of_low} and {high} % {word_of_high}")
}

/// Whether the factor is at least `limit` or below its reciprocal.
fn exceeds_factor(limit: f64, factor: f64) -> bool {
    !(1.0 / limit..limit).contains(&factor)
}

/// The log ratio, or zero if it is only a rounding error.
fn without_rounding_error(log_ratio: f64) -> f64 {
    if log_ratio.abs() < 1e-9 { 0.0 } else { log_ratio }
}

/// An estimate and its bounds as text, with the same precision.
fn with_bounds(estimate: f64, mut ends: [f64; 2], write: fn(f64, i32) -> String) -> [String; 2] {
    ends.sort_unstable_by(f64::total_cmp);
    let places = decimals(estimate, (ends[1] - ends[0]) / 2.0);
    let [low, high] = ends.map(|end| write(end, places));
    [write(estimate, places), format!("[{low}, {high}]")]
}

/// The number of decimal places that the interval supports; negative for digits before the point.
fn decimals(number: f64, half_width: f64) -> i32 {
    let three_digits = 2 - exponent_and_mantissa(number).0;
    if half_width <= 0.0 || !half_width.is_finite() {
        return three_digits;
    }
    let (exponent, mantissa) = exponent_and_mantissa(half_width);
    let supported = if mantissa < 2.0 { 1 - exponent } else { -exponent };
    supported.min(three_digits)
}

/// The power of ten of a number and its mantissa, after rounding to two digits: 0.0996 counts as 0.10.
fn exponent_and_mantissa(number: f64) -> (i32, f64) {
    let number = number.abs();
    if number == 0.0 || !number.is_finite() {
        return (0, 0.0);
    }
    let exponent = number.log10().floor() as i32;
    let mantissa = number / 10f64.powi(exponent);
    if mantissa >= 9.95 { (exponent + 1, 1.0) } else { (exponent, mantissa) }
}

fn write_number(number: f64, places: i32) -> String {
    let step = 10f64.powi(-places);
    // Adding zero turns `-0.0` into `0.0`.
    let rounded = (number / step).round() * step + 0.0;
    let text = format!("{rounded:.*}", places.max(0) as usize);
    if is_zero(&text) { text.trim_start_matches('-').into() } else { text }
}

/// A multiple as text. It is never zero: a multiple that is small compared with its interval keeps one digit.
fn write_multiple(factor: f64, places: i32) -> String {
    let [smallest, largest] = PRINTED_MULTIPLES;
    if factor < smallest {
        return format!("under {smallest}");
    }
    if factor > largest {
        return format!("over {largest}");
    }
    let text = write_number(factor, places);
    if is_zero(&text) { write_number(factor, -exponent_and_mantissa(factor).0) } else { text }
}

/// Whether all digits of a number are zero.
fn is_zero(text: &str) -> bool {
    !text.bytes().any(|byte| (b'1'..=b'9').contains(&byte))
}

/// The smallest difference that counts: `2.1 %`, or `a factor of 2.3` for more than 100 %.
fn smallest_difference(thresholds: VerdictThresholds) -> String {
    let share = thresholds.difference().exp_m1();
    if share <= 1.0 {
        return format!("{} %", percent_rounded_up(share));
    }
    // `percent_rounded_up` multiplies by a hundred.
    let factor = (1.0 + share).min(PRINTED_MULTIPLES[1]);
    format!("a factor of {}", percent_rounded_up(factor / 100.0))
}

/// A share in per cent, rounded up: the printed threshold is never below the real one.
fn percent_rounded_up(share: f64) -> String {
    let percent = share * 100.0;
    let places = decimals(percent, 0.0).min(1);
    let step = 10f64.powi(-places);
    // Subtract the floating-point error, so that a round number is not rounded up.
    let text = format!("{:.*}", places.max(0) as usize, (percent / step - 1e-9).ceil() * step);
    text.strip_suffix(".0").map(String::from).unwrap_or(text)
}

#[cfg(test)]
mod tests;
