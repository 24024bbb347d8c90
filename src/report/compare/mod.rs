//! The changes from one run to another, for every format.

mod cells;
mod machine_readable;

use super::document::{Content, Document, Layouts, Lines, List, Section};
use super::json::json_bytes;
use crate::analysis::compare::Judgement;
pub use machine_readable::judgement;

/// A judgement with the selection of its parts.
pub struct JudgementContent<'a> {
    pub judgement: &'a Judgement,
    /// All metrics in tables; otherwise one screen with the headline metrics.
    pub full: bool,
}

impl Content for JudgementContent<'_> {
    fn document(&self, _: Layouts) -> Document {
        let list = |lines: Vec<String>| Section::List(List::plain(lines));
        let mut parts = vec![list(cells::lines_before_table(self.judgement))];
        if self.full {
            parts.push(list(cells::sentences(self.judgement)));
            parts.extend(cells::tables(self.judgement).into_iter().map(Section::Table));
            parts.push(list(cells::lines_after_table(self.judgement)));
        } else {
            let lists = [cells::first_sentences(self.judgement), cells::last_lines(self.judgement)];
            parts.extend(lists.into_iter().filter(|lines| !lines.is_empty()).map(list));
        }
        Document { parts, summary: Some(cells::summary(self.judgement)) }
    }

    fn lines(&self) -> Option<Lines> {
        Some(machine_readable::lines(self.judgement))
    }

    fn json(&self) -> Vec<u8> {
        json_bytes(&machine_readable::entry(self.judgement))
    }

    /// Without a terminal, as wide as a report.
    fn width(&self, terminal_width: Option<usize>) -> usize {
        terminal_width.unwrap_or(100).clamp(40, 120)
    }
}

#[cfg(test)]
mod tests;
