//! Makes one request, from the ids of a prompt or for facts, verifies the answer and records the sample.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use protocol::{FailureKind, Generate, HelloFacts, Output};

use super::blocking::off_thread;
use super::journal::{Event, Journal};
use super::launch::{Launched, stage};
use super::serve::Window;
use crate::plan::prompts::{self, PromptKey, Prompts};
use crate::plan::scenario::Kind;
use crate::plan::{Mode, Plan, Workload};
use crate::record::{Entry, RequestKind, Sample};
use crate::run::process::{Answer, Cause, FactsAnswer, LaunchError, Stage};
use crate::run::verify::{self, Expected};

/// New tokens of a discarded request: enough to touch every weight and to wake every thread.
const DISCARDED_TOKENS: u32 = 4;
/// The memory of an engine that is in use for a set time is read at least so often, even if reading is slow: a trend needs several values.
const MEMORY_READINGS: u32 = 100;
/// The requests of a warm-up of a workload with a rate.
const WARM_UP_REQUESTS: u32 = 4;

/// The requests of a plan: its cases, with the prompts of its models.
pub(super) struct Requests<'a> {
    plan: &'a Plan,
    /// The prompts by model path. Configurations on a model without prompts fail.
    prompts: BTreeMap<String, Prompts>,
}

impl<'a> Requests<'a> {
    pub fn of(plan: &'a Plan) -> Self {
        Self { plan, prompts: BTreeMap::new() }
    }

    /// Reads the tokenizer of a model. The inner `Err` is the reason why no prompts can be made.
    pub async fn read_model(&mut self, path: &str) -> Result<Result<()>> {
        if !self.prompts.contains_key(path) {
            let model = path.to_string();
            match off_thread(move || Prompts::open(&model)).await? {
                Ok(prompts) => self.prompts.insert(path.into(), prompts),
                Err(error) => return Ok(Err(error)),
            };
        }
        Ok(Ok(()))
    }

    pub fn prompts(&self, model: &str) -> Option<&Prompts> {
        self.prompts.get(model)
    }

    /// Makes one request of a case, and records its sample.
    pub async fn make(
        &self,
        journal: &mut Journal<'_>,
        launched: &mut Launched,
        case: usize,
        kind: RequestKind,
        index: u32,
    ) -> Result<Sample, LaunchError> {
        let sample = self.attempt(journal, launched, case, kind, index, 0).await?;
        self.record_sample(journal, sample.clone())?;
        Ok(sample)
    }

    /// Makes one request, and gives its sample, which is not recorded yet.
    pub async fn attempt(
        &self,
        journal: &mut Journal<'_>,
        launched: &mut Launched,
        case: usize,
        kind: RequestKind,
        index: u32,
        repeat: u32,
    ) -> Result<Sample, LaunchError> {
        let workload = &self.plan.cases[case].workload;
        let answered = match workload.kind {
            Kind::Query => self.query(launched, stage(kind, index)).await?,
            Kind::Serve => self.serve(launched, workload, kind, index, repeat).await?,
            // Texts are scored before the blocks (`text_scores`), so no block requests one.
            Kind::Launch | Kind::Warm | Kind::Speculative | Kind::Stress | Kind::Score => {
                self.generate(launched, workload, kind, index, repeat).await?
            }
        };
        let max_age = match workload.time_in_use() {
            Some(time) => time / MEMORY_READINGS,
            // The memory is always read after the first measured request, even if reading is slow.
            None if kind == RequestKind::Measured && index == 0 => Duration::ZERO,
            None => Duration::MAX,
        };
        let (peak_resident_bytes, held) = launched.read_memory(max_age).await?;
        Ok(Sample {
            // A launch without hello is recorded with its first answer.
            launch: launched.number(journal)?,
            case,
            index,
            kind,
            repeat: answered.repeat.max(repeat),
            peak_resident_bytes,
            held,
            cpu_ns: launched.cpu_use_of_request.cpu_ns,
            waited_ns: launched.cpu_use_of_request.waited_ns,
            ..answered
        })
    }

    /// Requests the engine's facts. Gives the times and the reported memory.
    async fn query(&self, launched: &mut Launched, when: Stage) -> Result<Sample, LaunchError> {
        let longest = launched.conversation.deadlines.answer;
        let cap = Duration::from_nanos(self.plan.extent.max_request_ns);
        let capped = cap <= longest;
        let cpu_time = launched.cpu_time();
        let before = cpu_time.read();
        let answer = launched.conversation.facts(if capped { cap } else { longest }).await;
        launched.cpu_use_of_request = cpu_time.read().since(before);
        let verified = answer.map_err(|cause| cause.if_too_slow(capped, cap)).and_then(|answer| {
            let loaded = launched.facts().cloned().unwrap_or_default();
            verify::verify_facts(&answer.facts, &loaded).map(|()| answer)
        });
        let FactsAnswer { facts, sent_ns, answered_ns } =
            verified.map_err(|cause| launched.failure(when, cause))?;
        Ok(Sample { sent_ns, answered_ns, device_memory: facts.device_memory, ..Sample::default() })
    }

