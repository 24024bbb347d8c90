//! The engine under check. It is started when a check needs it, and again after a check lost it. A check talks to nothing else.

use std::time::{Duration, Instant};

use anyhow::Result;
use model_files::{ModelFolder, Tokenizer};
use protocol::{Capabilities, Failed, FailureKind, HelloFacts, Loaded, Message, Request};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::result::{Evidence, Not};
use super::wire::Wire;
use crate::machine::Device;
use crate::plan::Configuration;
use crate::run::process::Deadlines;
use crate::run::{launching, load_request};

/// The limit of successive checks without an answer. After that the engine gets no more requests.
const SILENCES: u32 = 3;

const NO_ENGINE: &str = "no engine: answered no request";

/// A check of one property that the protocol requires.
pub struct Check {
    pub name: &'static str,
    /// The property that a passed check property.
    pub property: &'static str,
    pub run: fn(&mut Subject) -> Result<(), Not>,
}

pub struct Subject {
    // Declared before the runtime: a process needs the runtime when it is dropped.
    wire: Option<Wire>,
    runtime: Runtime,
    pub configuration: Configuration,
    /// The user named the device, so the engine's own devices do not replace it.
    pub device_is_asked_for: bool,
    pub deadlines: Deadlines,
    pub tokenizer: Option<Tokenizer>,
    run: String,
    launches: u32,
    debug: bool,
    met: Met,
    loaded: Option<Loaded>,
    tried_to_load: bool,
    /// Some process of the engine has answered a `generate`.
    pub answered: bool,
    /// Successive checks that ended without an answer.
    silences: u32,
    /// The reason why no check can be made: the engine does not start, or does not load.
    blocked: Option<String>,
    /// No request got a protocol message as an answer.
    pub no_engine: bool,
    stray: Option<Vec<u8>>,
    evidence: Evidence,
}

/// The engine's answer to hello.
enum Met {
    NotYet,
    Full(Box<HelloFacts>),
    /// The engine knows `generate` alone.
    Minimal,
}

pub fn wrong<T>(what: impl Into<String>) -> Result<T, Not> {
    Err(Not::Wrong(what.into()))
}

pub fn absent<T>(why: impl Into<String>) -> Result<T, Not> {
    Err(Not::Absent(why.into()))
}

impl Subject {
    pub fn new(configuration: Configuration, run: String, deadlines: Deadlines, debug: bool) -> Result<Self> {
        let tokenizer = ModelFolder::open(&configuration.model.path).and_then(|folder| folder.tokenizer());
        Ok(Self {
            wire: None,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            configuration,
            device_is_asked_for: false,
            deadlines,
            tokenizer: tokenizer.ok(),
            run,
            launches: 0,
            debug,
            met: Met::NotYet,
            loaded: None,
            tried_to_load: false,
            answered: false,
            silences: 0,
            blocked: None,
            no_engine: false,
            stray: None,
            evidence: Evidence::default(),
        })
    }

    /// Makes a check and keeps its evidence. Ends a process that cannot answer any more.
    pub fn undergo(&mut self, check: fn(&mut Self) -> Result<(), Not>) -> Result<(), Not> {
        let result = check(self);
        if let Some(wire) = &mut self.wire {
            self.evidence = evidence_of(wire);
            self.stray = self.stray.take().or_else(|| wire.stray.take());
            self.silences = if wire.silent { self.silences + 1 } else { 0 };
            if self.silences == SILENCES {
                self.blocked = Some(format!("{SILENCES} requests in a row were not answered"));
            }
            if wire.lost || matches!(result, Err(Not::Wrong(_))) {
                self.let_go();
            }
        }
        result
    }

    pub fn evidence(&self) -> Evidence {
        self.evidence.clone()
    }

