//! JSON for programs: the complete content, in the metric's own unit.

use serde::Serialize;

use super::document::{Format, Shape};

pub const FORMAT: Format =
    Format { name: "json", about: "everything in the report, for programs", shape: Shape::Json(|json| json) };

/// The version of the JSON of reports and comparisons, raised when a name in it changes. New names do not raise it.
pub const REPORT_VERSION: u32 = 2;

/// JSON for programs. It cannot fail: keys are strings and numbers are finite.
pub fn json_bytes(document: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(document).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}
