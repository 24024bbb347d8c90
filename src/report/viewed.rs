//! A report in a selected view: the document for people, and the content for programs.

use anyhow::Result;

use super::caption::caption;
use super::document::{Content, Document, Item, Lines, List, Part, Room, Rooms, Sheet, Table};
use super::grid::{self, Grid};
use super::labels::Labels;
use super::resources_table::Needs;
use super::run_report::{Report, View};
use super::verdict_lines::verdicts;
use super::wall_time_table::Account;
use super::{compare, entries, lines};
use crate::analysis::compare::Judgement;

/// A report with the selection of its optional parts.
pub struct Viewed<'a> {
    pub report: &'a Report,
    pub view: View,
    /// The judgement of a run with a baseline, or the reason why there is none. Formats with lines have no room for it.
    pub judged: Option<&'a Result<Judgement>>,
}

impl Content for Viewed<'_> {
    fn document(&self, rooms: &Rooms) -> Document {
        let Self { report, view, judged } = self;
        let room = rooms.figures;
        let (grid, labels) = (Grid::of(report, view, room), Labels::of(report, room));
        let faults = grid::explained(report, &labels).into_iter().map(Item::Explained);
        let warnings = report.warnings.iter().map(|it| format!("warning: {}", labels.sentence(it)));
        let notes = report.notes.iter().map(|it| format!("note: {}", labels.sentence(it)));
        let legend = grid.legend(report, view, &labels);
        let below = faults.chain(warnings.chain(notes).chain(legend).map(Item::Plain)).collect();

        let mut parts: Vec<Part> = report.notices.iter().cloned().map(Part::Notice).collect();
        parts.push(Part::Caption(caption(report, room)));
        parts.extend(report.rows.is_empty().then_some(Part::NoTable("nothing was measured")));
        parts.extend((!grid.table.lines.is_empty()).then_some(Part::Table(grid.table)));
        parts.extend(verdicts(report, &labels, view.pairs).map(Part::List));
        if view.wall_time {
            parts.extend(Account::of(report).iter().flat_map(|it| it.parts(rooms.wall_time)));
        }
        if view.resources {
            parts.extend(Needs::of(report).iter().flat_map(|it| it.parts(rooms.resources)));
        }
        parts.push(Part::List(List { heading: None, items: below }));
        let judgement = judged.and_then(|it| it.as_ref().ok()).map(|it| it.document(rooms));
        let Document { parts: judgement, summary } = judgement.unwrap_or_default();
        parts.extend(judgement);
        Document { parts, summary }
    }

    fn table(&self, sheet: Sheet, room: Room) -> Table {
        let Self { report, view, .. } = self;
        let table = match sheet {
            Sheet::Figures => Some(Grid::of(report, view, room).table),
            Sheet::WallTime => Account::of(report).filter(|_| view.wall_time).map(|it| it.table(room)),
            Sheet::Resources => Needs::of(report).filter(|_| view.resources).map(|it| it.table(room)),
        };
        table.unwrap_or_default()
    }

    fn lines(&self) -> Option<Lines> {
        Some(lines::lines(self.report))
    }

    fn json(&self) -> Vec<u8> {
        match self.judged {
            Some(judged) => entries::with_judgement(self.report, &compare::judgement(judged)),
            None => entries::json(self.report),
        }
    }

    fn width(&self, reader: Option<usize>) -> usize {
        reader.unwrap_or(100).max(40)
    }
}
