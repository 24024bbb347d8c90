//! Limits for the latency of one request, as the users of a service want them. Requests that keep all of them make up the goodput.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::shell::{duration_as_given, parse_duration};

/// The longest times in nanoseconds. A request keeps a limit that is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyLimits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_ns: Option<u64>,
    /// Of each time between two tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inter_token_ns: Option<u64>,
    /// Of the mean time of the tokens after the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_per_token_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_ns: Option<u64>,
}

const EXPECTED: &str = "expected limits as in `ttft=500ms,itl=50ms`; the names are ttft, itl, tpot, total";

impl LatencyLimits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Each limit by its name on the command line.
    fn named(&mut self) -> [(&'static str, &mut Option<u64>); 4] {
        [
            ("ttft", &mut self.first_token_ns),
            ("itl", &mut self.inter_token_ns),
            ("tpot", &mut self.time_per_token_ns),
            ("total", &mut self.total_ns),
        ]
    }

    /// As the command line has them: `ttft=500ms,itl=50ms`.
    pub fn word(mut self) -> String {
        let given = |(name, limit): (&str, &mut Option<u64>)| {
            Some(format!("{name}={}", duration_as_given(Duration::from_nanos((*limit)?))))
        };
        self.named().into_iter().filter_map(given).collect::<Vec<_>>().join(",")
    }
}

impl FromStr for LatencyLimits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut limits = Self::default();
        for part in text.split(',') {
            let (name, time) = part.split_once('=').ok_or(EXPECTED)?;
            let nanoseconds = parse_duration(time).map_err(|_| EXPECTED)?.as_nanos();
            let found = limits.named().into_iter().find(|(known, _)| *known == name.trim());
            let (_, limit) = found.ok_or(EXPECTED)?;
            let nanoseconds = u64::try_from(nanoseconds).map_err(|_| EXPECTED)?;
            if limit.replace(nanoseconds).is_some() {
                return Err(format!("`{}` has two limits", name.trim()));
            }
        }
        Ok(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_they_are_written() {
        let limits: LatencyLimits = "itl=50ms,ttft=1.5".parse().unwrap();
        assert_eq!((limits.first_token_ns, limits.inter_token_ns), (Some(1_500_000_000), Some(50_000_000)));
        assert_eq!(limits.word(), "ttft=1s500ms,itl=50ms");
        assert_eq!(limits.word().parse::<LatencyLimits>().unwrap(), limits);
        assert!(!limits.is_empty() && LatencyLimits::default().is_empty());
    }

    #[test]
    fn a_limit_needs_a_known_name_and_a_time_and_stands_once() {
        for text in ["", "ttft", "ttft=", "x=5ms", "ttft=5ms,", "ttft=0", "p99=5ms"] {
            assert!(text.parse::<LatencyLimits>().is_err(), "{text}");
        }
        assert_eq!("ttft=1s,ttft=2s".parse::<LatencyLimits>().unwrap_err(), "`ttft` has two limits");
    }
}
