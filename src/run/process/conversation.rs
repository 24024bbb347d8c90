//! Requests to an engine and its answers, each answer with a deadline. It knows the protocol, but no scenario.

use std::path::Path;
use std::time::{Duration, Instant};

use protocol::{
    Facts, Failed, FailureKind, Frame, Generate, Generated, HelloFacts, Id, Load, Loaded, Message, Progress,
    Request, Score, Scored, Token,
};

use super::child::{Launching, Line, Process};
use super::containment::excess_bytes;
use super::error::{Cause, EngineFailure, limited};
use super::library;
use super::start_error::{env_failure, why_not_started};
use crate::record::Stage;
use crate::shell::Unavailable;
use crate::text::{line, shorten};

/// The maximum number of stdout lines before a message that are no JSON object. Libraries print a few; more than this is an
/// error. A limit for a launch would refuse an engine that prints a line for each request.
pub const MAX_STRAY_LINES: usize = 1000;

/// The message about a line that is longer than `protocol::MAX_LINE_BYTES`.
pub const LINE_TOO_LONG: &str = "a line of more than 16 MiB, the limit of the protocol";

/// The width of the first line of text in an error.
const MAX_TEXT_WIDTH: usize = 60;

/// The time between two checks of the working folder of an engine that does not answer yet.
const FOLDER_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The time limits of an engine's answers.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    pub hello: Duration,
    /// Starts anew with each `progress`.
    pub load: Duration,
    pub answer: Duration,
    pub shutdown: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { hello: seconds(10), load: seconds(600), answer: seconds(120), shutdown: seconds(5) }
    }
}

impl Deadlines {
    /// The deadlines with `--timeout`: the time for one answer or one load, and at most this time for `hello` and `shutdown`.
    pub fn with_timeout(timeout: Option<Duration>) -> Self {
        let mut deadlines = Self::default();
        if let Some(time) = timeout {
            deadlines.load = time;
            deadlines.answer = time;
            deadlines.hello = deadlines.hello.min(time);
            deadlines.shutdown = deadlines.shutdown.min(time);
        }
        deadlines
    }
}

/// The answer to `hello`.
#[derive(Debug)]
pub enum Hello {
    Known(Box<HelloFacts>),
    /// The engine does not know `hello`. The caller starts it again and sends only `generate`.
    Minimal,
    /// The engine did not answer, perhaps because it does not know `hello`.
    NoAnswer,
}

/// A `generated`, with times on the orchestrator's clock since the process started.
#[derive(Debug)]
pub struct Answer {
    pub generated: Generated,
    /// Streamed tokens, each with the time at which its bytes arrived.
    pub tokens: Vec<(Token, u64)>,
    pub sent_ns: u64,
    pub answered_ns: u64,
}

impl Answer {
    pub fn elapsed_ns(&self) -> u64 {
        self.answered_ns.saturating_sub(self.sent_ns)
    }
}

/// The answer to `facts`, with times on the orchestrator's clock since the process started.
#[derive(Debug)]
pub struct FactsAnswer {
    pub facts: Facts,
    pub sent_ns: u64,
    pub answered_ns: u64,
}

#[derive(Debug)]
pub struct Conversation {
    pub process: Process,
    pub deadlines: Deadlines,
    /// Since the last message.
    stray_lines: usize,
    /// The first line of a process that has sent no message yet. It may be a program that knows no protocol.
    text: Option<String>,
    /// The process has sent a message.
    has_answered: bool,
    /// The program of the process.
    program: String,
    /// A model is loaded, so later requests do not load it.
    loaded: bool,
}

impl Conversation {
    pub fn start(launching: &Launching, deadlines: Deadlines) -> Result<Self, EngineFailure> {
        let program = launching.command.first().map_or("", String::as_str);
        match Process::start(launching) {
            Ok(process) => Ok(Self {
                process,
                deadlines,
                stray_lines: 0,
                text: None,
                has_answered: false,
                program: program.into(),
                loaded: false,
            }),
            Err(error) => {
                let Unavailable { reason, hint } = why_not_started(program, &error);
                let cause =
                    Cause::Start { message: format!("`{program}` cannot be started: {reason}"), hint };
                Err(EngineFailure::without_process(Stage::Start, cause))
            }
        }
    }

