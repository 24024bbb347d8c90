//! The time that the check of the measured tokens probably takes, from the times of the verifier. A run reserves this time, and a
//! dry run counts it.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::plan::scenario::Kind;
use crate::plan::{Configuration, Plan, Role, Workload};
use crate::record::RunRecord;

/// The samples of each workload that are checked beside the last one of each block: some of other blocks, and those with a
/// dependent prompt.
const MORE_SAMPLES: u32 = 8;

/// The times of a verifier on its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifierTimes {
    pub launch: Duration,
    /// To score one token.
    pub token: Duration,
}

impl VerifierTimes {
    /// The times of a configuration in a record. The first text may wait for the disk, so the others count. If the
    /// configuration scored no held-out text, because its answers are stored, the check of measured tokens counts.
    pub fn of(record: &RunRecord, verifier: usize) -> Option<Self> {
        let launches = record.launches.iter().filter(|it| it.configuration == verifier);
        let launch = Duration::from_nanos(launches.filter_map(|it| it.loaded_ns).next_back()?);
        let scored = record.scored.iter().filter(|it| it.configuration == verifier && it.sequence > 0);
        let (ns, tokens) =
            scored.fold((0, 0), |(ns, tokens), it| (ns + it.elapsed_ns, tokens + it.logprobs.len() as u64));
        let of_check = || {
            let blocks = record.launches.iter().map(|it| it.block + 1).max()?;
            let scoring = Duration::from_nanos(record.token_check_ns?).saturating_sub(launch);
            Some((scoring.as_nanos() as u64, checked_tokens(&record.header.plan, verifier, blocks)))
        };
        let (ns, tokens) = if tokens > 0 { (ns, tokens) } else { of_check()? };
        Some(Self { launch, token: Duration::from_nanos(ns.checked_div(tokens)?) })
    }
}

/// The expected time of the check after this number of blocks. `None` if the times of a verifier are unknown.
pub fn token_check_time(
    plan: &Plan,
    blocks: u32,
    times_of: impl Fn(usize) -> Option<VerifierTimes>,
) -> Option<Duration> {
    let verifiers: BTreeSet<usize> =
        plan.configurations.iter().filter_map(|it| plan.verifier_of(&it.model)).collect();
    let mut all = Duration::ZERO;
    for verifier in verifiers {
        let tokens = checked_tokens(plan, verifier, blocks);
        if tokens > 0 {
            let times = times_of(verifier)?;
            all += times.launch + times.token.mul_f64(tokens as f64);
        }
    }
    Some(all)
}

/// The tokens that a verifier scores after this number of blocks. Engines get the same prompts, so one answer serves all of them
/// where the output is one token. The verifier's own measured output serves too.
fn checked_tokens(plan: &Plan, verifier: usize, blocks: u32) -> u64 {
    let is_checked = |it: &Configuration| {
        let is_measured = matches!(it.role, None | Some(Role::Baseline { .. }));
        is_measured && it.unavailable.is_none() && it.model.path == plan.configurations[verifier].model.path
    };
    let mut short_outputs: BTreeSet<&str> = plan
        .cases
        .iter()
        .filter(|case| case.configuration == verifier)
        .map(|case| case.workload.label.as_str())
        .collect();
    let cases = plan.cases.iter().filter(|case| {
        case.configuration != verifier && is_checked(&plan.configurations[case.configuration])
    });
    let mut tokens = 0;
    for workload in cases.map(|case| &case.workload) {
        let has_output = !matches!(workload.kind, Kind::Query | Kind::Score) && workload.is_greedy();
        let is_new = workload.max_new_tokens > 1 || short_outputs.insert(&workload.label);
        if has_output && is_new {
            let samples = workload.rounds.saturating_mul(blocks).min(blocks.saturating_add(MORE_SAMPLES));
            tokens += u64::from(samples) * (prompt_tokens(workload) + u64::from(workload.max_new_tokens));
        }
    }
    tokens
}

fn prompt_tokens(workload: &Workload) -> u64 {
    // A token of text has about four bytes.
    let of_texts = |texts: &[String]| texts.iter().map(|it| it.len() / 4 + 1).max();
    workload.longest_prompt(of_texts).unwrap_or_default() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Case, Prompt};

    /// A plan with a verifier and two engines in one workload, whose requests have 92 prompt tokens and this many new ones.
    fn plan(new_tokens: u32) -> Plan {
        let configuration = |verifies| Configuration { verifies, ..Configuration::default() };
        let workload =
            Workload { max_new_tokens: new_tokens, rounds: 3, ..Workload::specimen(Prompt::Tokens(92)) };
        let case = |configuration| Case { configuration, workload: workload.clone() };
        let mut verifier = configuration(true);
        verifier.role = Some(Role::Verifier);
        Plan {
            configurations: vec![configuration(false), configuration(false), verifier],
            cases: vec![case(0), case(1)],
            ..Plan::default()
        }
    }

    fn seconds(plan: &Plan, blocks: u32) -> Option<u64> {
        let times = VerifierTimes { launch: Duration::from_secs(4), token: Duration::from_millis(10) };
        token_check_time(plan, blocks, |_| Some(times)).map(|it| it.as_secs())
    }

    #[test]
    fn the_check_takes_a_launch_of_the_verifier_and_the_tokens_of_the_checked_samples() {
        // Three samples of each engine, of 100 tokens each.
        assert_eq!(seconds(&plan(8), 1), Some(4 + 6));
        // In five blocks, 13 of 15 samples of each engine are checked.
        assert_eq!(seconds(&plan(8), 5), Some(4 + 26));
        assert_eq!(token_check_time(&plan(8), 1, |_| None), None);
    }

    #[test]
    fn one_answer_about_an_output_of_one_token_serves_all_engines() {
        // Three samples of 93 tokens.
        assert_eq!(seconds(&plan(1), 1), Some(4 + 2));
        let mut measured = plan(1);
        measured.configurations[2].role = None;
        measured.cases.push(Case { configuration: 2, ..measured.cases[0].clone() });
        assert_eq!(seconds(&measured, 1), Some(0), "the verifier's own row has the answers");
        let mut unchecked = plan(8);
        unchecked.configurations[2].verifies = false;
        assert_eq!(seconds(&unchecked, 1), Some(0));
    }
}
