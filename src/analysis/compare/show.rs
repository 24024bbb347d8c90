//! A judgement for people and for programs: FORMATS, by the names of the reports' formats.

mod cells;
mod csv;
pub mod json;
mod markdown;
mod table;

use super::judgement::Judgement;

/// One way to render a judgement; `width` is how many columns the reader has, where that is known.
pub struct Format {
    pub name: &'static str,
    pub render: fn(&Judgement, width: Option<usize>) -> Vec<u8>,
}

pub const FORMATS: &[Format] = &[table::FORMAT, markdown::FORMAT, csv::FORMAT, json::FORMAT];

/// In the format of that name, or else in the first.
pub fn render(judgement: &Judgement, format: &str, width: Option<usize>) -> Vec<u8> {
    let named = FORMATS.iter().find(|it| it.name == format).unwrap_or(&FORMATS[0]);
    (named.render)(judgement, width)
}

#[cfg(test)]
mod tests;
