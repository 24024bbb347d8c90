//! The next measurement after a result that is not clear: the option that gives it enough blocks, and the whole command.

use super::run_report::Report;
use crate::plan::budget;
use crate::shell::{HINT, PROGRAM, command_with};
use stats::{Comparison, INTERIM_ANALYSES, MIN_VERDICT_BLOCKS, StoppedBy};

/// The option of a further run with more blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum More {
    Blocks(usize),
    /// As `--budget` takes it.
    Budget(String),
}

impl More {
    pub fn text(&self) -> String {
        match self {
            Self::Blocks(blocks) => format!("--blocks {blocks}"),
            Self::Budget(budget) => format!("--budget {budget}"),
        }
    }

    pub fn hint(&self) -> String {
        format!("measure again with `{}`", self.text())
    }

    /// Of two options, the larger one is enough for both. A budget counts as larger than any number of blocks, because the budget
    /// ended the run.
    pub fn largest(all: impl Iterator<Item = Self>) -> Option<Self> {
        all.max_by_key(|it| match it {
            Self::Blocks(blocks) => (0, *blocks as u64),
            Self::Budget(budget) => {
                let (number, unit) = budget.split_at(budget.len() - budget.len().min(1));
                let seconds = if unit == "m" { 60 } else { 1 };
                (1, number.parse().map_or(0, |number: u64| number * seconds))
            }
        })
    }
}

/// The option that gives a comparison this many blocks. If the budget ended the measurement, it is a larger budget, except beyond
/// the last interim analysis, which ends a run without `--blocks`.
pub fn option_for(report: &Report, comparison: &Comparison, blocks: usize) -> More {
    let last_analysis = INTERIM_ANALYSES.into_iter().max().unwrap_or(0);
    // In an interrupted run, comparisons count as stopped by time, but no workload does: a larger budget would not help.
    let budget_ended = report.workloads.iter().any(|it| it.stopped_by == Some(StoppedBy::Time));
    let ended = budget_ended && comparison.stopped_by == StoppedBy::Time && blocks <= last_analysis;
    match report.budget_ns.filter(|_| ended) {
        Some(budget_ns) => {
            // The warnings of the report name this budget.
            let known = report.sufficient_budget.clone().filter(|_| blocks <= MIN_VERDICT_BLOCKS);
            let estimated = || budget::for_blocks(budget_ns, comparison.blocks, blocks);
            More::Budget(known.unwrap_or_else(estimated))
        }
        None => More::Blocks(blocks),
    }
}

/// The clauses after the number of inconclusive comparisons: the blocks that may decide them, or else a quieter machine, with the
/// command of this step.
pub fn after_inconclusive(report: &Report, inconclusive: &[&Comparison]) -> String {
    let wanted = inconclusive.iter().filter_map(|it| Some((it.obstacle()?.sufficient_blocks()?, *it)));
    let wanted: Vec<(usize, &Comparison)> = wanted.collect();
    let them = match inconclusive.len() {
        1 => "it".to_string(),
        all if wanted.len() == all || wanted.is_empty() => "them".to_string(),
        _ => format!("{} of them", wanted.len()),
    };
    match wanted.iter().max_by_key(|(blocks, _)| blocks) {
        Some((blocks, comparison)) => {
            let command = command_with(&report.command, &option_for(report, comparison, *blocks).text());
            format!("; about {blocks} blocks may decide {them}{HINT}`{command}`")
        }
        None => format!("; a quieter machine may decide {them}{HINT}`{PROGRAM} machine`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::CalibratedFloor;
    use crate::record::specimen::{BEACON, InventedEngine, ORIGINAL, measured};
    use crate::report::tests::{decoding, verified_report};
    use stats::NoiseFloor;

    /// The clauses after one inconclusive comparison of `beacon` with the reference. `floor`: the calibrated noise floor.
    fn after(engine: InventedEngine, floor: Option<f64>) -> Option<String> {
        let mut record = measured(&decoding(&["patient-original", "beacon"]), &[ORIGINAL, engine]);
        record.header.command = ["/opt/o", "-e", "beacon", "--blocks", "5"].map(String::from).to_vec();
        record.header.noise_floors.extend(floor.map(|floor| CalibratedFloor {
            configuration: 1,
            workload: "decode".into(),
            metric: crate::plan::MetricId::DECODE_RATE,
            paired: NoiseFloor::of(&[floor; 20]).unwrap(),
            between: None,
            since: "2026-01-01T00:00:00Z".into(),
        }));
        let report = verified_report(&record);
        let mut pairs = report.verdicts.against_reference.iter().filter(|it| it.is_headline);
        let comparison = pairs.next()?.comparison()?;
        comparison.obstacle().map(|_| after_inconclusive(&report, &[comparison]))
    }

    #[test]
    fn only_blocks_that_may_decide_a_comparison_are_proposed() {
        let noisy = |own_noise| InventedEngine { name: "beacon", own_noise, ..ORIGINAL };
        let texts: Vec<String> =
            [0.04, 0.06, 0.08].into_iter().filter_map(|it| after(noisy(it), None)).collect();
        let proposed = |text: &String| {
            let blocks = text.strip_prefix("; about ")?.split(' ').next()?.parse::<usize>().ok()?;
            Some((blocks, format!("; hint: `orchestrate -e beacon --blocks {blocks}`")))
        };
        let (blocks, hint) = texts.iter().find_map(proposed).unwrap_or_else(|| panic!("{texts:?}"));
        assert!(blocks > 5 && texts.iter().any(|it| it.ends_with(&hint)), "{texts:?}");
        // No number of blocks exceeds this noise floor.
        let quieter = "; a quieter machine may decide it; hint: `orchestrate machine`";
        assert_eq!(after(BEACON, Some(3.0)).as_deref(), Some(quieter));
    }
}
