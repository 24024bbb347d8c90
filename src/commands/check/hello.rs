//! Checks of the start and of `hello`.

use protocol::{Message, Request};

use super::entry::Check;
use super::result::Not;
use super::subject::{Subject, absent, wrong};

pub const CHECKS: &[Check] = &[
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
        true => absent("this engine supports only `generate`"),
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
