//! Checks of overlapping requests, and of cancelled requests.

use std::time::{Duration, Instant};

use protocol::{Finish, IgnoreEos, Message};
use serde_json::{Value, json};

use super::result::Not;
use super::subject::{Check, Subject, absent, said, wrong};
use crate::run::process::Answer;

pub const CHECKS: &[Check] = &[
    Check { name: "overlap", property: "each concurrent request gets its own answer", run: overlaps },
    Check { name: "cancel", property: "a cancelled request ends early as `cancelled`", run: cancels },
    Check {
        name: "cancel-unknown",
        property: "a late cancel and one of an unknown id do nothing",
        run: takes_late_cancels,
    },
];

fn overlaps(subject: &mut Subject) -> Result<(), Not> {
    let can = subject.claims("concurrency", |can| can.concurrency > 1)?;
    subject.ready()?;
    let mut open: Vec<(Value, Instant)> = Vec::new();
    for id in 0..can.concurrency.min(4) {
        // Different lengths, so that an answer under another's id shows.
        let line = subject.line(json!({ "id": format!("request {id}"), "max_new_tokens": 4 + 4 * id }));
        let sent = subject.send_json(&line)?;
        open.push((line, sent));
    }
    while !open.is_empty() {
        let (message, at) = subject.receive_at(subject.deadlines.answer)?;
        let generated = match message {
            Message::Generated(generated) => generated,
            Message::Failed(failed) => return wrong(said(&failed)),
            _ => return wrong("expected `generated`, got another message"),
        };
        let id = serde_json::to_value(&generated.id).unwrap_or_default();
        let Some(place) = open.iter().position(|(line, _)| line["id"] == id) else {
            return wrong(format!("answered id `{id}`, which has no open request"));
        };
        let (line, sent) = open.swap_remove(place);
        let answered_ns = at.saturating_duration_since(sent).as_nanos() as u64;
        subject.verify(&line, &Answer { generated, tokens: Vec::new(), sent_ns: 0, answered_ns })?;
    }
    Ok(())
}

/// The least time of a request, so that one that ends later ignored its cancel.
const HEARD_BY: Duration = Duration::from_millis(200);

fn cancels(subject: &mut Subject) -> Result<(), Not> {
    let can = subject.claims("stream or concurrency", |can| can.stream || can.concurrency > 1)?;
    let context = subject.loaded()?.facts.context_tokens.unwrap_or(2048);
    let tokens = context.saturating_sub(subject.prompt_ids().len() as u32 + 64).clamp(64, 4000);
    let mut line = subject.line(json!({ "id": "long", "max_new_tokens": tokens, "stream": can.stream }));
    if can.ignore_eos != IgnoreEos::No {
        line["ignore_eos"] = true.into();
    }
    subject.send_json(&line)?;
    if can.stream {
        // The first token property that it runs.
        match subject.receive()? {
            Message::Token(_) => {}
            Message::Failed(failed) => return wrong(said(&failed)),
            _ => return wrong("expected `token`, got another message"),
        }
    }
    let sent = subject.send_json(&json!({ "type": "cancel", "id": "long" }))?;
    let (generated, at) = loop {
        match subject.receive_at(subject.deadlines.answer)? {
            (Message::Token(_), _) => {}
            (Message::Generated(generated), at) => break (generated, at),
            (Message::Failed(failed), _) => return wrong(said(&failed)),
            _ => return wrong("expected `generated`, got another message"),
        }
    };
    let mut sequences = generated.iterations.iter().flat_map(|iteration| &iteration.sequences);
    let cancelled = sequences.clone().any(|sequence| sequence.finish == Finish::Cancelled);
    let whole = sequences.any(|it| it.output_ids.as_ref().is_some_and(|ids| ids.len() >= tokens as usize));
    match at.saturating_duration_since(sent) {
        _ if cancelled && whole => wrong("`finish` is `cancelled`, but the output is complete"),
        _ if cancelled => subject.lives_on(),
        took if took < HEARD_BY => absent("the request ended before the cancel could arrive"),
        _ => wrong("the request ran to its end without `cancelled`"),
    }
}

fn takes_late_cancels(subject: &mut Subject) -> Result<(), Not> {
    subject.hello()?;
    let line = subject.line(json!({ "id": 41, "max_new_tokens": 1 }));
    subject.generate(&line)?;
    for id in [json!(41), json!("unknown")] {
        subject.send_json(&json!({ "type": "cancel", "id": id }))?;
    }
    subject.lives_on()
}
