//! The table for a terminal. In the default report, a table that is too wide loses columns. In the full report it loses space
//! between columns first, then its versions move to the caption. Finally it is split into several tables, and each repeats the
//! names of the rows.

use std::ops::Range;

use tabled::builder::Builder;
use tabled::settings::object::{Cell, Columns};
use tabled::settings::style::{HorizontalLine, Style};
use tabled::settings::{Alignment, Padding, Span};

use super::document::{
    Column, ColumnKind, Content, ExplainedFailure, Format, Item, Keep, Layout, Line, List, Overflow, Section,
    Shape, Table,
};
use super::marks::Mark;
use super::tone;
use super::verdict_lines::with_plain_spaces;
use crate::shell::{PROGRAM, with_program};
use crate::text::{self, shorten, shorten_at_clause, shorten_start, width};

pub const FORMAT: Format = Format {
    name: "table",
    about: "for a terminal",
    shape: Shape::Document(|content, screen| {
        let text = render(content, content.width(screen.width), screen.program.unwrap_or(PROGRAM));
        if screen.has_colour { tone::coloured(&text) } else { tone::plain(&text) }.into_bytes()
    }),
};

/// The most lines of stderr below the table; the record can have more.
const MAX_STDERR_LINES: usize = 4;
/// The most lines of the failure of a configuration in its row.
const MAX_FAILURE_LINES: usize = 3;
/// The least width of a terminal on which extra columns (`Keep::Extra`) are shown.
const MIN_WIDTH_OF_EXTRAS: usize = 101;
/// The most left out columns that a note names.
const MAX_NAMED_COLUMNS: usize = 4;
/// The least width of a failure or of a shortened or wrapped cell, on any terminal.
const MIN_CELL_WIDTH: usize = 12;
/// Columns are left out before a wrapped column becomes narrower.
const WRAPPED_WIDTH: usize = 22;
/// A longer version, device, dtype or case is shortened.
const MAX_WORD_WIDTH: usize = 24;
const MAX_LABEL_WIDTH: usize = 28;
/// The lines of the header: two for the title, one for the unit.
const HEADER_LINES: usize = 3;
/// The width of the labels of a `Section::Facts`.
const FACT_LABEL_WIDTH: usize = 14;

/// The width of a line, and the command that starts this program on the reader's machine.
#[derive(Debug, Clone, Copy)]
struct Page<'a> {
    limit: usize,
    program: &'a str,
}

impl Page<'_> {
    /// A text in lines of the page; each line after the first begins with `indent`.
    fn wrap(self, text: &str, indent: &str) -> Vec<String> {
        text::wrap(&with_program(text, self.program), self.limit, indent)
    }

    fn narrower(self, columns: usize) -> Self {
        Self { limit: self.limit.saturating_sub(columns), ..self }
    }
}

/// The text with its tones, in lines of at most `limit` columns. A command that a user can paste stays whole, so its line may be
/// longer. `program` starts this program in these commands.
pub fn render(content: &dyn Content, limit: usize, program: &str) -> String {
    let page = Page { limit, program };
    let document = content.document(&|id| layout(limit, |layout| content.table(id, layout)));
    let (mut out, mut shortened) = (Vec::new(), Vec::new());
    let mut follows_table = false;
    for part in document.parts {
        let is_narrow = limit < MIN_WIDTH_OF_EXTRAS - 1;
        let is_close = is_narrow && follows_table && matches!(&part, Section::List(list) if list.is_close);
        let is_opening =
            matches!(part, Section::Notice(_) | Section::Caption(_)) || is_close || out.is_empty();
        out.extend((!is_opening).then(String::new));
        follows_table = matches!(part, Section::Table(_));
        match part {
            Section::Notice(line) => out.extend(page.wrap(&format!("note: {line}"), "  ")),
            Section::Caption(lines) => {
                out.extend(lines.iter().flat_map(|line| tone::continued(page.wrap(line, "  "))))
            }
            Section::Facts(facts) => {
                out.extend(facts.iter().flat_map(|(label, fact)| labelled_lines(label, fact, page)))
            }
            Section::Heading(line) => out.extend(page.wrap(&line, "  ")),
            Section::NoTable(why) => out.extend(page.wrap(why, "  ")),
            Section::Table(table) => out.extend(draw(table, page, &mut shortened)),
            Section::List(list) => out.extend(list_lines(&list, page, &shortened)),
        }
    }
    out.extend(document.summary.iter().flat_map(|line| page.wrap(line, "  ")));
    out.push(String::new());
    with_plain_spaces(&out.join("\n"))
}

