//! The engine under check. It is started when a check needs it, and restarted after it ended or stopped answering. Checks talk
//! to the engine only through `CheckedEngine`.

use std::time::{Duration, Instant};

use anyhow::Result;
use model_files::{ModelFolder, Tokenizer};
use protocol::FailureKind::{self, BadRequest, Context, Internal, Unsupported};
use protocol::{Capabilities, Failed, HelloFacts, Loaded, Message, Output, Request};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::connection::Connection;
use super::result::{Evidence, Finding, Outcome, absent, failure_text, unexpected, with_hint, wrong};
use crate::machine::Device;
use crate::plan::Configuration;
use crate::run::process::{Deadlines, why_not_started};
use crate::run::{Settings, launching, load_request};
use crate::shell::Unavailable;

/// The number of successive checks without an answer after which the engine gets no more requests.
const MAX_SILENT_CHECKS: u32 = 3;

const NO_ENGINE: &str = "no engine: gave no valid answer";

/// A check of one property that the protocol requires.
pub struct Check {
    pub name: &'static str,
    /// The property that a passed check proves.
    pub property: &'static str,
    pub run: fn(&mut CheckedEngine) -> Outcome,
}

impl Check {
    pub const fn new(
        name: &'static str,
        property: &'static str,
        run: fn(&mut CheckedEngine) -> Outcome,
    ) -> Self {
        Self { name, property, run }
    }
}

/// The engine under check: its process, and its answers that later checks need.
pub struct CheckedEngine {
    // Declared before the runtime: a process needs the runtime when it is dropped.
    connection: Option<Connection>,
    runtime: Runtime,
    pub configuration: Configuration,
    /// Whether the user named the device. If so, the engine's own devices do not replace it.
    pub device_is_named: bool,
    /// Whether a load needs one of the engine's options. Then a request without a `load` cannot load the model.
    pub needs_option: bool,
    pub deadlines: Deadlines,
    pub tokenizer: Option<Tokenizer>,
    run_id: String,
    launches: u32,
    settings: Settings,
    handshake: Handshake,
    loaded: Option<Loaded>,
    tried_to_load: bool,
    /// Whether any process of the engine has answered a `generate`.
    pub has_answered: bool,
    /// The number of successive checks that ended without an answer.
    silent_checks: u32,
    /// The reason why no more checks can be made, for example that the engine does not start or does not load.
    blocked: Option<String>,
    /// Whether no request got a protocol message as an answer.
    pub no_engine: bool,
    first_stray_line: Option<Vec<u8>>,
    evidence: Evidence,
}

/// The engine's answer to `hello`.
enum Handshake {
    Pending,
    Full(Box<HelloFacts>),
    /// The engine knows only `generate`.
    Minimal,
}

impl CheckedEngine {
    pub fn new(configuration: Configuration, run_id: String, settings: Settings) -> Result<Self> {
        let tokenizer = ModelFolder::open(&configuration.model.path).and_then(|folder| folder.tokenizer());
        Ok(Self {
            connection: None,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            configuration,
            device_is_named: false,
            needs_option: false,
            deadlines: settings.deadlines,
            tokenizer: tokenizer.ok(),
            run_id,
            launches: 0,
            settings,
            handshake: Handshake::Pending,
            loaded: None,
            tried_to_load: false,
            has_answered: false,
            silent_checks: 0,
            blocked: None,
            no_engine: false,
            first_stray_line: None,
            evidence: Evidence::default(),
        })
    }

    /// Runs a check and keeps its evidence. Ends a process that broke the protocol or cannot answer any more.
    pub fn run_check(&mut self, check: fn(&mut Self) -> Outcome) -> Outcome {
        let result = check(self);
        if let Some(connection) = &mut self.connection {
            self.evidence = evidence_of(connection);
            self.first_stray_line =
                self.first_stray_line.take().or_else(|| connection.first_stray_line.take());
            self.silent_checks = if connection.silent { self.silent_checks + 1 } else { 0 };
            // A program that answers with text never answers in JSON, so one deadline is enough.
            if connection.silent && connection.answers_with_text {
                self.blocked.get_or_insert_with(|| "it answers with text that is not JSON".into());
            } else if self.silent_checks == MAX_SILENT_CHECKS {
                self.blocked = Some(format!("{MAX_SILENT_CHECKS} successive checks got no answer"));
            }
            if connection.is_lost || matches!(result, Err(Finding::Wrong(_))) {
                self.end_process();
            }
        }
        result
    }

    pub fn evidence(&self) -> Evidence {
        self.evidence.clone()
    }

