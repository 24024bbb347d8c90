//! A judgement for people and for programs: FORMATS, by the names of the reports' formats.

mod cells;
mod csv;
pub mod json;
mod markdown;
mod table;

use super::judgement::Judgement;
use crate::cli::exit_code::Usage;

/// One way to render a judgement; `width` is how many columns the reader has, where that is known.
pub struct Format {
    pub name: &'static str,
    pub render: fn(&Judgement, width: Option<usize>) -> Vec<u8>,
}

pub const FORMATS: &[Format] = &[table::FORMAT, markdown::FORMAT, csv::FORMAT, json::FORMAT];

/// The format of that name.
pub fn named(name: &str) -> Result<&'static Format, Usage> {
    FORMATS.iter().find(|it| it.name == name).ok_or_else(|| {
        let names: Vec<&str> = FORMATS.iter().map(|it| it.name).collect();
        Usage(format!("`compare` has no format `{name}`\nhint: --format {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests;
