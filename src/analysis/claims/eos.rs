//! Checks the claim about `ignore_eos`: does the engine give EOS where the verifier does? An engine that masks EOS gives the
//! likeliest other token, and all later tokens follow another text.

use std::collections::BTreeMap;

use protocol::IgnoreEos;

use super::subject::{About, Contradiction, Subject};
use crate::record::{RequestKind, RunRecord};

/// At one position the cause may be rounding; at several positions and without any EOS it is not.
const MIN_POSITIONS: usize = 2;

pub fn contradictions(subject: &Subject, all: &[Subject]) -> Vec<Contradiction> {
    contradiction(subject, all).into_iter().collect()
}

fn contradiction(subject: &Subject, all: &[Subject]) -> Option<Contradiction> {
    let exact = |policy: IgnoreEos| policy == IgnoreEos::Exact;
    let hellos = subject.launches.values().filter_map(|launch| launch.hello.as_ref());
    if !hellos.map(|hello| hello.capabilities.ignore_eos).any(exact) {
        return None;
    }
    let plan = &subject.record.header.plan;
    let verifier = plan.verifier_of(&subject.configuration.model).filter(|it| *it != subject.index);
    let verifier = verifier.and_then(|index| all.iter().find(|other| other.index == index));
    let eos = subject.fact(|facts| facts.eos_ids.clone());
    let eos = eos.or_else(|| verifier?.fact(|facts| facts.eos_ids.clone()))?;
    let own = outputs(subject);
    if own.values().flatten().any(|id| eos.contains(id)) {
        return None;
    }
    let mut theirs = verifier.map(outputs).unwrap_or_default();
    theirs.extend(stored(subject.record, &subject.configuration.model.path));
    let is_masked = |(request, own): &(&RequestKey, &Vec<u32>)| {
        let Some(theirs) = theirs.get(*request) else { return false };
        let eos = theirs.iter().position(|id| eos.contains(id));
        eos.is_some_and(|eos| own.len() > eos && own[..eos] == theirs[..eos])
    };
    let positions = own.iter().filter(is_masked).count();
    if positions < MIN_POSITIONS {
        return None;
    }
    let observed = format!("{positions} of {positions} EOS missing");
    let message = format!(
        "states that it ignores EOS exactly, but gives another token at all {positions} positions where the verifier gives EOS: \
         it masks EOS; hint: state `\"ignore_eos\":\"masked\"`"
    );
    Some(subject.contradiction(About::Eos, false, "exact".into(), observed, &message))
}

/// A request: its prompt and its number of tokens.
type RequestKey = (String, u32);

/// The name of the prompt of the held-out continuation.
const HELD_OUT: &str = "the held-out prompt";

/// The greedy outputs with EOS ignored, by request.
fn outputs(subject: &Subject) -> BTreeMap<RequestKey, Vec<u32>> {
    let ignoring = subject.samples.iter().filter_map(|sample| {
        let workload = &subject.case(sample.case).workload;
        let greedy = workload.ignore_eos && workload.is_greedy() && sample.kind != RequestKind::Discarded;
        let ids = sample.iteration.sequences.first()?.output_ids.clone()?;
        greedy.then(|| ((sample.prompt_hash.clone(), workload.max_new_tokens), ids))
    });
    let continued = subject.record.continued.iter().filter(|it| it.configuration == subject.index);
    let continued = continued.map(|it| ((HELD_OUT.to_string(), 0), it.ids.clone()));
    ignoring.chain(continued).collect()
}

fn stored(record: &RunRecord, model: &str) -> Option<(RequestKey, Vec<u32>)> {
    let stored = record.stored_answers.iter().find(|stored| stored.model == model)?;
    Some(((HELD_OUT.to_string(), 0), stored.continued.clone()))
}
