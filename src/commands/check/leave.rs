//! Checks of the end: after `shutdown`, after the end of stdin, and that stdout had only the protocol.

use protocol::{Message, Request};
use serde_json::json;

use super::entry::Check;
use super::result::Not;
use super::subject::{Subject, wrong};

pub const CHECKS: &[Check] = &[
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