fn labelled_lines(label: &str, fact: &str, page: Page) -> Vec<String> {
    let lines = page.narrower(FACT_LABEL_WIDTH).wrap(fact, "").into_iter().enumerate();
    let with_label =
        lines.map(|(index, line)| format!("{:FACT_LABEL_WIDTH$}{line}", if index == 0 { label } else { "" }));
    with_label.map(|line| line.trim_end().to_string()).collect()
}

fn list_lines(list: &List, page: Page, shortened: &[String]) -> Vec<String> {
    let items = list.items.iter().flat_map(|item| match item {
        Item::Listed(line) => page.wrap(&format!("- {line}"), "  "),
        Item::Plain(line) => tone::continued(page.wrap(line, "  ")),
        Item::Failure(explained) => explain(explained, page, shortened),
    });
    list.heading.iter().flat_map(|line| page.wrap(line, "  ")).chain(items).collect()
}

fn draw(table: Table, page: Page, shortened: &mut Vec<String>) -> Vec<String> {
    let limit = page.limit;
    let mut table = with_cells_in_lines(table, limit);
    leave_out_columns(&mut table, limit);
    let table = fit_cells(table, page);
    let split = Split::to_width(&table, limit);
    let mut out: Vec<String> =
        table.title.iter().map(|title| shorten(&format!("`{title}`"), limit)).collect();
    for (index, piece) in split.pieces.iter().enumerate() {
        out.extend((index > 0).then(String::new));
        out.extend(split.draw(&table, piece, limit, shortened));
    }
    out.extend(table.notes.iter().flat_map(|line| tone::continued(page.wrap(line, "  "))));
    out
}

/// Leaves out columns until the table fits, as far as `Column::keep` allows. A note names the left out columns that are not
/// extras.
fn leave_out_columns(table: &mut Table, limit: usize) {
    if limit < MIN_WIDTH_OF_EXTRAS {
        let is_kept = |column: &Column| !matches!(column.keep, Keep::Extra(_));
        for line in &mut table.lines {
            let mut columns = table.columns.iter();
            line.cells.retain(|_| columns.next().is_none_or(is_kept));
        }
        table.columns.retain(is_kept);
    }
    let mut left_out: Vec<String> = Vec::new();
    let is_spare = |column: &Column| column.keep == Keep::Spare;
    while let Some(index) = table.columns.iter().rposition(is_spare) {
        if Split::of(table).width(0..table.columns.len()) <= limit {
            break;
        }
        let title = full_title(&remove_column(table, index));
        // At the usual width of one screen, a note would take a line of it.
        left_out.extend((limit < MIN_WIDTH_OF_EXTRAS - 1).then_some(title));
    }
    while least_width(table) > limit {
        let last = table.columns.iter().enumerate().max_by_key(|(index, column)| (column.keep, *index));
        let Some((index, keep)) = last.map(|(index, column)| (index, column.keep)) else { break };
        match keep {
            Keep::Always => break,
            // A narrower gap is better than a missing column.
            Keep::Standard(_) if table.gap > 1 => table.gap = 1,
            Keep::Standard(_) | Keep::Extra(_) | Keep::Spare => {
                let column = remove_column(table, index);
                left_out.extend((!matches!(keep, Keep::Extra(_))).then(|| full_title(&column)));
            }
        }
    }
    // The legend of a mark that only left out columns had.
    let few = Mark::FewValues;
    // On a terminal, codes of colours may come before a mark.
    let has_few = table.lines.iter().flat_map(|line| &line.cells).any(|cell| cell.contains(few.sign()));
    table.notes.retain(|note| has_few || !note.contains(&few.legend()));
    if !left_out.is_empty() {
        left_out.reverse();
        let (left_out, them) = match left_out.as_slice() {
            [only] => (only.clone(), "it"),
            few if few.len() <= MAX_NAMED_COLUMNS => (few.join(", "), "them"),
            many => (format!("{} columns", many.len()), "them"),
        };
        table.notes.push(format!("left out at a width of {limit}: {left_out} (`--full` shows {them})"));
    }
}

