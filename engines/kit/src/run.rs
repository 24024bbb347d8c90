//! One `generate`, from its checks to its answer: warm-up, iterations, and their times. Single requests and overlapping
//! requests take the same steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use protocol::{
    Capabilities, DeviceMemory, Facts, Failed, FailureKind, Finish, Generate, Generated, Id, IgnoreEos,
    Iteration, Loaded, Sampling, Sequence,
};

use crate::inbox::Clock;
use crate::load::quote;
use crate::model::LoadedModel;
use crate::sampling::is_greedy;
use crate::tokens::{StopConditions, Stream, Tokens};
use crate::{Job, Output};

/// A running `generate`.
pub(crate) struct RunningGenerate {
    request: Generate,
    /// The field of the request that has the prompts.
    field: &'static str,
    prompts: Prompts,
    sampling: Option<Sampling>,
    clock: Clock,
    pub has_type: bool,
    cancelled: Arc<AtomicBool>,
    /// The load that this request caused.
    pub loaded: Option<Loaded>,
    warmup_iterations: Vec<Iteration>,
    iterations: Vec<Iteration>,
}

enum Prompts {
    Ids(Vec<Vec<u32>>),
    Texts(Vec<String>),
}

impl RunningGenerate {
    pub fn new(mut request: Generate, clock: Clock, has_type: bool, cancelled: Arc<AtomicBool>) -> Self {
        // Exactly one of the four fields is present.
        let (field, prompts) =
            match (request.prompt_ids.take(), request.prompts_ids.take(), request.prompt.take()) {
                (Some(ids), ..) => ("prompt_ids", Prompts::Ids(vec![ids])),
                (_, Some(batch), _) => ("prompts_ids", Prompts::Ids(batch)),
                (.., Some(text)) => ("prompt", Prompts::Texts(vec![text])),
                _ => ("prompts", Prompts::Texts(request.prompts.take().unwrap_or_default())),
            };
        Self {
            field,
            prompts,
            // Requests can express greedy decoding in several ways; an engine always gets `None`.
            sampling: request.sampling.filter(|sampling| !is_greedy(sampling)),
            request,
            clock,
            has_type,
            cancelled,
            loaded: None,
            warmup_iterations: Vec::new(),
            iterations: Vec::new(),
        }
    }

    pub fn id(&self) -> Option<&Id> {
        self.request.id.as_ref()
    }