    /// Starts the engine and sends hello, unless that is done.
    pub fn meet(&mut self) -> Result<(), Not> {
        self.start()?;
        if !matches!(self.met, Met::NotYet) {
            return Ok(());
        }
        let hello = Request::Hello(protocol::Hello { protocol: protocol::version::CURRENT });
        let answer =
            self.send(&protocol::encode(&hello)).and_then(|()| self.receive_within(self.deadlines.hello));
        match answer {
            Ok(Message::Hello(facts)) if facts.protocol != protocol::version::CURRENT => {
                let (spoken, current) = (facts.protocol, protocol::version::CURRENT);
                self.block(format!("speaks protocol {spoken}, this orchestrator speaks {current}"))
            }
            Ok(Message::Hello(facts)) => {
                self.met = Met::Full(Box::new(facts));
                self.settle_device();
                Ok(())
            }
            Ok(Message::Failed(Failed {
                kind: FailureKind::BadRequest | FailureKind::Unsupported, ..
            }))
            | Ok(Message::Generated(_)) => self.take_for_minimal(),
            Ok(Message::Failed(failed)) => {
                self.unreachable(format!("cannot run here: {}", with_hint(&failed)))
            }
            Ok(_) => self.block("expected `hello`, got another message".into()),
            Err(Not::Wrong(what)) => self.meet_without_a_word(what),
            Err(other) => Err(other),
        }
    }

    /// Handles a hello without a message in return. A program that answers `generate` is a minimal engine; any other is
    /// no engine.
    fn meet_without_a_word(&mut self, to_hello: String) -> Result<(), Not> {
        let quiet = self.wire.as_ref().is_some_and(|wire| !wire.ended && wire.received.is_empty());
        let evidence = self.wire.as_ref().map(evidence_of).unwrap_or_default();
        self.let_go();
        match self.answers_one_line() {
            Ok(()) if quiet => self.take_for_minimal(),
            Ok(()) => {
                self.let_go();
                self.evidence = evidence;
                self.block(to_hello)
            }
            Err(Not::Wrong(to_generate)) => {
                self.let_go();
                self.evidence = evidence;
                self.no_engine = true;
                self.block(format!("{NO_ENGINE}; to `hello`: {to_hello}; to `generate`: {to_generate}"))
            }
            Err(other) => Err(other),
        }
    }

    /// Whether `echo REQUEST | engine` prints a message. The end of stdin ends other programs, which would otherwise cost
    /// the deadline.
    fn answers_one_line(&mut self) -> Result<(), Not> {
        self.send_json(&serde_json::json!({ "prompt": "Hello", "max_new_tokens": 1 }))?;
        self.close_stdin();
        self.receive_within(self.deadlines.load).map(|_| ())
    }

    /// The reason why no check can be made, if there is one.
    pub fn blocked(&self) -> Option<&str> {
        self.blocked.as_deref()
    }

    /// The engine's hello; absent for an engine that knows `generate` alone.
    pub fn hello(&mut self) -> Result<HelloFacts, Not> {
        self.meet()?;
        self.known_hello().cloned().ok_or_else(|| Not::Absent("this engine supports only `generate`".into()))
    }

    /// The engine's hello, if it was sent.
    pub fn known_hello(&self) -> Option<&HelloFacts> {
        if let Met::Full(facts) = &self.met { Some(facts) } else { None }
    }

    pub fn known_loaded(&self) -> Option<&Loaded> {
        self.loaded.as_ref()
    }

    pub fn is_minimal(&self) -> bool {
        matches!(self.met, Met::Minimal)
    }

    /// The capabilities of an engine that claims this feature; otherwise absent.
    pub fn claims(
        &mut self,
        what: &str,
        claimed: impl Fn(&Capabilities) -> bool,
    ) -> Result<Capabilities, Not> {
        let capabilities = self.hello()?.capabilities;
        if claimed(&capabilities) { Ok(capabilities) } else { absent(format!("not claimed: `{what}`")) }
    }

    /// Changes a fault of an engine without hello to an absent feature.
    pub fn unless_minimal(&self, result: Result<(), Not>) -> Result<(), Not> {
        match result {
            Err(Not::Wrong(what)) if self.is_minimal() => absent(what),
            result => result,
        }
    }