    pub async fn hello(&mut self) -> Result<Hello, Cause> {
        let hello = Request::Hello(protocol::Hello { protocol: protocol::version::CURRENT });
        let deadline = self.deadlines.hello;
        let answer = async {
            self.send(&hello).await?;
            self.message().await
        };
        let answer = match tokio::time::timeout(deadline, answer).await {
            Ok(answer) => answer?.0,
            Err(_) => {
                return match self.no_answer(deadline).await {
                    Cause::Timeout(_) | Cause::NoMessage { .. } => Ok(Hello::NoAnswer),
                    cause => Err(cause),
                };
            }
        };
        match answer {
            // A minimal engine reads every line as a `generate`, or refuses unknown lines.
            Message::Generated(_) => Ok(Hello::Minimal),
            Message::Failed(Failed { kind: FailureKind::BadRequest | FailureKind::Unsupported, .. }) => {
                Ok(Hello::Minimal)
            }
            Message::Hello(facts) if facts.protocol != protocol::version::CURRENT => {
                Err(Cause::Version(facts.protocol))
            }
            Message::Hello(facts) => Ok(Hello::Known(Box::new(facts))),
            Message::Failed(failed) => Err(Cause::FailedAnswer(failed)),
            other => Err(unexpected(&other, "hello")),
        }
    }

    pub async fn load(
        &mut self,
        load: Load,
        mut on_progress: impl FnMut(Progress),
    ) -> Result<(Loaded, u64), Cause> {
        let deadline = self.deadlines.load;
        self.send_within(&Request::Load(load), deadline).await?;
        loop {
            match self.message_within(deadline).await? {
                (Message::Progress(report), _) => on_progress(report),
                (Message::Loaded(loaded), at) => {
                    self.loaded = true;
                    return Ok((loaded, self.since_start(at)));
                }
                (Message::Failed(failed), _) => return Err(Cause::FailedAnswer(failed)),
                (other, _) => return Err(unexpected(&other, "loaded")),
            }
        }
    }

    /// Requests tokens. A load within this request may report progress, which sets a later deadline.
    pub async fn generate(&mut self, generate: Generate, deadline: Duration) -> Result<Answer, Cause> {
        check_folder(&self.process.folder).await?;
        let (id, sent) = (generate.id.clone(), Instant::now());
        self.send_within(&Request::Generate(generate), deadline).await?;
        let mut tokens = Vec::new();
        let mut answer_by = tokio::time::Instant::now() + deadline;
        loop {
            match self.message_by(answer_by, deadline).await? {
                (Message::Token(token), at) => {
                    verify_id(&token.id, &id, "token")?;
                    tokens.push((token, self.since_start(at)));
                }
                // Progress of a load within the request. A loaded engine has no load, so its progress is ignored.
                (Message::Progress(_), _) if !self.loaded => {
                    answer_by = tokio::time::Instant::now() + self.deadlines.load
                }
                (Message::Progress(_), _) => {}
                (Message::Generated(generated), at) => {
                    self.loaded = true;
                    verify_id(&generated.id, &id, "generated")?;
                    let (sent_ns, answered_ns) = (self.since_start(sent), self.since_start(at));
                    return Ok(Answer { generated, tokens, sent_ns, answered_ns });
                }
                (Message::Failed(failed), _) => return Err(Cause::FailedAnswer(failed)),
                (other, _) => return Err(unexpected(&other, "generated")),
            }
        }
    }

    /// Requests the log-probabilities of ids. Also returns the elapsed time on the orchestrator's clock.
    pub async fn score(&mut self, score: Score, deadline: Duration) -> Result<(Scored, Duration), Cause> {
        let (id, sent) = (score.id.clone(), Instant::now());
        self.send_within(&Request::Score(score), deadline).await?;
        let answer_by = tokio::time::Instant::now() + deadline;
        loop {
            match self.message_by(answer_by, deadline).await? {
                // A loaded engine has no load, so its progress is ignored.
                (Message::Progress(_), _) => {}
                (Message::Scored(scored), at) => {
                    verify_id(&scored.id, &id, "scored")?;
                    self.refuse_unrequested()?;
                    return Ok((scored, at.saturating_duration_since(sent)));
                }
                (Message::Failed(failed), _) => return Err(Cause::FailedAnswer(failed)),
                (other, _) => return Err(unexpected(&other, "scored")),
            }
        }
    }

