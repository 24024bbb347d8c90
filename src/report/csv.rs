//! Tidy CSV: one line for each case and metric, in the metric's own unit; and one for each failure.

use super::resources::facts;
use super::verdicts::evidence;
use super::{Engine, Fault, Figure, Format, Report, Resources, Row, View, WallTime};
use crate::analysis::metric::Metric;
use crate::analysis::metric::limits::Limit;
use crate::record::Overhead;
use stats::Summary;

pub const FORMAT: Format = Format { name: "csv", about: "one line for each case and metric", render };

const COLUMNS: [&str; 42] = [
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
    "reference",
    "times_reference",
    "low",
    "high",
    "evidence",
    "verdict",
    "blocks",
    "epsilon",
    "stopped_by",
    "p",
    "p_adjusted",
    "p_welch",
    "p_mann_whitney",
    "output",
    "output_rms",
    "output_tokens",
    "output_first_difference",
    "failure",
    "message",
];
/// Where the numbers of a comparison begin.
const COMPARISON: usize = 23;
/// Where what is known of the output begins.
const OUTPUT: usize = FAILURE - 4;
/// Where those of a failure begin.
const FAILURE: usize = COLUMNS.len() - 2;

fn render(report: &Report, _: &View) -> Vec<u8> {
    let mut out = String::new();
    write(COLUMNS.iter().map(ToString::to_string), &mut out);
    for row in &report.rows {
        let names = names(report, &row.case.label, &row.case.scenario, &row.engine);
        for figure in &row.figures {
            let mut fields = names.clone();
            fields.extend(numbers(figure));
            fields.extend(comparison(report, row, figure.metric));
            fields.extend(output(report, row));
            write(fields.into_iter().chain([String::new(), String::new()]), &mut out);
        }
        if let Some(wall_time) = &row.wall_time {
            write_wall_time(&names, wall_time, &mut out);
        }
        if let Some(resources) = &row.resources {
            write_resources(&names, row, resources, &mut out);
        }
        if let Some(fault) = &row.fault {
            write_fault(names, fault, &mut out);
        }
    }
    if let Some(overhead) = &report.overhead {
        write_overhead(report, overhead, &mut out);
    }
    for limit in &report.limits {
        write_limit(report, limit, &mut out);
    }
    for failed in &report.failed {
        write_fault(names(report, "", "", &failed.engine), &failed.fault, &mut out);
    }
    out.into_bytes()
}

/// From the metric's name to the deviation.
fn numbers(figure: &Figure) -> Vec<String> {
    let Figure { metric, summary } = figure;
    let Summary { estimate, p50, p90, p95, p99, min, max, mean, .. } = summary;
    let mut fields = vec![metric.name.to_string(), metric.unit.symbol().to_string()];
    fields.extend([summary.n.to_string(), summary.launches.to_string()]);
    fields.extend([estimate, p50, p90, p95, p99, min, max, mean].map(|number| number.to_string()));
    fields.push(optional(summary.std));
    fields
}

/// From the reference to the p values; times above 1 are better, whichever way the metric points, and `epsilon` is the share
/// from which on something counts as a difference.
fn comparison(report: &Report, row: &Row, metric: &Metric) -> Vec<String> {
    let mut fields = vec![String::new(); OUTPUT - COMPARISON];
    let reference = row.reference.as_ref().filter(|_| row.fault.is_none());
    let wrong = report.output_of(row).is_some_and(|it| it.agreement.is_wrong());
    if row.is_reference() && row.fault.is_none() && !wrong {
        (fields[0], fields[1]) = (text(&row.engine.label), "1".into());
    }
    let judged = report.verdicts.of_metric(row, metric, false);
    if let (Some(reference), Some(judged)) = (reference, judged)
        && let Ok(found) = &judged.result
    {
        let (low, high) = judged.bounds().unzip();
        fields = vec![text(reference)];
        fields.extend([judged.times(), low, high].map(optional));
        fields.extend([word(evidence(&found.evidence)), found.verdict.map_or(String::new(), word)]);
        fields.push(found.blocks.to_string());
        fields.push(found.epsilon.difference().exp_m1().to_string());
        fields.push(word(found.stopped_by));
        let p = found.p;
        fields.extend([p.paired, p.adjusted, p.welch, p.mann_whitney].map(optional));
    }
    fields
}

