//! The table for a terminal. It is as wide as its reader allows: first it moves together, then versions move to the
//! caption, and at last it is broken into tables under each other that repeat what names a row.

use std::ops::Range;

use tabled::builder::Builder;
use tabled::settings::object::{Cell, Columns};
use tabled::settings::style::{HorizontalLine, Style};
use tabled::settings::{Alignment, Padding, Span};

use super::grid::{Cells, Column, Explained, Grid, Line, Place, Room};
use super::resources::sheet::Sheet;
use super::verdicts::said::{Section, loosened};
use super::wall_time::account::Account;
use super::{Format, Report, View};
use crate::text::{shorten, width, wrap};

pub const FORMAT: Format = Format { name: "table", about: "for a terminal", render };

/// Where the reader's width is not known.
const WIDTH: usize = 100;
/// Lines of stderr that are shown under the table; the record has more.
const STDERR_LINES: usize = 4;
/// However narrow the terminal, a fault says at least so much.
const LEAST_FAULT: usize = 12;
/// A longer version, device, dtype or case is shortened.
const WORD: usize = 24;
/// Title over two lines, then the unit.
const HEADER: usize = 3;

fn render(report: &Report, view: &View) -> Vec<u8> {
    let limit = view.width.unwrap_or(WIDTH).max(40);
    let mut out = Vec::new();
    for notice in &report.notices {
        out.extend(wrap(&format!("note: {notice}"), limit, "  "));
    }
    let (grid, layout) = fit(limit, |room| Grid::of(report, view, room), |grid| &grid.cells);
    for line in &grid.caption {
        out.extend(wrap(line, limit, "  "));
    }
    if report.rows.is_empty() {
        out.push(String::new());
        out.push("nothing was measured".into());
    }
    let mut shortened = Vec::new();
    out.extend(layout.draw_all(&grid.cells, limit, &mut shortened));
    if !grid.verdicts.is_empty() {
        let Section { heading, lines, remarks } = &grid.verdicts;
        let lines = lines.iter().map(|line| format!("- {line}"));
        let said = heading.iter().cloned().chain(lines).chain(remarks.iter().cloned());
        let wrapped = said.flat_map(|line| wrap(&line, limit, "  ")).map(|line| loosened(&line));
        out.extend(std::iter::once(String::new()).chain(wrapped));
    }
    if view.wall_time {
        let (account, layout) = fit(limit, |room| Account::of(report, room), |account| &account.cells);
        out.extend(Some(String::new()).filter(|_| !account.heading.is_empty()));
        out.extend(account.heading.iter().flat_map(|line| wrap(line, limit, "  ")));
        out.extend(layout.draw_all(&account.cells, limit, &mut Vec::new()));
        out.extend(account.legend.iter().flat_map(|line| wrap(line, limit, "  ")));
    }
    if view.resources {
        let (sheet, layout) = fit(limit, |room| Sheet::of(report, room), |sheet| &sheet.cells);
        out.extend(Some(String::new()).filter(|_| !sheet.heading.is_empty()));
        out.extend(sheet.heading.iter().flat_map(|line| wrap(line, limit, "  ")));
        out.extend(layout.draw_all(&sheet.cells, limit, &mut Vec::new()));
        out.extend(sheet.legend.iter().flat_map(|line| wrap(line, limit, "  ")));
    }
    out.push(String::new());
    for explained in &grid.faults {
        out.extend(explain(explained, limit, &shortened));
    }
    let warnings = grid.warnings.iter().map(|warning| format!("warning: {warning}"));
    let notes = grid.notes.iter().map(|note| format!("note: {note}"));
    let below = warnings.chain(notes).chain(grid.legend.iter().cloned());
    out.extend(below.flat_map(|line| wrap(&line, limit, "  ")));
    out.join("\n").into_bytes().into_iter().chain(*b"\n").collect()
}

/// The first layout that fits; the last one always does, as far as anything can.
fn fit<T>(limit: usize, make: impl Fn(Room) -> T, cells: impl Fn(&T) -> &Cells) -> (T, Layout) {
    let layouts =
        [(true, 28, 2), (true, 28, 1), (false, 28, 2), (false, 28, 1), (true, 20, 1), (false, 20, 1)];
    for (versions, label, gap) in layouts {
        let made = make(Room { versions, label, factors: true, word: WORD });
        let layout = Layout::of(cells(&made), gap);
        if layout.width(0..cells(&made).columns.len()) <= limit {
            return (made, layout);
        }
    }
    let broken = |factors, label: usize, word, gap| {
        let label = label.min(28);
        let made = make(Room { versions: true, label, factors, word });
        let mut layout = Layout::of(cells(&made), gap);
        layout.break_up(cells(&made), limit);
        (made, layout)
    };
    let word = (limit / 5).min(WORD);
    [(WORD, 2), (word, 1)]
        .into_iter()
        .map(|(word, gap)| broken(true, limit / 4, word, gap))
        .find(|(made, layout)| layout.widest(cells(made)) <= limit)
        .unwrap_or_else(|| broken(false, limit * 3 / 10, word, 1))
}

