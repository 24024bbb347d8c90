//! A report: the results of a run record as tables, and FORMATS, the ways to render them. To add a format, add a file and
//! its line in `FORMATS`.
//!
//! Everything here is pure: no engine, no clock, no file. So any report can be made again years later.

mod caption;
mod case_tables;
pub mod compare;
mod cost;
mod csv;
mod distributions;
pub mod document;
mod engines;
pub mod entries;
pub mod explain;
mod factors;
mod grid;
pub mod headings;
pub mod json;
mod labels;
mod limits;
mod lines;
pub mod machine_page;
mod markdown;
mod marks;
mod next_measurement;
mod notes;
mod outputs;
mod overview;
mod precision;
mod precision_table;
mod quality;
mod ranking;
pub mod recommendation;
mod resources;
mod rows;
mod run_data;
mod run_report;
mod serving_table;
mod settings;
mod settings_table;
mod stress;
mod svg;
mod table;
pub mod targets;
mod tone;
mod verdict_lines;
mod verdicts;
mod viewed;
mod wall_time;

pub use compare::JudgementContent;
pub use document::{Content, Format, Screen, TableId};
pub use overview::BY_ENGINE;
pub use resources::RESOURCE_FACTS;
pub use run_report::{Report, View};
pub use viewed::ReportContent;

pub const FORMATS: &[Format] = &[table::FORMAT, markdown::FORMAT, svg::FORMAT, csv::FORMAT, json::FORMAT];

pub fn format_named(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}

/// The text that a reader with this terminal width sees.
#[cfg(test)]
pub fn shown(content: &dyn Content, format: &str, width: Option<usize>) -> String {
    let screen = Screen { width, ..Screen::default() };
    String::from_utf8(format_named(format).unwrap().render(content, screen).unwrap()).unwrap()
}

#[cfg(test)]
pub mod tests;