/// The title of a column in one line, after that of its group.
fn full_title(column: &Column) -> String {
    let group = column.group.map(|group| format!("{group} ")).unwrap_or_default();
    format!("{group}{}", column.title).replace('\n', " ")
}

fn remove_column(table: &mut Table, index: usize) -> Column {
    table.lines.iter_mut().for_each(|line| drop(line.cells.remove(index)));
    table.columns.remove(index)
}

/// The width of the table if its wrapped columns have at most `WRAPPED_WIDTH`.
fn least_width(table: &Table) -> usize {
    let split = Split::of(table);
    let columns = table.columns.iter().zip(&split.widths);
    let wrapped = columns.filter(|(column, _)| column.overflow == Overflow::Wrapped);
    let spare: usize = wrapped.map(|(_, width)| width.saturating_sub(WRAPPED_WIDTH)).sum();
    split.width(0..table.columns.len()) - spare
}

/// If the table is too wide, breaks the cells of each column of `Overflow::InLines`. The end of a long word stays, as it is the
/// more informative part of a path.
fn with_cells_in_lines(mut table: Table, limit: usize) -> Table {
    if Split::of(&table).width(0..table.columns.len()) <= limit {
        return table;
    }
    for (index, column) in table.columns.iter().enumerate() {
        let Overflow::InLines(max_width) = column.overflow else { continue };
        for cell in table.lines.iter_mut().map(|line| &mut line.cells[index]) {
            let lines = text::wrap(cell, max_width, "  ");
            *cell = lines.iter().map(|line| shorten_start(line, max_width)).collect::<Vec<_>>().join("\n");
        }
    }
    table
}

/// The table with its long cells shortened or wrapped.
fn fit_cells(mut table: Table, page: Page) -> Table {
    let limit = page.limit;
    for index in 0..table.columns.len() {
        let max_width = match table.columns[index].overflow {
            Overflow::Kept | Overflow::InLines(_) => continue,
            Overflow::Shortened => (limit / 5).max(MIN_CELL_WIDTH),
            Overflow::Wrapped => {
                let others: usize = Split::of(&table).widths[..index].iter().sum();
                if others + index * table.gap + 2 * MIN_CELL_WIDTH > limit {
                    table.gap = 1;
                }
                limit.saturating_sub(others + index * table.gap).max(MIN_CELL_WIDTH)
            }
        };
        let title = &mut table.columns[index].title;
        if !title.contains('\n') && width(title) > max_width {
            *title = text::wrap(title, max_width, "").join("\n");
        }
        let wrapped = table.columns[index].overflow == Overflow::Wrapped;
        if wrapped {
            let title = table.columns[index].title.lines().flat_map(|line| text::wrap(line, max_width, "  "));
            table.columns[index].title = title.collect::<Vec<_>>().join("\n");
        }
        for cell in table.lines.iter_mut().map(|line| &mut line.cells[index]) {
            let wrap_line = |line| tone::continued(Page { limit: max_width, ..page }.wrap(line, "  "));
            *cell = match wrapped {
                true => cell.lines().flat_map(wrap_line).collect::<Vec<_>>().join("\n"),
                false => shorten(cell, max_width),
            };
        }
    }
    table
}

/// The first layout in which the table fits, or else the last one.
fn layout(limit: usize, table_in: impl Fn(Layout) -> Table) -> Layout {
    let short = (limit / 5).min(MAX_WORD_WIDTH);
    let layout_of = |version_column, columns_of_varying_options, max_label: usize, max_word, gap| {
        let max_label = max_label.min(MAX_LABEL_WIDTH);
        Layout { version_column, columns_of_varying_options, max_label, max_word, gap }
    };
    // The version column, the width of labels and the gap, from the most readable layout to the narrowest.
    let unsplit =
        [(true, 28, 2), (true, 28, 1), (false, 28, 2), (false, 28, 1), (true, 20, 1), (false, 20, 1)];
    let unsplit = unsplit.map(|(versions, label, gap)| layout_of(versions, true, label, MAX_WORD_WIDTH, gap));
    let fits_unsplit = |layout: &Layout| {
        let table = table_in(*layout);
        Split::of(&table).width(0..table.columns.len()) <= limit
    };
    let split =
        [(MAX_WORD_WIDTH, 2), (short, 1)].map(|(word, gap)| layout_of(true, true, limit / 4, word, gap));
    let fits_split = |layout: &Layout| {
        let table = table_in(*layout);
        Split::to_width(&table, limit).widest(&table) <= limit
    };
    let fitting = unsplit.into_iter().find(fits_unsplit).or_else(|| split.into_iter().find(fits_split));
    fitting.unwrap_or_else(|| layout_of(true, false, limit * 3 / 10, short, 1))
}

