//! The results so far on a terminal, replaced in place. The table is drawn only between blocks, while no engine runs.

use std::io::Write;

use crate::commands::output::{WIDTH, size_of};
use crate::text;

/// Moves the cursor up by this many lines, to the first column, and clears the screen from there.
fn erase(lines: usize) -> String {
    if lines == 0 { String::new() } else { format!("\x1b[{lines}F\x1b[J") }
}

/// The rows that the table leaves free, for the live line of the progress and for the line below the table.
const RESERVED_ROWS: usize = 3;
const CUT: &str =
    "(the rest of the table does not fit into the terminal; the whole table follows at the end)";

/// A table on stderr, with the lines that were printed below it.
#[derive(Debug, Default)]
pub struct LiveTable {
    /// The number of rows of the table and of the lines that are removed with it; 0 if none is shown.
    rows: usize,
    below: Vec<String>,
}

/// The size of the terminal.
#[derive(Debug, Clone, Copy)]
struct Screen {
    columns: usize,
    rows: Option<usize>,
}

impl LiveTable {
    /// Shows a table in place of the earlier one. Lines that were printed below the earlier table are printed again above the new
    /// one.
    pub fn replace(&mut self, table: &str) {
        let text = self.replacement(table, screen());
        write(&text);
    }

    /// Removes the table. The lines below it stay.
    pub fn remove(&mut self) {
        let text = self.removal(screen());
        write(&text);
    }

    /// Prints a line that stays.
    pub fn print_below(&mut self, line: &str) {
        if self.rows > 0 {
            self.below.push(line.into());
        }
        write(&format!("{line}\n"));
    }

    /// Prints a line that is removed with the table, because the next table has it too.
    pub fn print_until_removed(&mut self, line: &str) {
        self.rows += rows_of(&[line], screen().columns);
        write(&format!("{line}\n"));
    }

    fn replacement(&mut self, table: &str, screen: Screen) -> String {
        let mut text = self.removal(screen);
        let lines: Vec<&str> = table.trim_end_matches('\n').lines().collect();
        let most = screen.rows.map_or(usize::MAX, |rows| rows.saturating_sub(RESERVED_ROWS).max(1));
        let is_cut = rows_of(&lines, screen.columns) > most;
        let mut shown: Vec<&str> = Vec::new();
        for line in lines {
            let needed = rows_of(&[line], screen.columns) + usize::from(is_cut);
            if rows_of(&shown, screen.columns).saturating_add(needed) > most {
                break;
            }
            shown.push(line);
        }
        let cut = text::shorten(CUT, screen.columns);
        shown.extend(is_cut.then_some(cut.as_str()));
        self.rows = rows_of(&shown, screen.columns);
        shown.iter().for_each(|line| text.extend([line, "\n"]));
        text
    }

    /// The text that erases the table and prints the lines below it again.
    fn removal(&mut self, screen: Screen) -> String {
        let below = std::mem::take(&mut self.below);
        let rows = std::mem::take(&mut self.rows);
        if rows == 0 {
            return String::new();
        }
        let occupied = rows + rows_of(&below.iter().map(String::as_str).collect::<Vec<_>>(), screen.columns);
        // Rows above the top of the screen cannot be erased.
        let mut text = erase(screen.rows.map_or(occupied, |rows| occupied.min(rows.saturating_sub(1))));
        below.iter().for_each(|line| text.extend([line, "\n"]));
        text
    }
}

/// The rows of these lines on a terminal, which breaks lines that are too long.
fn rows_of(lines: &[&str], columns: usize) -> usize {
    lines.iter().map(|line| text::width(&text::line(line)).div_ceil(columns.max(1)).max(1)).sum()
}

fn screen() -> Screen {
    let size = size_of(std::io::stderr());
    Screen {
        columns: size.and_then(|size| size.columns).unwrap_or(WIDTH),
        rows: size.and_then(|size| size.rows),
    }
}

/// Writes to stderr. A closed stderr does not end a run.
fn write(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCREEN: Screen = Screen { columns: 20, rows: Some(10) };

    #[test]
    fn a_table_replaces_the_earlier_one_and_keeps_the_lines_below_it() {
        let mut table = LiveTable::default();
        assert_eq!(table.replacement("a 1\nb 2\n", SCREEN), "a 1\nb 2\n");
        // The second line is longer than the terminal and takes two rows.
        table.below = vec!["warning: x".into(), "warning: something longer".into()];
        assert_eq!(
            table.replacement("a 3\n", SCREEN),
            "\u{1b}[5F\u{1b}[Jwarning: x\nwarning: something longer\na 3\n"
        );
        assert_eq!(table.removal(SCREEN), "\u{1b}[1F\u{1b}[J");
        assert_eq!(table.removal(SCREEN), "");
    }

    #[test]
    fn colours_do_not_count_for_the_width_of_a_line() {
        let mut table = LiveTable::default();
        table.replacement("\u{1b}[32mtwenty columns text.\u{1b}[0m", SCREEN);
        assert_eq!(table.rows, 1);
    }

    #[test]
    fn a_table_that_is_too_long_for_the_terminal_is_cut_and_says_so() {
        let mut table = LiveTable::default();
        let long: String = (0..30).map(|row| format!("row {row}\n")).collect();
        let shown = table.replacement(&long, SCREEN);
        assert!(shown.starts_with("row 0\n") && shown.contains("row 5\n(the rest"), "{shown}");
        assert_eq!((shown.lines().count(), table.rows), (7, 7));
        let unknown = Screen { rows: None, ..SCREEN };
        assert_eq!(LiveTable::default().replacement(&long, unknown), long);
    }
}