    /// Whether the prompts are texts, which need a tokenizer.
    pub fn has_text(&self) -> bool {
        matches!(self.prompts, Prompts::Texts(_))
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Checks that the engine supports the request, before any load. `use_cache` and the padding are checked after the load.
    pub fn check_capabilities(&self, capabilities: &Capabilities) -> Result<(), Failed> {
        let (request, count) = (&self.request, self.prompts.count());
        if count > capabilities.batch.max(1) as usize {
            return unsupported(format!("a batch of {count}: the largest is {}", capabilities.batch.max(1)));
        }
        if matches!(self.prompts, Prompts::Ids(_)) && !capabilities.prompt_ids {
            return unsupported(format!("`{}`: this engine takes text", self.field));
        }
        if self.has_text() && !capabilities.prompt {
            return unsupported(format!("`{}`: this engine takes ids", self.field));
        }
        if request.stream && !capabilities.stream {
            return unsupported("`stream`: this engine does not stream".into());
        }
        if request.ignore_eos && capabilities.ignore_eos == IgnoreEos::No {
            return unsupported("`ignore_eos`: this engine stops at the end of sequence".into());
        }
        if self.sampling.is_some() && !capabilities.sampling {
            return unsupported("`sampling`: this engine is greedy".into());
        }
        if !request.speculation.is_off() && !capabilities.speculation.contains(&request.speculation) {
            return unsupported("`speculation`: this engine does not draft tokens in this way".into());
        }
        Ok(())
    }

    /// Checks that the loaded model can answer the request.
    pub fn check_model(&self, capabilities: &Capabilities, facts: &Facts) -> Result<(), Failed> {
        // An engine without a cache supports `use_cache: false`. Only the facts of the model state that there is no cache.
        if !self.request.use_cache && !capabilities.use_cache_toggle && facts.use_cache != Some(false) {
            return unsupported("`use_cache`: this engine always uses its cache".into());
        }
        match &self.prompts {
            Prompts::Ids(ids) => self.check_ids(ids, capabilities, facts),
            Prompts::Texts(_) => Ok(()),
        }
    }

    /// Begins the next iteration: reads the clock, tokenises texts, and checks their ids.
    pub fn begin<M>(
        &self,
        loaded_model: &LoadedModel<M>,
        capabilities: &Capabilities,
        output: &Output,
    ) -> Result<(Job, Tokens), Failed> {
        // The ids are copied before the iteration starts, so that the copy is not timed.
        let mut prompts = match &self.prompts {
            Prompts::Ids(ids) => ids.clone(),
            Prompts::Texts(_) => Vec::new(),
        };
        let start_ns = self.clock.ns();
        if let Prompts::Texts(texts) = &self.prompts {
            let encode = |(index, text): (usize, &String)| loaded_model.encode(text, || self.field_of(index));
            prompts = texts.iter().enumerate().map(encode).collect::<Result<_, _>>()?;
            self.check_ids(&prompts, capabilities, &loaded_model.facts)?;
        }
        let stream = (self.request.stream && !self.is_warmup()).then(|| Stream {
            output: output.clone(),
            id: self.request.id.clone(),
            iteration: self.iterations.len() as u32,
        });
        let eos_ids = if self.request.ignore_eos { Arc::default() } else { loaded_model.eos_ids.clone() };
        let max_new_tokens = self.request.max_new_tokens;
        let stop = StopConditions { max_new_tokens, eos_ids, cancelled: self.cancelled.clone() };
        let tokens = Tokens::new(self.clock, start_ns, stop, stream, &prompts).with_delay(loaded_model.delay);
        let job = Job {
            prompts,
            max_new_tokens,
            sampling: self.sampling,
            ignore_eos: self.request.ignore_eos,
            use_cache: self.request.use_cache,
            prefix_cache: self.request.prefix_cache,
            padding: self.request.padding,
            speculation: self.request.speculation,
        };
        Ok((job, tokens))
    }

    /// Ends the current iteration. The caller calls this as soon as the engine is done.
    pub fn end(&mut self, tokens: Tokens) -> Result<(), Failed> {
        let iteration = tokens.finish()?;
        let iterations = if self.is_warmup() { &mut self.warmup_iterations } else { &mut self.iterations };
        iterations.push(iteration);
        Ok(())
    }

    fn is_warmup(&self) -> bool {
        self.warmup_iterations.len() < self.request.warmup as usize
    }

    /// Whether all iterations are done, or the request was cancelled.
    pub fn is_over(&self) -> bool {
        self.iterations.len() >= self.request.iterations as usize || self.is_cancelled()
    }

    /// The answer. If a cancel ended the request early, the last iteration in it is cancelled, and may have no tokens.
    pub fn answer<M>(
        mut self,
        loaded_model: Option<&LoadedModel<M>>,
        device_memory: Option<DeviceMemory>,
    ) -> Generated {
        let is_cancelled = |it: &Iteration| it.sequences.iter().any(|s| s.finish == Finish::Cancelled);
        let is_complete = self.iterations.len() >= self.request.iterations as usize;
        if !is_complete && !self.iterations.last().is_some_and(is_cancelled) {
            let (now_ns, sequences) = (self.clock.ns(), self.prompts.cancelled_sequences());
            self.iterations.push(Iteration { start_ns: now_ns, end_ns: now_ns, sequences });
        }
        // Requests in ids get their answer in ids.
        if let Some(loaded_model) = loaded_model.filter(|_| self.has_text()) {
            for sequence in self.iterations.iter_mut().flat_map(|iteration| &mut iteration.sequences) {
                sequence.text = sequence.output_ids.as_ref().and_then(|ids| loaded_model.decode(ids));
            }
        }
        let summary = crate::summary::summarise(&self.iterations);
        Generated {
            id: self.request.id,
            iterations: self.iterations,
            warmup_iterations: self.warmup_iterations,
            loaded: self.loaded,
            device_memory,
            summary: Some(summary),
        }
    }

    /// The field of a prompt: `prompt`, or `prompts_ids[2]` in a batch.
    fn field_of(&self, index: usize) -> String {
        let is_batch = self.field.starts_with("prompts");
        if is_batch { format!("{}[{index}]", self.field) } else { self.field.into() }
    }

    /// Checks that ids have lengths that the engine can batch, are in the vocabulary, and fit the context, in this order.
    fn check_ids(
        &self,
        prompts: &[Vec<u32>],
        capabilities: &Capabilities,
        facts: &Facts,
    ) -> Result<(), Failed> {
        let has_different_lengths = prompts.iter().any(|ids| ids.len() != prompts[0].len());
        if has_different_lengths && !capabilities.padding_sides.contains(&self.request.padding) {
            let wire_name = |padding| serde_json::to_value(padding).ok()?.as_str().map(str::to_string);
            let sides: Vec<String> = capabilities.padding_sides.iter().filter_map(wire_name).collect();
            let requested = wire_name(&self.request.padding).unwrap_or_default();
            let offered = quote(sides.iter().map(String::as_str));
            return unsupported(match sides.is_empty() {
                true => "prompts of different lengths in one batch: this engine does not pad".into(),
                false => format!("padding `{requested}`: expected one of {offered}"),
            });
        }
        for (index, ids) in prompts.iter().enumerate() {
            check_vocabulary(ids, facts, &self.field_of(index))?;
        }
        let new_tokens = self.request.max_new_tokens;
        let needs = |ids: &Vec<u32>| ids.len() as u64 + u64::from(new_tokens);
        let Some(context) = facts.context_tokens else { return Ok(()) };
        match prompts.iter().position(|ids| needs(ids) > u64::from(context)) {
            None => Ok(()),
            Some(index) => {
                let field = if prompts.len() == 1 { String::new() } else { format!("sequence {index}: ") };
                let tokens = format!("{} tokens and {new_tokens} new ones", prompts[index].len());
                let message = format!("{field}prompt of {tokens} exceed the context of {context}");
                Err(Failed::new(FailureKind::Context, message))
            }
        }
    }
}

impl Prompts {
    fn count(&self) -> usize {
        match self {
            Self::Ids(ids) => ids.len(),
            Self::Texts(texts) => texts.len(),
        }
    }

