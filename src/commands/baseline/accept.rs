//! The decision whether a run may become a baseline. This file does no I/O.

use std::collections::BTreeSet;
use std::fmt;

use crate::analysis::agreement::Agreement;
use crate::analysis::metric::{self, Metric};
use crate::analysis::values::Measured;
use crate::plan::scenario::Kind;
use crate::plan::{Case, Extent};
use crate::record::{End, RunRecord};
use crate::shell::this_command_without;
use stats::{INTERIM_ANALYSES, levels};

/// The largest relative difference between the medians of two blocks that agree.
const MAX_DIFFERENCE: f64 = 0.10;

/// The parts of a run that become the baseline.
#[derive(Debug, PartialEq)]
pub struct Accepted {
    /// The configurations with a measured, correct case.
    pub rows: Vec<usize>,
    /// Cases that are not in the baseline, each with its reason.
    pub left_out: Vec<String>,
}

/// The reason why a run cannot become a baseline. The record of the run stays.
#[derive(Debug, PartialEq)]
pub struct NotABaseline(String);

impl fmt::Display for NotABaseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotABaseline {}

/// A run becomes a baseline if it ended by itself, and if two successive blocks agree in every case that the baseline will have:
/// their medians of the headline metric lie within 10 % of each other.
///
/// If the machine changed its speed while a baseline was measured, every later comparison is wrong in the same direction. One
/// block cannot tell a slow engine from a slow moment. The bound is loose: launches on a quiet machine differ by a
/// few per cent, and a machine changes its speed in larger steps.
pub fn accept(record: &RunRecord) -> Result<Accepted, NotABaseline> {
    if record.end != Some(End::Finished) {
        let end = if record.end.is_some() { "was interrupted" } else { "did not end" };
        return Err(NotABaseline(format!("the run {end}, so its baseline would be incomplete")));
    }
    let plan = &record.header.plan;
    let measured = Measured::of(record);
    let levels_of = |case: &Case, metric: &Metric| -> Option<Vec<f64>> {
        let workload = measured.workloads.iter().position(|it| it.label == case.workload.label)?;
        Some(levels(measured.blocks(workload, metric.index()?, case.configuration)?))
    };
    let agreements = Agreement::of(record);
    let (mut rows, mut left_out, mut wrong) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
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
        // An engine with wrong output computed something else, so its speed is not comparable.
        if agreement.is_wrong() {
            left_out.push(format!("{name}: not in the baseline, because its output is wrong"));
            let why = agreement.reasons.first().map_or("", String::as_str);
            wrong.insert(format!("the output of `{label}` is wrong: {why}"));
            continue;
        }
        // A case without values of its headline metric is not tested, and alone does not bring its row into the baseline.
        let headline = metric::headline(plan, workload);
        if let Some((metric, levels)) = headline.and_then(|metric| Some((metric, levels_of(case, metric)?))) {
            // A score has no noise, so its one block is enough.
            if workload.kind != Kind::Score {
                check_steady(&name, metric, &levels)
                    .map_err(|why| suggest_more_blocks(why, &plan.extent, levels.len()))?;
            }
            rows.insert(case.configuration);
        }
    }
    let wrong = wrong.into_iter().collect::<Vec<_>>().join("; ");
    match rows.is_empty() {
        true if !wrong.is_empty() => Err(NotABaseline(format!("{wrong}; nothing else was measured"))),
        true => Err(NotABaseline("the run has no measured case".into())),
        false => Ok(Accepted { rows: rows.into_iter().collect(), left_out }),
    }
}

