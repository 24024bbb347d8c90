//! The queue of requests from stdin. Each request has the time at which its line was read. A request can be cancelled while it
//! waits or runs.
//!
//! One thread reads and another works. They share this queue, and a cancel flag for each request with an id.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use protocol::{Failed, FailureKind, Frame, Framer, Id, MAX_LINE_BYTES, Request, parse_request};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Counts nanoseconds from an instant. The clock of a request starts when its whole line was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn ns(self) -> u64 {
        self.ns_at(Instant::now())
    }

    pub fn ns_at(self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.0).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The queue between the reading and the working thread.
#[derive(Default)]
pub struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<QueuedLine>,
    /// The cancel flags of requests that wait or run.
    cancel_flags: HashMap<Id, Arc<AtomicBool>>,
    closed: bool,
    /// Ends the wait of a model for its server, see `Slots::waker`.
    waker: Option<Waker>,
}

/// A function that other threads call.
pub type Waker = Box<dyn Fn() + Send>;

/// A line, and the clock that started when the line was read.
pub(crate) struct QueuedLine {
    pub clock: Clock,
    pub line: Line,
}

pub(crate) enum Line {
    Request {
        request: Request,
        /// Whether the line has a field `type`. A line without a type most likely comes from a person.
        has_type: bool,
        cancelled: Arc<AtomicBool>,
    },
    Invalid(Failed),
}

/// The most lines in the queue. When it is full, the reader stops, and later lines wait. A `cancel` among them takes effect
/// when it is read.
const MAX_WAITING_LINES: usize = 1024;

impl Inbox {
    /// Reads until the end of the stream, then closes.
    pub fn read_from(&self, mut input: impl Read) {
        let (mut framer, mut buffer) = (Framer::default(), vec![0; 1 << 16]);
        loop {
            match input.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    let read_at = Instant::now();
                    framer.push(&buffer[..length], |frame| self.accept(frame, read_at));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // An unreadable stream counts as ended.
                Err(_) => break,
            }
        }
        if let Some(frame) = framer.finish() {
            self.accept(frame, Instant::now());
        }
        self.close();
    }

    /// Adds one line, and waits while the queue is full. A `cancel` takes effect at once and is not added.
    pub fn accept(&self, frame: Frame, read_at: Instant) {
        let line = match &frame {
            Frame::TooLong { bytes } => Line::Invalid(Failed::new(
                FailureKind::BadRequest,
                format!("line of {bytes} bytes is longer than {MAX_LINE_BYTES}"),
            )),
            Frame::Line(bytes) => match parse_request(bytes) {
                Ok(Request::Cancel(cancel)) => return self.cancel(&cancel.id),
                Ok(request) => {
                    Line::Request { has_type: has_type(&request, bytes), request, cancelled: Arc::default() }
                }
                Err(failed) => Line::Invalid(failed),
            },
        };
        let mut state = self.lock();
        while state.queue.len() >= MAX_WAITING_LINES {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let line = state.register(line);
        state.queue.push_back(QueuedLine { clock: Clock(read_at), line });
        state.wake();
        self.changed.notify_all();
    }

    /// Calls this function after each line from now on.
    pub(crate) fn set_waker(&self, waker: Option<Waker>) {
        self.lock().waker = waker;
    }

    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.wake();
        self.changed.notify_all();
    }

    /// Waits for the next line. Returns `None` after the last line.
    pub(crate) fn next(&self) -> Option<QueuedLine> {
        let mut state = self.lock();
        while state.queue.is_empty() && !state.closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.changed.notify_all();
        state.queue.pop_front()
    }

    /// The next line, if one waits and `accepts` returns true for this line.
    pub(crate) fn next_if(&self, accepts: impl FnOnce(&Line) -> bool) -> Option<QueuedLine> {
        let mut state = self.lock();
        let next = state.queue.pop_front_if(|queued_line| accepts(&queued_line.line));
        self.changed.notify_all();
        next
    }

    /// Frees the id of an answered request.
    pub(crate) fn release_id(&self, id: Option<&Id>) {
        if let Some(id) = id {
            self.lock().cancel_flags.remove(id);
        }
    }

    /// Sets the cancel flag of a request. A late cancel or an unknown id is ignored: a cancel has no answer, so it cannot fail.
    fn cancel(&self, id: &Id) {
        let state = self.lock();
        if let Some(cancelled) = state.cancel_flags.get(id) {
            cancelled.store(true, Ordering::Relaxed);
            state.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker();
        }
    }

    /// Makes a request with an id cancellable, and refuses an id in use. That failure has no id, because the answer with
    /// the id belongs to the earlier request.
    fn register(&mut self, line: Line) -> Line {
        let Line::Request { request, cancelled, .. } = &line else { return line };
        let Some(id) = id_of(request) else { return line };
        if self.cancel_flags.contains_key(id) {
            let id = serde_json::to_string(id).unwrap_or_default();
            let message = format!("`id`: {id} belongs to a request that is not answered yet");
            return Line::Invalid(Failed::new(FailureKind::BadRequest, message));
        }
        self.cancel_flags.insert(id.clone(), cancelled.clone());
        line
    }
}

pub(crate) fn id_of(request: &Request) -> Option<&Id> {
    match request {
        Request::Generate(generate) => generate.id.as_ref(),
        Request::Score(score) => score.id.as_ref(),
        _ => None,
    }
}

fn has_type(request: &Request, line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct TypeField {
        r#type: Option<IgnoredAny>,
    }
    !matches!(request, Request::Generate(_))
        || serde_json::from_slice::<TypeField>(line).is_ok_and(|field| field.r#type.is_some())
}
