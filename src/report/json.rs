//! JSON for programs: everything, in the metric's own unit.

use super::Format;

pub const FORMAT: Format = Format {
    name: "json",
    about: "every summary in full",
    for_people: false,
    render: |content, _| Some(content.json()),
};
