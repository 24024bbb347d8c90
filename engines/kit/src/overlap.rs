//! Overlapping requests. The server admits a request when a slot is free, advances all admitted requests together, and
//! answers each when it is done.

use protocol::{Capabilities, Failed, FailureKind, Generate, Id, Message, Request};

use crate::engine::{CallError, catch_panic};
use crate::inbox::{Line, QueuedLine};
use crate::model::LoadedModel;
use crate::run::RunningGenerate;
use crate::server::{Server, no_model};
use crate::{Engine, Model, Slots, Tokens};

/// The requests in the model's slots. `tokens` and `runs` have the same length. For each slot, both hold a request or both are
/// `None`.
#[derive(Default)]
pub(crate) struct Overlap {
    tokens: Vec<Option<Tokens>>,
    runs: Vec<Option<RunningGenerate>>,
}

impl Overlap {
    pub fn is_active(&self) -> bool {
        self.runs.iter().any(Option::is_some)
    }

    fn free_slot(&self) -> Option<usize> {
        self.runs.iter().position(Option::is_none)
    }

    fn clear(&mut self) -> Vec<RunningGenerate> {
        self.tokens.iter_mut().for_each(|tokens| *tokens = None);
        self.runs.iter_mut().filter_map(Option::take).collect()
    }
}

impl<E: Engine> Server<E> {
    /// Whether a request may overlap: it has an id, and the engine runs several requests at once.
    pub(crate) fn may_overlap(&mut self, capabilities: &Capabilities, id: Option<&Id>) -> bool {
        let loaded_model =
            self.loaded_model.as_mut().filter(|_| id.is_some() && capabilities.concurrency > 1);
        loaded_model.is_some_and(|it| matches!(catch_panic(|| Ok(it.model.slots().is_some())), Ok(true)))
    }

    /// Admits waiting requests that may overlap, and answers invalid lines, while others run. The first request that may not
    /// overlap waits, and all lines behind it wait too. A request with text may not overlap until the tokenizer is open: the
    /// time to open it would count in the times of the running requests.
    pub(crate) fn admit_waiting(&mut self) {
        let has_tokenizer = self.loaded_model.as_ref().is_some_and(LoadedModel::has_open_tokenizer);
        while self.overlap.is_active() && self.overlap.free_slot().is_some() {
            let may_be_taken = |line: &Line| match line {
                Line::Invalid(_) => true,
                Line::Request { request: Request::Generate(generate), .. } => {
                    generate.id.is_some() && (has_tokenizer || has_ids(generate))
                }
                Line::Request { .. } => false,
            };
            let Some(QueuedLine { clock, line }) = self.inbox.next_if(may_be_taken) else { return };
            match line {
                Line::Invalid(failed) => self.output.send(&Message::Failed(failed)),
                Line::Request { request: Request::Generate(generate), has_type, cancelled } => {
                    let mut run = RunningGenerate::new(generate, clock, has_type, cancelled);
                    match self.prepare(&mut run) {
                        Ok(_) => self.admit(run),
                        Err(error) => self.fail(run, error),
                    }
                }
                Line::Request { .. } => {}
            }
        }
    }

    pub(crate) fn admit(&mut self, run: RunningGenerate) {
        if self.overlap.runs.is_empty() {
            let slot_count = self.hello().map_or(1, |hello| hello.capabilities.concurrency.max(1)) as usize;
            self.overlap.runs.resize_with(slot_count, || None);
            self.overlap.tokens.resize_with(slot_count, || None);
        }
        match self.overlap.free_slot() {
            Some(slot) => self.begin(slot, run),
            None => self.fail(run, no_model().into()),
        }
    }

    /// Begins the next iteration of a request in a slot. If no iteration is left, this answers the request.
    fn begin(&mut self, slot: usize, run: RunningGenerate) {
        if run.is_over() {
            let id = run.id().cloned();
            return self.respond(id.as_ref(), |server| server.finish(run));
        }
        match self.admit_iteration(slot, &run) {
            Ok(tokens) => {
                self.overlap.tokens[slot] = Some(tokens);
                self.overlap.runs[slot] = Some(run);
            }
            Err(error) => self.fail(run, error),
        }
    }

