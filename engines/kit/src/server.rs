//! The conversation: takes requests from the inbox in order and answers each once. Requests with ids overlap if the model
//! has slots.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use protocol::{
    Capabilities, Facts, Failed, FailureKind, Generated, HelloFacts, Id, Load, Loaded, Message, Request,
    Score, Scored, version,
};

use crate::engine::{Fault, guarded};
use crate::inbox::{Arrived, Inbox, Line, ns_since};
use crate::model::{Environment, LoadedModel};
use crate::overlap::Overlap;
use crate::run::{Run, check_vocabulary};
use crate::serve::Work;
use crate::{Engine, Model, Output, Phases, facts, summary};

/// An engine that serves an inbox. `serve` connects it to stdin and stdout; tests run it in memory.
pub struct Server<E: Engine> {
    pub(crate) engine: E,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) output: Output,
    /// The output for people.
    people: Box<dyn Write + Send>,
    environment: Environment,
    hello: Option<HelloFacts>,
    pub(crate) held: Option<LoadedModel<E::Model>>,
    /// Why no model is loaded after a `load`: the environment's model must not replace the requested one.
    lost: Option<String>,
    pub(crate) overlap: Overlap,
    pub(crate) work: Work,
}

impl<E: Engine> Server<E> {
    pub fn new(engine: E, inbox: Arc<Inbox>, output: Output, environment: Environment) -> Self {
        let people = Box::new(io::stderr());
        let (overlap, work) = (Overlap::default(), Work::default());
        Self {
            engine,
            inbox,
            output,
            people,
            environment,
            hello: None,
            held: None,
            lost: None,
            overlap,
            work,
        }
    }

    /// Reports through `work` whether an answer is in progress.
    pub(crate) fn with_work(self, work: Work) -> Self {
        Self { work, ..self }
    }

    /// Sends messages for people to this writer instead of stderr.
    pub fn with_people(mut self, people: impl Write + Send + 'static) -> Self {
        self.people = Box::new(people);
        self
    }

    /// Answers until `shutdown` or the end of the input. An error means that the answers have no reader any more.
    pub fn run(mut self) -> io::Result<()> {
        loop {
            self.output.check()?;
            self.admit_waiting();
            if self.overlap.is_active() {
                self.step();
                continue;
            }
            let Some(arrived) = self.inbox.next() else { return self.output.check() };
            self.work.begin();
            if self.answer(arrived).is_break() {
                return self.output.check();
            }
        }
    }

