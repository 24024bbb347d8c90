//! A judgement for spreadsheets: a line for each metric of each configuration in each workload, in the metric's own unit.

use crate::analysis::compare::between::Found;
use crate::analysis::compare::judgement::{Change, Judgement, class_name, verdict_name};
use crate::report::document::{Lines, Named, column};
use crate::report::verdicts::evidence;

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
    "counts_from",
    "counts_because",
    "p",
    "p_adjusted",
    "p_mann_whitney",
    "verdict",
    "class",
    "said",
];

pub fn lines(judgement: &Judgement) -> Lines {
    let line =
        |change: &Change| [about(judgement, change), change.found().map_or_else(Vec::new, found)].concat();
    Lines { columns: &COLUMNS, lines: judgement.lines.iter().map(line).collect() }
}

fn about(judgement: &Judgement, change: &Change) -> Vec<Named> {
    vec![
        (column!("base"), (&judgement.base.name).into()),
        (column!("new"), (&judgement.new.name).into()),
        (column!("forced"), (!judgement.forced.is_empty()).into()),
        (column!("case"), (&change.workload).into()),
        (column!("configuration"), (&change.configuration).into()),
        (column!("before"), (&change.before).into()),
        (column!("metric"), change.metric.name().into()),
        (column!("unit"), change.metric.unit.symbol().into()),
        (column!("gating"), change.gating.into()),
        (column!("base_value"), change.base.into()),
        (column!("new_value"), change.new.into()),
        (column!("verdict"), verdict_name(&change.outcome).into()),
        (column!("class"), class_name(change.class).into()),
        (column!("said"), (&change.sentence).into()),
    ]
}

fn found(found: &Found) -> Vec<Named> {
    let (low, high) = found.evidence.ends();
    vec![
        (column!("blocks_base"), found.blocks.0.into()),
        (column!("blocks_new"), found.blocks.1.into()),
        (column!("evidence"), evidence(&found.evidence).into()),
        (column!("times_as_good"), found.evidence.estimate().exp().into()),
        (column!("low"), low.exp().into()),
        (column!("high"), high.exp().into()),
        (column!("counts_from"), found.decision.epsilon.difference().exp_m1().into()),
        (column!("counts_because"), found.counts_because.into()),
        (column!("p"), found.decision.p.into()),
        (column!("p_adjusted"), found.decision.p_adjusted.into()),
        (column!("p_mann_whitney"), found.p_mann_whitney.into()),
    ]
}
