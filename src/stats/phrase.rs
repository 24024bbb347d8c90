//! Ratios and changes in words for people: `4.1 times as fast [3.9, 4.3]`, `40 % slower [36, 44]`, `252 times as slow`.
//!
//! An estimate has at most three significant digits, and a multiple at least two. Its last decimal place is
//! that of the first digit of the interval's half width, or of the second digit if the first is 1. The
//! direction is a word, never a sign, and no ratio is below 1. A difference
//! without a verdict is never stated as certain.

use std::fmt;

use super::decision::Decision;
use super::interval::{Evidence, Interval};
use super::noise_floor::VerdictThresholds;
use super::verdict::{MetricKind, Verdict};

/// The smallest factor of an increase that is written as a multiple. Smaller changes are written in per cent.
const MIN_MULTIPLE: f64 = 1.5;
/// The smallest factor of a decrease that is written as a multiple of its inverse: `2.5 times as slow` in place of `60 % slower`.
const MIN_INVERSE: f64 = 2.0;
/// The smallest factor of a bound that turns an increase into a multiple: `[10, 310]` per cent is hard to read.
const MIN_MULTIPLE_OF_BOUND: f64 = 2.0;
/// The largest multiple that is printed as a number.
const MAX_MULTIPLE: f64 = 1e6;

/// The text in place of a change, if both sides have the same values, or if the difference is zero in all printed digits.
pub const NO_DIFFERENCE: &str = "no difference seen";

/// The words for changes of one kind of quantity.
struct Words {
    multiple: &'static str,
    inverse: &'static str,
    more: &'static str,
    less: &'static str,
}

const SPEED: Words =
    Words { multiple: "times as fast", inverse: "times as slow", more: "faster", less: "slower" };
const AMOUNT: Words = Words { multiple: "times as much", inverse: "times less", more: "more", less: "less" };
/// For a mean over several metrics.
const QUALITY: Words =
    Words { multiple: "times as good", inverse: "times as bad", more: "better", less: "worse" };

impl Words {
    fn of(kind: MetricKind) -> &'static Self {
        match kind {
            MetricKind::Speed => &SPEED,
            MetricKind::Amount => &AMOUNT,
        }
    }
}

/// A change and its bounds. The name of the other side is printed between them: `4.1 times as fast`, then `as b`, then `[3.9,
/// 4.3]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phrase {
    pub change: String,
    pub bounds: String,
    /// The kind of evidence, if there is no verdict: `tentative` or `range only`. Empty for a verdict.
    pub caution: &'static str,
}

impl fmt::Display for Phrase {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.change)?;
        if !self.bounds.is_empty() {
            write!(f, " {}", self.bounds)?;
        }
        if self.caution.is_empty() { Ok(()) } else { write!(f, " ({})", self.caution) }
    }
}

impl Phrase {
    /// The phrase for a decision: its verdict, or its evidence where there is no verdict.
    pub fn of_decision(decision: &Decision, evidence: &Evidence, kind: MetricKind) -> Self {
        match (decision.verdict, evidence.interval_of_enough_blocks()) {
            (Some(verdict), Some(interval)) => Self::of(verdict, &interval, decision, kind),
            _ => Self::without_verdict(evidence, kind),
        }
    }

