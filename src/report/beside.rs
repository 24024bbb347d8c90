//! Tables of the resources and the wall time of each case.

use super::document::{Column, Line, Room, Table};
use super::labels::{Labels, name_of};
use super::rows::Row;
use super::run_report::Report;
use crate::text::shorten;

/// The table of these rows: the case, the name of the engine, then the cells of `cells`.
pub fn table<T>(
    report: &Report,
    room: Room,
    rows: &[(&Row, &T)],
    figures: Vec<Column>,
    cells: impl Fn(&T) -> Vec<String>,
) -> Table {
    // Two rows may differ in a factor alone: their labels tell them apart, their names do not.
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
