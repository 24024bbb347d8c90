//! A judgement for spreadsheets: a line for each metric of each configuration in each workload, in the metric's own unit.

use crate::analysis::compare::between::Found;
use crate::analysis::compare::judgement::{Change, Judgement, class_name, verdict_name};
use crate::report::document::{Lines, Named};
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
        ("base", (&judgement.base.name).into()),
        ("new", (&judgement.new.name).into()),
        ("forced", (!judgement.forced.is_empty()).into()),
        ("case", (&change.workload).into()),
        ("configuration", (&change.configuration).into()),
        ("before", (&change.before).into()),
        ("metric", change.metric.name().into()),
        ("unit", change.metric.unit.symbol().into()),
        ("gating", change.gating.into()),
        ("base_value", change.base.into()),
        ("new_value", change.new.into()),
        ("verdict", verdict_name(&change.outcome).into()),
        ("class", class_name(change.class).into()),
        ("said", (&change.sentence).into()),
    ]
}

fn found(found: &Found) -> Vec<Named> {
    let (low, high) = found.evidence.ends();
    vec![
        ("blocks_base", found.blocks.0.into()),
        ("blocks_new", found.blocks.1.into()),
        ("evidence", evidence(&found.evidence).into()),
        ("times_as_good", found.evidence.estimate().exp().into()),
        ("low", low.exp().into()),
        ("high", high.exp().into()),
        ("counts_from", found.epsilon.difference().exp_m1().into()),
        ("counts_because", found.counts_because.into()),
        ("p", found.p.into()),
        ("p_adjusted", found.p_adjusted.into()),
        ("p_mann_whitney", found.p_mann_whitney.into()),
    ]
}
