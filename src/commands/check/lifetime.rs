//! Checks of the start and the end: `hello`, `shutdown`, the end of stdin, and that stdout had only the protocol.

use protocol::{Message, Request};
use serde_json::json;

use super::result::Not;
use super::subject::{Check, Subject, absent, wrong};

pub const START: &[Check] = &[
    Check { name: "hello", property: "the engine starts and speaks this protocol", run: says_hello },
    Check {
        name: "who-it-is",
        property: "`hello` has a valid name, version and capabilities",
        run: says_who_it_is,
    },
    Check {
        name: "hello-again",
        property: "a second `hello` gets the same answer",
        run: says_the_same_again,
    },
];

fn says_hello(subject: &mut Subject) -> Result<(), Not> {
    subject.meet()?;
    match subject.is_minimal() {
        true => absent("a minimal engine without `hello`"),
        false => Ok(()),
    }
}

fn says_who_it_is(subject: &mut Subject) -> Result<(), Not> {
    let hello = subject.hello()?;
    let can = &hello.capabilities;
    let problem = if hello.engine.trim().is_empty() {
        "`engine` is empty"
    } else if hello.version.trim().is_empty() {
        "`version` is empty"
    } else if can.devices.is_empty() {
        "`capabilities.devices` is empty"
    } else if can.batch == 0 {
        "`capabilities.batch` is 0: one request is a batch of 1"
    } else if can.concurrency == 0 {
        "`capabilities.concurrency` is 0: one request at a time is 1"
    } else {
        return Ok(());
    };
    wrong(problem)
}

fn says_the_same_again(subject: &mut Subject) -> Result<(), Not> {
    let first = subject.hello()?;
    let hello = Request::Hello(protocol::Hello { protocol: protocol::version::CURRENT });
    subject.send(&protocol::encode(&hello))?;
    match subject.receive()? {
        Message::Hello(second) if second == first => Ok(()),
        Message::Hello(_) => wrong("the second `hello` got another answer"),
        _ => wrong("expected `hello`, got another message"),
    }
}

pub const END: &[Check] = &[
    Check { name: "shutdown", property: "the engine answers `bye` and leaves no process", run: shuts_down },
    Check {
        name: "end-of-stdin",
        property: "at the end of stdin the engine ends completely",
        run: ends_with_stdin,
    },
    Check {
        name: "one-shot",
        property: "`echo REQUEST | engine` prints the answer and ends",
        run: answers_one_shot,
    },
    Check { name: "stdout-clean", property: "stdout has only protocol messages", run: kept_stdout_clean },
];

fn shuts_down(subject: &mut Subject) -> Result<(), Not> {
    subject.loaded()?;
    subject.send(&protocol::encode(&Request::Shutdown {}))?;
    match subject.receive_within(subject.deadlines.shutdown)? {
        Message::Bye {} => subject.leaves(),
        _ => wrong("expected `bye`, got another message"),
    }
}

fn ends_with_stdin(subject: &mut Subject) -> Result<(), Not> {
    subject.ready()?;
    // An engine that loads with its first request must be at work.
    let line = subject.line(json!({ "max_new_tokens": 1 }));
    subject.generate(&line)?;
    subject.close_stdin();
    subject.leaves()
}

fn answers_one_shot(subject: &mut Subject) -> Result<(), Not> {
    subject.start_afresh()?;
    let line = json!({ "prompt": "Hello", "max_new_tokens": 2 });
    let sent = subject.send_json(&line)?;
    subject.close_stdin();
    let answer = subject.generated(&line, sent, subject.deadlines.load)?;
    subject.verify(&line, &answer)?;
    subject.leaves()
}

fn kept_stdout_clean(subject: &mut Subject) -> Result<(), Not> {
    match subject.stray() {
        Some(stray) => {
            wrong(format!("stdout has a line that is no message: `{}`", String::from_utf8_lossy(&stray)))
        }
        // An engine that never ran kept nothing.
        None => subject.meet(),
    }
}
