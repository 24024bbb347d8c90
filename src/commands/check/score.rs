//! Checks of `score` and `facts`: log-probabilities of given ids, and the engine's own facts.

use protocol::FailureKind::{BadRequest, Unsupported};
use protocol::{Message, Output};
use serde_json::json;

use super::result::Not;
use super::subject::{Check, Subject, absent, said, wrong};

pub const CHECKS: &[Check] = &[
    Check { name: "score", property: "n ids give n - 1 log-probabilities, none above 0", run: scores },
    Check {
        name: "score-greedy",
        property: "no token scores above the greedy token",
        run: scores_greedy_highest,
    },
    Check { name: "score-one-id", property: "the engine refuses to score a single id", run: refuses_one_id },
    Check { name: "facts", property: "`facts` agrees with `loaded`", run: tells_facts },
];

fn scores(subject: &mut Subject) -> Result<(), Not> {
    subject.claims("score", |can| can.score)?;
    let ids = subject.prompt_ids();
    let asked = vec![ids.clone(), ids[..2].to_vec()];
    let scored = ask(subject, &asked)?;
    let lengths = |of: &[Vec<f64>]| of.iter().map(Vec::len).collect::<Vec<_>>();
    if lengths(&scored) != [ids.len() - 1, 1] {
        return wrong(format!("{:?} values for sequences of {} and 2 ids", lengths(&scored), ids.len()));
    }
    match scored.iter().flatten().find(|&&value| value > 0.0) {
        Some(value) => wrong(format!("a log-probability of {value}: a probability above 1")),
        None => Ok(()),
    }
}

/// The greedy token has the highest probability, and the sum of all is at most 1. A logarithm of base 2 or raw logits
/// break this.
fn scores_greedy_highest(subject: &mut Subject) -> Result<(), Not> {
    subject.claims("score", |can| can.score && can.prompt_ids)?;
    if subject.hello()?.output == Output::Text {
        return absent("the output is text, not ids");
    }
    let ids = subject.prompt_ids();
    let answer = subject.generate(&json!({ "prompt_ids": ids, "max_new_tokens": 1 }))?;
    let sequence = answer.generated.iterations.first().and_then(|iteration| iteration.sequences.first());
    let Some(&greedy) = sequence.and_then(|sequence| sequence.output_ids.as_ref()?.first()) else {
        return wrong("the answer has no token");
    };
    let others = (0..20).map(|step| (greedy + 1 + 7 * step) % 256).filter(|&id| id != greedy);
    let endings: Vec<u32> = std::iter::once(greedy).chain(others).collect();
    let with = |&ending: &u32| ids.iter().copied().chain([ending]).collect::<Vec<u32>>();
    let scored = ask(subject, &endings.iter().map(with).collect::<Vec<_>>())?;
    let last: Vec<f64> = scored.iter().filter_map(|values| values.last().copied()).collect();
    let Some(&best) = last.first() else { return wrong("`scored` has no values") };
    // A batch of one and a batch of many may round differently.
    if let Some((place, higher)) = last.iter().enumerate().find(|&(_, &value)| value > best + 1e-3) {
        return wrong(format!("the greedy token {greedy} has {best}, token {} has {higher}", endings[place]));
    }
    let sum: f64 = last.iter().map(|value| value.exp()).sum();
    match sum > 1.001 {
        true => wrong(format!("the probabilities of {} tokens add up to {sum}", last.len())),
        false => Ok(()),
    }
}

fn refuses_one_id(subject: &mut Subject) -> Result<(), Not> {
    subject.claims("score", |can| can.score)?;
    let line = json!({ "type": "score", "sequences": [[3]] });
    subject.refused(&protocol::encode(&line), &[BadRequest, Unsupported])
}

fn tells_facts(subject: &mut Subject) -> Result<(), Not> {
    subject.claims("facts", |can| can.facts)?;
    let loaded = subject.loaded()?.facts;
    subject.send_json(&json!({ "type": "facts" }))?;
    match subject.receive()? {
        Message::Facts(facts)
            if (&facts.device, facts.vocabulary_size) != (&loaded.device, loaded.vocabulary_size) =>
        {
            wrong("`facts` and `loaded` differ in `device` or `vocabulary_size`")
        }
        Message::Facts(_) => Ok(()),
        Message::Failed(failed) => wrong(said(&failed)),
        _ => wrong("expected `facts`, got another message"),
    }
}

/// Scores these sequences; null becomes minus infinity.
fn ask(subject: &mut Subject, sequences: &[Vec<u32>]) -> Result<Vec<Vec<f64>>, Not> {
    subject.ready()?;
    subject.send_json(&json!({ "type": "score", "id": 3, "sequences": sequences }))?;
    match subject.receive()? {
        Message::Scored(scored) if scored.id != Some(protocol::Id::Number(3)) => {
            wrong("`scored` has another id than its request")
        }
        Message::Scored(scored) if scored.logprobs.len() != sequences.len() => {
            wrong(format!("expected {} sequences, got {}", sequences.len(), scored.logprobs.len()))
        }
        Message::Scored(scored) => {
            let values = |values: &Vec<Option<f64>>| {
                values.iter().map(|value| value.unwrap_or(f64::NEG_INFINITY)).collect::<Vec<f64>>()
            };
            Ok(scored.logprobs.iter().map(values).collect())
        }
        Message::Failed(failed) => wrong(said(&failed)),
        _ => wrong("expected `scored`, got another message"),
    }
}
