//! Whether a run may become a baseline. Pure.

use std::collections::BTreeSet;
use std::fmt;

use crate::analysis::agreement::Agreement;
use crate::analysis::metric::{self, Metric};
use crate::analysis::values::Measured;
use crate::plan::{Case, Extent};
use crate::record::{End, RunRecord};
use stats::{LOOKS, levels};

/// How far apart two blocks in succession may lie.
const AGREEMENT: f64 = 0.10;

/// What of a run becomes the baseline.
#[derive(Debug, PartialEq)]
pub struct Accepted {
    /// Configurations with a case that was measured.
    pub rows: Vec<usize>,
    /// Cases that are not in it, each with its reason.
    pub left_out: Vec<String>,
}

/// Why a run is no baseline. The run itself stays recorded.
#[derive(Debug, PartialEq)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// A run becomes a baseline when it ended by itself and when, in every case, two blocks in succession agree: their medians of
/// the metric that engines are compared by lie within 10 % of each other.
///
/// A baseline is measured once and believed often. One that was measured while the machine changed its speed (its clock was
/// lowered, a neighbour came) makes every later comparison wrong, in the same direction, and nothing in those later runs
/// shows it: they may be as steady as can be. One block cannot tell a slow engine from a slow moment, so there must be two,
/// each with launches of its own; and where no two successive ones agree there was no speed that the machine held for as
/// long as two blocks take. The bound is loose, for it is no claim about precision: that is the business of the interval,
/// which has all blocks in it, also those that did not agree. It lies well above what launches differ by on a machine at
/// rest (a few per cent) and well below the steps in which machines change their speed (a matrix unit at 1, 0.44 or 0.25 of
/// it), and it is the least class of change that is worth a warning.
///
/// What is wrong is left out as what failed is: how fast something else is computed is no measure for anything.
pub fn accept(record: &RunRecord) -> Result<Accepted, Refused> {
    if record.end != Some(End::Finished) {
        let what = if record.end.is_some() { "was interrupted" } else { "did not end" };
        return Err(Refused(format!("the run {what}: what it has not measured would be missing for ever")));
    }
    let plan = &record.header.plan;
    let measured = Measured::of(record);
    let medians = |case: &Case, metric: &Metric| -> Option<Vec<f64>> {
        let workload = measured.workloads.iter().position(|it| it.label == case.workload.label)?;
        Some(levels(measured.blocks(workload, metric.place()?, case.configuration)?))
    };
    let agreements = Agreement::of(record);
    let (mut rows, mut left_out, mut wrong) = (BTreeSet::new(), Vec::new(), Vec::new());
    for (index, case) in plan.cases.iter().enumerate() {
        let configuration = &plan.configurations[case.configuration];
        if configuration.beside.is_some() {
            continue;
        }
        let (label, workload) = (&configuration.label, &case.workload);
        let name = format!("`{label}` `{}`", workload.label);
        if record.has_failed(index) {
            left_out.push(format!("{name}: not in the baseline, for it failed"));
            continue;
        }
        let agreement = &agreements[case.configuration];
        if agreement.is_wrong() {
            let why = agreement.reasons.first().map_or("", String::as_str);
            left_out.push(format!("{name}: not in the baseline, for its output is wrong"));
            let said = format!("`{label}` is wrong: {why}");
            wrong.extend((!wrong.contains(&said)).then_some(said));
            continue;
        }
        // A case without a headline is one that its engine gives no times for; the other metrics of it are kept as they are.
        let headline = metric::headline(plan, workload);
        if let Some((metric, blocks)) = headline.and_then(|metric| Some((metric, medians(case, metric)?))) {
            steady(&name, metric, &blocks).map_err(|why| more_blocks(why, &plan.extent, blocks.len()))?;
            rows.insert(case.configuration);
        }
    }
    match rows.is_empty() {
        true if !wrong.is_empty() => Err(Refused(format!("{}; nothing else was measured", wrong.join("; ")))),
        true => Err(Refused("nothing was measured that a baseline could hold".into())),
        false => Ok(Accepted { rows: rows.into_iter().collect(), left_out }),
    }
}

/// `levels` are the logarithms of the blocks' medians.
fn steady(name: &str, metric: &Metric, levels: &[f64]) -> Result<(), String> {
    let apart = |pair: &[f64]| (pair[0] - pair[1]).abs().exp_m1();
    let nearest = levels.windows(2).min_by(|one, other| apart(one).total_cmp(&apart(other)));
    let Some(nearest) = nearest else {
        return Err(format!(
            "{name} has one block: that the machine held its speed can only be seen by two that agree"
        ));
    };
    if apart(nearest) <= AGREEMENT {
        return Ok(());
    }
    let [one, other] = [nearest[0], nearest[1]].map(|level| metric.unit.show(level.exp()));
    let (percent, most) = (100.0 * apart(nearest), 100.0 * AGREEMENT);
    let (count, headline) = (levels.len(), metric.title);
    Err(format!(
        "{name}: no two of {count} blocks in succession agree in {headline}; the nearest are {one} and {other}, \
         {percent:.0} % apart, and {most:.0} % is the most"
    ))
}

/// What may help: more of them than there were.
fn more_blocks(why: String, extent: &Extent, were: usize) -> Refused {
    let more = LOOKS.into_iter().find(|look| *look > were).unwrap_or(2 * were);
    let budget = if extent.budget_ns.is_some() { ", a larger --budget" } else { "" };
    Refused(format!("{why}\nhint: --blocks {more}{budget}, with nothing else running on the machine"))
}

#[cfg(test)]
mod tests;
