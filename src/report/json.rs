//! JSON for programs: the complete content, in the metric's own unit.

use super::format::{Format, Shape};

pub const FORMAT: Format =
    Format { name: "json", about: "every summary in full", shape: Shape::Json(|json| json) };
