//! A judgement for programs, complete, in the metric's own unit: JSON, and a line of CSV for each metric of each
//! configuration in each workload. A changed name in the JSON raises `REPORT_VERSION`.

use anyhow::Result;
use serde::Serialize;

use super::cells;
use crate::analysis::compare::between::MetricComparison;
use crate::analysis::compare::comparable::Difference;
use crate::analysis::compare::judgement::{
    Change, Judgement, Outcome, PerplexityChange, Side, severity_name, verdict_name,
};
use crate::report::document::{Lines, NamedField, column};
use crate::report::json::REPORT_VERSION;
use crate::report::verdicts::evidence;
use stats::Severity;

#[derive(Serialize)]
pub struct Entry<'a> {
    report_version: u32,
    base: &'a Side,
    new: &'a Side,
    side_by_side: bool,
    /// Empty where the records are comparable.
    forced_differences: &'a [Difference],
    notices: &'a [String],
    summary: String,
    changes: Vec<ChangeEntry<'a>>,
    means: Vec<MeanEntry<'a>>,
    notes: &'a [String],
}

/// A judgement within the report of a run: the JSON of `compare --format json`, or the reason why there is none.
#[derive(Serialize)]
#[serde(untagged)]
pub enum JudgementEntry<'a> {
    Judged(Box<Entry<'a>>),
    Refused { refused: String },
}

#[derive(Serialize)]
struct ChangeEntry<'a> {
    case: &'a str,
    configuration: &'a str,
    /// The configuration's label in the base.
    before: &'a str,
    metric: &'static str,
    unit: &'static str,
    gating: bool,
    base: Option<f64>,
    new: Option<f64>,
    /// `better`, `worse`, `same`, `inconclusive`, `no_verdict`; or the reason for no comparison.
    verdict: &'static str,
    severity: Severity,
    /// The ratio and the ends of its interval. Above 1 is better for every metric.
    times_as_good: Option<[f64; 3]>,
    /// A smaller change is no difference. 0.05 is 5 %.
    threshold: Option<f64>,
    /// The statistics; ratios are logarithms here.
    #[serde(flatten)]
    found: Option<&'a MetricComparison>,
    sentence: &'a str,
}

#[derive(Serialize)]
struct MeanEntry<'a> {
    configuration: &'a str,
    /// The number of workloads; the name is that of earlier versions.
    scenarios: usize,
    times_as_good: Option<f64>,
    /// Whether no comparison of the mean is inconclusive.
    is_conclusive: bool,
    caution: &'static str,
}

pub fn judgement(result: &Result<Judgement>) -> JudgementEntry<'_> {
    match result {
        Ok(judgement) => JudgementEntry::Judged(Box::new(entry(judgement))),
        Err(refused) => JudgementEntry::Refused { refused: format!("{refused:#}") },
    }
}

pub fn entry(judgement: &Judgement) -> Entry<'_> {
    let means = judgement.means.iter().map(|mean| MeanEntry {
        configuration: &mean.configuration,
        scenarios: mean.workloads,
        times_as_good: mean.ratio,
        is_conclusive: mean.inconclusive == 0,
        caution: cells::MEAN_CAUTION,
    });
    Entry {
        report_version: REPORT_VERSION,
        base: &judgement.base,
        new: &judgement.new,
        side_by_side: judgement.side_by_side,
        forced_differences: &judgement.forced_differences,
        notices: &judgement.notices,
        summary: cells::summary(judgement),
        changes: judgement.changes.iter().map(change).collect(),
        means: means.collect(),
        notes: &judgement.notes,
    }
}

fn change(change: &Change) -> ChangeEntry<'_> {
    let found = if let Outcome::Compared(found, _) = &change.outcome { Some(found) } else { None };
    ChangeEntry {
        case: &change.workload,
        configuration: &change.configuration,
        before: &change.before,
        metric: change.metric.name(),
        unit: change.metric.unit.symbol(),
        gating: change.gating,
        base: change.base,
        new: change.new,
        verdict: verdict_name(&change.outcome),
        severity: change.severity,
        times_as_good: match &change.outcome {
            Outcome::Compared(found, _) => {
                let (low, high) = found.evidence.ends();
                Some([found.evidence.estimate(), low, high].map(f64::exp))
            }
            Outcome::Exact(change) => Some([change.times_as_good(); 3]),
            _ => None,
        },
        threshold: match &change.outcome {
            Outcome::Compared(found, _) => Some(found.decision.thresholds.difference().exp_m1()),
            Outcome::Exact(_) => Some(PerplexityChange::THRESHOLD),
            _ => None,
        },
        found,
        sentence: &change.sentence,
    }
}

const COLUMNS: [&str; 25] = [
    "base",
    "new",
    "forced",
    "case",
    "configuration",
    "before",
    "metric",
    "unit",
    "gating",
    "base_value",
    "new_value",
    "blocks_base",
    "blocks_new",
    "evidence",
    "times_as_good",
    "low",
    "high",
    "threshold",
    "threshold_source",
    "p",
    "p_adjusted",
    "p_mann_whitney",
    "verdict",
    "severity",
    "sentence",
];

pub fn lines(judgement: &Judgement) -> Lines {
    let line = |change: &Change| {
        let statistics = match &change.outcome {
            Outcome::Compared(found, _) => statistics_fields(found),
            // Without noise, the interval is the value itself, as in JSON.
            Outcome::Exact(change) => vec![
                (column!("times_as_good"), change.times_as_good().into()),
                (column!("low"), change.times_as_good().into()),
                (column!("high"), change.times_as_good().into()),
                (column!("threshold"), PerplexityChange::THRESHOLD.into()),
            ],
            _ => Vec::new(),
        };
        [description_fields(judgement, change), statistics].concat()
    };
    Lines { columns: &COLUMNS, lines: judgement.changes.iter().map(line).collect() }
}

fn description_fields(judgement: &Judgement, change: &Change) -> Vec<NamedField> {
    vec![
        (column!("base"), (&judgement.base.name).into()),
        (column!("new"), (&judgement.new.name).into()),
        (column!("forced"), (!judgement.forced_differences.is_empty()).into()),
        (column!("case"), (&change.workload).into()),
        (column!("configuration"), (&change.configuration).into()),
        (column!("before"), (&change.before).into()),
        (column!("metric"), change.metric.name().into()),
        (column!("unit"), change.metric.unit.symbol().into()),
        (column!("gating"), change.gating.into()),
        (column!("base_value"), change.base.into()),
        (column!("new_value"), change.new.into()),
        (column!("verdict"), verdict_name(&change.outcome).into()),
        (column!("severity"), severity_name(change.severity).into()),
        (column!("sentence"), (&change.sentence).into()),
    ]
}

fn statistics_fields(found: &MetricComparison) -> Vec<NamedField> {
    let (low, high) = found.evidence.ends();
    vec![
        (column!("blocks_base"), found.blocks.0.into()),
        (column!("blocks_new"), found.blocks.1.into()),
        (column!("evidence"), evidence(&found.evidence).into()),
        (column!("times_as_good"), found.evidence.estimate().exp().into()),
        (column!("low"), low.exp().into()),
        (column!("high"), high.exp().into()),
        (column!("threshold"), found.decision.thresholds.difference().exp_m1().into()),
        (column!("threshold_source"), found.threshold_source.into()),
        (column!("p"), found.decision.p.into()),
        (column!("p_adjusted"), found.decision.p_adjusted.into()),
        (column!("p_mann_whitney"), found.p_mann_whitney.into()),
    ]
}
