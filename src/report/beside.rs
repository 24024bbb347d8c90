//! Tables of what cases need or take beside their figures.

use super::document::{Column, Line, Room, Table};
use super::labels::{Labels, name_of};
use super::{Report, Row};
use crate::text::shorten;

/// Each case with the name of its engine, and cells of its own.
pub fn table<T>(
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
        let names = [shorten(&row.case.label, room.word), labels.short(&name_of(&row.engine, room))];
        Line::of(names.into_iter().chain(cells(of)).collect())
    };
    Table {
        columns: [Column::named("case"), Column::named("engine")].into_iter().chain(figures).collect(),
        lines: rows.iter().map(line).collect(),
        gap: room.gap,
        ..Table::default()
    }
}
