//! Checks of the start and the end: `hello`, `shutdown`, the end of stdin, and that stdout had only protocol messages.

use protocol::{Message, Request};
use serde_json::json;

use super::checked_engine::{Check, CheckedEngine};
use super::result::{Outcome, absent, require, unexpected, wrong};

pub const START: &[Check] = &[
    Check::new("hello", "the engine starts and speaks this protocol", answers_hello),
    Check::new("identity", "`hello` has a valid name, version and capabilities", has_an_identity),
    Check::new("hello-again", "a second `hello` gets the same answer", repeats_hello),
];

fn answers_hello(subject: &mut CheckedEngine) -> Outcome {
    subject.handshake()?;
    if subject.is_minimal() { absent("a minimal engine without `hello`") } else { Ok(()) }
}

fn has_an_identity(subject: &mut CheckedEngine) -> Outcome {
    let hello = subject.hello()?;
    let capabilities = &hello.capabilities;
    let rules = [
        (!hello.engine.trim().is_empty(), "`engine` is empty"),
        (!hello.version.trim().is_empty(), "`version` is empty"),
        (!capabilities.devices.is_empty(), "`capabilities.devices` is empty"),
        (
            capabilities.prompt || capabilities.prompt_ids,
            "`capabilities` has neither `prompt` nor `prompt_ids`: the engine takes no prompt",
        ),
        (capabilities.batch > 0, "`capabilities.batch` is 0: one request is a batch of 1"),
        (capabilities.concurrency > 0, "`capabilities.concurrency` is 0: one request at a time is 1"),
    ];
    rules.into_iter().try_for_each(|(holds, fault)| require(holds, fault))
}

fn repeats_hello(subject: &mut CheckedEngine) -> Outcome {
    let first = subject.hello()?;
    let hello = Request::Hello(protocol::Hello { protocol: protocol::version::CURRENT });
    subject.send(&protocol::encode(&hello))?;
    match subject.receive()? {
        Message::Hello(second) => require(second == first, "the second `hello` got another answer"),
        other => unexpected(&other, "hello"),
    }
}

pub const END: &[Check] = &[
    Check::new("shutdown", "the engine answers `bye` and leaves no process", shuts_down),
    Check::new("end-of-stdin", "at the end of stdin the engine ends completely", ends_with_stdin),
    Check::new("one-shot", "`echo REQUEST | engine` prints the answer and ends", answers_one_shot),
    Check::new("stdout-clean", "stdout has only protocol messages", had_a_clean_stdout),
];

fn shuts_down(subject: &mut CheckedEngine) -> Outcome {
    subject.load_answer()?;
    subject.send(&protocol::encode(&Request::Shutdown {}))?;
    match subject.receive_within(subject.deadlines.shutdown)? {
        Message::Bye {} => subject.wait_for_exit(),
        other => unexpected(&other, "bye"),
    }
}

fn ends_with_stdin(subject: &mut CheckedEngine) -> Outcome {
    subject.ensure_loaded()?;
    // An engine that loads with its first request loads here.
    subject.generate(&subject.line(json!({ "max_new_tokens": 1 })))?;
    subject.close_stdin();
    subject.wait_for_exit()
}

fn answers_one_shot(subject: &mut CheckedEngine) -> Outcome {
    subject.loads_without_option()?;
    subject.restart()?;
    let line = subject.line_of_text("Hello", json!({ "max_new_tokens": 2 }));
    let sent = subject.send_json(&line)?;
    subject.close_stdin();
    let answer = subject.receive_generated(&line, sent, true)?;
    subject.verify(&line, &answer)?;
    subject.wait_for_exit()
}

fn had_a_clean_stdout(subject: &mut CheckedEngine) -> Outcome {
    match subject.first_stray_line() {
        Some(line) => {
            wrong(format!("stdout has a line that is not a message: `{}`", String::from_utf8_lossy(&line)))
        }
        // An engine that never ran must not pass.
        None => subject.handshake(),
    }
}
