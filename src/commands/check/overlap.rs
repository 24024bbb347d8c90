//! Checks of overlapping requests, and of cancelled requests.

use std::time::{Duration, Instant};

use protocol::{Finish, IgnoreEos, Message};
use serde_json::{Value, json};

use super::checked_engine::{Check, CheckedEngine, elapsed_ns};
use super::result::{Outcome, absent, unexpected, wrong};
use crate::run::process::Answer;

pub const CHECKS: &[Check] = &[
    Check::new("overlap", "each concurrent request gets its own answer", overlaps),
    Check::new("cancel", "a cancelled request ends early as `cancelled`", cancels),
    Check::new("cancel-unknown", "a late cancel and one of an unknown id do nothing", ignores_late_cancels),
];

fn overlaps(subject: &mut CheckedEngine) -> Outcome {
    let capabilities = subject.claims("concurrency", |it| it.concurrency > 1)?;
    subject.ensure_loaded()?;
    let mut open: Vec<(Value, Instant)> = Vec::new();
    for id in 0..capabilities.concurrency.min(4) {
        // The lengths differ, so that an answer with the id of another request is noticed.
        let line = subject.line(json!({ "id": format!("request {id}"), "max_new_tokens": 4 + 4 * id }));
        let sent = subject.send_json(&line)?;
        open.push((line, sent));
    }
    while !open.is_empty() {
        let (generated, at) = match subject.receive_at(subject.deadlines.answer)? {
            (Message::Generated(generated), at) => (generated, at),
            (other, _) => return unexpected(&other, "generated"),
        };
        // The next open request has a deadline of its own.
        subject.restart_deadline();
        let id = serde_json::to_value(&generated.id).unwrap_or_default();
        let Some(index) = open.iter().position(|(line, _)| line["id"] == id) else {
            return wrong(format!("answered id `{id}`, which has no open request"));
        };
        let (line, sent) = open.swap_remove(index);
        let answered_ns = elapsed_ns(sent, at);
        subject.verify(&line, &Answer { generated, tokens: Vec::new(), sent_ns: 0, answered_ns })?;
    }
    Ok(())
}

/// The longest time that a cancel needs to arrive. A request that ends later, and not as cancelled, has ignored it.
const MAX_CANCEL_DELAY: Duration = Duration::from_millis(200);

fn cancels(subject: &mut CheckedEngine) -> Outcome {
    let capabilities = subject.claims("stream or concurrency", |it| it.stream || it.concurrency > 1)?;
    let context = subject.load_answer()?.facts.context_tokens.unwrap_or(2048);
    // Many tokens, so that the cancel arrives before the end, but fewer than the context holds.
    let tokens = context.saturating_sub(subject.prompt_ids().len() as u32 + 64).clamp(64, 4000);
    let mut line =
        subject.line(json!({ "id": "long", "max_new_tokens": tokens, "stream": capabilities.stream }));
    if capabilities.ignore_eos != IgnoreEos::No {
        line["ignore_eos"] = true.into();
    }
    subject.send_json(&line)?;
    if capabilities.stream {
        // The first token proves that the request runs.
        match subject.receive()? {
            Message::Token(_) => {}
            other => return unexpected(&other, "token"),
        }
    }
    let sent = subject.send_json(&json!({ "type": "cancel", "id": "long" }))?;
    let (generated, at) = loop {
        match subject.receive_at(subject.deadlines.answer)? {
            (Message::Token(_), _) => {}
            (Message::Generated(generated), at) => break (generated, at),
            (other, _) => return unexpected(&other, "generated"),
        }
    };
    let mut sequences = generated.iterations.iter().flat_map(|iteration| &iteration.sequences);
    let cancelled = sequences.clone().any(|sequence| sequence.finish == Finish::Cancelled);
    let complete = sequences.any(|it| it.output_ids.as_ref().is_some_and(|ids| ids.len() >= tokens as usize));
    match at.saturating_duration_since(sent) {
        _ if cancelled && complete => wrong("`finish` is `cancelled`, but the output is complete"),
        _ if cancelled => subject.answers_next_request(),
        elapsed if elapsed < MAX_CANCEL_DELAY => absent("the request ended before the cancel could arrive"),
        _ => wrong("the request ran to its end without `cancelled`"),
    }
}

fn ignores_late_cancels(subject: &mut CheckedEngine) -> Outcome {
    subject.hello()?;
    subject.generate(&subject.line(json!({ "id": 41, "max_new_tokens": 1 })))?;
    for id in [json!(41), json!("unknown")] {
        subject.send_json(&json!({ "type": "cancel", "id": id }))?;
    }
    subject.answers_next_request()
}
