//! Checks of `generate`: as many tokens as requested, each with its time, in an answer that names its request. An
//! invalid line gets one `failed` of kind `bad_request`, and the engine continues.

use protocol::FailureKind::{BadRequest, Unsupported};
use protocol::MAX_INTEGER;
use serde_json::{Value, json};

use super::checked_engine::{Check, CheckedEngine};
use super::options::unclaimed;
use super::prompts::MAX_TESTED_BATCH;
use super::requests::{ANSWERED_AS_VALID, outputs, with_fields};
use super::result::{Finding, Outcome, absent, require, wrong};

pub const CHECKS: &[Check] = &[
    Check::new("plain-line", "a line without `type` is a `generate` request", answers_a_plain_line),
    Check::new("default-length", "the default is one iteration of at most 32 tokens", has_the_defaults),
    Check::new("length", "the engine generates 1, 3, 12 tokens, or ends at EOS", generates_the_length),
    Check::new("clock", "start < first <= ... <= last <= end <= answered", orders_its_times),
    Check::new("iterations", "2 warm-up iterations precede 3 measured ones", iterates),
    Check::new("id", "an answer has the id of its request", repeats_ids),
    Check::new("unknown-field", "the engine ignores an unknown field", ignores_unknown_fields),
    Check::new("in-order", "the engine answers queued requests in order", answers_in_order),
    Check::new("deterministic", "equal greedy requests give equal ids", is_deterministic),
];

fn answers_a_plain_line(subject: &mut CheckedEngine) -> Outcome {
    subject.handshake()?;
    subject.generate_verified(&subject.line_of_text("Hello", json!({ "max_new_tokens": 4 }))).map(drop)
}

fn has_the_defaults(subject: &mut CheckedEngine) -> Outcome {
    let answer = subject.generate_verified(&subject.line(json!({})))?;
    require(answer.tokens.is_empty(), "streams tokens without a request to stream")
}

fn generates_the_length(subject: &mut CheckedEngine) -> Outcome {
    for tokens in [1, 3, 12] {
        subject.generate_verified(&subject.line(json!({ "max_new_tokens": tokens })))?;
    }
    Ok(())
}

/// `generate_verified` checks the order of the times, and that none is later than the answer.
fn orders_its_times(subject: &mut CheckedEngine) -> Outcome {
    let line = subject.line(json!({ "max_new_tokens": 8 }));
    let mut end_ns = 0;
    for _ in 0..3 {
        let answer = subject.generate_verified(&line)?;
        end_ns = answer.generated.iterations.first().map_or(0, |iteration| iteration.end_ns);
    }
    require(end_ns != 0, "`end_ns` is 0")
}

fn iterates(subject: &mut CheckedEngine) -> Outcome {
    subject.handshake()?;
    // A minimal engine, one without `hello`, is not asked for warm-up iterations.
    let warmup = if subject.is_minimal() { 0 } else { 2 };
    let line = subject.line(json!({ "max_new_tokens": 3, "iterations": 3, "warmup": warmup }));
    let generated = subject.generate_verified(&line)?.generated;
    let mut end_ns = 0;
    for iteration in generated.warmup_iterations.iter().chain(&generated.iterations) {
        let start_ns = iteration.start_ns;
        if start_ns < end_ns {
            return wrong(format!("an iteration starts at {start_ns} ns, before the previous one ends"));
        }
        end_ns = iteration.end_ns;
    }
    Ok(())
}

fn repeats_ids(subject: &mut CheckedEngine) -> Outcome {
    for id in [json!(7), json!("a name"), json!(8), json!(MAX_INTEGER)] {
        let answered = subject.generate(&subject.line(json!({ "id": id, "max_new_tokens": 1 })));
        subject.absent_if_minimal(answered.map(drop))?;
    }
    Ok(())
}

fn ignores_unknown_fields(subject: &mut CheckedEngine) -> Outcome {
    let line = subject.line(json!({ "max_new_tokens": 1, "unknown_field": { "x": true } }));
    let answered = subject.generate_verified(&line).map(drop);
    subject.absent_if_minimal(answered)
}

/// Sends two lines at once. They have no ids: their numbers of iterations tell the answers apart.
fn answers_in_order(subject: &mut CheckedEngine) -> Outcome {
    subject.ensure_loaded()?;
    let line = |iterations: u32| subject.line(json!({ "max_new_tokens": 2, "iterations": iterations }));
    let lines: [Value; 2] = [2, 1].map(line);
    let sent = lines.iter().map(|line| subject.send_json(line)).collect::<Outcome<Vec<_>>>()?;
    for (line, sent) in lines.iter().zip(sent) {
        let answer = subject.receive_generated(line, sent, false)?;
        subject.verify(line, &answer)?;
    }
    Ok(())
}

fn is_deterministic(subject: &mut CheckedEngine) -> Outcome {
    subject.claims_determinism()?;
    let line = subject.line(json!({ "max_new_tokens": 12 }));
    let first = outputs(&subject.generate(&line)?);
    let second = outputs(&subject.generate(&line)?);
    require(first == second, "a repeated greedy request gave another output")
}

