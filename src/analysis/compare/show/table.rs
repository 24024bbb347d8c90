//! For a terminal: sentences about what decides, then every figure.

use tabled::builder::Builder;
use tabled::settings::object::Columns;
use tabled::settings::style::{HorizontalLine, Style};
use tabled::settings::{Alignment, Padding};

use super::cells::HEADER;
use super::{Format, cells};
use crate::analysis::compare::judgement::Judgement;
use crate::text::{shorten, width, wrap};

pub const FORMAT: Format = Format { name: "table", render };

/// Where the reader's width is not known.
const WIDTH: usize = 80;
/// Longer lines are hard to read.
const WIDEST: usize = 120;
const GAP: usize = 2;
/// However narrow the terminal, a change says at least so much in a line.
const LEAST: usize = 12;

fn render(judgement: &Judgement, width: Option<usize>) -> Vec<u8> {
    let limit = width.unwrap_or(WIDTH).clamp(40, WIDEST);
    let mut out: Vec<String> = Vec::new();
    let mut say = |lines: Vec<String>| {
        out.extend(lines.into_iter().flat_map(|line| wrap(&line, limit, "  ")));
    };
    say(cells::opening(judgement));
    say(vec![String::new()]);
    say(cells::sentences(judgement));
    say(vec![String::new()]);
    // What is drawn fits already.
    let configurations = cells::configurations(judgement);
    for configuration in &configurations {
        out.extend((configurations.len() > 1).then(|| shorten(&format!("`{configuration}`"), limit)));
        out.extend(draw(cells::lines(judgement, configuration), limit));
        out.push(String::new());
    }
    let mut closing = cells::closing(judgement);
    let last_word = closing.len() - 1;
    closing.splice(last_word..last_word, cells::legend(judgement));
    out.extend(closing.into_iter().flat_map(|line| wrap(&line, limit, "  ")));
    out.join("\n").into_bytes().into_iter().chain(*b"\n").collect()
}

fn draw(mut lines: Vec<[String; 4]>, limit: usize) -> Vec<String> {
    let last = HEADER.len() - 1;
    let mut before = String::new();
    for cells in &mut lines {
        cells[0] = shorten(&cells[0], (limit / 5).max(LEAST));
        // A case is named on its first line only.
        let case = cells[0].clone();
        if before == case {
            cells[0] = String::new();
        }
        before = case;
    }
    let widest = |column: usize| {
        let cells = lines.iter().map(|cells| width(&cells[column]));
        cells.chain([width(HEADER[column])]).max().unwrap_or(0)
    };
    let others: usize = (0..last).map(|column| widest(column) + GAP).sum();
    let room = limit.saturating_sub(others).max(LEAST);
    for cells in &mut lines {
        cells[last] = wrap(&cells[last], room, "  ").join("\n");
    }
    let mut table = Builder::from_iter(std::iter::once(HEADER.map(String::from)).chain(lines)).build();
    table.with(Style::empty().horizontals([(1, HorizontalLine::new('─'))]));
    table.with(Padding::new(0, GAP, 0, 0));
    table.modify(Columns::new(last..), Padding::zero());
    table.modify(Columns::one(last - 1), Alignment::right());
    table.to_string().lines().map(|line| line.trim_end().to_string()).collect()
}
