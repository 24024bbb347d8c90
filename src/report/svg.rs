//! SVG: the table as a picture of a terminal, for a README or slides. It has the text and the tones of the terminal's table, and
//! follows the light or dark theme of the reader.

use super::document::{Content, Format, Shape};
use super::table;
use super::tone::{Tone, pieces};
use crate::shell::PROGRAM;
use crate::text::width;

pub const FORMAT: Format = Format {
    name: "svg",
    about: "the table as a picture",
    shape: Shape::Document(|content, _| render(content)),
};

/// The width of the table in columns.
const COLUMNS: usize = 100;
/// Sizes in units of the picture.
const FONT_SIZE: f64 = 14.0;
const COLUMN_WIDTH: f64 = 8.4;
const LINE_HEIGHT: f64 = 19.0;
const MARGIN: f64 = 16.0;

const STYLE: &str = "\
    rect{fill:#fff;stroke:#d0d7de}text{fill:#1f2328;font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,\
    'DejaVu Sans Mono',monospace;white-space:pre}\
    .good{fill:#116329}.bad{fill:#a40e26}.warning{fill:#7d4e00}.dim{fill:#656d76}.heading{font-weight:bold}\
    @media(prefers-color-scheme:dark){rect{fill:#0d1117;stroke:#30363d}text{fill:#e6edf3}\
    .good{fill:#56d364}.bad{fill:#ff7b72}.warning{fill:#e3b341}.dim{fill:#8b949e}}";

fn render(content: &dyn Content) -> Vec<u8> {
    let text = table::render(content, content.width(Some(COLUMNS)).min(COLUMNS), PROGRAM);
    let lines: Vec<&str> = text.trim_end().split('\n').collect();
    // A command that stays whole may be wider than the table.
    let columns = lines.iter().map(|line| width(line)).max().unwrap_or(0).max(COLUMNS);
    let picture_width = columns as f64 * COLUMN_WIDTH + 2.0 * MARGIN;
    let height = lines.len() as f64 * LINE_HEIGHT + 2.0 * MARGIN;
    let title = lines.first().map_or_else(String::new, |line| escape(&super::tone::plain(line)));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {picture_width:.0} {height:.0}\" \
         width=\"{picture_width:.0}\" height=\"{height:.0}\" role=\"img\" font-size=\"{FONT_SIZE}\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n\
         <rect x=\"0.5\" y=\"0.5\" width=\"{:.0}\" height=\"{:.0}\" rx=\"8\"/>\n",
        picture_width - 1.0,
        height - 1.0
    );
    for (number, line) in lines.iter().enumerate() {
        let y = MARGIN + FONT_SIZE + number as f64 * LINE_HEIGHT;
        out.push_str(&line_of_text(line, y));
    }
    out.push_str("</svg>\n");
    out.into_bytes()
}

/// One line. `textLength` keeps the columns aligned in every font.
fn line_of_text(line: &str, y: f64) -> String {
    let columns = width(line);
    if columns == 0 {
        return String::new();
    }
    let spans: String = pieces(line).iter().map(|(tone, text)| span(*tone, text)).collect();
    let length = columns as f64 * COLUMN_WIDTH;
    format!(
        "<text x=\"{MARGIN}\" y=\"{y:.0}\" textLength=\"{length:.1}\" lengthAdjust=\"spacingAndGlyphs\" \
         xml:space=\"preserve\">{spans}</text>\n"
    )
}

fn span(tone: Option<Tone>, text: &str) -> String {
    let text = escape(text);
    match tone {
        None => text,
        Some(tone) => format!("<tspan class=\"{}\">{text}</tspan>", tone.class()),
    }
}

/// Escapes the characters that XML would interpret.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            char => out.push(char),
        }
    }
    out
}
