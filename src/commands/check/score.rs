//! Checks of `score` and `facts`: log-probabilities of given ids, and the engine's own facts.

use protocol::FailureKind::{BadRequest, Unsupported};
use protocol::{Message, Output};
use serde_json::json;

use super::checked_engine::{Check, CheckedEngine};
use super::requests::first_sequence;
use super::result::{Finding, Outcome, absent, require, unexpected, wrong};
use crate::run::verify::verify_facts;

pub const CHECKS: &[Check] = &[
    Check::new("score", "n ids give n - 1 log-probabilities, none above 0", scores),
    Check::new("score-greedy", "none of 20 other tokens scores above the greedy one", scores_greedy_highest),
    Check::new("score-one-id", "the engine refuses to score a single id", refuses_one_id),
    Check::new("facts", "`facts` has the facts of `loaded`", reports_facts),
];

fn scores(subject: &mut CheckedEngine) -> Outcome {
    subject.claims("score", |it| it.score)?;
    let ids = subject.prompt_ids();
    let scored = log_probabilities(subject, &[ids.clone(), ids[..2].to_vec()])?;
    let lengths = |values: &[Vec<f64>]| values.iter().map(Vec::len).collect::<Vec<_>>();
    if lengths(&scored) != [ids.len() - 1, 1] {
        return wrong(format!("{:?} values for sequences of {} and 2 ids", lengths(&scored), ids.len()));
    }
    match scored.iter().flatten().find(|&&value| value > 0.0) {
        Some(value) => wrong(format!("the log-probability {value} is not a number up to 0")),
        None => Ok(()),
    }
}

/// The greedy token has the highest probability, and the sum of all probabilities is at most 1. Raw logits and logarithms of
/// base 10 usually violate the second rule.
fn scores_greedy_highest(subject: &mut CheckedEngine) -> Outcome {
    subject.claims("score", |it| it.score && it.prompt_ids)?;
    if subject.hello()?.output == Output::Text {
        return absent("the output is text, not ids");
    }
    let ids = subject.prompt_ids();
    let answer = subject.generate(&json!({ "prompt_ids": ids, "max_new_tokens": 1 }))?;
    let ids_of_output = first_sequence(&answer).and_then(|sequence| sequence.output_ids.as_ref());
    let Some(&greedy) = ids_of_output.and_then(|ids| ids.first()) else {
        return wrong("the answer has no token");
    };
    // 20 other ids below 256: every vocabulary has these ids.
    let others = (0..20).map(|step| (greedy + 1 + 7 * step) % 256).filter(|&id| id != greedy);
    let endings: Vec<u32> = std::iter::once(greedy).chain(others).collect();
    let with_ending = |&ending: &u32| ids.iter().copied().chain([ending]).collect::<Vec<u32>>();
    let scored = log_probabilities(subject, &endings.iter().map(with_ending).collect::<Vec<_>>())?;
    let last: Vec<f64> = scored.iter().filter_map(|values| values.last().copied()).collect();
    let Some(&best) = last.first() else { return wrong("`scored` has no values") };
    // Batches of different sizes may round differently.
    if let Some((ending, higher)) = endings.iter().zip(&last).find(|(_, value)| **value > best + 1e-3) {
        return wrong(format!("the greedy token {greedy} has {best}, token {ending} has {higher}"));
    }
    let sum: f64 = last.iter().map(|value| value.exp()).sum();
    require(sum <= 1.001, format!("the probabilities of {} tokens add up to {sum}", last.len()))
}

fn refuses_one_id(subject: &mut CheckedEngine) -> Outcome {
    subject.claims("score", |it| it.score)?;
    let line = json!({ "type": "score", "sequences": [[3]] });
    subject.expect_refusal(&protocol::encode(&line), &[BadRequest, Unsupported])
}

fn reports_facts(subject: &mut CheckedEngine) -> Outcome {
    subject.claims("facts", |it| it.facts)?;
    let loaded = subject.load_answer()?.facts;
    subject.send_json(&json!({ "type": "facts" }))?;
    match subject.receive()? {
        Message::Facts(facts) => {
            verify_facts(&facts, &loaded).map_err(|cause| Finding::Wrong(cause.to_string()))
        }
        other => unexpected(&other, "facts"),
    }
}

/// The scores of these sequences; a null becomes minus infinity.
fn log_probabilities(subject: &mut CheckedEngine, sequences: &[Vec<u32>]) -> Outcome<Vec<Vec<f64>>> {
    subject.ensure_loaded()?;
    subject.send_json(&json!({ "type": "score", "id": 3, "sequences": sequences }))?;
    match subject.receive()? {
        Message::Scored(scored) if scored.id != Some(protocol::Id::Number(3)) => {
            wrong("`scored` has another id than its request")
        }
        Message::Scored(scored) if scored.logprobs.len() != sequences.len() => {
            wrong(format!("expected {} sequences, got {}", sequences.len(), scored.logprobs.len()))
        }
        Message::Scored(scored) => {
            let value = |value: Option<f64>| value.unwrap_or(f64::NEG_INFINITY);
            Ok(scored.logprobs.into_iter().map(|values| values.into_iter().map(value).collect()).collect())
        }
        other => unexpected(&other, "scored"),
    }
}
