//! Tidy CSV: a line for each metric of each configuration in each workload, in the metric's own unit.

use super::Format;
use crate::analysis::compare::judgement::{Change, Judgement, Outcome, class_name, verdict_name};
use crate::report::csv::{text, write};
use stats::Evidence;

pub const FORMAT: Format = Format { name: "csv", render };

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

fn render(judgement: &Judgement, _: Option<usize>) -> Vec<u8> {
    let mut out = String::new();
    write(COLUMNS.map(String::from), &mut out);
    for change in &judgement.lines {
        let mut fields: Vec<String> = [&judgement.base.name, &judgement.new.name].map(|it| text(it)).to_vec();
        fields.push((!judgement.forced.is_empty()).to_string());
        fields.extend([&change.workload, &change.configuration, &change.before].map(|it| text(it)));
        fields.extend([change.metric.name, change.metric.unit.symbol()].map(String::from));
        fields.push(change.gating.to_string());
        fields.extend([change.base, change.new].map(number));
        fields.extend(found(change));
        fields.push(verdict_name(&change.outcome).into());
        fields.extend([class_name(change.class).into(), text(&change.sentence)]);
        write(fields, &mut out);
    }
    out.into_bytes()
}

fn found(change: &Change) -> [String; 11] {
    let Outcome::Compared(found, _) = &change.outcome else { return [const { String::new() }; 11] };
    let (low, high) = found.evidence.ends();
    let evidence = match &found.evidence {
        Evidence::WithinLaunch { .. } => "within_launch",
        Evidence::Tentative(_) => "tentative",
        Evidence::Firm(_) => "firm",
    };
    [
        found.blocks.0.to_string(),
        found.blocks.1.to_string(),
        evidence.into(),
        found.evidence.estimate().exp().to_string(),
        low.exp().to_string(),
        high.exp().to_string(),
        found.epsilon.difference().exp_m1().to_string(),
        found.counts_because.into(),
        number(found.p),
        number(found.p_adjusted),
        number(found.p_mann_whitney),
    ]
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
