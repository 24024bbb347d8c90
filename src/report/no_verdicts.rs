//! The reason why no comparison of a run has a verdict.

use std::collections::BTreeSet;

use super::rows::Row;
use super::run_report::Report;
use super::verdicts::{PairVerdict, Sureness};
use crate::plan::Order;
use stats::{FIRM, StoppedBy};

/// The reason why no comparison has a verdict, with the remedy.
pub fn why_no_verdicts(report: &Report) -> Option<String> {
    let all = || report.verdicts.against_reference.iter().chain(&report.verdicts.against_baseline);
    let found = || all().filter(|judged| judged.result.is_ok());
    if found().count() == 0 || found().any(|judged| judged.sureness() != Some(Sureness::NoVerdict)) {
        return None;
    }
    if report.order == Order::Sequential {
        let why = "engines were measured sequentially, so drift looks like a difference";
        return Some(format!("no verdicts: {why}; hint: leave out `--order sequential`"));
    }
    // More blocks do not help an engine that fails.
    let lasting = || found().filter(|judged| !judged.has_failed(&report.rows));
    let Some(blocks) = lasting().filter_map(|judged| Some(judged.result.as_ref().ok()?.blocks)).max() else {
        let failed = failed_among(&report.rows, found());
        return Some(format!("no verdicts: {failed} failed; verdicts need {FIRM} blocks without a failure"));
    };
    let stopped = |by: Option<StoppedBy>| report.extents.iter().any(|extent| extent.stopped_by == by);
    let cut_off =
        report.extents.iter().any(|extent| extent.stopped_by.is_none() && extent.blocks as usize >= FIRM);
    let count = if blocks == 1 { "1 block".into() } else { format!("{blocks} blocks") };
    Some(match (report.budget_ns, blocks) {
        _ if cut_off => {
            format!("no verdicts: the run ended after {blocks} of the {FIRM} blocks that verdicts need")
        }
        (Some(budget_ns), _) if stopped(Some(StoppedBy::Time)) => {
            let larger = larger_budget(budget_ns, blocks);
            format!(
                "no verdicts: the time budget ended after {count}, verdicts need {FIRM}; hint: `--budget {larger}`"
            )
        }
        (_, 1) => format!("no verdicts: 1 block, verdicts need {FIRM}; hint: `--blocks {FIRM}`"),
        _ => format!("no verdicts: {count}, verdicts need {FIRM}; hint: `--blocks {FIRM}`"),
    })
}

fn failed_among<'a>(rows: &'a [Row], judged: impl Iterator<Item = &'a PairVerdict>) -> String {
    let failed = judged.flat_map(|judged| judged.sides(rows)).filter(|row| row.fault.is_some());
    let names: BTreeSet<&str> = failed.map(|row| row.engine.label.as_str()).collect();
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The budget that would probably have been enough, and a quarter more because blocks differ: in tens of seconds, or minutes.
fn larger_budget(budget_ns: u64, blocks: usize) -> String {
    let seconds = 1.25 * budget_ns as f64 / 1e9 * FIRM as f64 / blocks.max(1) as f64;
    match seconds {
        ..100.0 => format!("{:.0}s", 10.0 * (seconds / 10.0).ceil()),
        _ => format!("{:.0}m", (seconds / 60.0).ceil()),
    }
}