pub const INVALID_LINES: &[Check] = &[
    invalid("no-json", |it| refuses_broken_json(it, br#"<"prompt":"Hello","iterations":50}"#)),
    invalid("half-json", |it| refuses_broken_json(it, br#"{"prompt":"Hello","iterations""#)),
    Check::new("empty-line", "an empty line gets one `failed` of kind `bad_request`", |it| {
        refuses_broken_json(it, b"")?;
        refuses_broken_json(it, b" \t ")
    }),
    invalid("no-object", |it| refuses_broken_json(it, br#"["prompt","Hello"]"#)),
    invalid("noise", |it| refuses_broken_json(it, &random_bytes())),
    invalid("endless-line", |it| {
        refuses_broken_json(it, &[b'a'].repeat(protocol::MAX_LINE_BYTES + (4 << 20)))
    }),
    invalid("no-prompt", |it| refuses(it, br#"{"max_new_tokens":4}"#)),
    invalid("prompt-is-number", |it| refuses(it, br#"{"prompt":5}"#)),
    invalid("two-prompts", |it| refuses(it, br#"{"prompt":"a","prompt_ids":[3]}"#)),
    invalid("empty-batch", |it| {
        refuses(it, br#"{"prompts":[]}"#)?;
        refuses(it, br#"{"prompts_ids":[]}"#)
    }),
    invalid("no-ids", |it| {
        refuses(it, br#"{"prompt_ids":[]}"#)?;
        refuses(it, br#"{"prompts_ids":[[3],[]]}"#)
    }),
    invalid("negative-count", |it| refuses(it, br#"{"prompt":"Hello","iterations":-1}"#)),
    invalid("negative-id", |it| refuses(it, br#"{"prompt_ids":[3,-5]}"#)),
    invalid("zero-tokens", |it| refuses(it, br#"{"prompt":"Hello","max_new_tokens":0}"#)),
    invalid("huge-count", |it| refuses(it, br#"{"prompt":"Hello","iterations":1e400}"#)),
    Check::new("large-integers", "the engine refuses an `id` or a `seed` of 2^53", refuses_large_integers),
    invalid("huge-length", refuses_a_huge_length),
    Check::new("first-error", "of several errors, the protocol's first is reported", answers_the_first_error),
    invalid("unknown-type", refuses_an_unknown_type),
];

const fn invalid(name: &'static str, run: fn(&mut CheckedEngine) -> Outcome) -> Check {
    Check::new(name, "the engine refuses the line and answers the next one", run)
}

/// A line that is no JSON object. An engine without `hello` may ignore it or end, but must not answer it with `generated`.
fn refuses_broken_json(subject: &mut CheckedEngine, line: &[u8]) -> Outcome {
    match subject.expect_refusal(&[line, b"\n"].concat(), &[BadRequest]) {
        Err(Finding::Wrong(fault)) if fault == ANSWERED_AS_VALID => wrong(fault),
        refused => subject.absent_if_minimal(refused),
    }
}

fn refuses(subject: &mut CheckedEngine, line: &[u8]) -> Outcome {
    let refused = subject.expect_refusal(&[line, b"\n"].concat(), &[BadRequest]);
    subject.absent_if_minimal(refused)
}

/// An engine without `hello` is not tested: it need not refuse the number, and might generate for hours.
fn refuses_a_huge_length(subject: &mut CheckedEngine) -> Outcome {
    subject.hello()?;
    refuses(subject, br#"{"prompt":"Hello","max_new_tokens":99999999999}"#)
}

fn refuses_large_integers(subject: &mut CheckedEngine) -> Outcome {
    subject.hello()?;
    let sampling = json!({ "temperature": 1.0, "seed": MAX_INTEGER + 1 });
    for fields in [json!({ "id": MAX_INTEGER + 1 }), json!({ "sampling": sampling })] {
        let line = protocol::encode(&subject.line(fields));
        subject.expect_refusal(&line, &[BadRequest])?;
    }
    Ok(())
}

/// Requests each unclaimed feature in two lines. The first one is also invalid, which must be reported. The second one also
/// exceeds the context, but the unclaimed feature must be reported.
fn answers_the_first_error(subject: &mut CheckedEngine) -> Outcome {
    let capabilities = subject.hello()?.capabilities;
    let too_large = (capabilities.batch < MAX_TESTED_BATCH).then(|| subject.batch(capabilities.batch + 1));
    let unclaimed: Vec<Value> = unclaimed(subject, &capabilities).into_iter().chain(too_large).collect();
    if unclaimed.is_empty() {
        return absent("the engine claims all features");
    }
    let context = subject.load_answer()?.facts.context_tokens;
    for line in unclaimed {
        let invalid = with_fields(line.clone(), &json!({ "max_new_tokens": 0 }));
        subject.expect_refusal(&protocol::encode(&invalid), &[BadRequest])?;
        if let Some(context) = context {
            let too_long = with_fields(line, &json!({ "max_new_tokens": context }));
            subject.expect_refusal(&protocol::encode(&too_long), &[Unsupported])?;
        }
    }
    Ok(())
}

fn refuses_an_unknown_type(subject: &mut CheckedEngine) -> Outcome {
    let refused = subject.expect_refusal(b"{\"type\":\"dance\"}\n", &[BadRequest, Unsupported]);
    subject.absent_if_minimal(refused)
}

/// Pseudorandom bytes (a multiplicative hash), the same each time, without the byte that ends a line.
fn random_bytes() -> Vec<u8> {
    let byte = |index: u32| (index.wrapping_mul(2_654_435_761) >> 24) as u8;
    (1..2000).map(byte).filter(|&byte| byte != b'\n').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_form_one_line_that_is_not_utf8() {
        let bytes = random_bytes();
        assert!(bytes.len() > 1900 && !bytes.contains(&b'\n'));
        assert!(bytes.contains(&0) && bytes.contains(&0xff) && std::str::from_utf8(&bytes).is_err());
    }
}