    /// Requests tokens. Gives the times, the output and the prompt's digests.
    async fn generate(
        &self,
        launched: &mut Launched,
        workload: &Workload,
        kind: RequestKind,
        index: u32,
        repeat: u32,
    ) -> Result<Sample, LaunchError> {
        let workload = workload_of(workload, kind);
        let prompt_index = Sample::prompt_index(index, repeat);
        let key = self.plan.prompt_key(launched.launch.block, kind, prompt_index);
        // The second warm-up request is streamed (the first if the user wants only one), to compare the engine's stamps with the
        // arrival of tokens.
        let can_stream = |hello: &HelloFacts| hello.output == Output::Ids && hello.capabilities.stream;
        let streamed_index = if workload.warmup == Some(1) { 0 } else { 1 };
        let stream = kind == RequestKind::Warmup
            && index == streamed_index
            && workload.max_new_tokens > 1
            && launched.hello().is_some_and(can_stream);
        let (batch, answer) = self.send(launched, &workload, key, stage(kind, index), stream).await?;
        let (prompt_hash, recipe_hash) = self.digests(launched, &workload, key, &batch);
        let late = verify::lateness(&answer);
        Ok(Sample {
            prompt_hash,
            recipe_hash,
            dependent: Prompts::is_dependent(&workload, key),
            sent_ns: answer.sent_ns,
            answered_ns: answer.answered_ns,
            iteration: answer.generated.iterations.into_iter().next().unwrap_or_default(),
            device_memory: answer.generated.device_memory,
            late,
            ..Sample::default()
        })
    }

    /// Makes the requests of a window. Gives one sample with all their answers.
    async fn serve(
        &self,
        launched: &mut Launched,
        workload: &Workload,
        kind: RequestKind,
        index: u32,
        repeat: u32,
    ) -> Result<Sample, LaunchError> {
        let workload = workload_of(workload, kind);
        let (when, longest) = (stage(kind, index), Duration::from_nanos(self.plan.extent.max_request_ns));
        let prompts = self.prompts_of(launched)?;
        let key = self.plan.prompt_key(launched.launch.block, kind, Sample::prompt_index(index, repeat));
        let (limits, workload) = (self.plan.latency_limits, &workload);
        let window = Window { prompts, workload, key, limits, longest };
        let sample = window.make(launched).await.map_err(|cause| launched.failure(when, cause))?;
        // A search gives one of its steps.
        let key = PromptKey { index: Sample::prompt_index(window.key.index, sample.repeat), ..window.key };
        let texts = Window { key, ..window }.texts().map_err(|cause| launched.failure(when, cause))?;
        let batch = prompts.conversations(workload, texts, &sample.iteration.sequences);
        let (prompt_hash, recipe_hash) = self.digests(launched, workload, key, &batch);
        Ok(Sample { prompt_hash, recipe_hash, repeat: repeat + sample.repeat, ..sample })
    }

    /// The digest of the prompts, and of those that the recipe gives for the request, if it is another one.
    fn digests(
        &self,
        launched: &Launched,
        workload: &Workload,
        key: PromptKey,
        batch: &[Vec<u32>],
    ) -> (String, Option<String>) {
        let prompt_hash = prompts::hash_of_batch(batch);
        let of_recipe = self.prompts_of(launched).and_then(|it| it.recipe_batch(workload, key)).ok();
        let recipe_hash = of_recipe.map(|batch| prompts::hash_of_batch(&batch));
        let recipe_hash = recipe_hash.filter(|hash| *hash != prompt_hash);
        (prompt_hash, recipe_hash)
    }

    fn prompts_of(&self, launched: &Launched) -> Result<&Prompts> {
        let path = &self.plan.configurations[launched.launch.configuration].model.path;
        self.prompts(path).with_context(|| format!("no prompts for `{path}`"))
    }

    /// Sends the request of this key, and verifies its answer. Also returns the ids of the prompts.
    pub async fn send(
        &self,
        launched: &mut Launched,
        workload: &Workload,
        key: PromptKey,
        when: Stage,
        stream: bool,
    ) -> Result<(Vec<Vec<u32>>, Answer), LaunchError> {
        let prompts = self.prompts_of(launched)?;
        let batch = prompts.batch(workload, key);
        let batch = batch.map_err(|error| launched.failure(when, Cause::reported_unsupported(&error)))?;
        let id = launched.next_id();
        let capabilities = launched.hello().map(|hello| &hello.capabilities);
        let request = Generate { stream, ..prompts.request(workload, &batch, capabilities, id) };
        let refusal = self.expected_refusal(launched, workload, &request, &batch);
        let answer = self.send_and_verify(launched, request, workload).await;
        let answer = match refusal {
            Some(expected) => Err(verify::refusal(expected, answer)),
            None => answer,
        };
        Ok((batch, answer.map_err(|cause| launched.failure(when, cause))?))
    }

