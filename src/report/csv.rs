//! Tidy CSV: one line for each case and metric, in the metric's own unit; and one for each failure.

use super::{Engine, Fault, Format, Report};

pub const FORMAT: Format = Format { name: "csv", about: "one line for each case and metric", render };

const COLUMNS: [&str; 26] = [
    "record",
    "case",
    "scenario",
    "engine",
    "version",
    "model",
    "device",
    "dtype",
    "threads",
    "mode",
    "metric",
    "unit",
    "n",
    "launches",
    "estimate",
    "p50",
    "p90",
    "p95",
    "p99",
    "min",
    "max",
    "mean",
    "std",
    "times_reference",
    "failure",
    "message",
];

fn render(report: &Report, _: Option<usize>) -> Vec<u8> {
    let mut out = String::new();
    write(COLUMNS.iter().map(ToString::to_string), &mut out);
    for row in &report.rows {
        let names = names(report, &row.case.label, &row.case.scenario, &row.engine);
        for figure in &row.figures {
            let (metric, summary) = (figure.metric, &figure.summary);
            let headline = row.case.headline.is_some_and(|headline| headline.name == metric.name);
            let numbers = [
                summary.estimate,
                summary.p50,
                summary.p90,
                summary.p95,
                summary.p99,
                summary.min,
                summary.max,
                summary.mean,
            ];
            let mut fields = names.clone();
            fields.extend([metric.name.to_string(), metric.unit.symbol().to_string()]);
            fields.extend([summary.n.to_string(), summary.launches.to_string()]);
            fields.extend(numbers.map(|number| number.to_string()));
            fields.push(summary.std.map_or(String::new(), |std| std.to_string()));
            fields.push(row.ratio.filter(|_| headline).map_or(String::new(), |ratio| ratio.to_string()));
            write(fields.into_iter().chain([String::new(), String::new()]), &mut out);
        }
        if let Some(fault) = &row.fault {
            write_fault(names, fault, &mut out);
        }
    }
    for failed in &report.failed {
        write_fault(names(report, "", "", &failed.engine), &failed.fault, &mut out);
    }
    out.into_bytes()
}

fn names(report: &Report, case: &str, scenario: &str, engine: &Engine) -> Vec<String> {
    let mode = match report.mode {
        crate::plan::Mode::Warm => "warm",
        crate::plan::Mode::OneShot => "one_shot",
    };
    let known = |fact: &Option<String>| fact.clone().unwrap_or_default();
    let mut names: Vec<String> = [&report.record, case, scenario, &engine.label].map(text).to_vec();
    names.extend(
        [known(&engine.version), engine.model.clone(), known(&engine.device), known(&engine.dtype)]
            .map(|name| text(&name)),
    );
    names.push(engine.threads.map_or(String::new(), |threads| threads.to_string()));
    names.push(mode.into());
    names
}

fn write_fault(mut fields: Vec<String>, fault: &Fault, out: &mut String) {
    fields.resize(COLUMNS.len() - 2, String::new());
    fields.extend([text(&fault.kind), text(&fault.line())]);
    write(fields, out);
}

/// Text that a spreadsheet would run as a formula is made text by a leading apostrophe.
fn text(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    if formula { format!("'{text}") } else { text.to_string() }
}

fn write(fields: impl IntoIterator<Item = String>, out: &mut String) {
    let quoted = fields.into_iter().map(|field| match field.contains([',', '"', '\n', '\r', ';']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field,
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
        write(["a,b", "say \"x\"", "plain"].map(text), &mut out);
        assert_eq!(out, "\"a,b\",\"say \"\"x\"\"\",plain\n");
        assert_eq!(["=1+1", "@x", "-cmd", "+1", "a=b"].map(text), ["'=1+1", "'@x", "'-cmd", "'+1", "a=b"]);
    }
}