    /// The sequences of an iteration cancelled before it began. Texts count as 0 tokens, because they were not tokenised.
    fn cancelled_sequences(&self) -> Vec<Sequence> {
        let sequence = |prompt_tokens: usize| Sequence {
            prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
            output_ids: Some(Vec::new()),
            token_ns: Some(Vec::new()),
            finish: Finish::Cancelled,
            ..Sequence::default()
        };
        match self {
            Self::Ids(ids) => ids.iter().map(|ids| sequence(ids.len())).collect(),
            Self::Texts(texts) => texts.iter().map(|_| sequence(0)).collect(),
        }
    }
}

fn unsupported(message: String) -> Result<(), Failed> {
    Err(Failed::new(FailureKind::Unsupported, message))
}

/// Checks that every id is in the model's vocabulary. `field` is the field of the request that has the ids.
pub(crate) fn check_vocabulary(ids: &[u32], facts: &Facts, field: &str) -> Result<(), Failed> {
    let Some(size) = facts.vocabulary_size else { return Ok(()) };
    match ids.iter().position(|&id| id >= size) {
        None => Ok(()),
        Some(index) => Err(Failed::new(
            FailureKind::BadRequest,
            format!("`{field}[{index}]`: id {} is outside the vocabulary of {size}", ids[index]),
        )),
    }
}
