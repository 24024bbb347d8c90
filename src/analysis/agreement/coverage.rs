//! The missing parts of an output check. An engine could be correct only in the requests of the check, and wrong in the
//! measured requests. So the verifier must have checked some tokens of every workload. It must also have checked the longest
//! window of held-out text, because some errors grow with the position.

use std::collections::BTreeSet;

use super::status::{Agreement, FEATURES};
use super::tokens::greedy_samples;
use super::tokens_alone::can_score;
use super::verifier::Verifier;
use crate::plan::{Case, Mode};
use crate::record::{NotChecked, RunRecord};
use crate::shell::{HINT, quoted_command};
use crate::text::{line, with_commas};
use protocol::{Capabilities, HelloFacts};

/// The option that makes an engine give its likeliest tokens, which the verifier can check.
pub const GREEDY_OPTION: &str = "--temperature 0";

/// A missing part of an output check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// A sentence about `it`, the engine.
    pub why: String,
    /// Whether the engine is the cause: it lacks a feature, or it failed in the check.
    pub is_of_engine: bool,
}

/// The missing parts: first of the workloads, then of the longest window. Empty if the check is complete.
pub fn missing(
    record: &RunRecord,
    configuration: usize,
    verifier: &Verifier,
    agreement: &Agreement,
) -> Vec<Missing> {
    // No other engine checks the verifier's tokens.
    if verifier.configuration == Some(configuration) {
        return Vec::new();
    }
    let mut missing = unchecked_workloads(record, configuration, verifier, agreement);
    if !can_score(record, configuration) {
        return missing;
    }
    for it in unscored_window(record, configuration, verifier, agreement) {
        if missing.iter().all(|other| other.why != it.why) {
            missing.push(it);
        }
    }
    missing
}

/// The features that this engine lacks and that let a verifier check it.
pub fn lacking_features(record: &RunRecord, configuration: usize) -> Vec<&'static str> {
    let hello = record.hello_of(configuration);
    // An engine without `hello` has neither.
    let has = |feature: fn(&Capabilities) -> bool| hello.is_some_and(|hello| feature(&hello.capabilities));
    let all = FEATURES.into_iter().zip([has(|it| it.score), has(|it| it.prompt_ids)]);
    all.filter(|(_, has)| !has).map(|(name, _)| name).collect()
}