/// The widths of the columns of a table, and its division into pieces, which are drawn one below the other.
struct Split {
    gap: usize,
    widths: Vec<usize>,
    /// Ranges of the columns after the names; one range where the table is not split.
    pieces: Vec<Range<usize>>,
    /// The number of name columns, which come first.
    name_count: usize,
}

impl Split {
    fn of(table: &Table) -> Self {
        let gap = table.gap;
        let cell_width = |cell: &String| cell.lines().map(width).max().unwrap_or(0);
        let mut widths: Vec<usize> = table
            .columns
            .iter()
            .enumerate()
            .map(|(index, column)| {
                let cells = table.lines.iter().map(|line| cell_width(&line.cells[index]));
                let group_lines = if column.group.is_some() { 1 } else { 0 };
                let titles = titles(column).into_iter().skip(group_lines).map(|title| width(&title));
                cells.chain(titles).max().unwrap_or(0)
            })
            .collect();
        // A group's title spans all its columns: the first column gets the missing width.
        for group in groups(table, 0..table.columns.len()) {
            let title = table.columns[group.start].group.map_or(0, width);
            let columns_width = widths[group.clone()].iter().sum::<usize>() + gap * (group.len() - 1);
            widths[group.start] += title.saturating_sub(columns_width);
        }
        let name_count = table.columns.iter().filter(|column| column.kind == ColumnKind::Name).count();
        Self { gap, name_count, pieces: std::iter::once(name_count..widths.len()).collect(), widths }
    }

    /// The table, split if it is wider than the limit. A wrapped column is as narrow as needed, so its table is not split.
    fn to_width(table: &Table, limit: usize) -> Self {
        let mut split = Self::of(table);
        if table.columns.iter().all(|column| column.overflow != Overflow::Wrapped) {
            split.break_up(table, limit);
        }
        split
    }

    fn width(&self, columns: Range<usize>) -> usize {
        self.widths[columns.clone()].iter().sum::<usize>() + self.gap * columns.len().saturating_sub(1)
    }

    /// The width of the names and the widest piece. A piece with failures has at least `MIN_CELL_WIDTH`.
    fn widest(&self, table: &Table) -> usize {
        let names_width = self.width(0..self.name_count) + self.gap;
        let has_failure = table.lines.iter().any(|line| line.failure.is_some());
        let pieces = self.pieces.iter().map(|piece| self.width(piece.clone()));
        names_width + pieces.chain(has_failure.then_some(MIN_CELL_WIDTH)).max().unwrap_or(0)
    }

    /// Splits the columns into pieces that fit beside the names. A group stays together.
    fn break_up(&mut self, table: &Table, limit: usize) {
        let names_width = self.width(0..self.name_count);
        let mut pieces = Vec::new();
        let mut start = self.name_count;
        for range in kept_together(table, self.name_count) {
            if range.start > start && names_width + self.gap + self.width(start..range.end) > limit {
                pieces.push(start..range.start);
                start = range.start;
            }
        }
        pieces.push(start..self.widths.len());
        self.pieces = pieces;
    }

