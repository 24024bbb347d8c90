//! The description of a baseline, `baseline.json` in its folder.

use std::fmt;
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::program::Program;
use super::store::{self, check_name};
use crate::machine::Machine;
use crate::record::{self, Header, RunRecord};
use crate::shell::{Usage, listed, unknown_name_or};
use crate::text::{line, plural};

/// A field whose meaning changes needs a new version.
const BASELINE_VERSION: u32 = 1;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    pub baseline_version: u32,
    pub name: String,
    /// The start of the baseline's run in UTC, in the format of RFC 3339.
    pub measured: String,
    pub machine: Machine,
    /// The fingerprint of the machine.
    pub fingerprint: String,
    pub orchestrate_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The command line of the user.
    pub command: Vec<String>,
    pub configurations: Vec<Row>,
}

/// A row of the baseline's run, with its program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub label: String,
    pub engine: String,
    pub program: Program,
}

/// The error for a damaged baseline, with the command that removes the baseline.
pub fn damaged(name: &str, how: &str) -> anyhow::Error {
    anyhow::anyhow!("baseline `{name}`: {how}\nhint: orchestrate baseline remove {name}")
}

/// The error for a baseline that does not exist.
fn unknown(name: &str) -> Result<Usage> {
    let known = store::names()?;
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let hint = || match known.is_empty() {
        true => format!("a run with `--save-baseline {name}` stores this baseline"),
        false => listed(&known),
    };
    Ok(unknown_name_or("baseline", name, &known, hint))
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

    /// Reads a baseline. An unknown name is the user's error. The hint has a similar name, or lists the known ones.
    pub fn read(name: &str) -> Result<Self> {
        check_name(name)?;
        let damaged = |why: String| damaged(name, &format!("its description cannot be read: {why}"));
        let Some(text) = store::read_description(name)? else {
            if store::exists(name)? {
                return Err(damaged("the file is missing".into()));
            }
            return Err(unknown(name)?.into());
        };
        let baseline: Self = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        let (version, known) = (baseline.baseline_version, BASELINE_VERSION);
        ensure!(
            version == known,
            "baseline `{name}` has version {version}, this program reads {known}\nhint: --save-baseline {name}"
        );
        Ok(baseline)
    }

    pub fn record(&self) -> Result<RunRecord> {
        record::read(&store::record_path(&self.name)?)
    }

    pub fn age(&self, now: SystemTime) -> Age {
        Age::since(&self.measured, now)
    }

    /// The baseline in a few words: `baseline `main`, 3 days old, orchestrate 0.1.0 at commit abc`.
    pub fn summary(&self, now: SystemTime) -> String {
        let commit =
            self.commit.as_ref().map(|commit| format!(" at commit {}", line(commit))).unwrap_or_default();
        let (age, version) = (self.age(now), line(&self.orchestrate_version));
        format!("baseline `{}`, {age}, orchestrate {version}{commit}", line(&self.name))
    }

    /// The lines above a comparison with the values of this baseline.
    pub fn notices(&self) -> Vec<String> {
        let now = SystemTime::now();
        std::iter::once(self.summary(now)).chain(self.warnings(now)).collect()
    }

    /// Warnings about a comparison with this baseline.
    pub fn warnings(&self, now: SystemTime) -> Vec<String> {
        let (name, age) = (&self.name, self.age(now));
        let remedy = format!(
            "measure it again (--save-baseline {name}), or measure its programs again (--rerun-baseline)"
        );
        let old = age.is_old().then(|| {
            format!("is {age}: changes of the machine since then look like changes of the engine; {remedy}")
        });
        let (version, current) = (line(&self.orchestrate_version), env!("CARGO_PKG_VERSION"));
        let other_version = (self.orchestrate_version != current).then(|| {
            format!("was measured by orchestrate {version}, this is {current}: they may measure differently; {remedy}")
        });
        old.into_iter().chain(other_version).map(|warning| format!("baseline `{name}` {warning}")).collect()
    }
}

// Lengths of time in seconds.
const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// The age from which a baseline gets a warning: within a month, updates and other programs change a machine.
const OLD_FROM_SECONDS: u64 = 30 * DAY;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    Seconds(u64),
    /// In the future: one of the clocks is wrong.
    InFuture,
    Unknown,
}

impl Age {
    /// The age from `since` until `now`; `since` is in the format of RFC 3339.
    pub fn since(since: &str, now: SystemTime) -> Self {
        match humantime::parse_rfc3339(since).map(|since| now.duration_since(since)) {
            Ok(Ok(age)) => Self::Seconds(age.as_secs()),
            // The clocks of two machines may differ by this much.
            Ok(Err(ahead)) if ahead.duration() < Duration::from_secs(MINUTE) => Self::Seconds(0),
            Ok(Err(_)) => Self::InFuture,
            Err(_) => Self::Unknown,
        }
    }

    pub fn is_old(self) -> bool {
        matches!(self, Self::Seconds(OLD_FROM_SECONDS..))
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Seconds(seconds) = *self else {
            return f.write_str(match self {
                Self::InFuture => "dated in the future (a clock is wrong)",
                _ => "of unknown age",
            });
        };
        let units = [(DAY, "day"), (HOUR, "hour"), (MINUTE, "minute")];
        let Some((length, unit)) = units.into_iter().find(|(length, _)| seconds >= *length) else {
            return f.write_str("less than a minute old");
        };
        let count = seconds / length;
        write!(f, "{} old", plural(count, unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn age_after(seconds: u64) -> Age {
        let now = humantime::parse_rfc3339("2026-01-01T00:00:00Z").unwrap() + Duration::from_secs(seconds);
        Age::since("2026-01-01T00:00:00Z", now)
    }

    #[test]
    fn an_age_is_shown_in_its_largest_full_unit() {
        let ages = [0, 59, 60, 3599, 3600, 86_399, 86_400, 3 * 86_400, 400 * 86_400]
            .map(|it| age_after(it).to_string());
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
        assert_eq!(ages, expected);
    }

    #[test]
    fn a_baseline_is_old_from_thirty_days_on() {
        assert!(age_after(30 * 86_400).is_old() && !age_after(30 * 86_400 - 1).is_old());
    }

    #[test]
    fn a_baseline_from_the_future_is_reported_unless_clocks_differ_only_slightly() {
        let now = humantime::parse_rfc3339("2026-01-01T00:00:00Z").unwrap();
        assert_eq!(Age::since("2026-01-01T00:00:30Z", now), Age::Seconds(0));
        assert_eq!(Age::since("2026-01-02T00:00:00Z", now), Age::InFuture);
        assert_eq!(Age::since("yesterday", now), Age::Unknown);
    }
}
