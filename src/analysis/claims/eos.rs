//! Checks the claim about `ignore_eos`: an engine that ignores EOS exactly gives EOS at the positions where the verifier does.
//! An engine that masks EOS gives the likeliest other token there, and its later tokens follow another text.

use std::collections::BTreeMap;

use protocol::IgnoreEos;

use super::configuration_data::{About, ConfigurationData, Contradiction};
use crate::record::{RequestKind, RunRecord};

/// The least number of positions where the engine lacks the verifier's EOS. At a single position, rounding may be the cause.
const MIN_POSITIONS: usize = 2;

pub fn contradictions(subject: &ConfigurationData, all: &[ConfigurationData]) -> Vec<Contradiction> {
    contradiction(subject, all).into_iter().collect()
}

fn contradiction(subject: &ConfigurationData, all: &[ConfigurationData]) -> Option<Contradiction> {
    let is_exact = |policy: IgnoreEos| policy == IgnoreEos::Exact;
    let hellos = subject.launches.values().filter_map(|launch| launch.hello.as_ref());
    if !hellos.map(|hello| hello.capabilities.ignore_eos).any(is_exact) {
        return None;
    }
    let plan = &subject.record.header.plan;
    let verifier = plan.verifier_of(&subject.configuration.model).filter(|it| *it != subject.index);
    let verifier = verifier.and_then(|index| all.iter().find(|other| other.index == index));
    let eos = subject.fact(|facts| facts.eos_ids.clone());
    let eos = eos.or_else(|| verifier?.fact(|facts| facts.eos_ids.clone()))?;
    let engine_outputs = outputs(subject);
    if engine_outputs.values().flatten().any(|id| eos.contains(id)) {
        return None;
    }
    let mut verifier_outputs = verifier.map(outputs).unwrap_or_default();
    verifier_outputs.extend(stored_output(subject.record, &subject.configuration.model.path));
    let is_masked = |(request, ids): &(&RequestKey, &Vec<u32>)| {
        let Some(verifier_ids) = verifier_outputs.get(*request) else { return false };
        let eos = verifier_ids.iter().position(|id| eos.contains(id));
        eos.is_some_and(|eos| ids.len() > eos && ids[..eos] == verifier_ids[..eos])
    };
    let positions = engine_outputs.iter().filter(is_masked).count();
    if positions < MIN_POSITIONS {
        return None;
    }
    let observed = format!("{positions} of {positions} EOS missing");
    let message = format!(
        "reports that it ignores EOS exactly, but gives another token at all {positions} positions where the verifier gives EOS: \
         it masks EOS; hint: report `\"ignore_eos\":\"masked\"`"
    );
    Some(subject.contradiction(About::Eos, "exact".into(), observed, &message))
}

/// The hash of a request's prompt and the requested number of tokens; 0 for the held-out continuation.
type RequestKey = (String, u32);

/// The key of the held-out continuation, in place of the hash of a prompt.
const HELD_OUT: &str = "the held-out prompt";

/// The greedy outputs of requests that ignore EOS, by request.
fn outputs(subject: &ConfigurationData) -> BTreeMap<RequestKey, Vec<u32>> {
    let measured = subject.samples.iter().filter_map(|sample| {
        let workload = &subject.case(sample.case).workload;
        let is_comparable =
            workload.ignore_eos && workload.is_greedy() && sample.kind != RequestKind::Discarded;
        let ids = sample.iteration.sequences.first()?.output_ids.clone()?;
        is_comparable.then(|| ((sample.prompt_hash.clone(), workload.max_new_tokens), ids))
    });
    let continued = subject.record.continued.iter().filter(|it| it.configuration == subject.index);
    let continued = continued.map(|it| ((HELD_OUT.to_string(), 0), it.ids.clone()));
    measured.chain(continued).collect()
}

/// The held-out continuation of the reference answers.
fn stored_output(record: &RunRecord, model: &str) -> Option<(RequestKey, Vec<u32>)> {
    let stored = record.reference_answers.iter().find(|stored| stored.model == model)?;
    Some(((HELD_OUT.to_string(), 0), stored.continued.clone()))
}
