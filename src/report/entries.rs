//! A report for programs: all statistics of each metric, in its own unit. A changed name raises `REPORT_VERSION`.

use serde::Serialize;

use super::cost::{Cost, costs};
use super::json::{REPORT_VERSION, json_bytes};
use super::outputs::Output;
use super::precision::PrecisionImpact;
use super::precision_table::{Gain, gain};
use super::resources::Resources;
use super::rows::{Engine, FailedConfiguration, FailureSummary, MeasuredWorkload, Row, ScoredText, Stress};
use super::run_report::Report;
use super::settings::SettingImpact;
use super::targets::TargetResult;
use super::verdicts::{Mean, Noise, PairVerdict, PresetEffect, Uncalibrated, evidence};
use super::wall_time::WallTime;
use crate::analysis::agreement::Status;
use crate::analysis::claims::Contradiction;
use crate::analysis::metric::Better;
use crate::analysis::metric::limits::Limit;
use crate::analysis::metric::serving::QUEUE_PARTS;
use crate::analysis::metric::share;
use crate::machine::Machine;
use crate::plan::{Mode, Order};
use crate::record::{Overhead, WarmUp};
use stats::{Probabilities, StoppedBy, Summary, Verdict};

/// `price_per_hour`: that of the machine, if the user named one.
pub fn json(report: &Report, price_per_hour: Option<f64>) -> Vec<u8> {
    json_bytes(&document(report, price_per_hour))
}

/// A report and the judgement that compares its run with a baseline, in one document.
pub fn with_judgement(report: &Report, price_per_hour: Option<f64>, judgement: &impl Serialize) -> Vec<u8> {
    #[derive(Serialize)]
    struct Judged<'a, J> {
        #[serde(flatten)]
        report: Document<'a>,
        judgement: &'a J,
    }
    json_bytes(&Judged { report: document(report, price_per_hour), judgement })
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
    workloads: &'a [MeasuredWorkload],
    seed: u64,
    nonce: Option<u64>,
    reference: &'a str,
    notices: &'a [String],
    cases: Vec<CaseEntry<'a>>,
    failed: &'a [FailedConfiguration],
    /// The targets of the run file, one for each case that a target names.
    targets: &'a [TargetResult],
    outputs: &'a [Output],
    /// The impact of precision, for each configuration of an engine with several precisions.
    precisions: Vec<PrecisionEntry<'a>>,
    /// The effect of each setting that varies between the cases of an engine. `against` is the other case.
    settings: Vec<SettingEntry<'a>>,
    /// The price of an hour of the machine, if the user named one.
    price_per_hour: Option<f64>,
    /// The cost of the tokens of each case: empty without a price.
    costs: Vec<Cost<'a>>,
    /// Each configuration against its reference, by every metric.
    comparisons: Vec<ComparisonEntry<'a>>,
    /// Every pair of configurations. The correction for many comparisons is stronger here, so a small difference that
    /// `comparisons` shows may be `inconclusive` here.
    pairs: Vec<ComparisonEntry<'a>>,
    /// Each configuration against the program of its baseline, where both were measured in turn.
    against_baseline: Vec<ComparisonEntry<'a>>,
    /// The effects of an engine's presets, in the words of its manifest.
    derived: Vec<PresetEffectEntry<'a>>,
    geometric_means: &'a [Mean],
    noise: Vec<NoiseEntry<'a>>,
    /// The time of the oldest calibration that the run uses.
    calibrated: Option<&'a str>,
    uncalibrated: &'a [Uncalibrated],
    /// The command that calibrates the `uncalibrated` engines with the options of this run.
    calibrate: Option<&'a str>,
    warnings: &'a [String],
    /// The claims of engines that an observation contradicts.
    contradictions: &'a [Contradiction],
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
    /// Whether the requests allow prefix caches.
    prefix_cache: bool,
    engine: &'a Engine,
    launches: usize,
    samples: usize,
    rounds: u32,
    headline: Option<&'static str>,
    reference: Option<&'a str>,
    /// The speed-up over the reference, by the headline metric.
    times_reference: Option<f64>,
    verdict: Option<Verdict>,
    output: Option<Status>,
    /// Whether an observation contradicts a claim of the engine: the row then has no rank.
    contradicted: bool,
    /// How near the headline is to the machine's limit; null without a share, or above the limit.
    limit_class: Option<share::Class>,
    failure: Option<&'a FailureSummary>,
    warm_ups: &'a [WarmUp],
    wall_time: Option<&'a WallTime>,
    /// An unknown value is null.
    resources: Option<&'a Resources>,
    scored_text: Option<ScoredText>,
    /// Null if the engine was not in use for a set time.
    stress: Option<Stress>,
    /// The mean number of requests without a first token in each quarter of a round; null if requests do not overlap.
    queue_over_time: Option<[f64; QUEUE_PARTS]>,
    metrics: Vec<MetricEntry<'a>>,
}

