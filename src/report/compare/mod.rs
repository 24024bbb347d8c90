//! The changes from one run to another, for every format.

mod cells;
mod machine_readable;

use super::document::{Content, Document, Layouts, Lines, List, Section};
use super::json::json_bytes;
use crate::analysis::compare::Judgement;
pub use machine_readable::judgement;

impl Content for Judgement {
    fn document(&self, _: Layouts) -> Document {
        let list = |lines: Vec<String>| Section::List(List::plain(lines));
        let mut parts = vec![list(cells::lines_before_table(self)), list(cells::sentences(self))];
        parts.extend(cells::tables(self).into_iter().map(Section::Table));
        parts.push(list(cells::lines_after_table(self)));
        Document { parts, summary: Some(cells::summary(self)) }
    }

    fn lines(&self) -> Option<Lines> {
        Some(machine_readable::lines(self))
    }

    fn json(&self) -> Vec<u8> {
        json_bytes(&machine_readable::entry(self))
    }
}

#[cfg(test)]
mod tests;
