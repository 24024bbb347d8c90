//! GitHub's Markdown, for README files and comments.

use super::document::{
    Column, ColumnKind, Content, ExplainedFailure, Format, Item, Layout, List, Section, Shape, Table,
};
use super::tone;
use super::verdict_lines::with_plain_spaces;

pub const FORMAT: Format = Format {
    name: "markdown",
    about: "for a README or a comment",
    shape: Shape::Document(|content, _| render(content)),
};

const LAYOUT: Layout =
    Layout { version_column: true, max_label: 40, columns_of_varying_options: true, max_word: 24, gap: 0 };

fn render(content: &dyn Content) -> Vec<u8> {
    let document = content.document(&|_| LAYOUT);
    let mut out = String::new();
    document.summary.iter().for_each(|line| out.push_str(&format!("**{}**\n\n", escape(line))));
    for part in &document.parts {
        match part {
            Section::Notice(line) => out.push_str(&format!("**{}**\n\n", escape(line))),
            Section::Caption(lines) => {
                let lines: Vec<String> = lines.iter().map(|line| escape(line)).collect();
                out.push_str(&format!("{}\n\n", lines.join("<br>\n")));
            }
            Section::Facts(facts) => {
                for (label, fact) in facts {
                    let label = if label.is_empty() { String::new() } else { format!("{}: ", escape(label)) };
                    out.push_str(&format!("- {label}{}\n", escape(fact)));
                }
                out.push('\n');
            }
            Section::Heading(line) => out.push_str(&format!("{}\n\n", escape(line))),
            Section::NoTable(why) => {
                let (first, rest) = why.split_at(why.len().min(1));
                out.push_str(&format!("{}{}.\n\n", first.to_uppercase(), escape(rest)));
            }
            Section::Table(content) => table(content, &mut out),
            Section::List(items) => list(items, &mut out),
        }
    }
    format!("{}\n", tone::plain(&with_plain_spaces(out.trim_end()))).into_bytes()
}

fn list(list: &List, out: &mut String) {
    list.heading.iter().for_each(|line| out.push_str(&format!("{}\n\n", escape(line))));
    for item in &list.items {
        match item {
            Item::Listed(line) | Item::Plain(line) => out.push_str(&format!("- {}\n", escape(line))),
            Item::Failure(ExplainedFailure { names, failure }) => {
                out.push_str(&format!("- {}: {}\n", escape(&names.join("; ")), escape(&failure.line())));
                for line in &failure.stderr {
                    out.push_str(&format!("  - {}\n", code(line)));
                }
                for hint in failure.hint.iter().flat_map(|hint| hint.lines()) {
                    out.push_str(&format!("  - hint: {}\n", code(hint)));
                }
            }
        }
    }
    out.push('\n');
}

fn table(table: &Table, out: &mut String) {
    table.title.iter().for_each(|title| out.push_str(&format!("{}:\n\n", escape(title))));
    row(table.columns.iter().map(title), out);
    let alignments = table.columns.iter().map(|column| match column.kind {
        ColumnKind::Value => "---:".to_string(),
        ColumnKind::Name | ColumnKind::Fact => "---".to_string(),
    });
    row(alignments, out);
    let values_at = table.columns.iter().position(|column| column.kind == ColumnKind::Value);
    for line in &table.lines {
        let mut cells: Vec<String> = line.cells.iter().map(|cell| escape(cell)).collect();
        if let Some(failure) = &line.failure {
            // Markdown has no cells over several columns.
            match values_at {
                Some(at) => cells[at] = escape(failure),
                None => cells.push(escape(failure)),
            }
        }
        row(cells, out);
    }
    out.push('\n');
    table.notes.iter().for_each(|line| out.push_str(&format!("- {}\n", escape(line))));
    out.push_str(if table.notes.is_empty() { "" } else { "\n" });
}

fn title(column: &Column) -> String {
    let title = column.title.replace('\n', " ");
    let parts = [column.group.unwrap_or_default(), &title, column.unit];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    escape(&parts.join(" "))
}

fn row(cells: impl IntoIterator<Item = String>, out: &mut String) {
    let cells: Vec<String> = cells.into_iter().collect();
    out.push_str(&format!("| {} |\n", cells.join(" | ")));
}

/// Escapes the characters that Markdown or HTML would interpret.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '~' | '&') {
            out.push('\\');
        }
        out.push(char);
    }
    out
}

/// The text as inline code, between more backticks than the text has in sequence.
fn code(text: &str) -> String {
    let (mut longest, mut current) = (0, 0);
    for char in text.chars() {
        current = if char == '`' { current + 1 } else { 0 };
        longest = longest.max(current);
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
