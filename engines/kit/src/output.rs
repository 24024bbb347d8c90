//! Writes protocol messages as whole lines, and flushes each line.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::{Failed, FailureKind, MAX_LINE_BYTES, Message};

/// The destination of messages. Clones share it.
#[derive(Clone)]
pub struct Output(Arc<Mutex<State>>);

struct State {
    writer: Box<dyn Write + Send>,
    error: Option<io::Error>,
}

impl Output {
    pub fn new(writer: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(State { writer: Box::new(writer), error: None })))
    }

    /// Writes a message. `check` reports a write error later, because the code that makes messages cannot handle errors.
    pub fn send(&self, message: &Message) {
        let mut line = protocol::encode(message);
        if line.len() > MAX_LINE_BYTES + 1 {
            line = protocol::encode(&too_long(message, line.len() - 1));
        }
        let mut state = self.lock();
        if state.error.is_none() {
            let written = state.writer.write_all(&line).and_then(|()| state.writer.flush());
            state.error = written.err();
        }
    }

    /// The first error of a `send` since the last `check`.
    pub fn check(&self) -> io::Result<()> {
        self.lock().error.take().map_or(Ok(()), Err)
    }

    /// Whether a `send` failed since the last `check`.
    pub fn is_broken(&self) -> bool {
        self.lock().error.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The failure that replaces an answer longer than a line may be.
fn too_long(answer: &Message, bytes: usize) -> Message {
    let id = match answer {
        Message::Generated(generated) => generated.id.clone(),
        Message::Scored(scored) => scored.id.clone(),
        _ => None,
    };
    let message = format!("the answer of {bytes} bytes is longer than a line may be ({MAX_LINE_BYTES})");
    let failed = Failed::new(FailureKind::BadRequest, message).hint("request fewer iterations or sequences");
    Message::Failed(Failed { id, ..failed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Generated, Id, parse_message};

    #[test]
    fn an_answer_too_long_for_a_line_is_a_failure_with_its_id() {
        let (mut reader, writer) = io::pipe().unwrap();
        let output = Output::new(writer);
        let (id, summary) = (Some(Id::Number(3)), Some("a".repeat(MAX_LINE_BYTES).into()));
        output.send(&Message::Generated(Generated { id, summary, ..Generated::default() }));
        drop(output);
        let mut line = String::new();
        std::io::Read::read_to_string(&mut reader, &mut line).unwrap();
        let Ok(Message::Failed(failed)) = parse_message(line.as_bytes()) else {
            panic!("{} bytes", line.len())
        };
        assert_eq!((failed.id, failed.kind), (Some(Id::Number(3)), FailureKind::BadRequest));
    }

    #[test]
    fn a_closed_pipe_is_reported_and_does_not_panic() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = Output::new(writer);
        output.send(&Message::Bye {});
        assert!(output.is_broken());
        output.send(&Message::Bye {});
        assert!(output.check().is_err());
    }
}