/// The reason why the verifier gave no answers, with its cause and a hint. `None` if no other configuration is the verifier.
pub fn why_no_answers(record: &RunRecord, configuration: usize, why: &str) -> Option<String> {
    let plan = &record.header.plan;
    let model = &plan.configurations[configuration].model;
    let was_checked = record.held_out.iter().any(|it| it.model == model.path);
    let verifier = plan.verifier_of(model).filter(|it| *it != configuration && was_checked)?;
    if why.contains(HINT) {
        return Some(why.into());
    }
    let label = format!("{}: ", line(&plan.configurations[verifier].label));
    let without_label = |reason: String| reason.strip_prefix(&label).map(String::from).unwrap_or(reason);
    let failures = record.failures.iter().filter(|it| it.configuration == verifier);
    let failed = failures.map(|it| line(&format!("{} at {}: {}", it.kind, it.when, it.message)));
    let cause = not_checked(record, verifier).into_iter().map(without_label).chain(failed).next();
    let why = cause.map_or_else(|| why.to_string(), |cause| format!("{why}: {cause}"));
    let command = format!("orchestrate check {}", plan.configurations[verifier].engine_argument());
    Some(if why.contains(HINT) { why } else { format!("{why}{HINT}`{command}`") })
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

/// The reasons, each hint only after the first one: one budget may leave several parts of a check no time.
pub fn with_each_hint_once(reasons: Vec<String>) -> Vec<String> {
    let mut hints: BTreeSet<String> = BTreeSet::new();
    let without_known_hint = |reason: String| match reason.split_once(HINT) {
        Some((sentence, hint)) if !hints.insert(hint.into()) => sentence.into(),
        _ => reason,
    };
    reasons.into_iter().map(without_known_hint).collect()
}

/// Sentences on the workloads whose tokens were not checked.
fn unchecked_workloads(
    record: &RunRecord,
    configuration: usize,
    verifier: &Verifier,
    agreement: &Agreement,
) -> Vec<Missing> {
    let plan = &record.header.plan;
    let is_equal =
        |case: usize| agreement.greedy.as_ref().is_some_and(|greedy| greedy.equal_cases.contains(&case));
    let has_checked_tokens = |case: usize| agreement.gaps.as_ref().is_some_and(|gaps| gaps.is_about(case));
    let measured = |case: usize| record.measured().any(|it| it.case == case);
    let gives_text = |case: usize| {
        let mut samples = greedy_samples(record, configuration).filter(|it| it.case == case);
        samples.any(|it| it.iteration.sequences.iter().any(|sequence| sequence.chunks.is_some()))
    };
    let supports_ids = |hello: &HelloFacts| hello.capabilities.prompt_ids;
    let takes_ids =
        record.launches_of(configuration).any(|launch| launch.hello.as_ref().is_some_and(supports_ids));
    // A one-shot process gets no `hello`, so it gets text even if the engine takes ids.
    let lacks_only_hello =
        plan.mode == Mode::OneShot && record.hello_of(configuration).is_some_and(supports_ids);
    let mut missing: Vec<Missing> = Vec::new();
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
        let (why, is_of_engine) = match case {
            Case { workload, .. } if !workload.is_greedy() => {
                (format!("sampled tokens cannot be checked{HINT}`{GREEDY_OPTION}`"), false)
            }
            _ if is_equal(index) || has_checked_tokens(index) => {
                is_any_checked = true;
                continue;
            }
            _ if !takes_ids && !gives_text(index) && lacks_only_hello => {
                let why = "`--mode one-shot` sends text, so the measured tokens cannot be checked";
                (format!("{why}{HINT}leave out `--mode one-shot`"), false)
            }
            _ if !takes_ids && !gives_text(index) => {
                ("takes text, so its prompt ids may differ from the verifier's".into(), true)
            }
            Case { workload, .. } => {
                unchecked.push(format!("`{}`", line(&workload.label)));
                continue;
            }
        };
        if missing.iter().all(|it| it.why != why) {
            missing.push(Missing { why, is_of_engine });
        }
    }
    if !has_sample {
        return vec![Missing { why: "it has no measured sample".into(), is_of_engine: false }];
    }
    if unchecked.is_empty() {
        return missing;
    }
    let for_all = reasons(record, |it| concerns_all(record, configuration, it));
    // Without a recorded reason, the engine gave nothing that could be checked.
    let is_of_engine = for_all.is_empty() && verifier.configuration.is_some();
    let mut add = |why: String| missing.push(Missing { why, is_of_engine });
    if verifier.configuration.is_some() {
        let what = match is_any_checked || unchecked.len() == 1 {
            true => format!("the tokens in {} were not checked", unchecked.join(", ")),
            false => "its tokens were not checked".to_string(),
        };
        // A recorded reason counts the samples of all engines, so only its cause is repeated.
        const BEFORE_CAUSE: &str = " were not checked: ";
        if let [cause] = &for_all[..] {
            let cause = cause.split_once(BEFORE_CAUSE).map_or(cause.as_str(), |(_, cause)| cause);
            add(format!("{what}: {cause}"));
            return missing;
        }
        add(what);
    } else if for_all.is_empty() {
        add("the measured tokens were not checked: no verifier ran".into());
    }
    for_all.into_iter().for_each(add);
    missing
}

/// Sentences on the longest window of held-out text, if it was not compared.
fn unscored_window(
    record: &RunRecord,
    configuration: usize,
    verifier: &Verifier,
    agreement: &Agreement,
) -> Vec<Missing> {
    let model = &record.header.plan.configurations[configuration].model.path;
    let held_out = record.held_out.iter().find(|it| it.model == *model);
    let windows = held_out.into_iter().flat_map(|it| it.sequences.iter().map(Vec::len).enumerate());
    let Some((sequence, length)) = windows.max_by_key(|(_, length)| *length) else { return Vec::new() };
    let is_scored =
        record.scored.iter().any(|it| (it.configuration, it.sequence) == (configuration, sequence));
    if !is_scored {
        let recorded = reasons(record, |it| it.configuration == Some(configuration));
        let default_reason = || match &agreement.scores {
            Some(_) => {
                format!("the longest held-out text, of {} tokens, was not scored", with_commas(length))
            }
            None if agreement.greedy.is_none() => {
                "it gave neither log-probabilities nor ids to compare".into()
            }
            None => "it gave no log-probabilities to compare".into(),
        };
        let all = if recorded.is_empty() { vec![default_reason()] } else { recorded };
        return all.into_iter().map(|why| Missing { why, is_of_engine: true }).collect();
    }
    match verifier.logprobs(sequence) {
        Some(_) => Vec::new(),
        None => {
            let of_verifier = reasons(record, |it| {
                verifier.configuration.is_some() && it.configuration == verifier.configuration
            });
            let why = of_verifier.first().map_or_else(String::new, |why| format!(": {why}"));
            let why = format!(
                "the verifier did not score the held-out text of {} tokens{why}",
                with_commas(length)
            );
            vec![Missing { why, is_of_engine: false }]
        }
    }
}
