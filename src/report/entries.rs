//! A report for programs: every summary in full, in the metric's own unit. A changed name raises `REPORT_VERSION`.

mod comparisons;

use std::collections::BTreeMap;

use serde::Serialize;

use super::document::{REPORT_VERSION, json_bytes};
use super::extent::Extent;
use super::outputs::Output;
use super::resources::Resources;
use super::rows::{Dtype, Engine, Fault, Row};
use super::run_report::Report;
use super::verdicts::{Lacking, Mean};
use super::wall_time::{PARTS, WallTime};
use crate::analysis::agreement::Status;
use crate::analysis::claims::{About, Contradiction};
use crate::analysis::metric::Better;
use crate::analysis::metric::limits::Limit;
use crate::machine::{Device, Machine};
use crate::plan::{Mode, Order};
use crate::record::{Overhead, WarmUp};
use comparisons::{ComparisonEntry, DerivedEntry, NoiseEntry, comparison, derived, noise};
use stats::{Summary, Verdict};

pub fn json(report: &Report) -> Vec<u8> {
    json_bytes(&document(report))
}

/// The report and the judgement against its baseline in one document.
pub fn with_judgement(report: &Report, judgement: &impl Serialize) -> Vec<u8> {
    #[derive(Serialize)]
    struct PairVerdict<'a, J> {
        #[serde(flatten)]
        report: Document<'a>,
        judgement: &'a J,
    }
    json_bytes(&PairVerdict { report: document(report), judgement })
}

#[derive(Serialize)]
struct Document<'a> {
    report_version: u32,
    record: &'a str,
    started: &'a str,
    orchestrate_version: &'a str,
    commit: Option<&'a str>,
    command: &'a [String],
    mode: Mode,
    order: Order,
    workloads: &'a [Extent],
    seed: u64,
    reference: &'a str,
    notices: &'a [String],
    cases: Vec<CaseEntry<'a>>,
    failed: Vec<FailedEntry<'a>>,
    /// The status of each configuration's output.
    outputs: &'a [Output],
    /// Each configuration against its reference, by every metric.
    comparisons: Vec<ComparisonEntry<'a>>,
    /// Every two configurations. The correction for many comparisons is stronger here, so a small difference above may be
    /// absent.
    pairs: Vec<ComparisonEntry<'a>>,
    /// Each configuration against the program of its baseline, where both were measured in turn.
    against_baseline: Vec<ComparisonEntry<'a>>,
    /// The effects of an engine's presets, in the words of its manifest.
    derived: Vec<DerivedEntry<'a>>,
    geometric_means: &'a [Mean],
    noise: Vec<NoiseEntry<'a>>,
    /// When this machine was calibrated.
    calibrated: Option<&'a str>,
    /// The engines without a calibration on this machine.
    uncalibrated: &'a [Lacking],
    warnings: &'a [String],
    /// The warnings about claims of engines that differ from the observation.
    contradictions: Vec<ContradictionEntry<'a>>,
    notes: &'a [String],
    /// Equal for machines with comparable results.
    fingerprint: String,
    machine: &'a Machine,
    /// The orchestrator's own cost: null where it was not measured.
    overhead: Option<Overhead>,
    /// The limits of the machine: empty where nothing was probed.
    limits: Vec<LimitEntry<'a>>,
}

/// A limit of memory or of one arithmetic unit, for one number of threads. A GPU has no number of threads.
#[derive(Serialize)]
struct LimitEntry<'a> {
    device: &'a str,
    threads: Option<u32>,
    limit: String,
    unit: &'static str,
    best: f64,
    /// The value of each probe of the run.
    probes: &'a [f64],
}

#[derive(Serialize)]
struct CaseEntry<'a> {
    case: &'a str,
    scenario: &'a str,
    engine: EngineEntry<'a>,
    launches: usize,
    samples: usize,
    rounds: u32,
    headline: Option<&'static str>,
    reference: Option<&'a str>,
    /// How many times as good as the reference, by the headline.
    times_reference: Option<f64>,
    verdict: Option<Verdict>,
    /// The status of the engine's output.
    output: Option<Status>,
    /// Whether a claim of the engine keeps it from the first rank.
    contradicted: bool,
    failure: Option<&'a Fault>,
    warm_ups: &'a [WarmUp],
    wall_time: Option<WallTimeEntry<'a>>,
    /// An unknown value is null.
    resources: Option<&'a Resources>,
    metrics: Vec<MetricEntry<'a>>,
}

#[derive(Serialize)]
struct EngineEntry<'a> {
    label: &'a str,
    name: &'a str,
    model: &'a str,
    version: Option<&'a str>,
    device: Option<&'a str>,
    dtype: Option<String>,
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

/// Parts that add up to the total.
#[derive(Serialize)]
struct WallTimeEntry<'a> {
    total_ns: u64,
    parts_ns: BTreeMap<&'static str, Option<u64>>,
    unattributed_ns: u64,
    /// Phases of the load as the engine calls them.
    phases: Vec<PhaseEntry<'a>>,
    launches: usize,
    requests: usize,
    /// How often the engine's own times added up to more than had passed.
    shortened: usize,
}

