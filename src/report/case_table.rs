//! Tables of the resources and the wall time of each case.

use super::document::{Column, Layout, Line, Table};
use super::labels::{Labels, name_of};
use super::rows::Row;
use super::run_report::Report;
use crate::text::shorten;

/// The table of these rows: the case, the name of the engine, then the cells of `cells`.
pub fn table<T>(
    report: &Report,
    layout: Layout,
    rows: &[(&Row, &T)],
    figures: Vec<Column>,
    cells: impl Fn(&T) -> Vec<String>,
) -> Table {
    // Two rows may differ in a factor alone: their labels tell them apart, their names do not.
    let layout = Layout { factors: false, ..layout };
    let labels = Labels::of(report, layout);
    let line = |(row, of): &(&Row, &T)| {
        let names = [shorten(&row.case.label, layout.word), labels.short(&name_of(&row.engine, layout))];
        Line::of(names.into_iter().chain(cells(of)).collect())
    };
    Table {
        columns: [Column::named("case"), Column::named("engine")].into_iter().chain(figures).collect(),
        lines: rows.iter().map(line).collect(),
        gap: layout.gap,
        ..Table::default()
    }
}
