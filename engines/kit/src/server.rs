//! Takes requests from the inbox in order, and answers each once. Requests with ids overlap if the model has slots.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::Arc;

use protocol::{
    Capabilities, Facts, Failed, FailureKind, HelloFacts, Id, Load, Loaded, Message, PLANTED_DELAY_OPTION,
    Request, Score, Scored, version,
};

use crate::engine::{CallError, catch_panic, unsupported_score};
use crate::inbox::{Clock, Inbox, Line, QueuedLine};
use crate::model::{Environment, LoadedModel};
use crate::overlap::Overlap;
use crate::run::{RunningGenerate, check_vocabulary};
use crate::serve::Work;
use crate::{Engine, Model, Output, Phases, facts, summary};

/// An engine that answers the requests of an inbox. `serve` connects it to stdin and stdout; tests run it in memory.
pub struct Server<E: Engine> {
    pub(crate) engine: E,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) output: Output,
    /// The output for a person; stderr except in tests.
    stderr: Box<dyn Write + Send>,
    environment: Environment,
    hello: Option<HelloFacts>,
    pub(crate) loaded_model: Option<LoadedModel<E::Model>>,
    /// After a `load`: why no model is loaded, for the failures of later requests. The model of `ORCHESTRATE_MODEL` must not
    /// replace the requested model.
    no_model_reason: Option<String>,
    pub(crate) overlap: Overlap,
    /// Tells the thread that waits for a closed stdout whether an answer is in progress.
    pub(crate) work: Work,
}

impl<E: Engine> Server<E> {
    pub fn new(engine: E, inbox: Arc<Inbox>, output: Output, environment: Environment) -> Self {
        Self {
            engine,
            inbox,
            output,
            stderr: Box::new(io::stderr()),
            environment,
            hello: None,
            loaded_model: None,
            no_model_reason: None,
            overlap: Overlap::default(),
            work: Work::default(),
        }
    }

    /// Sends the messages for a person to this writer instead of stderr.
    pub fn with_stderr(mut self, stderr: impl Write + Send + 'static) -> Self {
        self.stderr = Box::new(stderr);
        self
    }

    /// Answers until `shutdown` or the end of the input. Returns an error if an answer cannot be written.
    pub fn run(mut self) -> io::Result<()> {
        loop {
            self.output.check()?;
            self.admit_waiting();
            if self.overlap.is_active() {
                self.step();
                continue;
            }
            let Some(queued_line) = self.inbox.next() else { return self.output.check() };
            self.work.begin();
            if self.answer(queued_line).is_break() {
                return self.output.check();
            }
        }
    }