/// Refuses a case without two successive blocks that agree. `levels` are the logarithms of the blocks' medians.
fn check_steady(name: &str, metric: &Metric, levels: &[f64]) -> Result<(), String> {
    let difference = |pair: &[f64]| (pair[0] - pair[1]).abs().exp_m1();
    let closest = levels.windows(2).min_by(|a, b| difference(a).total_cmp(&difference(b)));
    let Some(closest) = closest else {
        return Err(format!("{name} has one block; a baseline needs two successive blocks that agree"));
    };
    if difference(closest) <= MAX_DIFFERENCE {
        return Ok(());
    }
    let [first, second] = [closest[0], closest[1]].map(|level| metric.unit.show(level.exp()));
    let (percent, allowed) = (100.0 * difference(closest), 100.0 * MAX_DIFFERENCE);
    let (count, headline) = (levels.len(), metric.title);
    Err(format!(
        "{name}: no two successive blocks of {count} agree in {headline}; the closest are {first} and {second}, \
         {percent:.0} % apart (at most {allowed:.0} % is allowed)"
    ))
}

/// The command line of this process with this number of blocks.
pub fn command_with_blocks(blocks: usize) -> String {
    let instead_of = [("--quick", false), ("--blocks", true), ("--interval", true), ("--target", true)];
    this_command_without(&instead_of, &["--blocks", &blocks.to_string()])
}

/// The refusal, with the hint to measure more blocks than this run.
fn suggest_more_blocks(why: String, extent: &Extent, measured_blocks: usize) -> NotABaseline {
    let more =
        INTERIM_ANALYSES.into_iter().find(|blocks| *blocks > measured_blocks).unwrap_or(2 * measured_blocks);
    let budget = if extent.set_budget().is_some() { " # and a larger --budget" } else { "" };
    NotABaseline(format!("{why}\nhint: {}{budget}", command_with_blocks(more)))
}

#[cfg(test)]
mod tests {
    use protocol::{Iteration, Sequence};

    use super::*;
    use crate::analysis::agreement::specimen;
    use crate::plan::{Configuration, Prompt, Role, Workload};
    use crate::record::{Entry, Failure, Launch, RequestKind, Sample};

    fn workload() -> Workload {
        Workload {
            scenario: "decode".into(),
            label: "decode".into(),
            kind: Kind::Warm,
            headline: crate::plan::MetricId::DECODE_RATE,
            prompt: Prompt::Tokens(32),
            shortened_from: None,
            max_new_tokens: 3,
            shape: Default::default(),
            ignore_eos: true,
            sampling: None,
            warmup: None,
            rounds: 3,
            scored_text: None,
        }
    }

    /// A record of engines with one case each. The numbers are the ns between tokens in each block.
    fn record(engines: &[(&str, &[u64])]) -> RunRecord {
        let mut record = RunRecord::default();
        for (configuration, (name, blocks)) in engines.iter().enumerate() {
            let plan = &mut record.header.plan;
            plan.configurations.push(Configuration { label: name.to_string(), ..Configuration::default() });
            plan.cases.push(Case { configuration, workload: workload() });
            for (block, &ns) in (0..).zip(*blocks) {
                let launch = record.launches.len() as u32;
                record.take(Entry::Launch(Box::new(Launch {
                    launch,
                    configuration,
                    block,
                    ..Launch::default()
                })));
                // The median of the rounds counts, not the disturbed round.
                for (index, ns) in [ns, 40 * ns, ns].into_iter().enumerate() {
                    record.take(Entry::Sample(Box::new(sample(launch, configuration, index as u32, ns))));
                }
            }
        }
        record.take(Entry::End(End::Finished.into()));
        record
    }

    fn sample(launch: u32, case: usize, index: u32, ns: u64) -> Sample {
        let token_ns = Some(vec![100, 100 + ns, 100 + 2 * ns]);
        let sequences = vec![Sequence { token_ns, output_ids: Some(vec![1; 3]), ..Sequence::default() }];
        let iteration = Iteration { start_ns: 0, end_ns: 200 + 2 * ns, sequences };
        Sample { launch, case, index, iteration, ..Sample::default() }
    }

    fn refusal(record: &RunRecord) -> String {
        accept(record).unwrap_err().to_string()
    }

    #[test]
    fn a_run_is_accepted_if_two_successive_blocks_agree_in_every_case() {
        let accepted = accept(&record(&[("a", &[1000, 1090]), ("b", &[900, 2000, 2100])])).unwrap();
        assert_eq!(accepted, Accepted { rows: vec![0, 1], left_out: vec![] });
    }

