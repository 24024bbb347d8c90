//! Tidy CSV, in the metric's own unit.

use super::document::{ColumnIndex, Field, Format, Lines, Shape};

pub const FORMAT: Format =
    Format { name: "csv", about: "one line for each case and metric", shape: Shape::Lines(render) };

fn render(lines: &Lines) -> Vec<u8> {
    let mut out = String::new();
    write(lines.columns, &mut out);
    for line in &lines.lines {
        let mut fields = vec![""; lines.columns.len()];
        line.iter().for_each(|(ColumnIndex(column), Field(text))| fields[*column] = text);
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
    use crate::report::document::column_index;

    #[test]
    #[should_panic(expected = "no column has this name")]
    fn an_unknown_column_has_no_index() {
        let columns = ["p", "p50", "p_welch"];
        assert_eq!(columns.map(|name| column_index(&columns, name).0), [0, 1, 2]);
        column_index(&columns, "p5");
    }

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