    /// The kind of `failed` with which the engine must refuse the request. `None` if the context of the engine is large enough.
    fn expected_refusal(
        &self,
        launched: &Launched,
        workload: &Workload,
        request: &Generate,
        batch: &[Vec<u32>],
    ) -> Option<FailureKind> {
        let as_ids = request.prompt_ids.is_some() || request.prompts_ids.is_some();
        let longest = batch.iter().map(Vec::len).max().unwrap_or_default() + workload.max_new_tokens as usize;
        let context = launched.facts().and_then(|facts| facts.context_tokens);
        let is_held = |kind: &FailureKind| {
            *kind == FailureKind::Context && context.is_some_and(|context| longest <= context as usize)
        };
        workload.shape.text.refusal(as_ids).filter(|kind| !is_held(kind))
    }

    /// Sends a request, verifies its answer, and stores the engine's facts that the answer contains.
    async fn send_and_verify(
        &self,
        launched: &mut Launched,
        request: Generate,
        workload: &Workload,
    ) -> Result<Answer, Cause> {
        let verify_stream =
            if request.stream { verify::verify_streamed } else { verify::verify_not_streamed };
        let of_ids = |ids: &Vec<u32>| Some(ids.len() as u32);
        let prompt_tokens = match (&request.prompt_ids, &request.prompts_ids) {
            (Some(ids), _) => vec![of_ids(ids)],
            (None, Some(batch)) => batch.iter().map(of_ids).collect(),
            (None, None) => vec![None; workload.shape.batch.max(1) as usize],
        };
        let cpu_time = launched.cpu_time();
        let before = cpu_time.read();
        let answer = self.generate_within_cap(launched, request).await?;
        launched.cpu_use_of_request = cpu_time.read().since(before);
        if launched.launch.loaded.is_none() {
            // If `generate` comes before any `load`, its answer has the facts of the load.
            launched.launch.loaded = answer.generated.loaded.clone();
        }
        let expected = Expected {
            prompt_tokens,
            max_new_tokens: workload.max_new_tokens,
            ignore_eos: workload.ignore_eos,
            may_draft: !workload.shape.speculation.is_off(),
            ..Expected::default()
        };
        launched.verify(&answer, expected)?;
        verify_stream(&answer)?;
        launched.conversation.refuse_unrequested()?;
        Ok(answer)
    }

    /// Limits a request to the time that a case allows. Except in one-shot mode, a request that also loads the
    /// model has no such limit.
    async fn generate_within_cap(&self, launched: &mut Launched, request: Generate) -> Result<Answer, Cause> {
        let longest = launched.conversation.deadlines.answer;
        let cap = Duration::from_nanos(self.plan.extent.max_request_ns);
        // This request is counted already, so the first request of a launch sees 1.
        let loads_with_request = launched.requests < 2 && self.plan.mode == Mode::Warm;
        let capped = cap <= longest && (launched.launch.loaded.is_some() || !loads_with_request);
        let deadline = if capped { cap } else { longest };
        let answer = launched.conversation.generate(request, deadline).await;
        answer.map_err(|cause| cause.if_too_slow(capped, cap))
    }

    pub fn record_sample(&self, journal: &mut Journal<'_>, sample: Sample) -> Result<()> {
        let (launch, case, kind) = (sample.launch, sample.case, sample.kind);
        journal.take(Entry::Sample(Box::new(sample)))?;
        let planned = &self.plan.cases[case];
        let event = Event::Sampled {
            label: self.plan.configurations[planned.configuration].label.clone(),
            workload: planned.workload.label.clone(),
            warmup: kind != RequestKind::Measured,
            launch,
            case,
        };
        journal.send(event);
        Ok(())
    }
}

/// The workload of a request. A discarded one generates few tokens, and has only one request for each user. Of requests that arrive
/// at a rate, a warm-up has few.
fn workload_of(workload: &Workload, kind: RequestKind) -> Workload {
    let mut workload = workload.clone();
    let shape = &mut workload.shape;
    match kind {
        RequestKind::Measured => return workload,
        RequestKind::Warmup if !shape.has_arrivals() => return workload,
        RequestKind::Warmup => {}
        RequestKind::Discarded => {
            workload.max_new_tokens = workload.max_new_tokens.min(DISCARDED_TOKENS);
        }
    }
    if shape.overlaps() {
        shape.requests = Some(shape.concurrency.unwrap_or_else(|| shape.sequences().min(WARM_UP_REQUESTS)));
    }
    workload
}