    /// The phrase for a verdict, with its interval.
    fn of(verdict: Verdict, interval: &Interval, decision: &Decision, kind: MetricKind) -> Self {
        let (low, high) = (interval.low(), interval.high());
        let range = || range_in_words(low, high, kind);
        match verdict {
            Verdict::Faster | Verdict::Slower => Self::of_change(interval.estimate(), low, high, kind),
            Verdict::Same => {
                let percent = percent_rounded_up(decision.thresholds.same().exp_m1());
                let change = format!("the same within {percent} %");
                Self { change, bounds: format!("({})", range()), caution: "" }
            }
            Verdict::Inconclusive => {
                let difference = smallest_difference(decision.thresholds);
                let bounds = if !interval.excludes_zero() {
                    format!("({}; a difference must exceed {difference})", range())
                } else if decision.lost_to_correction {
                    format!("({}): not significant among all comparisons of the run", range())
                } else {
                    format!(
                        "({}): within the noise of this machine ({})",
                        range(),
                        noise(decision.thresholds.difference())
                    )
                };
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
        let words = Words::of(kind);
        let [low, high] = of_metric(low, high, kind);
        let estimate = without_rounding_error(kind.sign() * estimate);
        let is_one_sided = low >= 0.0 || high <= 0.0;
        let scale = Scale::of(estimate, if is_one_sided { high } else { estimate });
        let [least, most] = scale.numbers(low, high);
        let number = scale.number(estimate);
        let places = scale.decimals(number, half_width_in(scale, low, high));
        let change = scale.write(number, places);
        let bounds = if is_one_sided {
            format!("[{}, {}]", scale.write(least, places), scale.write(most, places))
        } else {
            let [low, high] = bounds_in_words(low, high, words);
            format!("[{low}, {high}]")
        };
        if is_zero(&change) {
            let is_exact = [least, most].iter().all(|it| is_zero(&scale.write(*it, places)));
            let bounds = if is_exact { String::new() } else { bounds };
            return Self { change: NO_DIFFERENCE.into(), bounds, caution: "" };
        }
        Self { change: format!("{change} {}", scale.words(estimate, words)), bounds, caution: "" }
    }
}

/// A mean of ratios in words, compared with `other`: `1.8 times as good as before`, `40 % worse than before`. Above 1 is better.
pub fn quality(ratio: f64, other: &str) -> String {
    let change = in_words(ratio.ln(), 2, &QUALITY);
    match () {
        () if is_zero(&change) => format!("as good as {other}"),
        () if change.contains(" times as ") => format!("{change} as {other}"),
        () => format!("{change} than {other}"),
    }
}

/// A ratio for the cell of a table: `11.0x`, or `1.66x slower` for a ratio below 1. Above 1 is better for every metric.
pub fn times(ratio: f64, kind: MetricKind) -> String {
    times_with_bounds(ratio, None, kind)
}

/// A ratio for the cell of a table, with its interval: `11.0x [10.9, 11.1]`, `252x slower [240, 260]`.
pub fn times_with_bounds(ratio: f64, bounds: Option<(f64, f64)>, kind: MetricKind) -> String {
    // A ratio that is printed as 1.00 has no direction, so it gets no word such as `slower`.
    let is_inverse = ratio.recip() >= 1.005;
    let ratio_of = |ratio: f64| if is_inverse { ratio.recip() } else { ratio };
    let write = |ratio: f64| match ratio_of(ratio) {
        ratio if ratio > MAX_MULTIPLE => format!("over {MAX_MULTIPLE}"),
        ratio => write_number(ratio, decimals(ratio, 0.0)),
    };
    let word = if is_inverse { format!("x {}", worse(kind)) } else { "x".into() };
    let bounds = bounds.map_or_else(String::new, |(low, high)| {
        let (least, most) = if is_inverse { (high, low) } else { (low, high) };
        format!(" [{}, {}]", write(least), write(most))
    });
    format!("{}{word}{bounds}", write(ratio))
}

/// The word for a ratio below 1.
pub fn worse(kind: MetricKind) -> &'static str {
    match kind {
        MetricKind::Speed => SPEED.less,
        MetricKind::Amount => AMOUNT.more,
    }
}

/// The unit in which a change is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scale {
    Percent,
    Multiple,
    /// The multiple of the inverse ratio.
    Inverse,
}

impl Scale {
    /// The scale of a change, in log ratios. `most` is the upper end of an interval that lies on one side of zero, or else the
    /// change itself.
    fn of(change: f64, most: f64) -> Self {
        let exceeds = |change: f64, factor: f64| change >= factor.ln() - 1e-12;
        if exceeds(-change, MIN_INVERSE) {
            return Self::Inverse;
        }
        match exceeds(change, MIN_MULTIPLE) || exceeds(most, MIN_MULTIPLE_OF_BOUND) {
            true => Self::Multiple,
            false => Self::Percent,
        }
    }

    fn number(self, change: f64) -> f64 {
        match self {
            Self::Percent => 100.0 * change.exp_m1().abs(),
            Self::Multiple => change.exp(),
            Self::Inverse => (-change).exp(),
        }
    }

    /// The numbers of two bounds, the smaller one first.
    fn numbers(self, low: f64, high: f64) -> [f64; 2] {
        let mut numbers = [low, high].map(|it| self.number(it));
        numbers.sort_unstable_by(f64::total_cmp);
        numbers
    }

    /// The decimal places that the interval supports. A multiple has at least two digits.
    fn decimals(self, number: f64, half_width: f64) -> i32 {
        let supported = decimals(number, half_width);
        if self == Self::Percent { supported } else { supported.max(1 - exponent_and_mantissa(number).0) }
    }

    fn write(self, number: f64, places: i32) -> String {
        if self == Self::Percent { write_number(number, places) } else { write_multiple(number, places) }
    }

