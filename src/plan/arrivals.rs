//! The times at which the requests of a window are wanted, if they arrive at a rate: whether or not earlier ones are answered.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stats::Random;

use crate::shell::{duration_as_given, parse_duration};

/// The most requests in a window.
pub const MAX_REQUESTS: u32 = 4096;
/// The requests of a window without a number or a length.
const REQUESTS: u32 = 16;

/// The rate at which requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredRate", into = "StoredRate")]
pub enum Rate {
    /// Requests per second, in thousandths, so that equal rates are equal.
    PerSecond(u32),
    /// The highest rate at which the requests keep the limits of the run, which each round searches.
    Highest,
}

/// A rate in a record: a number, or the word.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredRate {
    PerSecond(f64),
    Word(String),
}

const HIGHEST: &str = "highest";

impl Rate {
    pub fn per_second(self) -> Option<f64> {
        match self {
            Self::PerSecond(thousandths) => Some(f64::from(thousandths) / 1000.0),
            Self::Highest => None,
        }
    }
}

impl TryFrom<f64> for Rate {
    type Error = String;

    fn try_from(per_second: f64) -> Result<Self, String> {
        let thousandths = (per_second * 1000.0).round();
        match (1.0..=1e9).contains(&thousandths) {
            true => Ok(Self::PerSecond(thousandths as u32)),
            false => Err(format!(
                "expected requests per second from 0.001 to 1,000,000, as in `2.5`, or `{HIGHEST}`"
            )),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            HIGHEST => Ok(Self::Highest),
            // A text that is no number gets the message of a number that is none.
            text => text.parse::<f64>().unwrap_or(f64::NAN).try_into(),
        }
    }
}

impl TryFrom<StoredRate> for Rate {
    type Error = String;

    fn try_from(stored: StoredRate) -> Result<Self, String> {
        match stored {
            StoredRate::PerSecond(rate) => rate.try_into(),
            StoredRate::Word(word) => word.parse(),
        }
    }
}

impl From<Rate> for StoredRate {
    fn from(rate: Rate) -> Self {
        rate.per_second().map_or_else(|| Self::Word(HIGHEST.into()), Self::PerSecond)
    }
}

/// The length of a round, in milliseconds: of arrivals at a rate, or of an engine's use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RoundLength(u32);

impl RoundLength {
    pub const fn minutes(minutes: u32) -> Self {
        Self(minutes * 60_000)
    }

    pub fn duration(self) -> Duration {
        Duration::from_millis(u64::from(self.0))
    }

    /// The requests that arrive in it.
    fn requests(self, per_second: f64) -> u32 {
        ((f64::from(self.0) / 1000.0 * per_second).round() as u32).clamp(1, MAX_REQUESTS)
    }
}

impl FromStr for RoundLength {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let milliseconds = parse_duration(text)?.as_millis();
        match u32::try_from(milliseconds) {
            Ok(milliseconds) if milliseconds > 0 => Ok(Self(milliseconds)),
            _ => Err("expected a time from 1ms to 7 weeks, as in `30s`".into()),
        }
    }
}

impl TryFrom<String> for RoundLength {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<RoundLength> for String {
    fn from(length: RoundLength) -> String {
        duration_as_given(length.duration())
    }
}

/// The number of requests in a window with arrivals at this rate.
pub fn requests(rate: Rate, length: Option<RoundLength>) -> u32 {
    length.zip(rate.per_second()).map_or(REQUESTS, |(length, rate)| length.requests(rate))
}

/// How irregular the arrivals are. The times between them have a gamma distribution with this shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Burstiness {
    /// The shape in thousandths. 1 is a Poisson process: users who do not know of each other. Below 1, arrivals come in bursts.
    Gamma(u32),
    /// Equal times between arrivals.
    Even,
}

const EVEN: &str = "even";

impl Default for Burstiness {
    fn default() -> Self {
        Self::Gamma(1000)
    }
}

impl Burstiness {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// A time between two arrivals, with any mean.
    fn gap(self, random: &mut Random) -> f64 {
        match self {
            Self::Gamma(thousandths) => random.gamma(f64::from(thousandths) / 1000.0),
            Self::Even => 1.0,
        }
    }
}

