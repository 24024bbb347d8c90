//! The description of a baseline, `baseline.json` in its folder.

use std::fmt;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::program::Program;
use super::store::{self, check_name};
use crate::machine::Machine;
use crate::record::{self, Header, RunRecord};
use crate::shell::Usage;
use crate::text::line;

/// Raised when the meaning of a field changes.
const BASELINE_VERSION: u32 = 1;

/// The description of a baseline.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    pub baseline_version: u32,
    pub name: String,
    /// When its run began: UTC, as RFC 3339 writes it.
    pub measured: String,
    pub machine: Machine,
    /// `Machine::fingerprint`.
    pub fingerprint: String,
    pub orchestrate_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The command line of the user.
    pub command: Vec<String>,
    pub configurations: Vec<Kept>,
}

/// A row of the baseline's run, with its program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    pub label: String,
    pub engine: String,
    pub program: Program,
}

/// The hint comes last, where it can be pasted.
pub fn damaged(name: &str, how: &str) -> anyhow::Error {
    anyhow::anyhow!("baseline `{name}`: {how}\nhint: orchestrate baseline remove {name}")
}

impl Baseline {
    pub fn of(name: &str, header: &Header) -> Self {
        Self {
            baseline_version: BASELINE_VERSION,
            name: name.into(),
            measured: header.started.clone(),
            machine: header.machine.clone(),
            fingerprint: header.machine.fingerprint(),
            orchestrate_version: header.orchestrate_version.clone(),
            commit: header.commit.clone(),
            command: header.command.clone(),
            configurations: Vec::new(),
        }
    }

    /// Reads a baseline. An unknown name is the user's error, and the message lists the known ones.
    pub fn read(name: &str) -> Result<Self> {
        check_name(name)?;
        let damaged = |why: String| damaged(name, &format!("its description cannot be read: {why}"));
        let Some(page) = store::read_page(name)? else {
            if store::exists(name)? {
                return Err(damaged("the file is missing".into()));
            }
            let known: Vec<_> = store::names()?.iter().map(|name| format!("`{name}`")).collect();
            let hint = match known.is_empty() {
                true => format!("--save-baseline {name}"),
                false => format!("the baselines are {}", known.join(", ")),
            };
            return Err(Usage(format!("no baseline `{name}`\nhint: {hint}")).into());
        };
        let baseline: Self = serde_json::from_slice(&page).map_err(|error| damaged(error.to_string()))?;
        if baseline.baseline_version != BASELINE_VERSION {
            let (its, ours) = (baseline.baseline_version, BASELINE_VERSION);
            anyhow::bail!(
                "baseline `{name}` has version {its}, this program reads {ours}\nhint: --save-baseline {name}"
            );
        }
        Ok(baseline)
    }

    pub fn record(&self) -> Result<RunRecord> {
        record::read(&store::record_path(&self.name)?)
    }

    pub fn age(&self, now: SystemTime) -> Age {
        Age::since(&self.measured, now)
    }

    /// The first line wherever a baseline is used: `baseline `main`, 3 days old, orchestrate 0.1.0 at commit abc`.
    pub fn introduction(&self, now: SystemTime) -> String {
        let commit =
            self.commit.as_ref().map(|commit| format!(" at commit {}", line(commit))).unwrap_or_default();
        let (age, version) = (self.age(now), line(&self.orchestrate_version));
        format!("baseline `{}`, {age}, orchestrate {version}{commit}", line(&self.name))
    }

    /// The lines above a comparison with its values.
    pub fn notices(&self) -> Vec<String> {
        let now = SystemTime::now();
        std::iter::once(self.introduction(now)).chain(self.doubts(now)).collect()
    }

    /// Warnings about a comparison with it.
    pub fn doubts(&self, now: SystemTime) -> Vec<String> {
        let (name, mut doubts) = (&self.name, Vec::new());
        let age = self.age(now);
        if age.is_old() {
            doubts.push(format!(
                "baseline `{name}` is {age}: changes of the machine since then look like changes of the engine; measure it again \
                 (--save-baseline {name}), or measure its programs again (--rerun-baseline)"
            ));
        }
        let current_version = env!("CARGO_PKG_VERSION");
        if self.orchestrate_version != current_version {
            let baseline_version = line(&self.orchestrate_version);
            doubts.push(format!(
                "baseline `{name}` was measured by orchestrate {baseline_version}, this is {current_version}: they may measure differently; \
                 measure it again (--save-baseline {name}), or measure its programs again (--rerun-baseline)"
            ));
        }
        doubts
    }
}

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
