//! Tidy CSV, in the metric's own unit.

use super::document::{Field, Lines};
use super::{Format, Shape};

pub const FORMAT: Format =
    Format { name: "csv", about: "one line for each case and metric", shape: Shape::Lines(render) };

fn render(lines: &Lines) -> Vec<u8> {
    let mut out = String::new();
    write(lines.columns, &mut out);
    for line in &lines.lines {
        let field =
            |column| line.iter().find(|(name, _)| *name == column).map(|(_, Field(text))| text.as_str());
        let fields: Vec<&str> =
            lines.columns.iter().map(|&column| field(column).unwrap_or_default()).collect();
        debug_assert!(line.iter().all(|(name, _)| lines.columns.contains(name)), "{line:?}");
        write(&fields, &mut out);
    }
    out.into_bytes()
}

fn write(fields: &[&str], out: &mut String) {
    let quoted = fields.iter().map(|field| match field.contains([',', '"', '\n', '\r', ';']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_string(),
    });
    out.push_str(&quoted.collect::<Vec<_>>().join(","));
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_and_quotes_are_quoted_and_formulas_are_text() {
        let mut out = String::new();
        write(&["a,b", "say \"x\"", "plain"], &mut out);
        assert_eq!(out, "\"a,b\",\"say \"\"x\"\"\",plain\n");
        let fields = ["=1+1", "@x", "-cmd", "+1", "a=b"].map(|text| Field::from(text).0);
        assert_eq!(fields, ["'=1+1", "'@x", "'-cmd", "'+1", "a=b"]);
        assert_eq!(Field::from(-1.5).0, "-1.5", "a number is no formula");
    }
}