#[derive(Serialize)]
struct MetricEntry<'a> {
    metric: &'static str,
    unit: &'static str,
    better: &'static str,
    #[serde(flatten)]
    summary: &'a Summary,
}

/// A comparison. A ratio above 1 is better, for every metric.
#[derive(Serialize)]
struct ComparisonEntry<'a> {
    case: &'a str,
    metric: &'static str,
    is_headline: bool,
    /// Whether the outputs of both sides are verified. The views for people show no other ratio between two engines.
    is_verified: bool,
    engine: &'a str,
    against: &'a str,
    verdict: Option<Verdict>,
    sentence: &'a str,
    /// The reason why the fields below are empty.
    refused: Option<&'a str>,
    ratio: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    evidence: Option<&'static str>,
    /// The bootstrap interval, as a check of `low` and `high`.
    bootstrap: Option<(f64, f64)>,
    /// A smaller difference does not count: 0.02 is 2 %.
    threshold: Option<f64>,
    /// The result is `same` if the interval lies within this difference.
    same_within: Option<f64>,
    /// Whether the correction for many comparisons changed the verdict.
    lost_to_correction: Option<bool>,
    blocks: Option<usize>,
    /// The number of blocks without a round that both sides measured.
    unpaired: Option<usize>,
    stopped_by: Option<StoppedBy>,
    p: Option<Probabilities>,
}

/// A preset against another preset of the same engine.
#[derive(Serialize)]
struct PresetEffectEntry<'a> {
    effect: &'a str,
    comparisons: Vec<PresetComparisonEntry<'a>>,
}

#[derive(Serialize)]
struct PresetComparisonEntry<'a> {
    #[serde(flatten)]
    comparison: ComparisonEntry<'a>,
    /// The difference in time; for a rate, in time for each token. It is negative where the preset takes less time.
    difference_ns: Option<f64>,
}

/// The loss and the gain of a precision against the widest one. The widest one itself has no comparisons.
#[derive(Serialize)]
struct PrecisionEntry<'a> {
    #[serde(flatten)]
    impact: &'a PrecisionImpact,
    decode_rate: Option<ComparisonEntry<'a>>,
    memory: Option<ComparisonEntry<'a>>,
}

/// A case against another case of the same engine, by the headline metric.
#[derive(Serialize)]
struct SettingEntry<'a> {
    setting: &'static str,
    value: &'a str,
    other: &'a str,
    /// For a batch: 1 if twice the sequences give twice the tokens per second.
    scaling_efficiency: Option<f64>,
    #[serde(flatten)]
    comparison: ComparisonEntry<'a>,
}

/// The difference between a configuration and its twin in this run.
#[derive(Serialize)]
struct NoiseEntry<'a> {
    engine: &'a str,
    case: &'a str,
    /// 0.02 is 2 %.
    share: f64,
    blocks: usize,
}

