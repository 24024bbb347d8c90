//! A small engine whose behaviour depends on the prompt, and functions that talk to it in memory.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use engine_kit::model_files::ModelFolder;
use engine_kit::protocol::{
    Capabilities, Facts, Failed, FailureKind, Frame, Framer, HelloFacts, Load, Message, Padding, Speculation,
    parse_message,
};
use engine_kit::{
    Engine, Environment, Flow, Inbox, Job, Model, Options, Output, Phases, Server, Slots, Tokens,
};

#[path = "../../../../models/files/tests/tiny/mod.rs"]
pub mod tiny;

/// Each of these ids, as the first id of a prompt or of a scored sequence, selects a behaviour. After any other first id `n`,
/// the token at `index` is 3 + (n + index) % 40.
pub const ENDS_WITH_EOS: u32 = 50;
pub const PANICS: u32 = 51;
pub const CANCELS_REQUEST_7: u32 = 52;
pub const STOPS_EARLY: u32 = 53;
pub const PUSHES_AFTER_END: u32 = 54;
pub const RUNS_OUT_OF_MEMORY: u32 = 55;
pub const WRONG_SEQUENCE: u32 = 56;
pub const FAILS_ONE_REQUEST: u32 = 57;
pub const HANGS: u32 = 58;
pub const HAS_NO_SCORES: u32 = 59;
pub const HAS_NAN_SCORES: u32 = 60;
/// An id with the probability 0, at any place in a scored sequence.
pub const IMPOSSIBLE: u32 = 61;

/// The calls to the toy and the drops of its models, in order.
pub type Log = Arc<Mutex<Vec<String>>>;

#[derive(Clone)]
pub struct Toy {
    pub capabilities: Capabilities,
    pub has_slots: bool,
    pub inbox: Arc<Inbox>,
    pub log: Log,
}

pub struct ToyModel {
    toy: Toy,
    threads: Option<u32>,
    /// The slot, the job and the number of steps so far of each admitted request.
    admitted: Vec<(usize, Job, u32)>,
}

impl Toy {
    pub fn new() -> Self {
        let capabilities = Capabilities {
            dtypes: vec!["f32".into(), "bf16".into()],
            architectures: vec!["llama".into()],
            batch: 4,
            padding_sides: vec![Padding::Left],
            speculation: vec![Speculation::PromptLookup],
            sampling: true,
            score: true,
            ..engine_kit::facts::capabilities()
        };
        Self { capabilities, has_slots: false, inbox: Arc::default(), log: Arc::default() }
    }

    /// A toy that runs two requests at a time, if each has an `id`.
    pub fn overlapping() -> Self {
        let toy = Self::new();
        Self {
            capabilities: Capabilities { concurrency: 2, ..toy.capabilities.clone() },
            has_slots: true,
            ..toy
        }
    }

    fn record(&self, event: impl Into<String>) {
        self.log.lock().unwrap().push(event.into());
    }
}

impl Engine for Toy {
    type Model = ToyModel;

    fn hello(&self) -> Result<HelloFacts, Failed> {
        Ok(HelloFacts { capabilities: self.capabilities.clone(), ..engine_kit::hello("toy", "1.2.3") })
    }

    fn load(&mut self, folder: &ModelFolder, load: &Load, phases: &mut Phases) -> Result<ToyModel, Failed> {
        let options = Options::new(&load.options);
        let (panics, fails) = (options.bool("panics")?, options.text("fails")?);
        options.finish()?;
        self.record(format!("load {}", folder.name));
        phases.phase("weights", || ());
        assert_ne!(panics, Some(true), "the option requests a panic");
        if let Some(message) = fails {
            return Err(Failed::new(FailureKind::Device, message));
        }
        Ok(ToyModel { toy: self.clone(), threads: load.threads, admitted: Vec::new() })
    }
}

impl Drop for ToyModel {
    fn drop(&mut self) {
        self.toy.record("drop");
    }
}

impl Model for ToyModel {
    fn facts(&self) -> Facts {
        Facts {
            device: Some("cpu".into()),
            weights_dtype: Some("f32".into()),
            threads: self.threads,
            ..Facts::default()
        }
    }

    fn generate(&mut self, job: &Job, tokens: &mut Tokens) -> Result<(), Failed> {
        self.toy.record(format!("generate {:?}", job.prompts));
        if !job.speculation.is_off() {
            tokens.set_drafts(0, 2, 1);
        }
        for index in 0.. {
            for (sequence, prompt) in job.prompts.iter().enumerate() {
                if !tokens.is_done(sequence)
                    && !self.advance(prompt[0], index, sequence, job.prompts.len(), tokens)?
                {
                    return Ok(());
                }
            }
            if tokens.all_done() {
                break;
            }
        }
        Ok(())
    }

    fn score(&mut self, ids: &[u32]) -> Result<Vec<f64>, Failed> {
        let value = |id: &u32| if *id == IMPOSSIBLE { f64::NEG_INFINITY } else { -f64::from(*id) };
        match ids[0] {
            HAS_NO_SCORES => Ok(vec![]),
            HAS_NAN_SCORES => Ok(vec![f64::NAN; ids.len() - 1]),
            _ => Ok(ids[1..].iter().map(value).collect()),
        }
    }

    fn slots(&mut self) -> Option<&mut dyn Slots> {
        self.toy.has_slots.then_some(self)
    }
}

