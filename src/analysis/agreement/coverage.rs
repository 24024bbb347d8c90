//! The missing parts of an output check. An engine could be correct only in the requests of the check, and wrong in the
//! measured requests. So the verifier must have checked some tokens of every workload. It must also have checked the longest
//! window of held-out text, because some errors grow with the position.

use super::status::Agreement;
use super::tokens::greedy_samples;
use super::tokens_alone::can_score;
use super::verifier::Verifier;
use crate::plan::Case;
use crate::record::{NotChecked, RunRecord};
use crate::shell::{HINT, quoted_command};
use crate::text::{line, with_commas};

/// The missing parts, as sentences about `it`, the engine: first of the workloads, then of the longest window. Empty if the check
/// is complete.
pub fn missing(
    record: &RunRecord,
    configuration: usize,
    verifier: &Verifier,
    agreement: &Agreement,
) -> Vec<String> {
    // No other engine checks the verifier's tokens.
    if verifier.configuration == Some(configuration) {
        return Vec::new();
    }
    let mut missing = unchecked_workloads(record, configuration, verifier, agreement);
    if !can_score(record, configuration) {
        return missing;
    }
    for why in unscored_window(record, configuration, verifier, agreement) {
        if !missing.contains(&why) {
            missing.push(why);
        }
    }
    missing
}

/// The recorded reasons why a configuration, or every configuration on its model, has no output check.
pub fn not_checked(record: &RunRecord, configuration: usize) -> Vec<String> {
    let for_all = reasons(record, |it| concerns_all(record, configuration, it));
    [reasons(record, |it| it.configuration == Some(configuration)), for_all].concat()
}

fn concerns_all(record: &RunRecord, configuration: usize, it: &NotChecked) -> bool {
    let model = &record.header.plan.configurations[configuration].model.path;
    it.configuration.is_none() && it.model.as_ref().is_none_or(|path| path == model)
}

fn reasons(record: &RunRecord, is_wanted: impl Fn(&NotChecked) -> bool) -> Vec<String> {
    let sentence = |it: &NotChecked| match &it.hint {
        Some(hint) => format!("{}{HINT}{}", line(&it.reason), quoted_command(&line(hint))),
        None => line(&it.reason),
    };
    record.not_checked.iter().filter(|it| is_wanted(it)).map(sentence).collect()
}

/// Sentences on the workloads whose tokens were not checked.
fn unchecked_workloads(
    record: &RunRecord,
    configuration: usize,
    verifier: &Verifier,
    agreement: &Agreement,
) -> Vec<String> {
    let plan = &record.header.plan;
    let is_equal =
        |case: usize| agreement.greedy.as_ref().is_some_and(|greedy| greedy.equal_cases.contains(&case));
    let has_checked_tokens = |case: usize| agreement.gaps.as_ref().is_some_and(|gaps| gaps.is_about(case));
    let measured = |case: usize| record.measured().any(|it| it.case == case);
    let gives_text = |case: usize| {
        let mut samples = greedy_samples(record, configuration).filter(|it| it.case == case);
        samples.any(|it| it.iteration.sequences.iter().any(|sequence| sequence.chunks.is_some()))
    };
    let takes_ids = record
        .launches_of(configuration)
        .any(|launch| launch.hello.as_ref().is_some_and(|hello| hello.capabilities.prompt_ids));
    let mut missing: Vec<String> = Vec::new();
    let mut unchecked: Vec<String> = Vec::new();
    let (mut has_sample, mut is_any_checked) = (false, false);
    for (index, case) in plan.cases.iter().enumerate() {
        if case.configuration != configuration || !measured(index) {
            continue;
        }
        has_sample = true;
        // A query has no output. Scores have no tokens; the output check compares the log-probabilities of other text.
        if !case.workload.kind.generates() {
            continue;
        }
        let why = match case {
            Case { workload, .. } if !workload.is_greedy() => "sampled tokens are not compared",
            _ if is_equal(index) || has_checked_tokens(index) => {
                is_any_checked = true;
                continue;
            }
            _ if !takes_ids && !gives_text(index) => {
                "takes text, so its prompt ids may differ from the verifier's"
            }
            Case { workload, .. } => {
                unchecked.push(format!("`{}`", line(&workload.label)));
                continue;
            }
        };
        if !missing.iter().any(|it| it == why) {
            missing.push(why.into());
        }
    }
    if !has_sample {
        return vec!["it has no measured sample".into()];
    }
    if unchecked.is_empty() {
        return missing;
    }
    let for_all = reasons(record, |it| concerns_all(record, configuration, it));
    if verifier.configuration.is_some() {
        let what = match is_any_checked || unchecked.len() == 1 {
            true => format!("the tokens in {} were not checked", unchecked.join(", ")),
            false => "its tokens were not checked".to_string(),
        };
        // A recorded reason counts the samples of all engines, so only its cause is repeated.
        const BEFORE_CAUSE: &str = " were not checked: ";
        if let [cause] = &for_all[..] {
            let cause = cause.split_once(BEFORE_CAUSE).map_or(cause.as_str(), |(_, cause)| cause);
            missing.push(format!("{what}: {cause}"));
            return missing;
        }
        missing.push(what);
    } else if for_all.is_empty() {
        missing.push("the measured tokens were not checked: no verifier ran".into());
    }
    [missing, for_all].concat()
}

/// Sentences on the longest window of held-out text, if it was not compared.
fn unscored_window(
    record: &RunRecord,
    configuration: usize,
    verifier: &Verifier,
    agreement: &Agreement,
) -> Vec<String> {
    let model = &record.header.plan.configurations[configuration].model.path;
    let held_out = record.held_out.iter().find(|it| it.model == *model);
    let windows = held_out.into_iter().flat_map(|it| it.sequences.iter().map(Vec::len).enumerate());
    let Some((sequence, length)) = windows.max_by_key(|(_, length)| *length) else { return Vec::new() };
    let is_scored =
        record.scored.iter().any(|it| (it.configuration, it.sequence) == (configuration, sequence));
    if !is_scored {
        let recorded = reasons(record, |it| it.configuration == Some(configuration));
        let default_reason = || match &agreement.scores {
            Some(scores) => format!(
                "its log-probabilities were compared on {} tokens, but not on the {} of the longest held-out text",
                with_commas(scores.tokens),
                with_commas(length)
            ),
            None if agreement.greedy.is_none() => {
                "it gave neither log-probabilities nor ids to compare".into()
            }
            None => "it gave no log-probabilities to compare".into(),
        };
        return if recorded.is_empty() { vec![default_reason()] } else { recorded };
    }
    match verifier.logprobs(sequence) {
        Some(_) => Vec::new(),
        None => {
            let of_verifier = reasons(record, |it| {
                verifier.configuration.is_some() && it.configuration == verifier.configuration
            });
            let why = of_verifier.first().map_or_else(String::new, |why| format!(": {why}"));
            vec![format!(
                "the verifier did not score the held-out text of {} tokens{why}",
                with_commas(length)
            )]
        }
    }
}
