//! Ratios and changes in words for people: `4.1x as fast [3.9, 4.3]`, `1.5x slower [1.4, 1.6]`, `4 % slower [2, 6]`.
//!
//! The number is the factor between the two sides, and never below 1. A factor below 1.1 is written in per cent: `4 % slower`
//! is a factor of 1.04. So a shown value, multiplied or divided by the factor, gives the other value, for rates and for times
//! alike. The direction is a word, never a sign. A bound of a multiple follows the same rule: `[4.8 % faster, 2.3x as fast]`,
//! because `1.0x` would hide that the interval excludes 1.
//!
//! An estimate has at most three significant digits, and a multiple at least two. The last decimal place of an estimate is
//! that of the first digit of the interval's half width, or of the second digit if the first is 1. A difference
//! without a verdict is never stated as certain.

use std::fmt;

use super::decision::Decision;
use super::experiment::Comparison;
use super::interval::{Evidence, Interval};
use super::noise_floor::VerdictThresholds;
use super::verdict::{MetricKind, Verdict};

/// The smallest factor that is written as a multiple. Smaller factors are written in per cent.
const MIN_MULTIPLE: f64 = 1.1;
/// The smallest factor of a bound that turns a change into a multiple: `[2, 310]` per cent is hard to read.
const MIN_MULTIPLE_OF_BOUND: f64 = 1.5;
/// The largest multiple that is printed as a number.
const MAX_MULTIPLE: f64 = 1e6;

/// The text in place of a change, if both sides have the same values, or if the difference is zero in all printed digits.
pub const NO_DIFFERENCE: &str = "no difference seen";

/// The words for changes of one kind of quantity.
#[derive(Clone, Copy)]
struct Words {
    /// The text after the number, if an increase is written as a multiple: `4.1` + `x as fast`.
    multiple: &'static str,
    more: &'static str,
    less: &'static str,
}

const SPEED: Words = Words { multiple: "x as fast", more: "faster", less: "slower" };
/// In a cell of a table, where the column says that the number is a speed-up.
const SPEED_IN_CELL: Words = Words { multiple: "x", ..SPEED };
const AMOUNT: Words = Words { multiple: "x as much", more: "more", less: "less" };
/// For a mean over several metrics.
const QUALITY: Words = Words { multiple: "x as good", more: "better", less: "worse" };

impl Words {
    fn of(kind: MetricKind) -> Self {
        match kind {
            MetricKind::Speed => SPEED,
            MetricKind::Amount => AMOUNT,
        }
    }

    fn in_cell(kind: MetricKind) -> Self {
        match kind {
            MetricKind::Speed => SPEED_IN_CELL,
            MetricKind::Amount => AMOUNT,
        }
    }
}