fn document(report: &Report, price_per_hour: Option<f64>) -> Document<'_> {
    let cases = report.rows.iter().map(|row| CaseEntry {
        case: &row.case.label,
        scenario: &row.case.scenario,
        prefix_cache: row.case.prefix_cache,
        engine: &row.engine,
        launches: row.launches,
        samples: row.samples,
        rounds: row.case.rounds,
        headline: row.case.headline.map(|metric| metric.name()),
        reference: row.reference.as_deref(),
        times_reference: times_reference(report, row),
        verdict: headline(report, row).and_then(|it| it.comparison()?.decision.verdict),
        output: report.output_of(row).map(|it| it.agreement.status),
        contradicted: row.contradicted,
        limit_class: row.limit_share().filter(|_| row.failure.is_none()).and_then(share::Class::of),
        failure: row.failure.as_ref(),
        warm_ups: &row.warm_ups,
        wall_time: row.wall_time.as_ref(),
        resources: row.resources.as_ref(),
        scored_text: row.scored_text,
        stress: row.stress,
        queue_over_time: row.queue_over_time,
        metrics: row
            .summaries
            .iter()
            .map(|it| MetricEntry {
                metric: it.metric.name(),
                unit: it.metric.unit.symbol(),
                better: match it.metric.better {
                    Better::Higher => "higher",
                    Better::Lower => "lower",
                },
                summary: &it.summary,
            })
            .collect(),
    });
    Document {
        report_version: REPORT_VERSION,
        record: &report.record,
        started: &report.started,
        orchestrate_version: &report.orchestrate_version,
        commit: report.commit.as_deref(),
        command: &report.command,
        mode: report.mode,
        order: report.order,
        workloads: &report.workloads,
        seed: report.seed,
        nonce: report.nonce,
        reference: &report.reference,
        notices: &report.notices,
        cases: cases.collect(),
        failed: &report.failed,
        targets: &report.targets,
        outputs: &report.outputs,
        precisions: report.precisions.iter().map(|it| precision(report, it)).collect(),
        settings: report.settings.iter().map(setting).collect(),
        price_per_hour,
        costs: price_per_hour.map_or_else(Vec::new, |price| costs(report, price)),
        comparisons: report.verdicts.against_reference.iter().map(comparison).collect(),
        pairs: report.verdicts.all_pairs.iter().map(comparison).collect(),
        against_baseline: report.verdicts.against_baseline.iter().map(comparison).collect(),
        derived: report.verdicts.preset_effects.iter().map(|it| derived(report, it)).collect(),
        geometric_means: &report.verdicts.means,
        noise: report.verdicts.noise.iter().flat_map(noise).collect(),
        calibrated: report.verdicts.calibration.since.as_deref(),
        uncalibrated: &report.verdicts.calibration.uncalibrated,
        calibrate: report.verdicts.calibration.remedy.as_deref(),
        warnings: &report.warnings,
        contradictions: &report.contradictions,
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
    LimitEntry { device, threads, limit: key.name(), unit: key.rate_unit(), best: limit.best(), probes }
}

fn times_reference(report: &Report, row: &Row) -> Option<f64> {
    let of_reference = row.is_reference().then_some(1.0);
    let comparable = row.failure.is_none() && !report.is_wrong(row);
    of_reference.or_else(|| headline(report, row)?.ratio()).filter(|_| comparable)
}

/// The comparison of a row with its reference, also if an output is unverified: JSON has the status of each output.
fn headline<'a>(report: &'a Report, row: &Row) -> Option<&'a PairVerdict> {
    report.verdicts.pair(row, row.case.headline?)
}

fn comparison(pair: &PairVerdict) -> ComparisonEntry<'_> {
    let result = pair.comparison();
    let (low, high) = pair.bounds().unzip();
    ComparisonEntry {
        case: &pair.case,
        metric: pair.metric.name(),
        is_headline: pair.is_headline,
        is_verified: pair.is_verified,
        engine: &pair.engine,
        against: &pair.against,
        verdict: result.and_then(|it| it.decision.verdict),
        sentence: &pair.sentence,
        refused: pair.result.as_ref().err().map(String::as_str),
        ratio: pair.ratio(),
        low,
        high,
        evidence: result.map(|it| evidence(&it.evidence)),
        bootstrap: result.and_then(|it| it.bootstrap).map(|(low, high)| (low.exp(), high.exp())),
        threshold: result.map(|it| it.decision.thresholds.difference().exp_m1()),
        same_within: result.map(|it| it.decision.thresholds.same().exp_m1()),
        lost_to_correction: result.map(|it| it.decision.lost_to_correction),
        blocks: result.map(|it| it.blocks),
        unpaired: result.map(|it| it.unpaired),
        stopped_by: result.map(|it| it.stopped_by),
        p: result.map(|it| it.p),
    }
}

fn derived<'a>(report: &Report, derived: &'a PresetEffect) -> PresetEffectEntry<'a> {
    let entry = |pair: &'a PairVerdict| PresetComparisonEntry {
        comparison: comparison(pair),
        difference_ns: pair.difference_ns(&report.rows),
    };
    PresetEffectEntry { effect: &derived.effect, comparisons: derived.pairs.iter().map(entry).collect() }
}

fn precision<'a>(report: &'a Report, impact: &'a PrecisionImpact) -> PrecisionEntry<'a> {
    let Gain { decode_rate, memory } = gain(report, impact);
    PrecisionEntry { impact, decode_rate: decode_rate.map(comparison), memory: memory.map(comparison) }
}

fn setting(impact: &SettingImpact) -> SettingEntry<'_> {
    SettingEntry {
        setting: impact.setting,
        value: &impact.value,
        other: &impact.other,
        scaling_efficiency: impact.scaling_efficiency(),
        comparison: comparison(&impact.pair),
    }
}

fn noise(noise: &Noise) -> impl Iterator<Item = NoiseEntry<'_>> {
    noise.floors.iter().map(|(case, floor)| NoiseEntry {
        engine: &noise.engine,
        case,
        share: floor.log_ratio().exp_m1(),
        blocks: floor.blocks(),
    })
}
