//! A log ratio in words for people: `4.1 times as fast [3.9, 4.3]`, `1.8 % slower [0.4, 3.1]`.
//!
//! The digits are those that the interval supports: half its width has one, or two where the first is 1. No number has more than
//! three. A difference without a verdict is never stated as one.

use std::fmt;

use super::decision::Decision;
use super::interval::{Evidence, Interval};
use super::noise_floor::Epsilon;
use super::verdict::{Quality, Verdict};

/// Readers think in multiples from here on, and in per cent below.
const MULTIPLE: f64 = 1.5;
/// A bound from here on turns the whole change into multiples: `[-310, 80]` per cent is hard to read.
const FAR: f64 = 2.0;
/// Multiples beyond these are not printed as numbers.
const EXTREMES: [f64; 2] = [0.001, 1e6];

/// The text in place of a change and its bounds where both sides have the same values.
pub const NO_DIFFERENCE: &str = "no difference seen";

/// A change and its bounds. The other side's name goes between them: `4.1 times as fast`, then `as b`, then `[3.9, 4.3]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phrase {
    pub change: String,
    pub bounds: String,
    /// The reason why it is no verdict: `tentative`, `within launch`; else empty.
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
    /// A decision in words; its verdict where it has one.
    pub fn of_decision(decision: &Decision, evidence: &Evidence, quality: Quality) -> Self {
        match (decision.verdict, evidence.firm()) {
            (Some(verdict), Some(interval)) => Self::of(verdict, &interval, decision.epsilon, quality),
            _ => Self::without_verdict(evidence, quality),
        }
    }

    /// A verdict in words, with its interval.
    fn of(verdict: Verdict, interval: &Interval, epsilon: Epsilon, quality: Quality) -> Self {
        let (low, high) = (interval.low(), interval.high());
        match verdict {
            Verdict::Faster | Verdict::Slower => Self::of_change(interval.estimate(), low, high, quality),
            Verdict::Same => {
                let within = percent_up(epsilon.same().exp_m1());
                let bounds = format!("({})", between(low, high, quality));
                Self { change: format!("the same within {within} %"), bounds, caution: "" }
            }
            Verdict::Inconclusive => {
                let counts = counts_from(epsilon);
                let bounds = format!("({}; {counts} would count)", between(low, high, quality));
                Self { change: "inconclusive".into(), bounds, caution: "" }
            }
        }
    }

    /// A change in words where there are too few blocks for a verdict, or the two were not measured in turn.
    fn without_verdict(evidence: &Evidence, quality: Quality) -> Self {
        let caution = match evidence {
            Evidence::WithinLaunch { .. } => "within launch",
            Evidence::Tentative(_) | Evidence::Firm(_) => "tentative",
        };
        let (low, high) = evidence.ends();
        Self { caution, ..Self::of_change(evidence.estimate(), low, high, quality) }
    }

    fn of_change(estimate: f64, low: f64, high: f64, quality: Quality) -> Self {
        let [estimate, low, high] = [estimate, low, high].map(cleaned);
        // In the direction of the metric: less memory is a ratio below one.
        let side = quality.side();
        let factor = (side * estimate).exp();
        let ends = [(side * low).exp(), (side * high).exp()];
        if is_beyond(MULTIPLE, factor) || ends.into_iter().any(|end| is_beyond(FAR, end)) {
            let [change, bounds] = numbers(factor, ends, times);
            return Self { change: format!("{change} {}", quality.times()), bounds, caution: "" };
        }
        let sign = if factor < 1.0 { -1.0 } else { 1.0 };
        let percent = |factor: f64| sign * (factor - 1.0) * 100.0;
        let [change, bounds] = numbers(percent(factor), ends.map(percent), written);
        if [&change, &bounds].into_iter().all(|it| is_zero(it)) {
            return Self { change: NO_DIFFERENCE.into(), bounds: String::new(), caution: "" };
        }
        Self { change: format!("{change} % {}", quality.comparative(factor)), bounds, caution: "" }
    }
}