    fn words(self, change: f64, words: &Words) -> String {
        match self {
            Self::Percent => format!("% {}", if change < 0.0 { words.less } else { words.more }),
            Self::Multiple => words.multiple.into(),
            Self::Inverse => words.inverse.into(),
        }
    }
}

/// The half width of an interval on a scale. Per cent are computed with their signs, because the interval may contain zero.
fn half_width_in(scale: Scale, low: f64, high: f64) -> f64 {
    match scale {
        Scale::Percent => 50.0 * (high.exp() - low.exp()),
        _ => {
            let [least, most] = scale.numbers(low, high);
            (most - least) / 2.0
        }
    }
}

/// The bounds of the speed or amount itself, in log ratios: less memory is below zero. The lower bound comes first.
fn of_metric(low: f64, high: f64, kind: MetricKind) -> [f64; 2] {
    let mut bounds = [low, high].map(|it| without_rounding_error(kind.sign() * it));
    bounds.sort_unstable_by(f64::total_cmp);
    bounds
}

/// The range of a change without an estimate: `between 2.1 % slower and 4.7 % faster`, `between 2.1 and 2.3 times as fast`.
fn range_in_words(low: f64, high: f64, kind: MetricKind) -> String {
    let words = Words::of(kind);
    let [low, high] = of_metric(low, high, kind);
    if low == 0.0 && high == 0.0 {
        return NO_DIFFERENCE.into();
    }
    if low < 0.0 && high > 0.0 {
        let [low, high] = bounds_in_words(low, high, words);
        return format!("between {low} and {high}");
    }
    let farthest = if high <= 0.0 { low } else { high };
    let scale = Scale::of(farthest, farthest);
    let [least, most] = scale.numbers(low, high);
    let places = scale.decimals(most, half_width_in(scale, low, high));
    let [least, most] = [least, most].map(|it| scale.write(it, places));
    format!("between {least} and {most} {}", scale.words(farthest, words))
}

/// Two bounds on different sides of zero, each in words. Two numbers in per cent have the same precision.
fn bounds_in_words(low: f64, high: f64, words: &Words) -> [String; 2] {
    let scales = [low, high].map(|it| Scale::of(it, it));
    if scales != [Scale::Percent; 2] {
        return [low, high].map(|it| in_words(it, 2, words));
    }
    let numbers = [low, high].map(|it| Scale::Percent.number(it));
    let places = decimals(numbers[0].max(numbers[1]), half_width_in(Scale::Percent, low, high));
    let bound = |change: f64, number: f64| {
        format!("{} {}", write_number(number, places), Scale::Percent.words(change, words))
    };
    [bound(low, numbers[0]), bound(high, numbers[1])]
}

/// A change in words with this many digits: `40 % slower`.
fn in_words(change: f64, digits: i32, words: &Words) -> String {
    let scale = Scale::of(change, change);
    let number = scale.number(change);
    let places = digits - 1 - exponent_and_mantissa(number).0;
    format!("{} {}", scale.write(number, places), scale.words(change, words))
}

/// The log ratio, or zero if it is only a rounding error.
fn without_rounding_error(log_ratio: f64) -> f64 {
    if log_ratio.abs() < 1e-9 { 0.0 } else { log_ratio }
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
    if factor > MAX_MULTIPLE {
        return format!("over {MAX_MULTIPLE}");
    }
    let text = write_number(factor, places);
    if is_zero(&text) { write_number(factor, -exponent_and_mantissa(factor).0) } else { text }
}

/// Whether all digits of a number are zero.
fn is_zero(text: &str) -> bool {
    !text.bytes().any(|byte| (b'1'..=b'9').contains(&byte))
}

/// The smallest difference that counts, in words.
fn smallest_difference(thresholds: VerdictThresholds) -> String {
    size(thresholds.difference())
}

/// The size of a difference, rounded up: `2.1 %`, or `a factor of 2.3` for more than 100 %.
pub fn size(log_ratio: f64) -> String {
    let share = log_ratio.exp_m1();
    if share <= 1.0 {
        return format!("{} %", percent_rounded_up(share));
    }
    // `percent_rounded_up` multiplies by a hundred, so the factor is divided before.
    let factor = (1.0 + share).min(MAX_MULTIPLE);
    format!("a factor of {}", percent_rounded_up(factor / 100.0))
}

/// A difference that noise may cause, in both directions: `±97 %`, or `a factor of 2.3` for more than 100 %.
pub fn noise(log_ratio: f64) -> String {
    let size = size(log_ratio);
    if size.ends_with('%') { format!("±{size}") } else { size }
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