/// The standing of the row's engine, the figure and the tokens that it rests on, and the earliest token that the witness would
/// not have given.
fn output(report: &Report, row: &Row) -> [String; 4] {
    let Some(agreement) = report.output_of(row).map(|it| &it.agreement) else { return Default::default() };
    let tokens = agreement.scores.as_ref().map_or(String::new(), |scores| scores.tokens.to_string());
    let first = agreement.first_difference().map_or(String::new(), |place| place.to_string());
    [agreement.standing.name().into(), optional(agreement.rms()), tokens, first]
}

/// A line for each part, in the columns of a metric.
fn write_wall_time(names: &[String], wall_time: &WallTime, out: &mut String) {
    for (name, ns, count) in wall_time.lines() {
        let mut fields = names.to_vec();
        let ns = ns.map_or(String::new(), |ns| ns.to_string());
        fields.extend([format!("wall_time.{name}"), "ns".into(), count.to_string()]);
        fields.extend([wall_time.launches.to_string(), ns.clone()]);
        fields.resize(COMPARISON - 2, String::new());
        fields.push(ns);
        fields.resize(COLUMNS.len(), String::new());
        write(fields, out);
    }
}

/// What asking costs by itself, of no case and no engine.
fn write_overhead(report: &Report, overhead: &Overhead, out: &mut String) {
    let version = Some(report.orchestrate_version.clone());
    let itself = Engine { label: "orchestrate".into(), version, ..Engine::default() };
    let figures =
        [("overhead.request", overhead.request_ns), ("overhead.streamed_token", overhead.streamed_token_ns)];
    for (name, ns) in figures {
        let mut fields = names(report, "", "", &itself);
        fields.extend([name.into(), "ns".into(), overhead.requests.to_string(), "1".into(), ns.to_string()]);
        fields.resize(COLUMNS.len(), String::new());
        write(fields, out);
    }
}

/// What the machine can do, of no case and no engine: the best of so many probes, and the range of them.
fn write_limit(report: &Report, limit: &Limit, out: &mut String) {
    let (version, device) = (Some(report.orchestrate_version.clone()), Some(limit.key.device.clone()));
    let threads = limit.key.threads;
    let itself = Engine { label: "orchestrate".into(), version, device, threads, ..Engine::default() };
    let mut fields = names(report, "", "", &itself);
    let best = limit.best().to_string();
    fields.extend([format!("limit.{}", limit.key.name()), limit.key.unit().into()]);
    fields.extend([limit.probes.len().to_string(), String::new(), best.clone()]);
    fields.resize(COMPARISON - 4, String::new());
    fields.extend([limit.least().to_string(), best]);
    fields.resize(COLUMNS.len(), String::new());
    write(fields, out);
}

/// A line for what is no metric, in the columns of a metric; what nobody knows has none.
fn write_resources(names: &[String], row: &Row, resources: &Resources, out: &mut String) {
    for (name, unit, value) in facts::lines(resources) {
        let Some(value) = value else { continue };
        let mut fields = names.to_vec();
        fields.extend([format!("resources.{name}"), unit.into(), row.samples.to_string()]);
        fields.extend([row.launches.to_string(), value.to_string()]);
        fields.resize(COLUMNS.len(), String::new());
        write(fields, out);
    }
}

fn optional(number: Option<f64>) -> String {
    number.map_or(String::new(), |number| number.to_string())
}

/// As JSON names it.
fn word(value: impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
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
    fields.resize(FAILURE, String::new());
    fields.extend([text(&fault.kind), text(&fault.line())]);
    write(fields, out);
}

/// Text that a spreadsheet would run as a formula is made text by a leading apostrophe.
pub fn text(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    if formula { format!("'{text}") } else { text.to_string() }
}

pub fn write(fields: impl IntoIterator<Item = String>, out: &mut String) {
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