    /// Requests the engine's facts.
    pub async fn facts(&mut self, deadline: Duration) -> Result<FactsAnswer, Cause> {
        let sent = Instant::now();
        self.send_within(&Request::Facts {}, deadline).await?;
        let answer_by = tokio::time::Instant::now() + deadline;
        loop {
            match self.message_by(answer_by, deadline).await? {
                // A loaded engine has no load, so its progress is ignored.
                (Message::Progress(_), _) => {}
                (Message::Facts(facts), at) => {
                    let (sent_ns, answered_ns) = (self.since_start(sent), self.since_start(at));
                    self.refuse_unrequested()?;
                    return Ok(FactsAnswer { facts, sent_ns, answered_ns });
                }
                (Message::Failed(failed), _) => return Err(Cause::FailedAnswer(failed)),
                (other, _) => return Err(unexpected(&other, "facts")),
            }
        }
    }

    /// Sends `shutdown`, then waits for `bye` and the end. After an `Err` the process may still run; the caller ends it.
    pub async fn shutdown(&mut self) -> Result<(), Cause> {
        let deadline = self.deadlines.shutdown;
        self.send_within(&Request::Shutdown {}, deadline).await?;
        match self.message_within(deadline).await? {
            (Message::Bye {}, _) => {}
            (other, _) => return Err(unexpected(&other, "bye")),
        }
        match self.process.wait(deadline).await {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(Cause::Protocol(format!("ended with {status} after `bye`"))),
            None => Err(self.no_answer(deadline).await),
        }
    }

    /// Checks that the engine wrote nothing unrequested since its last answer.
    pub fn refuse_unrequested(&mut self) -> Result<(), Cause> {
        while let Some(line) = self.process.waiting_line() {
            if let Some((message, _)) = self.parse_line(line)? {
                return Err(Cause::Protocol(format!("unrequested `{}` after its answer", message.name())));
            }
        }
        Ok(())
    }

    pub fn since_start(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.process.started).as_nanos() as u64
    }

    async fn send(&mut self, request: &Request) -> Result<(), Cause> {
        self.refuse_unrequested()?;
        self.write(request).await
    }

    async fn write(&mut self, request: &Request) -> Result<(), Cause> {
        if self.process.write(&protocol::encode(request)).await.is_err() {
            // A closed pipe means that the engine is ending. Its exit status says more than the pipe.
            return Err(self.cause_of_end().await);
        }
        Ok(())
    }

    async fn send_within(&mut self, request: &Request, deadline: Duration) -> Result<(), Cause> {
        match tokio::time::timeout(deadline, self.send(request)).await {
            Ok(sent) => sent,
            Err(_) => Err(self.no_answer(deadline).await),
        }
    }

    /// Writes a request while others may be open, so answers may be waiting.
    pub(super) async fn write_within(&mut self, request: &Request, deadline: Duration) -> Result<(), Cause> {
        match tokio::time::timeout(deadline, self.write(request)).await {
            Ok(written) => written,
            Err(_) => Err(self.no_answer(deadline).await),
        }
    }

    async fn message_within(&mut self, deadline: Duration) -> Result<(Message, Instant), Cause> {
        self.message_by(tokio::time::Instant::now() + deadline, deadline).await
    }

    /// The next message, if it arrives before `answer_by`. The timeout error contains `deadline`.
    pub(super) async fn message_by(
        &mut self,
        answer_by: tokio::time::Instant,
        deadline: Duration,
    ) -> Result<(Message, Instant), Cause> {
        let folder = self.process.folder.clone();
        {
            // The future lives through all checks, because it may be waiting for the end of the process.
            let mut message = std::pin::pin!(self.message());
            loop {
                let check_at = tokio::time::Instant::now() + FOLDER_CHECK_INTERVAL;
                match tokio::time::timeout_at(answer_by.min(check_at), &mut message).await {
                    Ok(message) => return message,
                    Err(_) if tokio::time::Instant::now() >= answer_by => break,
                    Err(_) => check_folder(&folder).await?,
                }
            }
        }
        Err(self.no_answer(deadline).await)
    }

    /// The cause of a deadline without an answer.
    async fn no_answer(&self, deadline: Duration) -> Cause {
        match self.process.stopped().await {
            Some(pid) => Cause::Stopped { after: deadline, pid },
            None => self.without_message(Cause::Timeout(deadline), false),
        }
    }

    /// The end, with the text that the process wrote in place of a message. `is_no_engine`: at this end, a process without a message
    /// is no engine.
    fn without_message(&self, end: Cause, is_no_engine: bool) -> Cause {
        if self.has_answered || self.text.is_none() && !is_no_engine {
            return end;
        }
        let (text, program) = (self.text.clone(), self.program.clone());
        Cause::NoMessage { end: Box::new(end), text, program, is_no_engine }
    }

    /// The next message. Lines that are not messages are stored with the last lines of stderr.
    async fn message(&mut self) -> Result<(Message, Instant), Cause> {
        loop {
            let Some(line) = self.process.line().await else { return Err(self.cause_of_end().await) };
            if let Some(parsed) = self.parse_line(line)? {
                return Ok(parsed);
            }
        }
    }

    fn parse_line(&mut self, received: Line) -> Result<Option<(Message, Instant)>, Cause> {
        let bytes = match received.frame {
            Frame::Line(bytes) => bytes,
            Frame::TooLong { .. } => return Err(Cause::Protocol(LINE_TOO_LONG.into())),
        };
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            self.stray_lines += 1;
            let text = String::from_utf8_lossy(&bytes);
            self.process.note(&format!("(stdout) {text}"));
            self.text.get_or_insert_with(|| shorten(&line(&text), MAX_TEXT_WIDTH));
            if self.stray_lines > MAX_STRAY_LINES {
                let end = Cause::Protocol(format!(
                    "more than {MAX_STRAY_LINES} lines on stdout that are not JSON objects, before one message"
                ));
                return Err(self.without_message(end, true));
            }
            return Ok(None);
        }
        self.stray_lines = 0;
        self.has_answered = true;
        match protocol::parse_message(&bytes) {
            Ok(Message::Failed(failed)) => Ok(Some((Message::Failed(limited(failed)), received.at))),
            Ok(message) => Ok(Some((message, received.at))),
            Err(_) if !received.is_complete => {
                self.process.note(&format!("(stdout, cut off) {}", String::from_utf8_lossy(&bytes)));
                Ok(None)
            }
            Err(error) => {
                let start: String = String::from_utf8_lossy(&bytes).chars().take(80).collect();
                Err(Cause::Protocol(format!("{} in the line `{start}`", error.message)))
            }
        }
    }

    /// The cause when stdout has ended: the exit of the process.
    async fn cause_of_end(&mut self) -> Cause {
        match self.process.wait(Duration::from_secs(2)).await {
            Some(status) => {
                let stderr = self.process.stderr();
                let not_started = library::loader_failure(status, &stderr);
                let not_started = not_started.or_else(|| env_failure(status, &stderr));
                // An engine that fails has another exit code.
                let is_no_engine = status.success();
                let end = || self.without_message(Cause::Exited(describe_exit(status)), is_no_engine);
                not_started.unwrap_or_else(end)
            }
            None if self.process.is_lost() => Cause::Protocol(
                "the keeper process of this run has ended: an engine or another program ended it".into(),
            ),
            None => Cause::Protocol("closed its stdout and kept running".into()),
        }
    }
}