struct Layout {
    gap: usize,
    widths: Vec<usize>,
    /// Ranges of the columns that follow the names; one range where nothing is broken up.
    blocks: Vec<Range<usize>>,
    names: usize,
}

impl Layout {
    fn of(cells: &Cells, gap: usize) -> Self {
        let mut widths: Vec<usize> = cells
            .columns
            .iter()
            .enumerate()
            .map(|(index, column)| {
                let written = cells.lines.iter().map(|line| width(&line.cells[index]));
                let own = if column.group.is_some() { 1 } else { 0 };
                let titles = titles(column).into_iter().skip(own).map(|title| width(&title));
                written.chain(titles).max().unwrap_or(0)
            })
            .collect();
        // The title of a group stands over all its columns: the last of them makes room for it.
        for group in groups(cells, 0..cells.columns.len()) {
            let title = cells.columns[group.start].group.map_or(0, width);
            let together = widths[group.clone()].iter().sum::<usize>() + gap * (group.len() - 1);
            widths[group.start] += title.saturating_sub(together);
        }
        let names = cells.columns.iter().filter(|column| column.place == Place::Name).count();
        Self { gap, names, blocks: std::iter::once(names..widths.len()).collect(), widths }
    }

    fn width(&self, columns: Range<usize>) -> usize {
        self.widths[columns.clone()].iter().sum::<usize>() + self.gap * columns.len().saturating_sub(1)
    }

    /// Of the blocks, each with the names before it; a line that failed as a whole has to say why beside them.
    fn widest(&self, cells: &Cells) -> usize {
        let names = self.width(0..self.names) + self.gap;
        let whole = cells.lines.iter().any(|line| line.fault.is_some());
        let blocks = self.blocks.iter().map(|block| self.width(block.clone()));
        names + blocks.chain(whole.then_some(LEAST_FAULT)).max().unwrap_or(0)
    }

    /// As many columns in each block as fit beside the names; a group is not torn apart.
    fn break_up(&mut self, cells: &Cells, limit: usize) {
        let names = self.width(0..self.names);
        let mut blocks = Vec::new();
        let mut start = self.names;
        for unit in units(cells, self.names) {
            if unit.start > start && names + self.gap + self.width(start..unit.end) > limit {
                blocks.push(start..unit.start);
                start = unit.start;
            }
        }
        blocks.push(start..self.widths.len());
        self.blocks = blocks;
    }

    fn draw_all(&self, cells: &Cells, limit: usize, shortened: &mut Vec<String>) -> Vec<String> {
        let mut out = Vec::new();
        for block in self.blocks.iter().filter(|_| !cells.lines.is_empty()) {
            out.push(String::new());
            out.extend(self.draw(cells, block, limit, shortened));
        }
        out
    }

    fn draw(
        &self,
        cells: &Cells,
        block: &Range<usize>,
        limit: usize,
        shortened: &mut Vec<String>,
    ) -> Vec<String> {
        let first = block.start == self.names;
        let columns: Vec<usize> = (0..self.names).chain(block.clone()).collect();
        // Faults stand in the first block; a line that would be empty in another block is left out of it.
        let shown = |line: &&Line| match &line.fault {
            Some(_) => first,
            None => first || block.clone().any(|column| !line.cells[column].is_empty()),
        };
        let lines: Vec<&Line> = cells.lines.iter().filter(shown).collect();
        let faults = self.faults(cells, &columns, &lines, limit);
        let whole =
            faults.iter().filter_map(|fault| lines[fault.row].fault.as_ref().filter(|it| **it != fault.text));
        shortened.extend(whole.cloned());
        // What faults need beyond the figures is taken by an empty last column.
        let own_width = self.start_of(&columns, columns.len()).saturating_sub(self.gap);
        let needed = faults.iter().map(|fault| self.start_of(&columns, fault.at) + width(&fault.text));
        let extra = needed.max().unwrap_or(0).saturating_sub(own_width);

        let mut records = self.records(cells, &columns, &lines);
        for fault in &faults {
            records[HEADER + fault.row][fault.at] = fault.text.clone();
        }
        if extra > 0 {
            records.iter_mut().for_each(|record| record.push(String::new()));
            records[0][columns.len()] = " ".repeat(extra);
        }
        let last = records[0].len();
        let mut table = Builder::from_iter(records).build();
        table.with(Style::empty().horizontals([(HEADER, HorizontalLine::new('─'))]));
        table.with(Padding::new(0, self.gap, 0, 0));
        table.modify(Columns::new(columns.len() - 1..), Padding::zero());
        for (index, &column) in columns.iter().enumerate() {
            let alignment = if cells.columns[column].text { Alignment::left() } else { Alignment::right() };
            table.modify(Columns::one(index), alignment);
        }
        for group in groups(cells, block.clone()) {
            let title = Cell::new(0, self.names + group.start - block.start);
            table.modify(title, Span::column(group.len() as isize)).modify(title, Alignment::center());
        }
        for fault in faults {
            let cell = Cell::new(HEADER + fault.row, fault.at);
            table.modify(cell, Span::column((last - fault.at) as isize));
            table.modify(cell, Alignment::left()).modify(cell, Padding::zero());
        }
        let drawn = table.to_string();
        drawn.lines().map(str::trim_end).filter(|line| !line.is_empty()).map(String::from).collect()
    }

