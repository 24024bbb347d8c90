//! Builds a report from a run record. Raw samples become results and failures become rows. A row shows the facts that the
//! engine stated, not the options that were requested.

use std::collections::BTreeMap;

use super::engines::{mismatches, word};
use super::extent::extents;
use super::outputs::outputs;
use super::seen::{Seen, sentence};
use super::verdicts::Verdicts;
use super::{Report, Row, notes};
use crate::analysis::agreement;
use crate::analysis::effective::{self, Doubt};
use crate::analysis::metric::limits::limits;
use crate::plan::Plan;
use crate::record::RunRecord;
use crate::text::line;

impl Report {
    pub fn of(record: &RunRecord) -> Self {
        let plan = &record.header.plan;
        let seen = Seen::of(record);
        let doubts = effective::doubts(&seen.values, &seen.agreements);
        let doubted = |case: usize| effective::is_doubted(&doubts, plan.cases[case].configuration);
        let rows: Vec<(usize, Row)> = cases_in_order(plan)
            .filter(|&case| seen.values.is_measured(case) || seen.fault(case).is_some())
            .map(|case| (case, Row { doubted: doubted(case), ..seen.row(case) }))
            .collect();
        let outputs = outputs(&seen);
        let verdicts = Verdicts::of(&seen, &rows, &outputs);
        let notes = notes::of(&seen, &rows, &verdicts, &outputs);
        let mut machine = record.header.machine.clone();
        machine.cpu.model = machine.cpu.model.as_deref().map(line);
        for gpu in &mut machine.gpus {
            gpu.name = gpu.name.as_deref().map(line);
            gpu.mig_parts = gpu.mig_parts.iter().map(|part| line(part)).collect();
        }
        Self {
            record: line(&record.header.id),
            started: line(&record.header.started),
            orchestrate_version: line(&record.header.orchestrate_version),
            commit: record.header.commit.as_deref().map(line),
            command: record.header.command.iter().map(|word| line(word)).collect(),
            machine,
            overhead: record.overhead,
            limits: limits(record),
            mode: plan.mode,
            order: plan.order,
            extents: extents(record),
            budget_ns: plan.extent.budget_ns,
            seed: plan.seed,
            reference: line(&plan.reference),
            notices: seen.notices(),
            rows: rows.into_iter().map(|(_, row)| row).collect(),
            failed: seen.failed(),
            verdicts,
            outputs,
            unasked: agreement::unasked(record),
            warnings: seen.warnings(mismatches(record, &seen.engines), &doubts),
            doubts: doubts.into_iter().map(safe).collect(),
            notes,
        }
    }
}

/// Cleans the text of an engine's claims: an engine may send anything.
fn safe(doubt: Doubt) -> Doubt {
    let (label, stated, seen) = (line(&doubt.label), word(&doubt.stated), word(&doubt.seen));
    Doubt { label, stated, seen, message: sentence(&doubt.message), ..doubt }
}

/// The cases in the table's order: workloads as the plan first names them, configurations within.
fn cases_in_order(plan: &Plan) -> impl Iterator<Item = usize> {
    let mut places = BTreeMap::new();
    for case in &plan.cases {
        let next = places.len();
        places.entry(case.workload.label.as_str()).or_insert(next);
    }
    let is_row = |case: &usize| plan.configurations[plan.cases[*case].configuration].beside.is_none();
    let mut cases: Vec<usize> = (0..plan.cases.len()).filter(is_row).collect();
    cases.sort_by_key(|&case| {
        (places[plan.cases[case].workload.label.as_str()], plan.cases[case].configuration)
    });
    cases.into_iter()
}
