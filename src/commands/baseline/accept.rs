//! The decision whether a run may become a baseline. Pure.

use std::collections::BTreeSet;
use std::fmt;

use crate::analysis::agreement::Agreement;
use crate::analysis::metric::{self, Metric};
use crate::analysis::values::Measured;
use crate::plan::{Case, Extent};
use crate::record::{End, RunRecord};
use stats::{INTERIM_ANALYSES, levels};

/// The largest difference between two successive blocks that agree.
const AGREEMENT: f64 = 0.10;

/// The parts of a run that become the baseline.
#[derive(Debug, PartialEq)]
pub struct Accepted {
    /// Configurations with a measured case.
    pub rows: Vec<usize>,
    /// Cases without a place in the baseline, each with its reason.
    pub left_out: Vec<String>,
}

/// The reason why a run is no baseline. The run itself stays recorded.
#[derive(Debug, PartialEq)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// A run becomes a baseline when it ended by itself and when, in every case, two successive blocks agree: their medians
/// of the headline metric lie within 10 % of each other.
///
/// A baseline is measured once and used often. If the machine changed its speed meanwhile, every later comparison is
/// wrong in the same direction, and no later run shows it. One block cannot tell a slow engine from a slow moment, so two
/// are needed. Without two successive blocks that agree, the machine had no stable speed.
///
/// The bound is loose, because it is no claim about precision: the interval is, and it includes all blocks. Launches on a
/// quiet machine differ by a few per cent. A machine changes its speed in larger steps (a matrix unit runs at 1, 0.44 or
/// 0.25 of its speed). The bound is also the smallest change that gets a warning.
///
/// Wrong output is left out like a failure: the speed of another computation measures nothing.
pub fn accept(record: &RunRecord) -> Result<Accepted, Refused> {
    if record.end != Some(End::Finished) {
        let what = if record.end.is_some() { "was interrupted" } else { "did not end" };
        return Err(Refused(format!("the run {what}, so its baseline would be incomplete")));
    }
    let plan = &record.header.plan;
    let measured = Measured::of(record);
    let medians = |case: &Case, metric: &Metric| -> Option<Vec<f64>> {
        let workload = measured.workloads.iter().position(|it| it.label == case.workload.label)?;
        Some(levels(measured.blocks(workload, metric.index()?, case.configuration)?))
    };
    let agreements = Agreement::of(record);
    let (mut rows, mut left_out, mut wrong) = (BTreeSet::new(), Vec::new(), Vec::new());
    for (index, case) in plan.cases.iter().enumerate() {
        let configuration = &plan.configurations[case.configuration];
        if configuration.role.is_some() {
            continue;
        }
        let (label, workload) = (&configuration.label, &case.workload);
        let name = format!("`{label}` `{}`", workload.label);
        if record.has_failed(index) {
            left_out.push(format!("{name}: not in the baseline, because it failed"));
            continue;
        }
        let agreement = &agreements[case.configuration];
        if agreement.is_wrong() {
            let why = agreement.reasons.first().map_or("", String::as_str);
            left_out.push(format!("{name}: not in the baseline, because its output is wrong"));
            let said = format!("`{label}` is wrong: {why}");
            wrong.extend((!wrong.contains(&said)).then_some(said));
            continue;
        }
        // A case without a headline has no times from its engine. Its other metrics are kept as they are.
        let headline = metric::headline(plan, workload);
        if let Some((metric, blocks)) = headline.and_then(|metric| Some((metric, medians(case, metric)?))) {
            steady(&name, metric, &blocks).map_err(|why| more_blocks(why, &plan.extent, blocks.len()))?;
            rows.insert(case.configuration);
        }
    }
    match rows.is_empty() {
        true if !wrong.is_empty() => Err(Refused(format!("{}; nothing else was measured", wrong.join("; ")))),
        true => Err(Refused("the run has no measured case".into())),
        false => Ok(Accepted { rows: rows.into_iter().collect(), left_out }),
    }
}

/// `levels` are the logarithms of the blocks' medians.
fn steady(name: &str, metric: &Metric, levels: &[f64]) -> Result<(), String> {
    let apart = |pair: &[f64]| (pair[0] - pair[1]).abs().exp_m1();
    let nearest = levels.windows(2).min_by(|one, other| apart(one).total_cmp(&apart(other)));
    let Some(nearest) = nearest else {
        return Err(format!("{name} has one block; a baseline needs two successive blocks that agree"));
    };
    if apart(nearest) <= AGREEMENT {
        return Ok(());
    }
    let [one, other] = [nearest[0], nearest[1]].map(|level| metric.unit.show(level.exp()));
    let (percent, most) = (100.0 * apart(nearest), 100.0 * AGREEMENT);
    let (count, headline) = (levels.len(), metric.title);
    Err(format!(
        "{name}: no two successive blocks of {count} agree in {headline}; the closest are {one} and {other}, \
         {percent:.0} % apart (limit {most:.0} %)"
    ))
}

/// The refusal with a remedy: more blocks than the run had.
fn more_blocks(why: String, extent: &Extent, were: usize) -> Refused {
    let more = INTERIM_ANALYSES.into_iter().find(|look| *look > were).unwrap_or(2 * were);
    let budget = if extent.budget_ns.is_some() { " and a larger --budget" } else { "" };
    Refused(format!("{why}\nhint: --blocks {more}{budget}"))
}

#[cfg(test)]
mod tests;