    /// The header's lines and the cells, a case named on its first line only.
    fn records(&self, cells: &Cells, columns: &[usize], lines: &[&Line]) -> Vec<Vec<String>> {
        let header = (0..HEADER).map(|title| {
            columns.iter().map(|&column| titles(&cells.columns[column])[title].clone()).collect()
        });
        let mut records: Vec<Vec<String>> = header.collect();
        let mut case: Option<&String> = None;
        for line in lines {
            let mut record: Vec<String> = columns.iter().map(|&column| line.cells[column].clone()).collect();
            if self.names > 1 && !line.whole && case == line.cells.first() {
                record[0] = String::new();
            }
            records.push(record);
            case = line.cells.first();
        }
        records
    }

    /// Where faults stand and what there is room for.
    fn faults(&self, cells: &Cells, columns: &[usize], lines: &[&Line], limit: usize) -> Vec<Placed> {
        let is_figure = |column: &usize| cells.columns[*column].place == Place::Figure;
        // Without a figure in any row the last column gives way.
        let figures_at = columns.iter().position(is_figure).unwrap_or(columns.len().saturating_sub(1));
        let placed = lines.iter().enumerate().filter_map(|(row, line)| {
            let least = self.names.min(columns.len() - 1);
            let room = |at: usize| limit.saturating_sub(self.start_of(columns, at));
            // Where it has no room beside the facts it stands in their place.
            let figures = (least..=figures_at).rev().find(|&at| room(at) >= LEAST_FAULT);
            let at = figures.filter(|_| !line.whole).unwrap_or(least);
            let room = room(at).max(LEAST_FAULT);
            Some(Placed { row, at, text: shorten(line.fault.as_ref()?, room) })
        });
        placed.collect()
    }

    /// How far from the left the column at this place begins.
    fn start_of(&self, columns: &[usize], place: usize) -> usize {
        columns[..place].iter().map(|&column| self.widths[column] + self.gap).sum()
    }
}

/// A fault in the table: its line, its first column, and as much of it as there is room for.
struct Placed {
    row: usize,
    at: usize,
    text: String,
}

/// A header in three lines, set at the bottom: `cold`, `start`, `ms`.
fn titles(column: &Column) -> [String; HEADER] {
    let unit = column.unit.to_string();
    let below = |title: &str| [String::new(), title.to_string(), unit.clone()];
    match (column.group, column.title.split_once(' ')) {
        (Some(group), _) => [group.to_string(), column.title.clone(), unit],
        (None, Some((first, second))) if column.place == Place::Figure && !unit.is_empty() => {
            [first.to_string(), second.to_string(), unit]
        }
        _ => below(&column.title),
    }
}

/// The ranges of columns, within these, that stand under one title.
fn groups(cells: &Cells, columns: Range<usize>) -> Vec<Range<usize>> {
    let in_group = |range: &Range<usize>| cells.columns[range.start].group.is_some();
    let units = units(cells, columns.start).into_iter();
    units.filter(in_group).filter(|range| range.end <= columns.end).collect()
}

/// Columns that stay together, from `start` on: a group, or one alone.
fn units(cells: &Cells, start: usize) -> Vec<Range<usize>> {
    let mut units: Vec<Range<usize>> = Vec::new();
    for index in start..cells.columns.len() {
        let group = cells.columns[index].group;
        match units.last_mut() {
            Some(last) if group.is_some() && cells.columns[last.start].group == group => last.end = index + 1,
            _ => units.push(index..index + 1),
        }
    }
    units
}

/// The name, the whole message where the table had no room for it, what the engine said last, and what to do.
fn explain(explained: &Explained, limit: usize, shortened: &[String]) -> Vec<String> {
    let Explained { names, fault } = explained;
    let mut out = Vec::new();
    if shortened.contains(&fault.line()) {
        out.extend(wrap(&fault.line(), limit - 2, "  "));
    }
    let skipped = fault.stderr.len().saturating_sub(STDERR_LINES);
    out.extend(fault.stderr.iter().skip(skipped).map(|said| shorten(&format!("| {said}"), limit - 2)));
    // The first is pasted; what follows is advice.
    for (place, hint) in fault.hint.iter().flat_map(|hint| hint.lines()).enumerate() {
        let hint = format!("hint: {hint}");
        out.extend(if place == 0 { vec![hint] } else { wrap(&hint, limit - 2, "  ") });
    }
    let indented = out.into_iter().map(|line| format!("  {line}"));
    let lines: Vec<String> = wrap(&names.join("; "), limit, "  ").into_iter().chain(indented).collect();
    if lines.len() > 1 { lines } else { Vec::new() }
}
