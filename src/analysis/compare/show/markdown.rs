//! For a comment on a change: the last word first, then the table, then what must be known.

use super::cells::HEADER;
use super::{Format, cells};
use crate::analysis::compare::judgement::Judgement;
use crate::report::markdown::{escape, row};

pub const FORMAT: Format = Format { name: "markdown", render };

fn render(judgement: &Judgement, _: Option<usize>) -> Vec<u8> {
    let mut out = String::new();
    out.push_str(&format!("**{}**\n\n", escape(&cells::last_word(judgement))));
    let bullets = |lines: Vec<String>, out: &mut String| {
        lines.iter().for_each(|line| out.push_str(&format!("- {}\n", escape(line))));
        out.push('\n');
    };
    bullets(cells::opening(judgement), &mut out);
    bullets(cells::sentences(judgement), &mut out);
    let configurations = cells::configurations(judgement);
    for configuration in &configurations {
        if configurations.len() > 1 {
            out.push_str(&format!("{}:\n\n", escape(configuration)));
        }
        row(HEADER.map(String::from), &mut out);
        row(["---", "---", "---:", "---"].map(String::from), &mut out);
        let lines = cells::lines(judgement, configuration).into_iter();
        lines.for_each(|cells| row(cells.map(|cell| escape(&cell)), &mut out));
        out.push('\n');
    }
    let mut closing = cells::closing(judgement);
    // It stands above.
    closing.pop();
    closing.extend(cells::legend(judgement));
    bullets(closing, &mut out);
    out.trim_end().bytes().chain(*b"\n").collect()
}