/// A change and its bounds. The name of the other side is printed between them: `4.1x as fast`, then `as b`, then `[3.9, 4.3]`.
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
                let bounds = match why_inconclusive(decision, interval) {
                    Some(why) => format!("({}): {why}", range()),
                    None => format!("({}; a difference must exceed {difference})", range()),
                };
                Self { change: "inconclusive".into(), bounds, caution: "" }
            }
        }
    }

    /// The phrase for evidence without a verdict: there are too few blocks, or the rounds were not interleaved (then firm
    /// evidence counts as tentative).
    fn without_verdict(evidence: &Evidence, kind: MetricKind) -> Self {
        let caution = match evidence {
            Evidence::RangeOnly { .. } => "range only",
            Evidence::Tentative(_) | Evidence::Firm(_) => "tentative",
        };
        let (low, high) = evidence.ends();
        Self { caution, ..Self::of_change(evidence.estimate(), low, high, kind) }
    }

    /// A ratio with its interval, in words for a sentence. Above 1 is better for every metric.
    pub fn of_ratio(ratio: f64, (low, high): (f64, f64), kind: MetricKind) -> Self {
        Self::of_change(ratio.ln(), low.ln(), high.ln(), kind)
    }

    /// A ratio for the cell of a table: `11.0x`, then `[10.9, 11.1]`; `1.66x slower`; `4 % faster`. Above 1 is better for every
    /// metric.
    pub fn in_cell(ratio: f64, bounds: Option<(f64, f64)>, kind: MetricKind) -> Self {
        let (low, high) = bounds.unwrap_or((ratio, ratio));
        let phrase = Self::worded([ratio.ln(), low.ln(), high.ln()], kind, Words::in_cell(kind));
        // A ratio that is 1.00 after rounding to two decimal places has no direction.
        let is_one = phrase.change == NO_DIFFERENCE || ratio.ln().abs() < 0.005;
        let change = if is_one { "1.00x".into() } else { phrase.change };
        let bounds = if bounds.is_some() { phrase.bounds } else { String::new() };
        Self { change, bounds, caution: "" }
    }

    fn of_change(estimate: f64, low: f64, high: f64, kind: MetricKind) -> Self {
        Self::worded([estimate, low, high], kind, Words::of(kind))
    }

    fn worded([estimate, low, high]: [f64; 3], kind: MetricKind, words: Words) -> Self {
        let [low, high] = of_metric(low, high, kind);
        let estimate = without_rounding_error(kind.sign() * estimate);
        let is_one_sided = is_one_sided(low, high);
        let (scale, places) = precision(estimate, low, high);
        let [least, most] = scale.numbers(low, high);
        let change = scale.write(scale.number(estimate), places);
        let bounds = if is_one_sided && scale.can_write(least) {
            format!("[{}, {}]", scale.write(least, places), scale.write(most, places))
        } else {
            let [low, high] = bounds_in_words(low, high, words);
            format!("[{low}, {high}]")
        };
        if scale == Scale::Percent && is_zero(&change) {
            let is_exact = [least, most].iter().all(|it| is_zero(&scale.write(*it, places)));
            let bounds = if is_exact { String::new() } else { bounds };
            return Self { change: NO_DIFFERENCE.into(), bounds, caution: "" };
        }
        Self { change: format!("{change}{}", scale.words(estimate, words)), bounds, caution: "" }
    }
}

/// The ratios that `Phrase::in_cell` writes with the same digits as this one: the lowest and the highest.
pub fn ratios_with_same_digits(ratio: f64, bounds: Option<(f64, f64)>, kind: MetricKind) -> [f64; 2] {
    let (low, high) = bounds.unwrap_or((ratio, ratio));
    let [low, high] = of_metric(low.ln(), high.ln(), kind);
    let estimate = without_rounding_error(kind.sign() * ratio.ln());
    let (scale, places) = precision(estimate, low, high);
    let step = 10f64.powi(-places);
    let shown = (scale.number(estimate) / step).round() * step;
    let factors = [shown - step / 2.0, shown + step / 2.0].map(|number| scale.factor(number));
    // `no difference` is written as 1.00, which includes changes in both directions.
    let [least, most] =
        if shown == 0.0 { [1.0 / factors[1].max(1.005), factors[1].max(1.005)] } else { factors };
    if ratio < 1.0 { [1.0 / most, 1.0 / least] } else { [least, most] }
}

/// Whether an interval of log ratios has no value on one side of zero.
fn is_one_sided(low: f64, high: f64) -> bool {
    low >= 0.0 || high <= 0.0
}

/// The scale of an estimate, and its decimal places.
fn precision(estimate: f64, low: f64, high: f64) -> (Scale, i32) {
    let farthest = if is_one_sided(low, high) { low.abs().max(high.abs()) } else { 0.0 };
    let scale = Scale::of(estimate, farthest);
    (scale, scale.decimals(scale.number(estimate), half_width_in(scale, low, high)))
}

/// The reason why an interval without 1 is inconclusive, in the same words everywhere. `None` if the interval includes 1, or if
/// the comparison is decided.
fn why_inconclusive(decision: &Decision, interval: &Interval) -> Option<String> {
    let is_inconclusive = decision.verdict == Some(Verdict::Inconclusive) && interval.excludes_zero();
    is_inconclusive.then(|| match decision.lost_to_correction {
        true => "not significant among all comparisons of the run".into(),
        false => not_beyond_noise(decision.thresholds),
    })
}

