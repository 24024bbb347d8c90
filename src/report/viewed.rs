//! A report as its reader asked for it: a document of all that people read, and what programs get of it.

use super::document::{Column, Content, Document, Fit, Item, Line, Lines, List, Part, Room, Table};
use super::grid::Grid;
use super::labels::Labels;
use super::verdicts::said::Section;
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
        let grid = Grid::of(report, view, fit(&|room| Grid::of(report, view, room).table));
        let mut parts: Vec<Part> = report.notices.iter().cloned().map(Part::Notice).collect();
        parts.push(Part::Caption(grid.caption));
        parts.extend(report.rows.is_empty().then_some(Part::NoTable("nothing was measured")));
        parts.extend((!grid.table.lines.is_empty()).then_some(Part::Table(grid.table)));
        if !grid.verdicts.is_empty() {
            let Section { heading, lines, remarks } = grid.verdicts;
            let items = lines.into_iter().map(Item::Listed).chain(remarks.into_iter().map(Item::Plain));
            parts.push(Part::List(List { heading, items: items.collect() }));
        }
        if view.wall_time {
            parts.extend(wall_time::account::parts(report, fit));
        }
        if view.resources {
            parts.extend(resources::sheet::parts(report, fit));
        }
        let warnings = grid.warnings.iter().map(|warning| format!("warning: {warning}"));
        let notes = grid.notes.iter().map(|note| format!("note: {note}"));
        let below = warnings.chain(notes).chain(grid.legend).map(Item::Plain);
        let items = grid.faults.into_iter().map(Item::Explained).chain(below).collect();
        parts.push(Part::List(List { heading: None, items }));
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
