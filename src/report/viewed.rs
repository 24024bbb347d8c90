//! A report as its reader asked for it: a document of all that people read, and what programs get of it.

use super::caption::caption;
use super::document::{Column, Content, Document, Fit, Item, Line, Lines, List, Part, Room, Table};
use super::grid;
use super::labels::Labels;
use super::verdicts::said::verdicts;
use super::{Report, Row, View, entries, lines, resources, wall_time};
use crate::text::shorten;

/// A report, and what of it is shown.
pub struct Viewed<'a> {
    pub report: &'a Report,
    pub view: View,
}

impl Content for Viewed<'_> {
    fn document(&self, fit: Fit) -> Document {
        let Self { report, view } = self;
        let room = fit(&|room| grid::table(report, view, room));
        let (table, labels) = (grid::table(report, view, room), Labels::of(report, room));
        let faults = grid::explained(report, &labels).into_iter().map(Item::Explained);
        let warnings = report.warnings.iter().map(|it| format!("warning: {}", labels.sentence(it)));
        let notes = report.notes.iter().map(|it| format!("note: {}", labels.sentence(it)));
        let legend = grid::legend(report, view, &table, &labels);
        let below = faults.chain(warnings.chain(notes).chain(legend).map(Item::Plain)).collect();

        let mut parts: Vec<Part> = report.notices.iter().cloned().map(Part::Notice).collect();
        parts.push(Part::Caption(caption(report, room)));
        parts.extend(report.rows.is_empty().then_some(Part::NoTable("nothing was measured")));
        parts.extend((!table.lines.is_empty()).then_some(Part::Table(table)));
        parts.extend(verdicts(report, &labels, view.pairs).map(Part::List));
        if view.wall_time {
            parts.extend(wall_time::account::parts(report, fit));
        }
        if view.resources {
            parts.extend(resources::sheet::parts(report, fit));
        }
        parts.push(Part::List(List { heading: None, items: below }));
        Document { parts, summary: None }
    }

    fn lines(&self) -> Option<Lines> {
        Some(lines::lines(self.report))
    }

    fn json(&self) -> Vec<u8> {
        entries::json(self.report)
    }

    fn width(&self, reader: Option<usize>) -> usize {
        reader.unwrap_or(100).max(40)
    }
}

/// What each case needed or took beside its figures, as a table of its own.
pub fn beside<T>(
    report: &Report,
    room: Room,
    rows: &[(&Row, &T)],
    figures: Vec<Column>,
    cells: impl Fn(&T) -> Vec<String>,
) -> Table {
    // Labels tell rows apart that differ in a factor alone.
    let room = Room { factors: false, ..room };
    let labels = Labels::of(report, room);
    let line = |(row, of): &(&Row, &T)| {
        let names = [shorten(&row.case.label, room.word), labels.short(&room.name_of(&row.engine))];
        Line::of(names.into_iter().chain(cells(of)).collect())
    };
    Table {
        columns: [Column::named("case"), Column::named("engine")].into_iter().chain(figures).collect(),
        lines: rows.iter().map(line).collect(),
        gap: room.gap,
        ..Table::default()
    }
}