    fn draw(
        &self,
        table: &Table,
        piece: &Range<usize>,
        limit: usize,
        shortened: &mut Vec<String>,
    ) -> Vec<String> {
        let is_first = piece.start == self.name_count;
        let columns: Vec<usize> = (0..self.name_count).chain(piece.clone()).collect();
        // Failures are in the first piece. A line that would be empty in another piece is left out of it.
        let is_shown = |line: &&Line| match &line.failure {
            Some(_) => is_first,
            None => is_first || piece.clone().any(|column| !line.cells[column].is_empty()),
        };
        let lines: Vec<&Line> = table.lines.iter().filter(is_shown).collect();
        let failures = self.failures(table, &columns, &lines, limit);
        let cut = failures.iter().filter(|it| it.is_cut);
        shortened.extend(cut.filter_map(|it| lines[it.row].failure.clone()));
        // An empty last column gives failures the width that the value columns lack.
        let own_width = self.start_of(&columns, columns.len()).saturating_sub(self.gap);
        let widest = |text: &str| text.lines().map(width).max().unwrap_or(0);
        let needed =
            failures.iter().map(|failure| self.start_of(&columns, failure.at) + widest(&failure.text));
        let extra = needed.max().unwrap_or(0).saturating_sub(own_width);
        let mut rows = self.header_and_rows(table, &columns, &lines);
        for failure in &failures {
            rows[HEADER_LINES + failure.row][failure.at] = failure.text.clone();
        }
        if extra > 0 {
            rows.iter_mut().for_each(|row| row.push(String::new()));
            rows[0][columns.len()] = " ".repeat(extra);
        }
        let column_count = rows[0].len();
        let mut drawn = Builder::from_iter(rows).build();
        drawn.with(Style::empty().horizontals([(HEADER_LINES, HorizontalLine::new('─'))]));
        drawn.with(Padding::new(0, self.gap, 0, 0));
        drawn.modify(Columns::new(columns.len() - 1..), Padding::zero());
        for (index, &column) in columns.iter().enumerate() {
            let alignment =
                if table.columns[column].is_text { Alignment::left() } else { Alignment::right() };
            drawn.modify(Columns::one(index), alignment);
        }
        for group in groups(table, piece.clone()) {
            let title = Cell::new(0, self.name_count + group.start - piece.start);
            drawn.modify(title, Span::column(group.len() as isize)).modify(title, Alignment::center());
        }
        for failure in failures {
            let cell = Cell::new(HEADER_LINES + failure.row, failure.at);
            drawn.modify(cell, Span::column((column_count - failure.at) as isize));
            drawn.modify(cell, Alignment::left()).modify(cell, Padding::zero());
        }
        let text = drawn.to_string();
        text.lines().map(str::trim_end).filter(|line| !line.is_empty()).map(String::from).collect()
    }

    /// The header's lines and the cells. A case is named on its first line only.
    fn header_and_rows(&self, table: &Table, columns: &[usize], lines: &[&Line]) -> Vec<Vec<String>> {
        let header = (0..HEADER_LINES).map(|title| {
            columns.iter().map(|&column| titles(&table.columns[column])[title].clone()).collect()
        });
        let mut rows: Vec<Vec<String>> = header.collect();
        let mut case: Option<&String> = None;
        for line in lines {
            let mut row: Vec<String> = columns.iter().map(|&column| line.cells[column].clone()).collect();
            if self.name_count > 1 && !line.is_failed_configuration && case == line.cells.first() {
                row[0] = String::new();
            }
            rows.push(row);
            case = line.cells.first();
        }
        rows
    }

    fn failures(&self, table: &Table, columns: &[usize], lines: &[&Line], limit: usize) -> Vec<FailureCell> {
        let is_value = |column: &usize| table.columns[*column].kind == ColumnKind::Value;
        // Without a value column, failures take the last column.
        let values_at = columns.iter().position(is_value).unwrap_or(columns.len().saturating_sub(1));
        let cells = lines.iter().enumerate().filter_map(|(row, line)| {
            let first_column = self.name_count.min(columns.len() - 1);
            let width_from = |at: usize| limit.saturating_sub(self.start_of(columns, at));
            // If the columns after the facts are too narrow for a failure, it takes the columns of the facts too.
            let wide_enough = (first_column..=values_at).rev().find(|&at| width_from(at) >= MIN_CELL_WIDTH);
            let at = wide_enough.filter(|_| !line.is_failed_configuration).unwrap_or(first_column);
            let (failure, limit) = (line.failure.as_ref()?, width_from(at).max(MIN_CELL_WIDTH));
            // No other text of the one screen has the failure of a whole configuration.
            let whole = line.is_failed_configuration.then(|| in_lines(failure, limit)).flatten();
            let is_cut = whole.is_none() && width(failure) > limit;
            let text = whole.unwrap_or_else(|| shorten(failure, limit));
            Some(FailureCell { row, at, text, is_cut })
        });
        cells.collect()
    }

