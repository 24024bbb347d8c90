//! Load options that only this engine has.

use engine_kit::Options;
use protocol::{Failed, FailureKind, Load};

use crate::model::decoder::FEW;

/// The most drafted tokens. A pass checks the drafts together with the id before them, and more rows may round differently than
/// a single row: drafting would then change the ids.
const MOST_DRAFTED: u64 = FEW as u64 - 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The level of the kernels by name; `None` is the best of this machine.
    pub kernels: Option<String>,
    /// Whether each thread is pinned to a processor.
    pub pin: bool,
    /// Whether packed weights are kept on disk for the next load.
    pub sidecar: bool,
    /// The most tokens that prompt lookup drafts; 0 disables it.
    pub lookup: usize,
}

impl Settings {
    pub fn read(load: &Load) -> Result<Self, Failed> {
        let options = Options::new(&load.options);
        let settings = Self {
            kernels: options.text("kernels")?.map(str::to_string),
            pin: options.bool("pin")?.unwrap_or(true),
            sidecar: options.bool("sidecar")?.unwrap_or(false),
            lookup: match options.u64("lookup")?.unwrap_or(0) {
                most @ 0..=MOST_DRAFTED => usize::try_from(most).unwrap_or_default(),
                more => {
                    let message = format!("option `lookup`: expected 0 to {MOST_DRAFTED}, found `{more}`");
                    let hint = "more cannot be checked in one pass without changing ids: `--set lookup=7`";
                    return Err(Failed::new(FailureKind::BadRequest, message).hint(hint));
                }
            },
        };
        options.finish()?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: serde_json::Value) -> Result<Settings, Failed> {
        Settings::read(&Load { options: options.as_object().cloned().unwrap_or_default(), ..Load::default() })
    }

    #[test]
    fn nothing_asked_is_the_best_kernels_on_threads_that_stay_and_no_more() {
        let expected = Settings { kernels: None, pin: true, sidecar: false, lookup: 0 };
        assert_eq!(read(serde_json::json!({})), Ok(expected.clone()));
        let all =
            read(serde_json::json!({"kernels": "avx2", "pin": "false", "sidecar": true, "lookup": "7"}));
        let other = Settings { kernels: Some("avx2".into()), pin: false, sidecar: true, lookup: 7 };
        assert_eq!(all, Ok(other));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_name() {
        let refused = |options| read(options).unwrap_err().message;
        assert_eq!(refused(serde_json::json!({"lookup": 8})), "option `lookup`: expected 0 to 7, found `8`");
        assert_eq!(refused(serde_json::json!({"pin": 3})), "option `pin`: expected true or false, found `3`");
        assert_eq!(refused(serde_json::json!({"speed": 3})), "unknown option `speed`");
    }
}