    fn answer(&mut self, arrived: Arrived) -> ControlFlow<()> {
        let (request, typed, cancelled) = match arrived.line {
            Line::Refused(failed) => {
                self.send_answer(&Message::Failed(failed));
                return ControlFlow::Continue(());
            }
            Line::Request { request, typed, cancelled } => (request, typed, cancelled),
        };
        match request {
            Request::Hello(_) => {
                self.respond(None, |server| server.hello().map(Message::Hello).map_err(Fault::from))
            }
            Request::Load(load) => self.respond(None, |server| server.load(&load, true).map(Message::Loaded)),
            Request::Generate(generate) => self.generate(Run::new(generate, arrived.clock, typed, cancelled)),
            Request::Score(score) => {
                let id = score.id.clone();
                self.respond(id.as_ref(), |server| server.score(score).map(Message::Scored));
            }
            Request::Facts {} => self.respond(None, |server| server.facts().map(Message::Facts)),
            // The inbox handles these and passes none on.
            Request::Cancel(_) => {}
            Request::Shutdown {} => {
                self.send_answer(&Message::Bye {});
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Sends the one answer of a request, success or failure.
    pub(crate) fn respond(
        &mut self,
        id: Option<&Id>,
        work: impl FnOnce(&mut Self) -> Result<Message, Fault>,
    ) {
        let message = work(self).unwrap_or_else(|fault| Message::Failed(self.describe(fault, id)));
        self.inbox.forget(id);
        self.send_answer(&message);
    }

    fn send_answer(&mut self, message: &Message) {
        if !self.overlap.is_active() {
            self.work.end();
        }
        self.output.send(message);
    }

    /// The message for a fault. After a panic the model is in no known state, so it is dropped.
    pub(crate) fn describe(&mut self, fault: Fault, id: Option<&Id>) -> Failed {
        let mut failed = match fault {
            Fault::Failed(failed) => failed,
            Fault::Panicked(message) => {
                discard(self.held.take());
                if let Some(lost) = &mut self.lost {
                    *lost = "the model was dropped after a panic".into();
                }
                Failed::new(FailureKind::Internal, format!("the engine panicked: {message}"))
            }
        };
        failed.id = id.cloned();
        failed
    }

    /// Called once: the facts of an engine do not change.
    pub(crate) fn hello(&mut self) -> Result<HelloFacts, Failed> {
        if self.hello.is_none() {
            let hello = guarded(|| self.engine.hello());
            let mut hello = hello.map_err(|fault| self.describe(fault, None))?;
            hello.protocol = version::CURRENT;
            hello.build.get_or_insert_with(facts::build);
            self.hello = Some(hello);
        }
        Ok(self.hello.clone().unwrap_or_default())
    }

    fn capabilities(&mut self) -> Result<Capabilities, Failed> {
        Ok(self.hello()?.capabilities)
    }

    fn load(&mut self, load: &Load, is_explicit: bool) -> Result<Loaded, Fault> {
        let can = self.capabilities()?;
        let phases = Phases::new(is_explicit.then(|| self.output.clone()));
        let (held, lost) = (&mut self.held, &mut self.lost);
        let why = || Some(format!("the load of `{}` failed", load.model));
        if is_explicit && held.is_none() {
            *lost = why();
        }
        let unload = || {
            discard(held.take());
            if is_explicit {
                *lost = why();
            }
        };
        let (held, loaded) = LoadedModel::load(&mut self.engine, load, &can, phases, unload)?;
        self.held = Some(held);
        Ok(loaded)
    }

    /// Loads the environment's model if nothing is loaded and no `load` came before.
    fn ensure_loaded(&mut self) -> Result<Option<Loaded>, Fault> {
        match (&self.held, &self.lost) {
            (Some(_), _) => Ok(None),
            (None, Some(why)) => Err(Failed::new(FailureKind::Model, format!("no model: {why}"))
                .hint("send `load` again")
                .into()),
            (None, None) => {
                let load = self.environment.load()?;
                self.load(&load, false).map(Some)
            }
        }
    }

    fn facts(&mut self) -> Result<Facts, Fault> {
        self.held.as_ref().map_or_else(|| Ok(Facts::default()), LoadedModel::facts_now)
    }

    fn score(&mut self, score: Score) -> Result<Scored, Fault> {
        if !self.capabilities()?.score {
            return Err(
                Failed::new(FailureKind::Unsupported, "`score` is not supported by this engine").into()
            );
        }
        self.ensure_loaded()?;
        let Some(held) = &mut self.held else { return Err(no_model().into()) };
        for (index, ids) in score.sequences.iter().enumerate() {
            check_vocabulary(ids, &held.facts, &format!("sequences[{index}]"))?;
            if let Some(context) = held.facts.context_tokens.filter(|&context| ids.len() > context as usize) {
                let message =
                    format!("`sequences[{index}]`: {} tokens exceed the context of {context}", ids.len());
                return Err(Failed::new(FailureKind::Context, message).into());
            }
        }
        let began = Instant::now();
        let mut logprobs = Vec::with_capacity(score.sequences.len());
        for (index, ids) in score.sequences.iter().enumerate() {
            logprobs.push(checked(guarded(|| held.model.score(ids))?, ids.len(), index)?);
        }
        Ok(Scored { id: score.id, logprobs, ns: ns_since(began) })
    }

    /// Runs a request alone, or admits it among the overlapping requests.
    fn generate(&mut self, mut run: Run) {
        let id = run.id().cloned();
        if run.is_cancelled() {
            return self.respond(id.as_ref(), |server| {
                Ok(Message::Generated(run.answer(server.held.as_ref(), None)))
            });
        }
        let prepared = self.prepare(&mut run);
        match prepared {
            Err(fault) => self.respond(id.as_ref(), |_| Err(fault)),
            Ok(can) if self.may_overlap(&can, id.as_ref()) => self.admit(run),
            Ok(can) => self.respond(id.as_ref(), |server| server.run_alone(run, &can)),
        }
    }

    pub(crate) fn prepare(&mut self, run: &mut Run) -> Result<Capabilities, Fault> {
        let can = self.capabilities()?;
        run.set_loaded(self.ensure_loaded()?);
        let Some(held) = &mut self.held else { return Err(no_model().into()) };
        run.check(&can, &held.facts)?;
        if run.has_text() {
            held.open_tokenizer()?;
        }
        Ok(can)
    }

    fn run_alone(&mut self, mut run: Run, can: &Capabilities) -> Result<Message, Fault> {
        let Some(held) = &mut self.held else { return Err(no_model().into()) };
        while !run.is_over() && !self.output.is_broken() {
            let (job, mut tokens) = run.begin(held, can, &self.output)?;
            guarded(|| held.model.generate(&job, &mut tokens))?;
            run.end(tokens)?;
        }
        self.finished(run)
    }

    /// The answer of a finished request, and a summary if a person seems to have typed it.
    pub(crate) fn finished(&mut self, run: Run) -> Result<Message, Fault> {
        let Some(held) = &self.held else { return Err(no_model().into()) };
        let device_memory = held.facts_now()?.device_memory;
        let typed = run.typed;
        let generated: Generated = run.answer(Some(held), device_memory);
        if let Some(summary) = generated.summary.as_ref().filter(|_| !typed) {
            // A write error is ignored: if stderr is closed, it has no reader.
            let _ = self.people.write_all(summary::lines(summary, &generated.iterations).as_bytes());
        }
        Ok(Message::Generated(generated))
    }
}

/// Drops a model. A drop that panics has freed all that it could.
fn discard<M>(model: Option<LoadedModel<M>>) {
    let _ = guarded(move || {
        drop(model);
        Ok(())
    });
}

pub(crate) fn no_model() -> Failed {
    Failed::new(FailureKind::Model, "no model is loaded")
}

/// Checks the number of values and writes minus infinity as null. Refuses every other value that is not a number.
fn checked(logprobs: Vec<f64>, ids: usize, sequence: usize) -> Result<Vec<Option<f64>>, Failed> {
    let internal = |message| {
        Err(Failed::new(FailureKind::Internal, format!("sequence {sequence}: the engine gave {message}")))
    };
    if logprobs.len() + 1 != ids {
        return internal(format!("{} log-probabilities for {ids} ids", logprobs.len()));
    }
    if let Some(wrong) = logprobs.iter().find(|value| value.is_nan() || **value == f64::INFINITY) {
        return internal(format!("a log-probability of {wrong}"));
    }
    Ok(logprobs.into_iter().map(|value| value.is_finite().then_some(value)).collect())
}