    fn answer(&mut self, queued_line: QueuedLine) -> ControlFlow<()> {
        let (request, has_type, cancelled) = match queued_line.line {
            Line::Invalid(failed) => {
                self.send_answer(&Message::Failed(failed));
                return ControlFlow::Continue(());
            }
            Line::Request { request, has_type, cancelled } => (request, has_type, cancelled),
        };
        match request {
            Request::Hello(_) => {
                self.respond(None, |server| server.hello().map(Message::Hello).map_err(CallError::from))
            }
            Request::Load(load) => {
                let progress = Some(self.output.clone());
                self.respond(None, |server| server.load(&load, progress).map(Message::Loaded));
            }
            Request::Generate(generate) => {
                self.generate(RunningGenerate::new(generate, queued_line.clock, has_type, cancelled))
            }
            Request::Score(score) => {
                let id = score.id.clone();
                self.respond(id.as_ref(), |server| server.score(score).map(Message::Scored));
            }
            Request::Facts {} => self.respond(None, |server| server.facts().map(Message::Facts)),
            // The inbox handles every `cancel` and passes none on.
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
        answer: impl FnOnce(&mut Self) -> Result<Message, CallError>,
    ) {
        let message = answer(self).unwrap_or_else(|error| Message::Failed(self.failure_of(error, id)));
        self.inbox.release_id(id);
        self.send_answer(&message);
    }

    fn send_answer(&mut self, message: &Message) {
        if !self.overlap.is_active() {
            self.work.end();
        }
        self.output.send(message);
    }

    /// The failure for an error. After a panic the model is in an unknown state, so it is dropped.
    pub(crate) fn failure_of(&mut self, error: CallError, id: Option<&Id>) -> Failed {
        let mut failed = match error {
            CallError::Failed(failed) => failed,
            CallError::Panicked(message) => {
                discard(self.loaded_model.take());
                if let Some(no_model_reason) = &mut self.no_model_reason {
                    *no_model_reason = "the model was dropped after a panic".into();
                }
                Failed::new(FailureKind::Internal, format!("the engine panicked: {message}"))
            }
        };
        failed.id = id.cloned();
        failed
    }

    /// The facts of the engine. The kit reads them once, because they do not change.
    pub(crate) fn hello(&mut self) -> Result<HelloFacts, Failed> {
        if self.hello.is_none() {
            let hello = catch_panic(|| self.engine.hello());
            let mut hello = hello.map_err(|error| self.failure_of(error, None))?;
            hello.protocol = version::CURRENT;
            hello.build.get_or_insert_with(facts::build);
            self.hello = Some(hello);
        }
        Ok(self.hello.clone().unwrap_or_default())
    }

    fn capabilities(&mut self) -> Result<Capabilities, Failed> {
        Ok(self.hello()?.capabilities)
    }

    /// Loads a model. `progress` is the output for progress messages: `None` if a request other than `load` causes the load.
    fn load(&mut self, load: &Load, progress: Option<Output>) -> Result<Loaded, CallError> {
        let HelloFacts { output, capabilities, .. } = self.hello()?;
        if output == protocol::Output::Text && load.options.contains_key(PLANTED_DELAY_OPTION) {
            let message =
                format!("`{PLANTED_DELAY_OPTION}`: an engine that gives text cannot delay its tokens");
            return Err(Failed::new(FailureKind::Unsupported, message).into());
        }
        let is_requested = progress.is_some();
        let (loaded_model, no_model_reason) = (&mut self.loaded_model, &mut self.no_model_reason);
        // Stored before the load, in case it fails.
        let reason = || Some(format!("the load of `{}` failed", load.model));
        if is_requested && loaded_model.is_none() {
            *no_model_reason = reason();
        }
        let unload = || {
            discard(loaded_model.take());
            if is_requested {
                *no_model_reason = reason();
            }
        };
        let (mut loaded_model, loaded) =
            LoadedModel::load(&mut self.engine, load, &capabilities, Phases::new(progress), unload)?;
        let waker = catch_panic(|| Ok(loaded_model.model.slots().and_then(|slots| slots.waker())))?;
        self.inbox.set_waker(waker);
        self.loaded_model = Some(loaded_model);
        Ok(loaded)
    }

    /// Loads the model of `ORCHESTRATE_MODEL`, or the embedded model, if no model is loaded and no `load` came before.
    fn ensure_loaded(&mut self) -> Result<Option<Loaded>, CallError> {
        match (&self.loaded_model, &self.no_model_reason) {
            (Some(_), _) => Ok(None),
            (None, Some(failure)) => Err(Failed::new(FailureKind::Model, format!("no model: {failure}"))
                .hint("send `load` again")
                .into()),
            (None, None) => {
                let load = self.environment.load()?;
                self.load(&load, None).map(Some)
            }
        }
    }

    fn facts(&mut self) -> Result<Facts, CallError> {
        self.loaded_model.as_ref().map_or_else(|| Ok(Facts::default()), LoadedModel::facts_now)
    }

    fn score(&mut self, score: Score) -> Result<Scored, CallError> {
        if !self.capabilities()?.score {
            return Err(unsupported_score().into());
        }
        self.ensure_loaded()?;
        let Some(loaded_model) = &mut self.loaded_model else { return Err(no_model().into()) };
        let facts = &loaded_model.facts;
        for (index, ids) in score.sequences.iter().enumerate() {
            let (field, length) = (format!("sequences[{index}]"), ids.len());
            check_vocabulary(ids, facts, &field)?;
            if let Some(context) = facts.context_tokens.filter(|&context| length > context as usize) {
                let message = format!("`{field}`: {length} tokens exceed the context of {context}");
                return Err(Failed::new(FailureKind::Context, message).into());
            }
        }
        let clock = Clock::start();
        let mut logprobs = Vec::with_capacity(score.sequences.len());
        for (index, ids) in score.sequences.iter().enumerate() {
            logprobs.push(check_logprobs(catch_panic(|| loaded_model.model.score(ids))?, ids.len(), index)?);
        }
        Ok(Scored { id: score.id, logprobs, ns: clock.ns(), ..Scored::default() })
    }

    /// Runs a request alone, or admits it among the overlapping requests.
    fn generate(&mut self, mut run: RunningGenerate) {
        let id = run.id().cloned();
        if run.is_cancelled() {
            return self.respond(id.as_ref(), |server| {
                Ok(Message::Generated(run.answer(server.loaded_model.as_ref(), None)))
            });
        }
        match self.prepare(&mut run) {
            Err(error) => self.respond(id.as_ref(), |_| Err(error)),
            Ok(capabilities) if self.may_overlap(&capabilities, id.as_ref()) => self.admit(run),
            Ok(capabilities) => self.respond(id.as_ref(), |server| server.run_alone(run, &capabilities)),
        }
    }

    /// Checks the request, loads a model if none is loaded, and opens the tokenizer for a request with text.
    pub(crate) fn prepare(&mut self, run: &mut RunningGenerate) -> Result<Capabilities, CallError> {
        let capabilities = self.capabilities()?;
        run.check_capabilities(&capabilities)?;
        run.loaded = self.ensure_loaded()?;
        let Some(loaded_model) = &mut self.loaded_model else { return Err(no_model().into()) };
        run.check_model(&capabilities, &loaded_model.facts)?;
        if run.has_text() {
            loaded_model.open_tokenizer()?;
        }
        Ok(capabilities)
    }

    fn run_alone(
        &mut self,
        mut run: RunningGenerate,
        capabilities: &Capabilities,
    ) -> Result<Message, CallError> {
        let Some(loaded_model) = &mut self.loaded_model else { return Err(no_model().into()) };
        while !run.is_over() && !self.output.is_broken() {
            let (job, mut tokens) = run.begin(loaded_model, capabilities, &self.output)?;
            catch_panic(|| loaded_model.model.generate(&job, &mut tokens))?;
            run.end(tokens)?;
        }
        self.finish(run)
    }

    /// The answer of a finished request. A request without a type may come from a person, so its summary also goes to stderr.
    pub(crate) fn finish(&mut self, run: RunningGenerate) -> Result<Message, CallError> {
        let Some(loaded_model) = &self.loaded_model else { return Err(no_model().into()) };
        let device_memory = loaded_model.facts_now()?.device_memory;
        let has_type = run.has_type;
        let generated = run.answer(Some(loaded_model), device_memory);
        if let Some(summary) = generated.summary.as_ref().filter(|_| !has_type) {
            // A write error is ignored: if stderr is closed, it has no reader.
            let _ = self.stderr.write_all(summary::lines(summary, &generated.iterations).as_bytes());
        }
        Ok(Message::Generated(generated))
    }
}

/// Drops a model. A panic of the drop is ignored.
fn discard<M>(model: Option<LoadedModel<M>>) {
    let _ = catch_panic(move || {
        drop(model);
        Ok(())
    });
}

pub(crate) fn no_model() -> Failed {
    Failed::new(FailureKind::Model, "no model is loaded")
}

/// Checks the number of values, and converts minus infinity to null. Refuses NaN and plus infinity.
fn check_logprobs(logprobs: Vec<f64>, id_count: usize, sequence: usize) -> Result<Vec<Option<f64>>, Failed> {
    let internal = |message| {
        Err(Failed::new(FailureKind::Internal, format!("sequence {sequence}: the engine returned {message}")))
    };
    if logprobs.len() + 1 != id_count {
        return internal(format!("{} log-probabilities for {id_count} ids", logprobs.len()));
    }
    if let Some(invalid) = logprobs.iter().find(|value| value.is_nan() || **value == f64::INFINITY) {
        return internal(format!("a log-probability of {invalid}"));
    }
    Ok(logprobs.into_iter().map(|value| value.is_finite().then_some(value)).collect())
}
