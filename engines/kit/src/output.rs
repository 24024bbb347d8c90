//! The one writer of protocol messages: a whole line at a time, flushed.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use protocol::Message;

/// Where messages go. Clones write to the same place.
#[derive(Clone)]
pub struct Output(Arc<Mutex<Sink>>);

struct Sink {
    writer: Box<dyn Write + Send>,
    error: Option<io::Error>,
}

impl Output {
    pub fn new(writer: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Sink { writer: Box::new(writer), error: None })))
    }

    /// A reader that is gone is remembered and told by `check`: the code that makes messages is not the code to handle it.
    pub fn send(&self, message: &Message) {
        let line = protocol::encode(message);
        let mut sink = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sink.error.is_none() {
            let written = sink.writer.write_all(&line).and_then(|()| sink.writer.flush());
            sink.error = written.err();
        }
    }

    /// The first error of any `send` since the last call.
    pub fn check(&self) -> io::Result<()> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).error.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    pub fn is_broken(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).error.is_some()
    }
}