    /// A started engine with its model loaded.
    pub fn ready(&mut self) -> Result<(), Not> {
        self.meet()?;
        if self.loaded.is_some() || self.is_minimal() {
            return Ok(());
        }
        let first = !std::mem::replace(&mut self.tried_to_load, true);
        let line = self.load_line();
        match self.try_load(&line) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(failed)) if first && !is_its_own_fault(failed.kind) => {
                self.unreachable(format!("cannot load this: {}", with_hint(&failed)))
            }
            Ok(Err(failed)) if first => self.block(format!("does not load: {}", said(&failed))),
            Ok(Err(failed)) => wrong(format!("does not load: {}", said(&failed))),
            Err(Not::Wrong(what)) if first => self.block(format!("does not load: {what}")),
            Err(other) => Err(other),
        }
    }

    /// The `load` of this check, with the model, device and threads that a run would name.
    pub fn load_line(&self) -> Value {
        // A request has string keys, so serializing it cannot fail.
        serde_json::to_value(Request::Load(load_request(&self.configuration, &self.configuration.model.path)))
            .unwrap_or_default()
    }

    /// Loads, and returns the time on this program's clock.
    pub fn load(&mut self, line: &Value) -> Result<(Loaded, u64), Not> {
        self.try_load(line)?.or_else(|failed| wrong(said(&failed)))
    }

    fn try_load(&mut self, line: &Value) -> Result<Result<(Loaded, u64), Failed>, Not> {
        self.meet()?;
        self.loaded = None;
        self.quiet()?;
        let sent = self.send_json(line)?;
        loop {
            match self.receive_at(self.deadlines.load)? {
                (Message::Progress(_), _) => {}
                (Message::Loaded(loaded), at) => {
                    self.loaded = Some(loaded.clone());
                    return Ok(Ok((loaded, since(sent, at))));
                }
                (Message::Failed(failed), _) => return Ok(Err(failed)),
                _ => return wrong("expected `loaded`, got another message"),
            }
        }
    }

    /// The answer to the last load.
    pub fn loaded(&mut self) -> Result<Loaded, Not> {
        self.hello()?;
        self.ready()?;
        self.loaded.clone().ok_or_else(|| Not::Unreached("nothing is loaded".into()))
    }

    /// Whether this process has had no request yet.
    pub fn is_fresh(&self) -> bool {
        self.wire.as_ref().is_none_or(|wire| wire.sent.is_empty())
    }

    /// Whether no unrequested message has arrived.
    pub fn quiet(&mut self) -> Result<(), Not> {
        self.wire.as_mut().map_or(Ok(()), Wire::no_checks)
    }

    /// Does not count this silence: the check is about it.
    pub fn forgive_silence(&mut self) {
        self.wire.iter_mut().for_each(|wire| wire.silent = false);
    }

    /// Sends a JSON object as one line, and returns the time just before.
    pub fn send_json(&mut self, line: &Value) -> Result<Instant, Not> {
        let bytes = protocol::encode(line);
        let sent = Instant::now();
        self.send(&bytes).map(|()| sent)
    }

    pub fn send(&mut self, line: &[u8]) -> Result<(), Not> {
        self.start()?;
        let deadline = self.deadlines.answer;
        let Some(wire) = &mut self.wire else { return Err(Not::Unreached("not started".into())) };
        self.runtime.block_on(wire.send(line, deadline))
    }

    pub fn receive(&mut self) -> Result<Message, Not> {
        self.receive_within(self.deadlines.answer)
    }

    pub fn receive_within(&mut self, deadline: Duration) -> Result<Message, Not> {
        self.receive_at(deadline).map(|(message, _)| message)
    }

    /// The next message, with the arrival time of its bytes.
    pub fn receive_at(&mut self, deadline: Duration) -> Result<(Message, Instant), Not> {
        let Some(wire) = &mut self.wire else { return Err(Not::Unreached("not started".into())) };
        self.runtime.block_on(wire.receive(deadline))
    }

    /// Starts a new process, which has had no request.
    pub fn start_afresh(&mut self) -> Result<(), Not> {
        // Hello must be known before: the new process does not get one.
        self.meet()?;
        self.let_go();
        self.start()
    }

    pub fn close_stdin(&mut self) {
        if let Some(wire) = &mut self.wire {
            wire.close_stdin();
        }
    }

    /// Waits until the engine has ended by itself.
    pub fn leaves(&mut self) -> Result<(), Not> {
        let deadline = self.deadlines.shutdown;
        let Some(wire) = &mut self.wire else { return Err(Not::Unreached("not started".into())) };
        self.runtime.block_on(wire.leaves(deadline))
    }

    /// The first line on stdout, of all so far, that was no message.
    pub fn stray(&mut self) -> Option<Vec<u8>> {
        self.stray.clone().or_else(|| self.wire.as_ref()?.stray.clone())
    }

    fn start(&mut self) -> Result<(), Not> {
        if let Some(why) = &self.blocked {
            return Err(Not::Unreached(why.clone()));
        }
        if self.wire.is_some() {
            return Ok(());
        }
        let launching = launching(
            &self.configuration,
            &self.configuration.model.path,
            &self.run,
            self.launches,
            self.debug,
        );
        self.launches += 1;
        let opened = self.runtime.block_on(async { Wire::open(&launching) });
        match opened {
            Ok(wire) => {
                self.wire = Some(wire);
                Ok(())
            }
            Err(error) => self.block(format!("cannot be started: {error}")),
        }
    }

    /// Ends the process. The next request starts another one.
    fn let_go(&mut self) {
        self.loaded = None;
        if let Some(mut wire) = self.wire.take() {
            self.stray = self.stray.take().or_else(|| wire.stray.take());
            self.runtime.block_on(wire.end());
        }
    }

    fn take_for_minimal(&mut self) -> Result<(), Not> {
        self.met = Met::Minimal;
        // It may still be at work, if it read hello as a request.
        self.let_go();
        self.start()
    }

    /// Selects the device of an engine without a CPU, from its next process on.
    fn settle_device(&mut self) {
        let devices = self.known_hello().map(|hello| hello.capabilities.devices.clone()).unwrap_or_default();
        let has_it = devices.is_empty() || devices.iter().any(|it| it == self.configuration.device.as_str());
        if !has_it && !self.device_is_asked_for {
            self.configuration.device = Device::from(&*devices[0]);
        }
    }

    /// Reports a fault after which no check can be made.
    pub fn block<T>(&mut self, why: String) -> Result<T, Not> {
        self.blocked = Some(why.clone());
        wrong(why)
    }

    /// Reports a problem after which no check can be made, and which is no fault of the engine.
    fn unreachable<T>(&mut self, why: String) -> Result<T, Not> {
        self.blocked = Some(why.clone());
        Err(Not::Unreached(why))
    }
}

fn evidence_of(wire: &Wire) -> Evidence {
    let mut stderr = if wire.ended { wire.stderr() } else { Vec::new() };
    stderr.drain(..stderr.len().saturating_sub(3));
    Evidence { sent: wire.sent.clone(), received: wire.received.clone(), stderr }
}

/// Whether the failure is the engine's own: an unreadable model or a lacking machine is no breach of the protocol.
fn is_its_own_fault(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::BadRequest | FailureKind::Internal | FailureKind::Context)
}

pub fn said(failed: &Failed) -> String {
    format!("answered `failed` ({}): {}", failed.kind.as_str(), with_hint(failed))
}

fn with_hint(failed: &Failed) -> String {
    let hint = failed.hint.as_ref().map(|hint| format!(" (hint: {hint})")).unwrap_or_default();
    format!("{}{hint}", failed.message)
}

pub fn since(sent: Instant, at: Instant) -> u64 {
    at.saturating_duration_since(sent).as_nanos() as u64
}
