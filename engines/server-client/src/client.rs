//! Requests to the server: for its state, and for completions.

use std::io::{BufReader, Read};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use engine_kit::protocol::{Failed, FailureKind};
use serde_json::Value;

use crate::http::{Address, Answer, Connection, request};
use crate::kind::{Kind, Piece};
use crate::stream::{Next, error_of, read_events, start_of};

/// The most bytes that are read of an answer without a stream.
const MAX_BODY_BYTES: u64 = 1 << 20;
/// The time for a read of an answer about the server itself, such as its health.
const STATUS_TIME: Duration = Duration::from_secs(10);

/// A server at an address. Clones share its connections.
#[derive(Clone)]
pub struct Server {
    address: Address,
    /// The value of the header `Authorization`.
    authorization: Option<String>,
    /// Connections without a request, the latest last.
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Server {
    pub fn new(address: Address, key: Option<&str>) -> Self {
        Self { address, authorization: key.map(|key| format!("Bearer {key}")), idle: Arc::default() }
    }

    pub fn url(&self, path: &str) -> String {
        self.address.url(path)
    }

    /// Whether the server answers this path with success.
    pub fn is_healthy(&self, path: &str) -> bool {
        self.status(path).is_ok()
    }

    /// The body of an answer about the server itself. `Null` if the body is no JSON.
    pub fn status(&self, path: &str) -> Result<Value, String> {
        let answer = self.send(path, None, Some(STATUS_TIME), |_| ()).map_err(|error| error.to_string())?;
        let (status, reason) = (answer.status, answer.reason.clone());
        let (body, answer) = read_body(answer).map_err(|error| error.to_string())?;
        self.keep(answer);
        if !is_success(status) {
            return Err(format!("{status} {reason}: {}", message_of(&body)));
        }
        Ok(serde_json::from_str(&body).unwrap_or_default())
    }

    /// Opens connections, so that the first requests do not wait for them.
    pub fn open_connections(&self, count: usize, path: &str) {
        thread::scope(|scope| {
            for _ in 0..count {
                scope.spawn(|| self.is_healthy(path));
            }
        });
    }

    /// Sends a request for a completion, and calls `take` with each piece of its answer and the time of its arrival, until `take`
    /// returns false. `on_connection` gets a handle that ends the request, and `None` when the answer is over.
    pub fn complete(
        &self,
        kind: Kind,
        body: &Value,
        on_connection: impl Fn(Option<TcpStream>),
        mut take: impl FnMut(Piece, Instant) -> bool,
    ) -> Result<(), NoCompletion> {
        let path = kind.completions_path;
        let mut answer = self
            .send(path, Some(&body.to_string()), None, &on_connection)
            .map_err(|error| NoCompletion::Broken(format!("no answer from `{}`: {error}", self.url(path))))?;
        if !is_success(answer.status) {
            let (status, reason) = (answer.status, answer.reason.clone());
            let read = read_body(answer);
            on_connection(None);
            // A body that cannot be read leaves the status as the reason.
            let text = read.map(|(text, answer)| {
                self.keep(answer);
                text
            });
            return Err(NoCompletion::Refused(refusal(status, &reason, &text.unwrap_or_default())));
        }
        let (mut has_ended, mut is_stopped) = (false, false);
        let take_event = |event: Value, at: Instant| {
            let piece = (kind.piece)(&event);
            has_ended |= piece.finish.is_some();
            is_stopped = !take(piece, at);
            match (is_stopped, has_ended) {
                (true, _) => Next::Stop,
                (false, true) => Next::MayEnd,
                (false, false) => Next::More,
            }
        };
        let mut events = BufReader::new(&mut answer.body);
        read_events(&mut events, take_event).map_err(NoCompletion::Broken)?;
        if !is_stopped {
            // A connection can be used again only after the end of the answer.
            let _ = std::io::copy(&mut events.take(MAX_BODY_BYTES), &mut std::io::sink());
            on_connection(None);
            self.keep(answer);
        }
        Ok(())
    }

    /// Sends a request on an idle connection or a new one. A server may close an idle connection at any time, so a request that
    /// gets no answer there is sent again on a new one.
    fn send(
        &self,
        path: &str,
        json: Option<&str>,
        limit: Option<Duration>,
        on_connection: impl Fn(Option<TcpStream>),
    ) -> std::io::Result<Answer> {
        let request = request(&self.address, path, self.authorization.as_deref(), json);
        let send = |connection: Connection| {
            on_connection(Some(connection.handle()?));
            connection.send(&request, limit)
        };
        if let Some(connection) = self.idle_connection()
            && let Ok(answer) = send(connection)
        {
            return Ok(answer);
        }
        send(Connection::open(&self.address)?)
    }

    fn idle_connection(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(Connection::is_fresh);
        idle.pop()
    }

    /// Keeps the connection of an answer for another request, if possible.
    fn keep(&self, answer: Answer) {
        if let Some(connection) = answer.body.into_connection() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
    }
}

/// The reason why a request has no complete answer.
pub enum NoCompletion {
    Refused(Failed),
    /// The server gave no answer, or an incomplete or invalid one. It may have ended.
    Broken(String),
}

/// The body of an answer that is no stream, and the answer, whose connection may be used again.
fn read_body(mut answer: Answer) -> std::io::Result<(String, Answer)> {
    let mut bytes = Vec::new();
    answer.body.by_ref().take(MAX_BODY_BYTES).read_to_end(&mut bytes)?;
    Ok((String::from_utf8_lossy(&bytes).into_owned(), answer))
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// The failure of a request that the server refuses.
fn refusal(status: u16, reason: &str, body: &str) -> Failed {
    let kind = if (400..500).contains(&status) { FailureKind::BadRequest } else { FailureKind::Internal };
    Failed::new(kind, format!("the server answered {status} {reason}: {}", message_of(body)))
}

/// The message in the body of an answer without success.
fn message_of(body: &str) -> String {
    let message = serde_json::from_str::<Value>(body).ok().and_then(|body| {
        error_of(&body).or_else(|| body["message"].as_str().or_else(|| body["detail"].as_str()).map(start_of))
    });
    message.unwrap_or_else(|| start_of(body.trim()))
}
