//! The name of a run.

use std::time::SystemTime;

/// The name of a run. It sorts by time, and two runs of one second differ.
pub fn new_id() -> String {
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace(':', "-");
    format!("{time}-{}", std::process::id())
}
