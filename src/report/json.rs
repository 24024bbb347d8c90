//! JSON for programs: every summary in full, in the metric's own unit. The names here are stable: add, never rename.

use serde::Serialize;

use super::{Engine, Fault, Format, Report};
use crate::machine::Machine;
use crate::metric::Better;
use crate::plan::Mode;
use crate::stats::Summary;

pub const FORMAT: Format = Format { name: "json", about: "every summary in full", render };

fn render(report: &Report, _: Option<usize>) -> Vec<u8> {
    // String keys and finite numbers only, so this cannot fail.
    let mut bytes = serde_json::to_vec_pretty(&document(report)).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

#[derive(Serialize)]
struct Document<'a> {
    record: &'a str,
    started: &'a str,
    orchestrate_version: &'a str,
    commit: Option<&'a str>,
    command: &'a [String],
    mode: Mode,
    launches: u32,
    seed: u64,
    reference: &'a str,
    notices: &'a [String],
    cases: Vec<CaseEntry<'a>>,
    failed: Vec<FailedEntry<'a>>,
    warnings: &'a [String],
    notes: &'a [String],
    machine: &'a Machine,
}

#[derive(Serialize)]
struct CaseEntry<'a> {
    case: &'a str,
    scenario: &'a str,
    engine: EngineEntry<'a>,
    launches: usize,
    samples: usize,
    headline: Option<&'static str>,
    /// How many times as good as the reference, by the headline.
    times_reference: Option<f64>,
    /// Launches of it or of the reference are too far apart for `times_reference` to say much.
    times_reference_is_unsure: bool,
    failure: Option<FaultEntry<'a>>,
    metrics: Vec<MetricEntry<'a>>,
}

#[derive(Serialize)]
struct EngineEntry<'a> {
    label: &'a str,
    name: &'a str,
    model: &'a str,
    version: Option<&'a str>,
    device: Option<&'a str>,
    dtype: Option<&'a str>,
    threads: Option<u32>,
}

#[derive(Serialize)]
struct MetricEntry<'a> {
    metric: &'static str,
    unit: &'static str,
    better: &'static str,
    #[serde(flatten)]
    summary: &'a Summary,
}

#[derive(Serialize)]
struct FailedEntry<'a> {
    engine: EngineEntry<'a>,
    failure: FaultEntry<'a>,
}

#[derive(Serialize)]
struct FaultEntry<'a> {
    kind: &'a str,
    when: &'a str,
    message: &'a str,
    hint: Option<&'a str>,
    stderr: &'a [String],
    times: usize,
}

fn document(report: &Report) -> Document<'_> {
    let cases = report.rows.iter().map(|row| CaseEntry {
        case: &row.case.label,
        scenario: &row.case.scenario,
        engine: engine(&row.engine),
        launches: row.launches,
        samples: row.samples,
        headline: row.case.headline.map(|metric| metric.name),
        times_reference: row.ratio,
        times_reference_is_unsure: row.ratio_is_unsure,
        failure: row.fault.as_ref().map(fault),
        metrics: row
            .figures
            .iter()
            .map(|figure| MetricEntry {
                metric: figure.metric.name,
                unit: figure.metric.unit.symbol(),
                better: match figure.metric.better {
                    Better::Higher => "higher",
                    Better::Lower => "lower",
                },
                summary: &figure.summary,
            })
            .collect(),
    });
    let failed = report.failed.iter();
    Document {
        record: &report.record,
        started: &report.started,
        orchestrate_version: &report.orchestrate_version,
        commit: report.commit.as_deref(),
        command: &report.command,
        mode: report.mode,
        launches: report.launches,
        seed: report.seed,
        reference: &report.reference,
        notices: &report.notices,
        cases: cases.collect(),
        failed: failed
            .map(|it| FailedEntry { engine: engine(&it.engine), failure: fault(&it.fault) })
            .collect(),
        warnings: &report.warnings,
        notes: &report.notes,
        machine: &report.machine,
    }
}

fn engine(engine: &Engine) -> EngineEntry<'_> {
    EngineEntry {
        label: &engine.label,
        name: &engine.engine,
        model: &engine.model,
        version: engine.version.as_deref(),
        device: engine.device.as_deref(),
        dtype: engine.dtype.as_deref(),
        threads: engine.threads,
    }
}

fn fault(fault: &Fault) -> FaultEntry<'_> {
    FaultEntry {
        kind: &fault.kind,
        when: &fault.when,
        message: &fault.message,
        hint: fault.hint.as_deref(),
        stderr: &fault.stderr,
        times: fault.times,
    }
}