/// `difference not beyond the noise of this machine (±97 %)`.
pub fn not_beyond_noise(thresholds: VerdictThresholds) -> String {
    format!("difference not beyond the noise of this machine ({})", noise(thresholds.difference()))
}

impl Comparison {
    /// The reason why the comparison is inconclusive although its interval does not include 1.
    pub fn why_inconclusive(&self) -> Option<String> {
        why_inconclusive(&self.decision, &self.evidence.interval_of_enough_blocks()?)
    }
}

/// A change, then the other side: `4.1x as fast as b`, `1.5x slower than b`.
pub fn with_other(change: &str, other: &str) -> String {
    let conjunction = if is_multiple_of_increase(change) { "as" } else { "than" };
    format!("{change} {conjunction} {other}")
}

fn is_multiple_of_increase(change: &str) -> bool {
    change.contains("x as ")
}

/// A mean of ratios in words, compared with `other`: `1.8x as good as before`, `1.7x worse than before`. Above 1 is better.
pub fn quality(ratio: f64, other: &str) -> String {
    let change = in_words(ratio.ln(), 2, QUALITY);
    if is_zero(&change) { format!("as good as {other}") } else { with_other(&change, other) }
}

/// The ends of an interval for the cell of a table, each with its direction: `[9 % slower, 1.3x]`.
pub fn bounds_in_cell((low, high): (f64, f64), kind: MetricKind) -> String {
    let [low, high] = of_metric(low.ln(), high.ln(), kind);
    let [low, high] = bounds_in_words(low, high, Words::in_cell(kind));
    format!("[{low}, {high}]")
}

/// The unit in which a change is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scale {
    Percent,
    Multiple,
}

impl Scale {
    /// The scale of a change, in log ratios. `farthest` is the end of an interval that is farther from zero, if the interval is on
    /// one side of zero.
    fn of(change: f64, farthest: f64) -> Self {
        let exceeds = |change: f64, factor: f64| change.abs() >= factor.ln() - 1e-12;
        match exceeds(change, MIN_MULTIPLE) || exceeds(farthest, MIN_MULTIPLE_OF_BOUND) {
            true => Self::Multiple,
            false => Self::Percent,
        }
    }

    /// The number of a change in either direction.
    fn number(self, change: f64) -> f64 {
        match self {
            Self::Percent => 100.0 * change.abs().exp_m1(),
            Self::Multiple => change.abs().exp(),
        }
    }

    /// The factor that has this number.
    fn factor(self, number: f64) -> f64 {
        match self {
            Self::Percent => 1.0 + number / 100.0,
            Self::Multiple => number,
        }
    }

    /// Whether a bound with this number is written on this scale: a multiple below `MIN_MULTIPLE` is not.
    fn can_write(self, number: f64) -> bool {
        self == Self::Percent || number >= MIN_MULTIPLE - 1e-12
    }

    /// The numbers of two bounds, the smaller one first.
    fn numbers(self, low: f64, high: f64) -> [f64; 2] {
        let mut numbers = [low, high].map(|it| self.number(it));
        numbers.sort_unstable_by(f64::total_cmp);
        numbers
    }

    /// The decimal places that the interval supports. A multiple has at least two digits. Without an interval, per cent have two.
    fn decimals(self, number: f64, half_width: f64) -> i32 {
        let (supported, two_digits) = (decimals(number, half_width), 1 - exponent_and_mantissa(number).0);
        match self {
            Self::Percent if half_width <= 0.0 => two_digits,
            Self::Percent => supported,
            Self::Multiple => supported.max(two_digits),
        }
    }

    fn write(self, number: f64, places: i32) -> String {
        if self == Self::Percent { write_number(number, places) } else { write_multiple(number, places) }
    }