impl ToyModel {
    /// Makes the token at `index` of one sequence. Returns false if the toy stops.
    fn advance(
        &mut self,
        selector: u32,
        index: u32,
        sequence: usize,
        sequence_count: usize,
        tokens: &mut Tokens,
    ) -> Result<bool, Failed> {
        let id = match (selector, index) {
            (ENDS_WITH_EOS, 2) => tiny::EOS,
            (PANICS, 1) => panic!("a requested panic"),
            (HANGS, 1) => {
                let _ = std::io::stderr().write_all(b"hanging\n");
                loop {
                    std::thread::park();
                }
            }
            (STOPS_EARLY, 2) => return Ok(false),
            (FAILS_ONE_REQUEST, 1) => {
                tokens.fail(Failed::new(FailureKind::Model, "this request fails alone"));
                return Ok(false);
            }
            (RUNS_OUT_OF_MEMORY, 1) => {
                return Err(Failed::new(FailureKind::OutOfMemory, "12 bytes are too many"));
            }
            (CANCELS_REQUEST_7, 3) => {
                self.toy.inbox.accept(Frame::Line(br#"{"type":"cancel","id":7}"#.to_vec()), Instant::now());
                9
            }
            _ => 3 + (selector + index) % 40,
        };
        let sequence = if selector == WRONG_SEQUENCE { sequence_count } else { sequence };
        match tokens.push(sequence, id) {
            Flow::Done if selector == PUSHES_AFTER_END => {
                let _ = tokens.push(sequence, id);
            }
            Flow::Done | Flow::More => {}
        }
        // A token for a wrong sequence ends no sequence, so the toy stops.
        Ok(selector != WRONG_SEQUENCE)
    }
}

impl Slots for ToyModel {
    fn admit(&mut self, slot: usize, job: &Job) -> Result<(), Failed> {
        assert!(self.admitted.iter().all(|(taken, ..)| *taken != slot), "slot {slot} is taken");
        self.toy.record(format!("admit {slot} {:?}", job.prompts));
        self.admitted.push((slot, job.clone(), 0));
        Ok(())
    }

    fn step(&mut self, tokens: &mut [Option<Tokens>]) -> Result<(), Failed> {
        self.toy.record(format!("step {}", self.admitted.len()));
        for (slot, job, index) in self.admitted.clone() {
            let tokens = tokens[slot].as_mut().unwrap();
            for (sequence, prompt) in job.prompts.iter().enumerate() {
                if !tokens.is_done(sequence) {
                    let _ = self.advance(prompt[0], index, sequence, job.prompts.len(), tokens)?;
                }
            }
        }
        self.admitted.iter_mut().for_each(|(.., index)| *index += 1);
        Ok(())
    }

    fn leave(&mut self, slot: usize) {
        assert!(self.admitted.iter().any(|(taken, ..)| *taken == slot), "slot {slot} is free");
        self.toy.record(format!("leave {slot}"));
        self.admitted.retain(|(taken, ..)| *taken != slot);
    }
}

/// Bytes that an engine writes and a test reads.
#[derive(Clone, Default)]
pub struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Bytes {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// The answers of a conversation, its output on stderr, and the calls to the toy.
pub struct Session {
    pub raw: String,
    pub messages: Vec<Message>,
    pub stderr: String,
    pub log: Vec<String>,
}

/// An environment that names a tiny model of this test.
pub fn environment(test: &str) -> Environment {
    environment_of(tiny::model(test))
}

pub fn environment_of(model: PathBuf) -> Environment {
    Environment { model: model.into_os_string().into_string().ok(), ..Environment::default() }
}

pub fn model(test: &str) -> String {
    environment(test).model.unwrap()
}

/// Sends all lines at once and collects all answers. Every answer is a line of the protocol.
pub fn converse(toy: Toy, environment: Environment, input: impl AsRef<[u8]>) -> Session {
    let (inbox, log) = (toy.inbox.clone(), toy.log.clone());
    let mut framer = Framer::default();
    framer.push(input.as_ref(), |frame| inbox.accept(frame, Instant::now()));
    if let Some(frame) = framer.finish() {
        inbox.accept(frame, Instant::now());
    }
    inbox.close();
    let (out, stderr) = (Bytes::default(), Bytes::default());
    Server::new(toy, inbox, Output::new(out.clone()), environment).with_stderr(stderr.clone()).run().unwrap();
    let raw = out.text();
    assert!(raw.is_empty() || raw.ends_with('\n'));
    let messages = raw.lines().map(|line| parse_message(line.as_bytes()).unwrap()).collect();
    let log = log.lock().unwrap().clone();
    Session { raw, messages, stderr: stderr.text(), log }
}

/// The answers to these lines. The environment names a tiny model.
pub fn answers_to(test: &str, toy: Toy, lines: &[&str]) -> Vec<Message> {
    converse(toy, environment(test), lines.join("\n")).messages
}

/// The failure in an answer that must be one.
pub fn failed(answer: &Message) -> &Failed {
    match answer {
        Message::Failed(failed) => failed,
        other => panic!("expected `failed`, found {other:?}"),
    }
}

/// The answer to a line, which must be a single `failed`.
pub fn failure_of(test: &str, toy: Toy, line: &str) -> Failed {
    let answers = answers_to(test, toy, &[line]);
    assert_eq!(answers.len(), 1, "{answers:?}");
    failed(&answers[0]).clone()
}