    /// The distance of the column at this position from the left edge.
    fn start_of(&self, columns: &[usize], position: usize) -> usize {
        columns[..position].iter().map(|&column| self.widths[column] + self.gap).sum()
    }
}

/// A failure in the table: its line, its first column, and the text that fits.
struct FailureCell {
    row: usize,
    at: usize,
    text: String,
    is_cut: bool,
}

/// A failure in a few lines. A longer one loses whole clauses. `None` if a word of it is wider than the lines.
fn in_lines(failure: &str, limit: usize) -> Option<String> {
    let wrapped = |text: &str| tone::continued(text::wrap(text, limit, "  "));
    let mut lines = wrapped(failure);
    if lines.len() > MAX_FAILURE_LINES {
        // A broken line may be shorter than the limit, by the length of a word.
        let room = MAX_FAILURE_LINES * limit.saturating_sub(limit / 5);
        lines = wrapped(&shorten_at_clause(failure, room, "orchestrate explain ENGINE"));
    }
    lines.iter().all(|line| width(line) <= limit).then(|| lines.join("\n"))
}

/// A header in three lines, aligned at the bottom: `cold`, `start`, `ms`.
fn titles(column: &Column) -> [String; HEADER_LINES] {
    let unit = column.unit.to_string();
    if let Some((first, second)) = column.title.split_once('\n') {
        return [first.to_string(), second.to_string(), unit];
    }
    match (column.group, column.title.split_once(' ')) {
        (Some(group), _) => [group.to_string(), column.title.clone(), unit],
        (None, Some((first, second))) if column.kind == ColumnKind::Value && !unit.is_empty() => {
            [first.to_string(), second.to_string(), unit]
        }
        _ => [String::new(), column.title.clone(), unit],
    }
}

/// The groups within these columns. Each group is a range of columns that share a title.
fn groups(table: &Table, columns: Range<usize>) -> Vec<Range<usize>> {
    let in_group = |range: &Range<usize>| table.columns[range.start].group.is_some();
    let ranges = kept_together(table, columns.start).into_iter();
    ranges.filter(in_group).filter(|range| range.end <= columns.end).collect()
}

/// The ranges of columns that stay together, from `start` on: a group, or a single column.
fn kept_together(table: &Table, start: usize) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for index in start..table.columns.len() {
        let group = table.columns[index].group;
        match ranges.last_mut() {
            Some(last) if group.is_some() && table.columns[last.start].group == group => last.end = index + 1,
            _ => ranges.push(index..index + 1),
        }
    }
    ranges
}

/// The explanation of a failure: the names of its rows, the message if the table shortened it, the end of stderr, the hints.
fn explain(explained: &ExplainedFailure, page: Page, shortened: &[String]) -> Vec<String> {
    let ExplainedFailure { names, failure } = explained;
    let (mut out, inner) = (Vec::new(), page.narrower(2));
    if shortened.contains(&failure.line()) {
        out.extend(inner.wrap(&failure.line(), "  "));
    }
    let skipped = failure.stderr.len().saturating_sub(MAX_STDERR_LINES);
    out.extend(failure.stderr.iter().skip(skipped).map(|line| shorten(&format!("| {line}"), inner.limit)));
    // The first hint is a command to be pasted, so it stays on one line. The others are advice.
    for (index, hint) in failure.hint.iter().flat_map(|hint| hint.lines()).enumerate() {
        let hint = format!("hint: {hint}");
        out.extend(match index {
            0 => vec![with_program(&hint, page.program)],
            _ => inner.wrap(&hint, "  "),
        });
    }
    let indented = out.into_iter().map(|line| format!("  {line}"));
    let lines: Vec<String> = page.wrap(&names.join("; "), "  ").into_iter().chain(indented).collect();
    if lines.len() > 1 { lines } else { Vec::new() }
}