    fn words(self, change: f64, words: Words) -> String {
        match self {
            Self::Percent => format!(" % {}", if change < 0.0 { words.less } else { words.more }),
            Self::Multiple if change < 0.0 => format!("x {}", words.less),
            Self::Multiple => words.multiple.into(),
        }
    }
}

/// The half width of an interval on a scale. Per cent are computed with their signs, because the interval may contain zero.
fn half_width_in(scale: Scale, low: f64, high: f64) -> f64 {
    match scale {
        Scale::Percent => {
            let signed = |it: f64| scale.number(it).copysign(it);
            (signed(high) - signed(low)) / 2.0
        }
        Scale::Multiple => {
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

/// The range of a change without an estimate, from log ratios: `between 2.1 % slower and 4.7 % faster`, `between 2.1x and 2.3x as
/// fast`.
pub fn range_in_words(low: f64, high: f64, kind: MetricKind) -> String {
    let words = Words::of(kind);
    let [low, high] = of_metric(low, high, kind);
    if low == 0.0 && high == 0.0 {
        return NO_DIFFERENCE.into();
    }
    let farthest = if high <= 0.0 { low } else { high };
    let scale = Scale::of(farthest, farthest);
    let [least, most] = scale.numbers(low, high);
    if !is_one_sided(low, high) || !scale.can_write(least) {
        let [low, high] = bounds_in_words(low, high, words);
        return format!("between {low} and {high}");
    }
    let places = scale.decimals(most, half_width_in(scale, low, high));
    let [least, most] = [least, most].map(|it| scale.write(it, places));
    let unit = if scale == Scale::Multiple { "x" } else { "" };
    format!("between {least}{unit} and {most}{}", scale.words(farthest, words))
}

/// Two bounds, each in words. Two numbers in per cent have the same precision.
fn bounds_in_words(low: f64, high: f64, words: Words) -> [String; 2] {
    let scales = [low, high].map(|it| Scale::of(it, it));
    if scales != [Scale::Percent; 2] {
        return [low, high].map(|it| in_words(it, 2, words));
    }
    let numbers = [low, high].map(|it| Scale::Percent.number(it));
    let places = decimals(numbers[0].max(numbers[1]), half_width_in(Scale::Percent, low, high));
    let bound = |change: f64, number: f64| {
        format!("{}{}", write_number(number, places), Scale::Percent.words(change, words))
    };
    [bound(low, numbers[0]), bound(high, numbers[1])]
}

/// A change in words with this many digits: `1.7x slower`.
fn in_words(change: f64, digits: i32, words: Words) -> String {
    if change == 0.0 {
        return "no difference".into();
    }
    let scale = Scale::of(change, change);
    let number = scale.number(change);
    let places = digits - 1 - exponent_and_mantissa(number).0;
    format!("{}{}", scale.write(number, places), scale.words(change, words))
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

/// A multiple as text, with commas between thousands.
fn write_multiple(factor: f64, places: i32) -> String {
    let is_too_large = factor > MAX_MULTIPLE;
    let text = if is_too_large { MAX_MULTIPLE.to_string() } else { write_number(factor, places) };
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let digits = whole.char_indices().flat_map(|(at, digit)| {
        let has_comma = at > 0 && (whole.len() - at).is_multiple_of(3);
        has_comma.then_some(',').into_iter().chain([digit])
    });
    format!("{}{}{fraction}", if is_too_large { "over " } else { "" }, digits.collect::<String>())
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
fn noise(log_ratio: f64) -> String {
    let size = size(log_ratio);
    if size.ends_with('%') { format!("±{size}") } else { size }
}

/// A share in per cent, rounded up: the printed threshold is never below the real one.
fn percent_rounded_up(share: f64) -> String {
    let percent = share * 100.0;
    let places = decimals(percent, 0.0).min(1);
    let step = 10f64.powi(-places);
    // Subtract the floating-point error, so that a round number is not rounded up.
    let text = format!("{:.*}", places.max(0) as usize, (percent / step - 1e-9).ceil().max(0.0) * step);
    text.strip_suffix(".0").map(String::from).unwrap_or(text)
}

#[cfg(test)]
mod tests;