#[derive(Serialize)]
struct PhaseEntry<'a> {
    name: &'a str,
    ns: u64,
}

#[derive(Serialize)]
struct ContradictionEntry<'a> {
    engine: &'a str,
    about: About,
    reported: &'a str,
    observed: &'a str,
    /// Whether the engine may look better than it is, so that it is not ranked first.
    excludes_from_ranking: bool,
}

#[derive(Serialize)]
struct FailedEntry<'a> {
    engine: EngineEntry<'a>,
    failure: &'a Fault,
}

fn document(report: &Report) -> Document<'_> {
    let cases = report.rows.iter().map(|row| CaseEntry {
        case: &row.case.label,
        scenario: &row.case.scenario,
        engine: engine(&row.engine),
        launches: row.launches,
        samples: row.samples,
        rounds: row.case.rounds,
        headline: row.case.headline.map(|metric| metric.name()),
        reference: row.reference.as_deref(),
        times_reference: times_reference(report, row),
        verdict: report.verdicts.of_row(row, false).and_then(|it| it.result.as_ref().ok()?.decision.verdict),
        output: report.output_of(row).map(|it| it.agreement.status),
        contradicted: row.contradicted,
        failure: row.fault.as_ref(),
        warm_ups: &row.warm_ups,
        wall_time: row.wall_time.as_ref().map(wall_time),
        resources: row.resources.as_ref(),
        metrics: row
            .summaries
            .iter()
            .map(|figure| MetricEntry {
                metric: figure.metric.name(),
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
        report_version: REPORT_VERSION,
        record: &report.record,
        started: &report.started,
        orchestrate_version: &report.orchestrate_version,
        commit: report.commit.as_deref(),
        command: &report.command,
        mode: report.mode,
        order: report.order,
        workloads: &report.extents,
        seed: report.seed,
        reference: &report.reference,
        notices: &report.notices,
        cases: cases.collect(),
        failed: failed.map(|it| FailedEntry { engine: engine(&it.engine), failure: &it.fault }).collect(),
        outputs: &report.outputs,
        comparisons: report.verdicts.against_reference.iter().map(comparison).collect(),
        pairs: report.verdicts.all_pairs.iter().map(comparison).collect(),
        against_baseline: report.verdicts.against_baseline.iter().map(comparison).collect(),
        derived: report.verdicts.derived.iter().map(|it| derived(report, it)).collect(),
        geometric_means: &report.verdicts.means,
        noise: report.verdicts.noise.iter().flat_map(noise).collect(),
        calibrated: report.verdicts.calibration.since.as_deref(),
        uncalibrated: &report.verdicts.calibration.lacking,
        warnings: &report.warnings,
        contradictions: report.contradictions.iter().map(contradiction).collect(),
        notes: &report.notes,
        fingerprint: report.machine.fingerprint(),
        machine: &report.machine,
        overhead: report.overhead,
        limits: report.limits.iter().map(limit).collect(),
    }
}

fn limit(limit: &Limit) -> LimitEntry<'_> {
    let Limit { key, probes } = limit;
    let (device, threads) = (key.device.as_str(), key.threads);
    LimitEntry { device, threads, limit: key.name(), unit: key.unit(), best: limit.best(), probes }
}

fn times_reference(report: &Report, row: &Row) -> Option<f64> {
    let own = row.is_reference().then_some(1.0);
    let wrong = report.output_of(row).is_some_and(|it| it.agreement.is_wrong());
    own.or_else(|| report.verdicts.of_row(row, false)?.times()).filter(|_| row.fault.is_none() && !wrong)
}

fn wall_time(wall_time: &WallTime) -> WallTimeEntry<'_> {
    let parts = PARTS.into_iter().map(|part| (part.name(), wall_time.part(part)));
    WallTimeEntry {
        total_ns: wall_time.total_ns,
        parts_ns: parts.collect(),
        unattributed_ns: wall_time.unattributed_ns,
        phases: wall_time.phases.iter().map(|(name, ns)| PhaseEntry { name, ns: *ns }).collect(),
        launches: wall_time.launches,
        requests: wall_time.requests,
        shortened: wall_time.shortened,
    }
}

fn engine(engine: &Engine) -> EngineEntry<'_> {
    EngineEntry {
        label: &engine.label,
        name: &engine.engine,
        model: &engine.model,
        version: engine.version.as_deref(),
        device: engine.device.as_ref().map(Device::as_str),
        dtype: engine.dtype.as_ref().map(Dtype::to_string),
        threads: engine.threads,
    }
}

fn contradiction(contradiction: &Contradiction) -> ContradictionEntry<'_> {
    let Contradiction { label, about, reported, observed, excludes_from_ranking, .. } = contradiction;
    ContradictionEntry {
        engine: label,
        about: *about,
        reported,
        observed,
        excludes_from_ranking: *excludes_from_ranking,
    }
}