    fn admit_iteration(&mut self, slot: usize, run: &RunningGenerate) -> Result<Tokens, CallError> {
        let capabilities = self.hello()?.capabilities;
        let Some(loaded_model) = &mut self.loaded_model else { return Err(no_model().into()) };
        let (job, tokens) = run.begin(loaded_model, &capabilities, &self.output)?;
        catch_panic(|| slots(&mut loaded_model.model)?.admit(slot, &job))?;
        Ok(tokens)
    }

    /// Advances the admitted requests, and answers those that are done.
    pub(crate) fn step(&mut self) {
        self.end_finished();
        if !self.overlap.is_active() {
            return;
        }
        let Some(loaded_model) = &mut self.loaded_model else { return };
        // Sending an answer marked the work as ended, but other requests still run.
        self.work.begin();
        let tokens = &mut self.overlap.tokens;
        if let Err(error) = catch_panic(|| slots(&mut loaded_model.model)?.step(tokens)) {
            // The error does not name a request.
            let failed = self.failure_of(error, None);
            return self.fail_all(&failed);
        }
        self.end_finished();
    }

    /// Ends all finished iterations first, then answers, then begins the next iterations: writing one request's answer must not
    /// count in the time of another iteration that begins or ends here.
    fn end_finished(&mut self) {
        let mut ended = Vec::new();
        for slot in 0..self.overlap.runs.len() {
            let is_finished = |it: &Tokens| it.all_done() || it.has_failed() || it.is_cancelled();
            if !self.overlap.tokens[slot].as_ref().is_some_and(is_finished) {
                continue;
            }
            let (tokens, run) = (self.overlap.tokens[slot].take(), self.overlap.runs[slot].take());
            if let (Some(tokens), Some(mut run)) = (tokens, run) {
                let outcome = run.end(tokens);
                ended.push((slot, run, outcome));
            }
        }
        let mut unfinished = Vec::new();
        for (slot, run, outcome) in ended {
            let leave_result = self.leave(slot);
            match outcome.map_err(CallError::from).and(leave_result) {
                Ok(()) if !run.is_over() => unfinished.push((slot, run)),
                Ok(()) => self.begin(slot, run),
                Err(error) => self.fail(run, error),
            }
        }
        for (slot, run) in unfinished {
            self.begin(slot, run);
        }
    }

    fn leave(&mut self, slot: usize) -> Result<(), CallError> {
        let Some(loaded_model) = &mut self.loaded_model else { return Ok(()) };
        catch_panic(|| {
            slots(&mut loaded_model.model)?.leave(slot);
            Ok(())
        })
    }

    fn fail(&mut self, run: RunningGenerate, error: CallError) {
        let panicked = matches!(error, CallError::Panicked(_));
        let id = run.id().cloned();
        self.respond(id.as_ref(), |_| Err(error));
        if panicked {
            // The panic also dropped the model of the other requests in the slots.
            let message = "the engine panicked in another request";
            self.fail_all(&Failed::new(FailureKind::Internal, message));
        }
    }

    fn fail_all(&mut self, failed: &Failed) {
        for slot in 0..self.overlap.runs.len() {
            if self.overlap.runs[slot].is_some() {
                // An error is ignored, because the request has failed already.
                let _ = self.leave(slot);
            }
        }
        for run in self.overlap.clear() {
            let (id, failed) = (run.id().cloned(), failed.clone());
            self.respond(id.as_ref(), |_| Err(failed.into()));
        }
    }
}

fn has_ids(generate: &Generate) -> bool {
    generate.prompt_ids.is_some() || generate.prompts_ids.is_some()
}

fn slots<M: Model>(model: &mut M) -> Result<&mut dyn Slots, Failed> {
    model.slots().ok_or_else(|| Failed::new(FailureKind::Internal, "the engine has no slots at this time"))
}