/// The bounds without an estimate: `between 2.1 % slower and 4.7 % faster`, `between 0.6 and 2.3 times as fast`.
fn between(low: f64, high: f64, quality: Quality) -> String {
    let [low, high] = [low, high].map(cleaned);
    if low == 0.0 && high == 0.0 {
        return NO_DIFFERENCE.into();
    }
    let side = quality.side();
    let mut factors = [(side * low).exp(), (side * high).exp()];
    factors.sort_unstable_by(f64::total_cmp);
    let multiple = factors.iter().any(|factor| is_beyond(MULTIPLE, *factor));
    let half_width = (factors[1] - factors[0]) / 2.0;
    if multiple {
        let [low, high] = factors.map(|factor| times(factor, decimals(factors[1], half_width)));
        return format!("between {low} and {high} {}", quality.times());
    }
    let percents = factors.map(|factor| 100.0 * (factor - 1.0));
    let largest = percents[0].abs().max(percents[1].abs());
    let [low, high] = percents.map(|percent| written(percent.abs(), decimals(largest, 100.0 * half_width)));
    let [below, above] = factors.map(|factor| quality.comparative(factor));
    if below == above {
        let (least, most) = if factors[0] < 1.0 { (high, low) } else { (low, high) };
        return format!("between {least} and {most} % {above}");
    }
    format!("between {low} % {below} and {high} % {above}")
}

fn is_beyond(multiple: f64, factor: f64) -> bool {
    !(1.0 / multiple..multiple).contains(&factor)
}

/// The log ratio, with zero for a value that is only rounding error.
fn cleaned(log_ratio: f64) -> f64 {
    if log_ratio.abs() < 1e-9 { 0.0 } else { log_ratio }
}

/// An estimate and its bounds with the same precision.
fn numbers(estimate: f64, mut ends: [f64; 2], write: fn(f64, i32) -> String) -> [String; 2] {
    ends.sort_unstable_by(f64::total_cmp);
    let places = decimals(estimate, (ends[1] - ends[0]) / 2.0);
    let [low, high] = ends.map(|end| write(end, places));
    [write(estimate, places), format!("[{low}, {high}]")]
}

/// The number of decimal places that the interval supports; negative for digits before the point.
fn decimals(number: f64, half_width: f64) -> i32 {
    let three_digits = 2 - leading(number).0;
    if half_width <= 0.0 || !half_width.is_finite() {
        return three_digits;
    }
    let (exponent, first) = leading(half_width);
    let supported = if first < 2.0 { 1 - exponent } else { -exponent };
    supported.min(three_digits)
}

/// The power of ten of the first digit and the number divided by it, after rounding to two digits: 0.0996 begins as 0.10.
fn leading(number: f64) -> (i32, f64) {
    let number = number.abs();
    if number == 0.0 || !number.is_finite() {
        return (0, 0.0);
    }
    let exponent = number.log10().floor() as i32;
    let mantissa = number / 10f64.powi(exponent);
    if mantissa >= 9.95 { (exponent + 1, 1.0) } else { (exponent, mantissa) }
}

fn written(number: f64, places: i32) -> String {
    let step = 10f64.powi(-places);
    // Adding zero turns `-0.0` into `0.0`.
    let rounded = (number / step).round() * step + 0.0;
    let text = format!("{rounded:.*}", places.max(0) as usize);
    if is_zero(&text) { text.trim_start_matches('-').into() } else { text }
}

/// A multiple as text. It is never zero: a multiple that is small beside its interval keeps one digit.
fn times(factor: f64, places: i32) -> String {
    let [least, most] = EXTREMES;
    if factor < least {
        return format!("under {least}");
    }
    if factor > most {
        return format!("over {most}");
    }
    let text = written(factor, places);
    if is_zero(&text) { written(factor, -leading(factor).0) } else { text }
}

/// Whether all its digits are zero.
fn is_zero(text: &str) -> bool {
    !text.bytes().any(|byte| (b'1'..=b'9').contains(&byte))
}

/// The smallest difference that counts: `2.1 %`, or `a factor of 2.3` where that would be over 100 %.
fn counts_from(epsilon: Epsilon) -> String {
    let share = epsilon.difference().exp_m1();
    if share <= 1.0 {
        return format!("{} %", percent_up(share));
    }
    // `percent_up` multiplies by a hundred.
    let factor = (1.0 + share).min(EXTREMES[1]);
    format!("a factor of {}", percent_up(factor / 100.0))
}

/// Per cent, rounded up: the printed limit is never below the real one.
fn percent_up(share: f64) -> String {
    let percent = share * 100.0;
    let places = decimals(percent, 0.0).min(1);
    let step = 10f64.powi(-places);
    // The error of floating point on a round number is no reason to round up.
    let text = format!("{:.*}", places.max(0) as usize, (percent / step - 1e-9).ceil() * step);
    text.strip_suffix(".0").map(String::from).unwrap_or(text)
}

#[cfg(test)]
mod tests;