/// Refuses an engine that fills the disk. An engine usually writes nothing, so this reads one empty folder.
pub(super) async fn check_folder(folder: &Path) -> Result<(), Cause> {
    let folder = folder.to_path_buf();
    let excess = tokio::task::spawn_blocking(move || excess_bytes(&folder)).await.ok().flatten();
    excess.map_or(Ok(()), |(bytes, limit)| Err(Cause::FolderFull { bytes, limit }))
}

/// The exit code of a shell that does not find a command.
const COMMAND_NOT_FOUND: i32 = 127;

/// `exit code 3`, or the signal with its name.
pub fn describe_exit(status: std::process::ExitStatus) -> String {
    match status.code() {
        Some(COMMAND_NOT_FOUND) => format!("exit code {COMMAND_NOT_FOUND} (command not found)"),
        Some(code) => format!("exit code {code}"),
        // `signal: 6 (SIGABRT) (core dumped)`: the standard library knows the names of signals.
        None => status.to_string().replacen("signal: ", "signal ", 1).replace(" (core dumped)", ""),
    }
}

fn verify_id(received: &Option<Id>, requested: &Option<Id>, message: &str) -> Result<(), Cause> {
    if received == requested {
        return Ok(());
    }
    let show = |id: &Option<Id>| match id {
        Some(Id::Number(number)) => format!("`{number}`"),
        Some(Id::Text(text)) => format!("`{}`", text.chars().take(40).collect::<String>()),
        None => "none".into(),
    };
    Err(Cause::Protocol(format!("`{message}` has id {}, expected {}", show(received), show(requested))))
}

pub(super) fn unexpected(message: &Message, wanted: &str) -> Cause {
    Cause::Protocol(format!("expected `{wanted}`, got `{}`", message.name()))
}