    /// Starts the engine and sends `hello`, unless this is already done.
    pub fn handshake(&mut self) -> Outcome {
        self.start()?;
        if !matches!(self.handshake, Handshake::Pending) {
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
                self.handshake = Handshake::Full(Box::new(facts));
                self.select_device();
                Ok(())
            }
            Ok(Message::Failed(Failed { kind: BadRequest | Unsupported, .. }) | Message::Generated(_)) => {
                self.treat_as_minimal()
            }
            Ok(Message::Failed(failed)) => {
                self.cannot_check(format!("cannot run here: {}", with_hint(&failed)))
            }
            Ok(_) => self.block("expected `hello`, got another message".into()),
            Err(Finding::Wrong(fault)) => self.handshake_without_answer(fault),
            Err(other) => Err(other),
        }
    }

    /// Handles a `hello` that got no valid answer, by sending a `generate` to a new process. A program that does not answer the
    /// `generate` either is no engine. An engine that answers it, and after `hello` kept running without a message, is a minimal
    /// engine. For any other engine, the fault at `hello` counts. A program that answers `hello` with text is no engine, and
    /// gets no `generate`, whose deadline is that of a load.
    fn handshake_without_answer(&mut self, hello_fault: String) -> Outcome {
        let was_quiet = self
            .connection
            .as_ref()
            .is_some_and(|connection| !connection.ended && connection.received.is_empty());
        let evidence = self.connection.as_ref().map(evidence_of).unwrap_or_default();
        let answers_with_text = self.connection.as_ref().is_some_and(|it| it.answers_with_text);
        self.end_process();
        if answers_with_text {
            self.evidence = evidence;
            self.no_engine = true;
            return self.block(format!("{NO_ENGINE}; to `hello`: {hello_fault}"));
        }
        match self.answers_one_line() {
            Ok(()) if was_quiet => self.treat_as_minimal(),
            Ok(()) => {
                self.end_process();
                self.evidence = evidence;
                self.block(hello_fault)
            }
            Err(Finding::Wrong(generate_fault)) => {
                self.end_process();
                self.evidence = evidence;
                self.no_engine = true;
                self.block(format!("{NO_ENGINE}; to `hello`: {hello_fault}; to `generate`: {generate_fault}"))
            }
            Err(other) => Err(other),
        }
    }

    /// Whether `echo REQUEST | engine` prints a message. Stdin is closed because a program that is no engine then ends, long
    /// before the deadline.
    fn answers_one_line(&mut self) -> Outcome {
        self.send_json(&serde_json::json!({ "prompt": "Hello", "max_new_tokens": 1 }))?;
        self.close_stdin();
        self.receive().map(|_| ())
    }

    /// The reason why no check can be made, if there is one.
    pub fn blocked(&self) -> Option<&str> {
        self.blocked.as_deref()
    }

    /// The answer to `hello`; absent for an engine that knows only `generate`.
    pub fn hello(&mut self) -> Outcome<HelloFacts> {
        self.handshake()?;
        self.known_hello().cloned().map_or_else(|| absent("this engine supports only `generate`"), Ok)
    }

    /// The answer to `hello`, if the engine gave one.
    pub fn known_hello(&self) -> Option<&HelloFacts> {
        if let Handshake::Full(facts) = &self.handshake { Some(facts) } else { None }
    }

    pub fn known_loaded(&self) -> Option<&Loaded> {
        self.loaded.as_ref()
    }

    pub fn is_minimal(&self) -> bool {
        matches!(self.handshake, Handshake::Minimal)
    }

    /// Whether a run can verify the output of this engine: it takes prompts as ids, or gives text that the verifier can read.
    pub fn can_be_verified(&self) -> bool {
        self.known_hello().is_some_and(|hello| hello.capabilities.prompt_ids || hello.output == Output::Text)
    }

    /// Whether the engine takes text. An engine without `hello` does.
    pub fn takes_text(&self) -> bool {
        self.known_hello().is_none_or(|hello| hello.capabilities.prompt)
    }

    /// The capabilities of an engine that claims this feature; otherwise absent.
    pub fn claims(
        &mut self,
        feature: &str,
        is_claimed: impl Fn(&Capabilities) -> bool,
    ) -> Outcome<Capabilities> {
        let capabilities = self.hello()?.capabilities;
        if is_claimed(&capabilities) { Ok(capabilities) } else { absent(format!("not claimed: `{feature}`")) }
    }

    /// Changes a fault of an engine without `hello` to an absent feature.
    pub fn absent_if_minimal(&self, result: Outcome) -> Outcome {
        match result {
            Err(Finding::Wrong(fault)) if self.is_minimal() => absent(fault),
            result => result,
        }
    }

    /// A check of a request without a `load` is absent if a load needs an option.
    pub fn loads_without_option(&self) -> Outcome {
        if self.needs_option { absent("a load needs one of the engine's options") } else { Ok(()) }
    }

    /// Starts the engine and loads the model, unless this is already done.
    pub fn ensure_loaded(&mut self) -> Outcome {
        self.handshake()?;
        if self.loaded.is_some() || self.is_minimal() {
            return Ok(());
        }
        let is_first_try = !std::mem::replace(&mut self.tried_to_load, true);
        let line = self.load_line();
        match self.try_load(&line) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(failed)) if is_first_try && !is_engine_fault(failed.kind) => {
                self.cannot_check(format!("cannot load the model here: {}", with_hint(&failed)))
            }
            Ok(Err(failed)) if is_first_try => {
                self.block(format!("does not load: {}", failure_text(&failed)))
            }
            Ok(Err(failed)) => wrong(format!("does not load: {}", failure_text(&failed))),
            Err(Finding::Wrong(fault)) if is_first_try => self.block(format!("does not load: {fault}")),
            Err(other) => Err(other),
        }
    }

    /// The `load` request that a run would send, with the same model, device and threads.
    pub fn load_line(&self) -> Value {
        // A request has string keys, so serializing it cannot fail.
        serde_json::to_value(Request::Load(load_request(&self.configuration, &self.configuration.model.path)))
            .unwrap_or_default()
    }

    /// Loads the model, and returns the answer with the elapsed nanoseconds by this program's clock.
    pub fn load(&mut self, line: &Value) -> Outcome<(Loaded, u64)> {
        self.try_load(line)?.or_else(|failed| wrong(failure_text(&failed)))
    }

    fn try_load(&mut self, line: &Value) -> Outcome<Result<(Loaded, u64), Failed>> {
        self.handshake()?;
        self.loaded = None;
        self.expect_no_message()?;
        let sent = self.send_json(line)?;
        loop {
            match self.receive_at(self.deadlines.load)? {
                // The protocol gives a load more time for each `progress`.
                (Message::Progress(_), _) => self.restart_deadline(),
                (Message::Loaded(loaded), at) => {
                    self.loaded = Some(loaded.clone());
                    return Ok(Ok((loaded, elapsed_ns(sent, at))));
                }
                (Message::Failed(failed), _) => return Ok(Err(failed)),
                (other, _) => return unexpected(&other, "loaded"),
            }
        }
    }

    /// The answer to the last load.
    pub fn load_answer(&mut self) -> Outcome<Loaded> {
        self.hello()?;
        self.ensure_loaded()?;
        self.loaded.clone().ok_or_else(|| Finding::Skipped("nothing is loaded".into()))
    }

    /// Absent unless the engine claims that equal requests give equal tokens.
    pub fn claims_determinism(&mut self) -> Outcome {
        if self.hello()?.deterministic { Ok(()) } else { absent("not claimed: `deterministic`") }
    }

    /// Whether this process has had no request yet.
    pub fn is_fresh(&self) -> bool {
        self.connection.as_ref().is_none_or(|connection| connection.sent.is_empty())
    }

    /// Refuses a message that no request caused.
    pub fn expect_no_message(&mut self) -> Outcome {
        self.connection.as_mut().map_or(Ok(()), Connection::expect_no_message)
    }

    /// Does not count the last timeout as silence: an engine that ignores an invalid line may answer the next one.
    pub fn ignore_timeout(&mut self) {
        self.connection.iter_mut().for_each(|connection| connection.silent = false);
    }

    /// Sends a JSON object as one line, and returns the time just before.
    pub fn send_json(&mut self, line: &Value) -> Outcome<Instant> {
        let bytes = protocol::encode(line);
        let sent = Instant::now();
        self.send(&bytes).map(|()| sent)
    }

    pub fn send(&mut self, line: &[u8]) -> Outcome {
        self.start()?;
        let deadline = self.deadlines.answer;
        let connection = self.connection.as_mut().ok_or_else(not_started)?;
        self.runtime.block_on(connection.send(line, deadline))
    }

    pub fn receive(&mut self) -> Outcome<Message> {
        self.receive_within(self.deadlines.answer)
    }

    pub fn receive_within(&mut self, deadline: Duration) -> Outcome<Message> {
        self.receive_at(deadline).map(|(message, _)| message)
    }

    /// The next message, with the arrival time of its bytes. The deadline counts from the last line that was sent, or from a
    /// later `restart_deadline`.
    pub fn receive_at(&mut self, deadline: Duration) -> Outcome<(Message, Instant)> {
        let connection = self.connection.as_mut().ok_or_else(not_started)?;
        self.runtime.block_on(connection.receive(deadline))
    }

    /// Lets the next deadline count from now on.
    pub fn restart_deadline(&mut self) {
        self.connection.iter_mut().for_each(Connection::restart_deadline);
    }

    /// Starts a new process, which has had no request.
    pub fn restart(&mut self) -> Outcome {
        // The new process gets no `hello`, so the engine's answer to it must be known already.
        self.handshake()?;
        self.end_process();
        self.start()
    }

    pub fn close_stdin(&mut self) {
        self.connection.iter_mut().for_each(Connection::close_stdin);
    }

    /// Waits until the engine has ended by itself.
    pub fn wait_for_exit(&mut self) -> Outcome {
        let deadline = self.deadlines.shutdown;
        let connection = self.connection.as_mut().ok_or_else(not_started)?;
        self.runtime.block_on(connection.wait_for_exit(deadline))
    }

    /// The first line on stdout of any process so far that was no message.
    pub fn first_stray_line(&mut self) -> Option<Vec<u8>> {
        self.first_stray_line.clone().or_else(|| self.connection.as_ref()?.first_stray_line.clone())
    }

    fn start(&mut self) -> Outcome {
        if let Some(why) = &self.blocked {
            return Err(Finding::Skipped(why.clone()));
        }
        if self.connection.is_some() {
            return Ok(());
        }
        let (configuration, model) = (&self.configuration, &self.configuration.model.path);
        let launching = launching(configuration, model, &self.run_id, self.launches, &self.settings);
        self.launches += 1;
        match self.runtime.block_on(async { Connection::open(&launching) }) {
            Ok(connection) => self.connection = Some(connection),
            Err(error) => {
                let program = self.configuration.command.first().map_or("", String::as_str);
                let Unavailable { reason, hint } = why_not_started(program, &error);
                let hint = hint.map_or_else(String::new, |hint| format!(" (hint: {hint})"));
                return self.block(format!("cannot be started: {reason}{hint}"));
            }
        }
        Ok(())
    }

    /// Ends the process. The next request starts another one.
    fn end_process(&mut self) {
        self.loaded = None;
        if let Some(mut connection) = self.connection.take() {
            self.first_stray_line =
                self.first_stray_line.take().or_else(|| connection.first_stray_line.take());
            self.runtime.block_on(connection.end());
        }
    }

    fn treat_as_minimal(&mut self) -> Outcome {
        self.handshake = Handshake::Minimal;
        // An engine that took `hello` for a `generate` may still compute.
        self.end_process();
        self.start()
    }

    /// Replaces the default device by the engine's first device, if the engine does not list the default one.
    fn select_device(&mut self) {
        let devices = self.known_hello().map(|hello| hello.capabilities.devices.clone()).unwrap_or_default();
        let supports_device =
            devices.is_empty() || devices.iter().any(|it| it == self.configuration.device.as_str());
        if !supports_device && !self.device_is_named {
            self.configuration.device = Device::from(&*devices[0]);
        }
    }

    /// Reports a fault after which no check can be made.
    pub fn block<T>(&mut self, why: String) -> Outcome<T> {
        self.blocked = Some(why.clone());
        wrong(why)
    }

    /// Reports a problem after which no check can be made, and which is no fault of the engine.
    fn cannot_check<T>(&mut self, why: String) -> Outcome<T> {
        self.blocked = Some(why.clone());
        Err(Finding::Skipped(why))
    }
}

fn not_started() -> Finding {
    Finding::Skipped("not started".into())
}

fn evidence_of(connection: &Connection) -> Evidence {
    let shows_stderr = connection.ended || connection.silent;
    let mut stderr = if shows_stderr { connection.stderr() } else { Vec::new() };
    stderr.drain(..stderr.len().saturating_sub(3));
    Evidence { sent: connection.sent.clone(), received: connection.received.clone(), stderr }
}

/// Whether the engine caused the failure. An unreadable model or an unsuitable machine is no breach of the protocol.
fn is_engine_fault(kind: FailureKind) -> bool {
    matches!(kind, BadRequest | Internal | Context)
}

pub fn elapsed_ns(sent: Instant, at: Instant) -> u64 {
    at.saturating_duration_since(sent).as_nanos() as u64
}
