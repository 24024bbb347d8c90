//! Checks of `generate`: as many tokens as requested, each with its time, in an answer that names its request.

use serde_json::{Value, json};

use super::asking::outputs;
use super::result::Not;
use super::subject::{Check, Subject, absent, wrong};

pub const CHECKS: &[Check] = &[
    Check {
        name: "plain-line",
        property: "a line without `type` is a `generate` request",
        run: answers_a_plain_line,
    },
    Check {
        name: "default-length",
        property: "the default is one iteration of at most 32 tokens",
        run: knows_the_defaults,
    },
    Check {
        name: "length",
        property: "the engine generates exactly 1, 3 and 12 tokens",
        run: keeps_to_the_length,
    },
    Check { name: "clock", property: "start < first <= ... <= last <= end <= answered", run: keeps_time },
    Check { name: "iterations", property: "2 warm-up iterations precede 3 measured ones", run: iterates },
    Check { name: "id", property: "an answer has the id of its request", run: echoes_ids },
    Check {
        name: "unknown-field",
        property: "the engine ignores an unknown field",
        run: ignores_unknown_fields,
    },
    Check {
        name: "in-order",
        property: "the engine answers queued requests in order",
        run: answers_in_order,
    },
    Check { name: "deterministic", property: "equal greedy requests give equal ids", run: is_deterministic },
];

fn answers_a_plain_line(subject: &mut Subject) -> Result<(), Not> {
    subject.verified(&json!({ "prompt": "Hello", "max_new_tokens": 4 })).map(|_| ())
}

fn knows_the_defaults(subject: &mut Subject) -> Result<(), Not> {
    let line = subject.line(json!({}));
    let answer = subject.verified(&line)?;
    match answer.tokens.is_empty() {
        true => Ok(()),
        false => wrong("streams tokens without a request to stream"),
    }
}

fn keeps_to_the_length(subject: &mut Subject) -> Result<(), Not> {
    for tokens in [1, 3, 12] {
        let line = subject.line(json!({ "max_new_tokens": tokens }));
        subject.verified(&line)?;
    }
    Ok(())
}

/// `verified` compares each answer with the clock. This request is long enough that an invented clock would run ahead.
fn keeps_time(subject: &mut Subject) -> Result<(), Not> {
    let line = subject.line(json!({ "max_new_tokens": 8 }));
    let mut last_end_ns = 0;
    for _ in 0..3 {
        let answer = subject.verified(&line)?;
        last_end_ns = answer.generated.iterations.first().map_or(0, |iteration| iteration.end_ns);
    }
    match last_end_ns {
        0 => wrong("`end_ns` is 0"),
        _ => Ok(()),
    }
}

fn iterates(subject: &mut Subject) -> Result<(), Not> {
    subject.meet()?;
    // A minimal engine gets `iterations` and no `warmup`.
    let warmup = if subject.is_minimal() { 0 } else { 2 };
    let line = subject.line(json!({ "max_new_tokens": 3, "iterations": 3, "warmup": warmup }));
    let generated = subject.verified(&line)?.generated;
    let mut end_ns = 0;
    for iteration in generated.warmup_iterations.iter().chain(&generated.iterations) {
        if iteration.start_ns < end_ns {
            return wrong(format!(
                "an iteration starts at {} ns, before the previous one ends",
                iteration.start_ns
            ));
        }
        end_ns = iteration.end_ns;
    }
    Ok(())
}

fn echoes_ids(subject: &mut Subject) -> Result<(), Not> {
    for id in [json!(7), json!("a name"), json!(8)] {
        let line = subject.line(json!({ "id": id, "max_new_tokens": 1 }));
        let answered = subject.generate(&line).map(|_| ());
        subject.unless_minimal(answered)?;
    }
    Ok(())
}

fn ignores_unknown_fields(subject: &mut Subject) -> Result<(), Not> {
    let line = subject.line(json!({ "max_new_tokens": 1, "mood": { "good": true } }));
    let answered = subject.verified(&line).map(|_| ());
    subject.unless_minimal(answered)
}

/// Sends two lines at once. Without ids, the number of iterations identifies the answers.
fn answers_in_order(subject: &mut Subject) -> Result<(), Not> {
    subject.ready()?;
    let lines: Vec<Value> = [2, 1]
        .map(|iterations| subject.line(json!({ "max_new_tokens": 2, "iterations": iterations })))
        .into();
    let sent = lines.iter().map(|line| subject.send_json(line)).collect::<Result<Vec<_>, _>>()?;
    for (line, sent) in lines.iter().zip(sent) {
        let answer = subject.generated(line, sent, subject.deadlines.answer)?;
        subject.verify(line, &answer)?;
    }
    Ok(())
}

fn is_deterministic(subject: &mut Subject) -> Result<(), Not> {
    if !subject.hello()?.deterministic {
        return absent("not claimed: `deterministic`");
    }
    let line = subject.line(json!({ "max_new_tokens": 12 }));
    let first = outputs(&subject.generate(&line)?);
    let second = outputs(&subject.generate(&line)?);
    if first == second { Ok(()) } else { wrong("a repeated greedy request gave another output") }
}