impl FromStr for Burstiness {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let thousandths = text.parse::<f64>().map_or(f64::NAN, |shape| (shape * 1000.0).round());
        match text {
            EVEN => Ok(Self::Even),
            _ if (10.0..=1e6).contains(&thousandths) => Ok(Self::Gamma(thousandths as u32)),
            _ => Err(format!(
                "expected `{EVEN}`, or a number from 0.01 to 1,000, as in `1` (independent users)"
            )),
        }
    }
}

impl TryFrom<String> for Burstiness {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Burstiness> for String {
    fn from(burstiness: Burstiness) -> String {
        match burstiness {
            Burstiness::Gamma(thousandths) => (f64::from(thousandths) / 1000.0).to_string(),
            Burstiness::Even => EVEN.into(),
        }
    }
}

/// The times of the arrivals of a window since its start. The first one is at the start, and the last one so late that the window has
/// exactly the rate: a random rate would differ between blocks.
pub fn arrivals(per_second: f64, burstiness: Burstiness, requests: u32, seed: u64) -> Vec<Duration> {
    let mut random = Random::seeded(seed);
    let gaps: Vec<f64> = (1..requests).map(|_| burstiness.gap(&mut random)).collect();
    let sum: f64 = gaps.iter().sum();
    let longest = gaps.len() as f64 / per_second;
    let mut at = 0.0;
    let mut arrivals = vec![Duration::ZERO];
    for gap in gaps {
        at += gap;
        arrivals.push(Duration::from_secs_f64(longest * (at / sum).min(1.0)));
    }
    arrivals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rate: f64, burstiness: &str, requests: u32, seed: u64) -> Vec<Duration> {
        arrivals(rate, burstiness.parse().unwrap(), requests, seed)
    }

    /// The standard deviation of the times between arrivals, as a share of their mean.
    fn variation(arrivals: &[Duration]) -> f64 {
        let gaps: Vec<f64> = arrivals.windows(2).map(|it| (it[1] - it[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let squares: f64 = gaps.iter().map(|gap| (gap - mean).powi(2)).sum();
        (squares / gaps.len() as f64).sqrt() / mean
    }

    #[test]
    fn a_window_has_its_rate_exactly_and_its_burstiness_about() {
        for (burstiness, expected) in [("even", 0.0), ("1", 1.0), ("0.25", 2.0), ("4", 0.5)] {
            let arrivals = of(20.0, burstiness, 2001, 7);
            assert_eq!((arrivals.len(), arrivals[0]), (2001, Duration::ZERO));
            assert!((arrivals[2000].as_secs_f64() - 100.0).abs() < 1e-6, "{burstiness}");
            assert!(arrivals.is_sorted(), "{burstiness}");
            let variation = variation(&arrivals);
            assert!((variation - expected).abs() <= 0.15 * expected + 1e-6, "{burstiness}: {variation}");
        }
    }

    #[test]
    fn engines_get_the_same_arrivals_and_blocks_get_others() {
        assert_eq!(of(2.5, "1", 8, 1), of(2.5, "1", 8, 1));
        assert_ne!(of(2.5, "1", 8, 1), of(2.5, "1", 8, 2));
        assert_eq!(of(2.5, "1", 1, 1), [Duration::ZERO]);
    }

    #[test]
    fn rates_and_burstiness_are_read_as_they_are_written() {
        for text in ["0.5", "2", "1000000"] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.per_second().unwrap().to_string(), text);
            assert_eq!(serde_json::from_str::<Rate>(&serde_json::to_string(&rate).unwrap()).unwrap(), rate);
        }
        let highest: Rate = "highest".parse().unwrap();
        assert_eq!(serde_json::to_string(&highest).unwrap(), r#""highest""#);
        assert_eq!(serde_json::from_str::<Rate>(r#""highest""#).unwrap(), highest);
        for text in ["even", "1", "0.25"] {
            assert_eq!(String::from(text.parse::<Burstiness>().unwrap()), text);
        }
        for text in ["0", "-1", "x", "inf", "nan", ""] {
            assert!(text.parse::<Rate>().is_err() && text.parse::<Burstiness>().is_err(), "{text}");
        }
        let rate: Rate = "2".parse().unwrap();
        let counts = ["30s", "10ms", "1h"].map(|it| requests(rate, Some(it.parse().unwrap())));
        assert_eq!((counts, requests(rate, None)), ([60, 1, MAX_REQUESTS], REQUESTS));
    }
}
