//! A table for README files and comments: GitHub's Markdown, with what explains it below.

use super::grid::{Cells, Column, Grid, Place, Room};
use super::resources::sheet::Sheet;
use super::verdicts::said::{Section, loosened};
use super::wall_time::account::Account;
use super::{Format, Report, View};

pub const FORMAT: Format = Format { name: "markdown", about: "for a README or a comment", render };

const ROOM: Room = Room { versions: true, label: 40, factors: true, word: 24 };

fn render(report: &Report, view: &View) -> Vec<u8> {
    let grid = Grid::of(report, view, ROOM);
    let mut out = String::new();
    for notice in &report.notices {
        out.push_str(&format!("**{}**\n\n", escape(notice)));
    }
    let caption: Vec<String> = grid.caption.iter().map(|line| escape(line)).collect();
    out.push_str(&caption.join("<br>\n"));
    out.push_str("\n\n");
    if report.rows.is_empty() {
        out.push_str("Nothing was measured.\n\n");
    }
    table(&grid.cells, &mut out);
    if !grid.verdicts.is_empty() {
        let Section { heading, lines, remarks } = &grid.verdicts;
        heading.iter().for_each(|line| out.push_str(&format!("{}\n\n", escape(&loosened(line)))));
        for line in lines.iter().chain(remarks) {
            out.push_str(&format!("- {}\n", escape(&loosened(line))));
        }
        out.push('\n');
    }
    if view.wall_time {
        let account = Account::of(report, ROOM);
        account.heading.iter().for_each(|line| out.push_str(&format!("{}\n\n", escape(line))));
        table(&account.cells, &mut out);
        account.legend.iter().for_each(|line| out.push_str(&format!("- {}\n", escape(line))));
        out.push('\n');
    }
    if view.resources {
        let sheet = Sheet::of(report, ROOM);
        sheet.heading.iter().for_each(|line| out.push_str(&format!("{}\n\n", escape(line))));
        table(&sheet.cells, &mut out);
        sheet.legend.iter().for_each(|line| out.push_str(&format!("- {}\n", escape(line))));
        out.push('\n');
    }
    for explained in &grid.faults {
        let fault = &explained.fault;
        out.push_str(&format!("- {}: {}\n", escape(&explained.names.join("; ")), escape(&fault.line())));
        for said in &fault.stderr {
            out.push_str(&format!("  - {}\n", code(said)));
        }
        for hint in fault.hint.iter().flat_map(|hint| hint.lines()) {
            out.push_str(&format!("  - hint: {}\n", code(hint)));
        }
    }
    let warnings = grid.warnings.iter().map(|warning| format!("warning: {warning}"));
    let notes = grid.notes.iter().map(|note| format!("note: {note}"));
    for line in warnings.chain(notes).chain(grid.legend.iter().cloned()) {
        out.push_str(&format!("- {}\n", escape(&line)));
    }
    out.into_bytes()
}

fn table(grid: &Cells, out: &mut String) {
    if grid.lines.is_empty() {
        return;
    }
    let titles = grid.columns.iter().map(title);
    row(titles, out);
    let figures = grid.columns.iter().map(|column| match column.place {
        Place::Figure => "---:".to_string(),
        Place::Name | Place::Fact => "---".to_string(),
    });
    row(figures, out);
    let figures_at = grid.columns.iter().position(|column| column.place == Place::Figure);
    for line in &grid.lines {
        let mut cells: Vec<String> = line.cells.iter().map(|cell| escape(cell)).collect();
        if let Some(fault) = &line.fault {
            // Markdown has no cells over several columns.
            match figures_at {
                Some(at) => cells[at] = escape(fault),
                None => cells.push(escape(fault)),
            }
        }
        row(cells, out);
    }
    out.push('\n');
}

fn title(column: &Column) -> String {
    let parts = [column.group.unwrap_or_default(), &column.title, column.unit];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    escape(&parts.join(" "))
}

pub fn row(cells: impl IntoIterator<Item = String>, out: &mut String) {
    let cells: Vec<String> = cells.into_iter().collect();
    out.push_str(&format!("| {} |\n", cells.join(" | ")));
}

/// Everything that Markdown or HTML would take for its own is an ordinary character again.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '~' | '&') {
            out.push('\\');
        }
        out.push(char);
    }
    out
}

/// As code, to be copied: between more backticks than it has in a row itself.
fn code(text: &str) -> String {
    let mut longest = 0;
    let mut run = 0;
    for char in text.chars() {
        run = if char == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    let fence = "`".repeat(longest + 1);
    let pad = if longest > 0 { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_an_engine_can_neither_leave_its_cell_nor_become_html() {
        assert_eq!(escape("a|b <img> [x](y) `c`"), "a\\|b \\<img\\> \\[x\\](y) \\`c\\`");
    }

    #[test]
    fn a_command_with_backticks_is_still_one_piece_of_code() {
        assert_eq!(code("echo x"), "`echo x`");
        assert_eq!(code("echo `date` ``"), "``` echo `date` `` ```");
    }
}
