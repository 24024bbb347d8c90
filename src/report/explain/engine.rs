//! An engine in sentences: its failure, its verdict in each case, its output, its claims, its warnings, and what ran. In full also
//! the evidence of each verdict, the values of the output check, its load and its memory.

use super::comparison::Detail;
use super::context::{Context, Part, launches};
use super::workload::{self, failure, verdicts};
use super::{output, subject};
use crate::analysis::metric::{MetricId, Unit};
use crate::report::rows::Row;
use crate::text::plural;

/// The most warnings on one screen.
const MAX_WARNINGS: usize = 3;

/// The parts about an engine; in brief, one screen.
pub fn parts(context: &Context, configuration: usize, detail: Detail) -> Vec<Part> {
    let label = &context.data.engines[configuration].label;
    let mut identity = identity(context, configuration);
    if let Some(purpose) = subject::purpose(&context.data, configuration) {
        identity.say(purpose);
        return vec![identity];
    }
    let failed = context.report.failed.iter().find(|it| it.engine.label == *label);
    let mut parts: Vec<Part> =
        failed.map(|it| failure(context, label, None, &it.failure)).into_iter().collect();
    let rows: Vec<&Row> = context.report.rows.iter().filter(|row| row.engine.label == *label).collect();
    match detail {
        Detail::Brief => parts.extend(verdicts_in_short(context, label, &rows)),
        Detail::Full => parts.extend(rows.iter().map(|row| {
            let mut part = verdicts(context, row, Detail::Brief);
            part.sentences.extend(workload::remarks(context, row));
            part
        })),
    }
    parts.extend(output::part(context, configuration, detail));
    parts.extend(claims(context, label));
    parts.extend(warnings(context, label, if detail == Detail::Brief { MAX_WARNINGS } else { usize::MAX }));
    parts.push(identity);
    if detail == Detail::Brief {
        return parts;
    }
    parts.extend(rows.iter().find_map(|row| load(row)));
    let measured = rows.iter().filter(|row| row.failure.is_none());
    // The peak of a launch includes earlier cases, so the last case has the largest.
    parts.extend(measured.filter_map(|row| workload::memory(row)).next_back());
    parts
}

/// A paragraph for each case, the most important case first.
fn verdicts_in_short(context: &Context, label: &str, rows: &[&Row]) -> Option<Part> {
    let mut part = Part::titled(format!("`{label}`: verdicts"));
    for row in rows.iter().rev() {
        workload::verdict_in_short(context, &mut part, row);
    }
    (!rows.is_empty()).then_some(part)
}

/// The facts that the engine reports.
fn identity(context: &Context, configuration: usize) -> Part {
    let engine = &context.data.engines[configuration];
    let planned = &context.data.plan.configurations[configuration];
    let mut part = Part::titled(format!("`{}`: what ran", engine.label));
    let version = engine.version.as_ref().map_or_else(String::new, |version| format!(" {version}"));
    let facts = [
        engine.device.as_ref().map(|device| format!("on {device}")),
        engine.dtype.as_ref().map(|dtype| match &dtype.compute {
            Some(compute) => format!("weights in {}, computed in {compute}", dtype.weights),
            None => format!("in {}", dtype.weights),
        }),
        engine.threads.map(|threads| plural(threads, "thread")),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    let facts = if facts.is_empty() { String::new() } else { format!(", {}", facts.join(", ")) };
    part.say(format!("It is the engine {}{version} with the model {}{facts}.", engine.engine, engine.model));
    if !planned.options.is_empty() {
        let options: Vec<String> =
            planned.options.iter().map(|(key, value)| crate::text::line(&format!("{key}={value}"))).collect();
        part.say(format!("Its load options: {}.", options.join(", ")));
    }
    part
}

/// Contradicted claims, each with both values.
fn claims(context: &Context, label: &str) -> Option<Part> {
    let of_engine = context.report.contradictions.iter().filter(|it| it.label == label);
    let mut part = Part::titled("claims that an observation contradicts");
    for claim in of_engine {
        part.say(format!(
            "Its claim about {} is contradicted: reported {}, observed {}.",
            claim.about.name(),
            claim.reported,
            claim.observed
        ));
        let message =
            claim.message.strip_prefix(label).and_then(|it| it.strip_prefix(": ")).unwrap_or(&claim.message);
        part.say(format!("Details: it {}.", message.trim_end_matches('.')));
    }
    if !part.sentences.is_empty() {
        part.say("Its results may look better than they are, so it has no rank.");
    }
    (!part.sentences.is_empty()).then_some(part)
}

/// The warnings about this engine. Contradicted claims have a part of their own.
fn warnings(context: &Context, label: &str, most: usize) -> Option<Part> {
    let is_claim = |text: &str| context.report.contradictions.iter().any(|it| text.starts_with(&it.message));
    let about_engine = |text: &&String| {
        text.strip_prefix(label).is_some_and(|rest| rest.starts_with(": ")) && !is_claim(text)
    };
    let warnings: Vec<&String> = context.report.warnings.iter().filter(about_engine).collect();
    let mut part = Part::titled("warnings");
    part.sentences.extend(warnings.iter().take(most).copied().cloned());
    let more = warnings.len().saturating_sub(most);
    part.sentences.extend(
        (more > 0)
            .then(|| format!("{}: the command below with `--full` has all", plural(more, "more warning"))),
    );
    (!part.sentences.is_empty()).then_some(part)
}

/// The time of the load, and of its phases.
fn load(row: &Row) -> Option<Part> {
    let load = row.summary(MetricId::LOAD)?;
    let time = |ns: f64| Unit::Nanoseconds.show(ns);
    let mut part = Part::titled(format!("load: {}", time(load.estimate)));
    part.say(format!(
        "The engine takes {} from the start of its process to its `loaded` answer (median of {}).",
        time(load.estimate),
        launches(load.launches)
    ));
    let phases = row.wall_time.as_ref().map_or(&[][..], |it| &it.phases);
    let named =
        phases.iter().map(|phase| format!("{} {}", crate::text::line(&phase.name), time(phase.ns as f64)));
    let named: Vec<String> = named.collect();
    if !named.is_empty() {
        part.say(format!("The engine reports these phases (means): {}.", named.join(", ")));
    }
    Some(part)
}
