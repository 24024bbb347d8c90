//! The missing parts of an output check. An engine could behave well only while it is checked, and the measured requests are
//! others. So the verifier must have checked some tokens of every workload, and the longest window of held-out text, where
//! errors that grow with the position show.

use super::status::Agreement;
use super::tokens::greedy_samples;
use super::verifier::Verifier;
use crate::plan::Case;
use crate::record::{NotChecked, RunRecord};
use crate::text::{line, with_commas};

/// The missing parts, in sentences about `it`, most severe first; empty where the check is complete.
pub fn missing(
    record: &RunRecord,
    configuration: usize,
    verifier: &Verifier,
    found: &Agreement,
) -> Vec<String> {
    // Nothing checks the verifier.
    if verifier.configuration == Some(configuration) {
        return Vec::new();
    }
    let mut missing = tokens(record, configuration, verifier, found);
    for why in window(record, configuration, verifier, found) {
        if !missing.contains(&why) {
            missing.push(why);
        }
    }
    missing
}

/// The reasons why it, or every configuration on its model, has no output check.
pub fn not_checked(record: &RunRecord, configuration: usize) -> Vec<String> {
    let of_all = reasons(record, |it| concerns_all(record, configuration, it));
    [reasons(record, |it| it.configuration == Some(configuration)), of_all].concat()
}

fn concerns_all(record: &RunRecord, configuration: usize, it: &NotChecked) -> bool {
    let model = &record.header.plan.configurations[configuration].model.path;
    it.configuration.is_none() && it.model.as_ref().is_none_or(|of| of == model)
}

fn reasons(record: &RunRecord, of: impl Fn(&NotChecked) -> bool) -> Vec<String> {
    let words = |it: &NotChecked| match &it.hint {
        Some(hint) => format!("{} (hint: {})", line(&it.reason), line(hint)),
        None => line(&it.reason),
    };
    record.not_checked.iter().filter(|it| of(it)).map(words).collect()
}

/// The workloads whose tokens were not checked.
fn tokens(record: &RunRecord, configuration: usize, verifier: &Verifier, found: &Agreement) -> Vec<String> {
    let plan = &record.header.plan;
    let compared = |case: usize| found.greedy.as_ref().is_some_and(|greedy| greedy.cases.contains(&case));
    let checked = |case: usize| found.gaps.as_ref().is_some_and(|gaps| gaps.is_about(case));
    let measured = |case: usize| record.measured().any(|it| it.case == case);
    let gives_ids = |case: usize| {
        let mut samples = greedy_samples(record, configuration).filter(|it| it.case == case);
        samples.any(|it| it.iteration.sequences.iter().any(|sequence| sequence.output_ids.is_some()))
    };
    let takes_ids = record
        .launches_of(configuration)
        .any(|launch| launch.hello.as_ref().is_some_and(|hello| hello.capabilities.prompt_ids));
    let mut missing: Vec<String> = Vec::new();
    let mut unchecked: Vec<String> = Vec::new();
    let mut any = false;
    for (index, case) in plan.cases.iter().enumerate() {
        if case.configuration != configuration || !measured(index) {
            continue;
        }
        any = true;
        let why = match case {
            Case { workload, .. } if !workload.is_greedy() => "sampled tokens are not compared",
            _ if !gives_ids(index) => "gives text, not ids",
            _ if compared(index) || checked(index) => continue,
            _ if !takes_ids => "takes text, so its prompt ids may differ from the verifier's",
            Case { workload, .. } => {
                unchecked.push(format!("`{}`", line(&workload.label)));
                continue;
            }
        };
        if !missing.iter().any(|it| it == why) {
            missing.push(why.into());
        }
    }
    if !any {
        return vec!["it has no measured sample".into()];
    }
    if unchecked.is_empty() {
        return missing;
    }
    let of_all = reasons(record, |it| concerns_all(record, configuration, it));
    if verifier.configuration.is_some() {
        missing.push(format!("its tokens in {} were not checked", unchecked.join(", ")));
    } else if of_all.is_empty() {
        missing.push("its measured tokens were not checked: no verifier ran".into());
    }
    [missing, of_all].concat()
}

/// The longest window, where it was not compared.
fn window(record: &RunRecord, configuration: usize, verifier: &Verifier, found: &Agreement) -> Vec<String> {
    let model = &record.header.plan.configurations[configuration].model.path;
    let held_out = record.held_out.iter().find(|it| it.model == *model);
    let windows = held_out.into_iter().flat_map(|it| it.sequences.iter().map(Vec::len).enumerate());
    let Some((sequence, length)) = windows.max_by_key(|(_, length)| *length) else { return Vec::new() };
    let scored = record.scored.iter().any(|it| (it.configuration, it.sequence) == (configuration, sequence));
    if !scored {
        let own = reasons(record, |it| it.configuration == Some(configuration));
        let in_general = || match &found.scores {
            Some(scores) => format!(
                "its log-probabilities were compared on {} tokens, but not on the {} of the longest window",
                with_commas(scores.tokens),
                with_commas(length)
            ),
            None if found.greedy.is_none() => "it gave neither log-probabilities nor ids to compare".into(),
            None => "it gave no log-probabilities to compare".into(),
        };
        return if own.is_empty() { vec![in_general()] } else { own };
    }
    match verifier.logprobs(sequence) {
        Some(_) => Vec::new(),
        None => vec![format!("the verifier did not score the window of {} tokens", with_commas(length))],
    }
}