    #[test]
    fn a_run_without_two_successive_agreeing_blocks_is_refused_with_values_and_hint() {
        let refused = refusal(&record(&[("a", &[1000, 1000]), ("b", &[1000, 2000, 1000])]));
        assert!(
            refused.starts_with("`b` `decode`: no two successive blocks of 3 agree in decode"),
            "{refused}"
        );
        assert!(refused.contains("1,000,000 tok/s and 500,000 tok/s, 100 % apart"), "{refused}");
        assert!(refused.contains("\nhint: orchestrate ") && refused.contains(" --blocks 5"), "{refused}");
    }

    #[test]
    fn blocks_agree_at_nine_per_cent_and_disagree_at_eleven() {
        for (first, second) in [(1000, 1090), (1090, 1000)] {
            assert!(accept(&record(&[("a", &[first, second])])).is_ok());
        }
        assert!(refusal(&record(&[("a", &[1000, 1110])])).contains("11 % apart"));
        assert!(refusal(&record(&[("a", &[1110, 1000])])).contains("11 % apart"));
    }

    #[test]
    fn a_run_of_one_block_is_refused_as_a_baseline() {
        assert!(refusal(&record(&[("a", &[1000])])).contains("has one block"));
    }

    #[test]
    fn interrupted_and_killed_runs_are_refused_as_baselines() {
        let mut record = record(&[("a", &[1000, 1000])]);
        record.end = Some(End::Interrupted);
        assert!(refusal(&record).contains("was interrupted"));
        record.end = None;
        assert!(refusal(&record).contains("did not end"));
    }

    #[test]
    fn failed_cases_are_left_out_and_a_run_without_others_is_refused() {
        let mut record = record(&[("a", &[1000, 1000]), ("b", &[1000, 9000])]);
        let failure = |configuration, case| Failure {
            configuration,
            case,
            kind: crate::record::FailureKind::Exited,
            ..Failure::default()
        };
        record.take(Entry::Failure(failure(1, Some(1))));
        let accepted = accept(&record).unwrap();
        assert_eq!((accepted.rows, accepted.left_out.len()), (vec![0], 1));
        assert!(accepted.left_out[0].contains("`b` `decode`"));
        record.take(Entry::Failure(failure(0, None)));
        assert!(refusal(&record).contains("no measured case"));
    }

    #[test]
    fn twins_and_warm_up_requests_do_not_affect_acceptance() {
        let mut record = record(&[("a", &[1000, 1000]), ("a (twin)", &[1000, 9000])]);
        record.header.plan.configurations[1].role = Some(Role::Twin { of: 0 });
        for at in 0..20 {
            record.samples.insert(0, Sample { kind: RequestKind::Warmup, ..sample(1, 0, at, 50_000) });
            record.samples.insert(0, Sample { kind: RequestKind::Discarded, ..sample(1, 0, at, 50_000) });
        }
        assert_eq!(accept(&record).unwrap().rows, [0]);
    }

    #[test]
    fn a_case_with_wrong_output_is_left_out_of_the_baseline() {
        let mut record = specimen::checked();
        assert_eq!(accept(&record).unwrap().rows, [specimen::VERIFIER, specimen::ENGINE]);
        specimen::set_scores(&mut record, specimen::ENGINE, |_| Some(2.3));
        let accepted = accept(&record).unwrap();
        assert_eq!(accepted.rows, [specimen::VERIFIER]);
        assert_eq!(
            accepted.left_out,
            ["`beacon` `decode`: not in the baseline, because its output is wrong"]
        );
        record.header.plan.cases.iter_mut().for_each(|it| it.configuration = specimen::ENGINE);
        let refused = refusal(&record);
        assert!(refused.starts_with("the output of `beacon` is wrong: its log-probabilities"), "{refused}");
        assert!(refused.ends_with("; nothing else was measured"), "{refused}");
    }
}
