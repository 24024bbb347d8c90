//! The age of a baseline in words.

use std::fmt;
use std::time::{Duration, SystemTime};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// An older baseline gets a warning: after a month a machine has had updates, and other neighbours.
const OLD: u64 = 30 * DAY;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    Seconds(u64),
    /// In the future: one of the clocks is wrong.
    NotYetBorn,
    Unknown,
}

impl Age {
    /// The age from `since` until `now`; `since` is RFC 3339.
    pub fn since(since: &str, now: SystemTime) -> Self {
        match humantime::parse_rfc3339(since).map(|since| now.duration_since(since)) {
            Ok(Ok(age)) => Self::Seconds(age.as_secs()),
            // The clocks of two machines may differ by this much.
            Ok(Err(ahead)) if ahead.duration() < Duration::from_secs(MINUTE) => Self::Seconds(0),
            Ok(Err(_)) => Self::NotYetBorn,
            Err(_) => Self::Unknown,
        }
    }

    pub fn is_old(self) -> bool {
        matches!(self, Self::Seconds(OLD..))
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Seconds(seconds) = *self else {
            return f.write_str(match self {
                Self::NotYetBorn => "dated in the future (a clock is wrong)",
                _ => "of unknown age",
            });
        };
        let units = [(DAY, "day"), (HOUR, "hour"), (MINUTE, "minute")];
        let Some((length, unit)) = units.into_iter().find(|(length, _)| seconds >= *length) else {
            return f.write_str("less than a minute old");
        };
        let count = seconds / length;
        write!(f, "{count} {unit}{} old", if count == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: u64) -> Age {
        let now = humantime::parse_rfc3339("2026-01-01T00:00:00Z").unwrap() + Duration::from_secs(seconds);
        Age::since("2026-01-01T00:00:00Z", now)
    }

    #[test]
    fn an_age_is_shown_in_its_largest_full_unit() {
        let said =
            [0, 59, 60, 3599, 3600, 86_399, 86_400, 3 * 86_400, 400 * 86_400].map(|it| after(it).to_string());
        let expected = [
            "less than a minute old",
            "less than a minute old",
            "1 minute old",
            "59 minutes old",
            "1 hour old",
            "23 hours old",
            "1 day old",
            "3 days old",
            "400 days old",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn a_baseline_is_old_from_thirty_days_on() {
        assert!(after(30 * 86_400).is_old() && !after(30 * 86_400 - 1).is_old());
    }

    #[test]
    fn a_baseline_from_the_future_is_reported_unless_clocks_differ_only_slightly() {
        let now = humantime::parse_rfc3339("2026-01-01T00:00:00Z").unwrap();
        assert_eq!(Age::since("2026-01-01T00:00:30Z", now), Age::Seconds(0));
        assert_eq!(Age::since("2026-01-02T00:00:00Z", now), Age::NotYetBorn);
        assert_eq!(Age::since("yesterday", now), Age::Unknown);
    }
}
