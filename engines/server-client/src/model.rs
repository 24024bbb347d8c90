//! A model behind a server. Each request has a thread that reads its answer; the main thread collects what all of them read.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use engine_kit::child_server::{ChildServer, FreePort};
use engine_kit::protocol::{Facts, Failed, FailureKind, Finish};
use engine_kit::{Job, Model, Slots, Tokens, Waker};

use crate::client::{NoCompletion, Server};
use crate::http::close;
use crate::kind::{Kind, Piece};
use crate::load::SLOTS;

pub struct ServerModel {
    kind: Kind,
    server: Server,
    /// The process of the server, if the load started it.
    child: Option<(ChildServer, FreePort)>,
    /// The name of the model in requests.
    model: String,
    facts: Facts,
    requests: Vec<Option<RunningRequest>>,
    /// The number of all requests so far, which tells the answer of an earlier request of a slot from that of the present one.
    admitted: u64,
    sender: Sender<Received>,
    received: Receiver<Received>,
}

/// A request whose answer is being read.
struct RunningRequest {
    number: u64,
    ending: Arc<Ending>,
    totals: Totals,
}

/// Ends a request whose answer another thread reads.
#[derive(Default)]
struct Ending {
    is_cancelled: AtomicBool,
    /// The connection of the request, while it has one.
    connection: Mutex<Option<TcpStream>>,
}

impl Ending {
    fn set_connection(&self, connection: Option<TcpStream>) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
        if self.is_cancelled() {
            self.end();
        }
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::SeqCst)
    }

    fn end(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
        if let Some(connection) = self.connection.lock().unwrap_or_else(PoisonError::into_inner).take() {
            close(&connection);
        }
    }
}

/// The facts of an answer that its pieces repeat or bring at the end.
#[derive(Default)]
struct Totals {
    tokens: Option<u32>,
    /// Whether a piece of text came without a count, as from a server that counts only at the end.
    has_uncounted: bool,
    finish: Option<Finish>,
}

enum Received {
    Update {
        slot: usize,
        number: u64,
        update: Update,
    },
    /// The kit has work: a line or a cancel.
    Woken,
}

enum Update {
    Piece(Piece, Instant),
    Ended(Result<(), NoCompletion>),
}

impl ServerModel {
    pub fn new(
        kind: Kind,
        server: Server,
        child: Option<(ChildServer, FreePort)>,
        model: String,
        facts: Facts,
    ) -> Self {
        let (sender, received) = channel();
        let requests = (0..SLOTS).map(|_| None).collect();
        Self { kind, server, child, model, facts, requests, admitted: 0, sender, received }
    }

    fn start(&mut self, slot: usize, job: &Job) {
        self.admitted += 1;
        let number = self.admitted;
        let ending = Arc::new(Ending::default());
        self.requests[slot] =
            Some(RunningRequest { number, ending: ending.clone(), totals: Totals::default() });
        let body = (self.kind.body)(job, &self.model);
        let (server, kind, sender) = (self.server.clone(), self.kind, self.sender.clone());
        thread::spawn(move || {
            // Without a receiver, the model has been dropped.
            let send = |update| sender.send(Received::Update { slot, number, update }).is_ok();
            let take = |piece, at| send(Update::Piece(piece, at)) && !ending.is_cancelled();
            let result = server.complete(kind, &body, |connection| ending.set_connection(connection), take);
            send(Update::Ended(result));
        });
    }

    /// Waits for an update of a running request. `None` if the kit has work, or if the request has left.
    fn next_update(&mut self) -> Option<(usize, Update)> {
        // The channel stays open, because `self` holds a sender.
        let Received::Update { slot, number, update } = self.received.recv().ok()? else { return None };
        let is_running = self.requests[slot].as_ref().is_some_and(|it| it.number == number);
        is_running.then_some((slot, update))
    }

    fn apply(&mut self, slot: usize, update: Update, tokens: &mut Tokens) {
        let Some(request) = self.requests[slot].as_mut() else { return };
        match update {
            Update::Piece(piece, at) => request.totals.take(piece, at, tokens),
            // A cancel breaks the connection too.
            Update::Ended(_) if tokens.is_cancelled() => {}
            Update::Ended(result) => {
                // The end of the server explains a broken connection.
                let end = || self.child.as_ref().and_then(|(child, _)| child.failure_after_break());
                let result = result.map_err(|error| match error {
                    NoCompletion::Refused(failed) => failed,
                    NoCompletion::Broken(message) => {
                        end().unwrap_or_else(|| Failed::new(FailureKind::Internal, message))
                    }
                });
                request.totals.end(result, tokens);
            }
        }
    }
}

impl Totals {
    fn take(&mut self, piece: Piece, at: Instant, tokens: &mut Tokens) {
        if let Some(count) = piece.prompt_tokens {
            tokens.set_prompt_tokens(0, count);
        }
        if let Some(count) = piece.cached_prompt_tokens {
            tokens.set_cached_prompt_tokens(0, count);
        }
        self.finish = piece.finish.or(self.finish);
        let new_tokens = piece.tokens_so_far.map(|count| count.saturating_sub(self.tokens.unwrap_or(0)));
        self.tokens = piece.tokens_so_far.or(self.tokens);
        self.has_uncounted |= !piece.text.is_empty() && new_tokens.is_none();
        // A special token has no text, and neither has the last token of an answer that ends within a character.
        let has_tokens = new_tokens.is_some_and(|count| count > 0) && !self.has_uncounted;
        if (has_tokens || !piece.text.is_empty()) && !tokens.is_done(0) {
            // A cancelled request leaves its slot after this step.
            let _ = tokens.push_text(0, piece.text, new_tokens, at);
        }
    }

    fn end(&self, result: Result<(), Failed>, tokens: &mut Tokens) {
        if tokens.is_done(0) {
            return;
        }
        match (result, self.tokens) {
            (Err(failed), _) => tokens.fail(failed),
            (Ok(()), Some(count)) => tokens.end_text(0, count, "usage", self.finish.unwrap_or_default()),
            (Ok(()), None) => {
                let message = "the server does not say how many tokens its answer has";
                tokens.fail(Failed::new(FailureKind::Internal, message));
            }
        }
    }
}

impl Model for ServerModel {
    fn facts(&self) -> Facts {
        self.facts.clone()
    }

    fn generate(&mut self, job: &Job, tokens: &mut Tokens) -> Result<(), Failed> {
        self.admit(0, job)?;
        while !tokens.all_done() && !tokens.has_failed() && !tokens.is_cancelled() {
            if let Some((slot, update)) = self.next_update() {
                self.apply(slot, update, tokens);
            }
        }
        self.leave(0);
        Ok(())
    }

    fn slots(&mut self) -> Option<&mut dyn Slots> {
        Some(self)
    }
}

impl Slots for ServerModel {
    fn admit(&mut self, slot: usize, job: &Job) -> Result<(), Failed> {
        self.start(slot, job);
        Ok(())
    }

    fn step(&mut self, tokens: &mut [Option<Tokens>]) -> Result<(), Failed> {
        if let Some((slot, update)) = self.next_update()
            && let Some(tokens) = tokens.get_mut(slot).and_then(Option::as_mut)
        {
            self.apply(slot, update, tokens);
        }
        Ok(())
    }

    fn leave(&mut self, slot: usize) {
        if let Some(request) = self.requests.get_mut(slot).and_then(Option::take) {
            request.ending.end();
        }
    }

    fn waker(&self) -> Option<Waker> {
        let sender = self.sender.clone();
        Some(Box::new(move || drop(sender.send(Received::Woken))))
    }
}
