//! One request and its answer: made from the prompt's ids, verified, recorded.

use std::time::Duration;

use protocol::{Generate, Generated, Output};

use super::launch::{Launched, stage};
use super::{Run, Stop};
use crate::analysis::values;
use crate::machine::memory;
use crate::plan::prompts::{self, Which};
use crate::plan::{Mode, Workload};
use crate::record::{Entry, Role, Sample};
use crate::run::event::Event;
use crate::run::process::{Answer, Cause};
use crate::run::verify::{self, Expected};

/// New tokens of a request that is thrown away: enough to touch every weight and to wake every thread.
const DISCARDED_TOKENS: u32 = 4;

impl Run<'_> {
    /// Gives the answer, and how long it took on the orchestrator's clock.
    pub(super) async fn ask(
        &mut self,
        launched: &mut Launched,
        case: usize,
        role: Role,
        index: u32,
    ) -> Result<(Generated, u64), Stop> {
        let mut workload = self.plan.cases[case].workload.clone();
        if role == Role::Discarded {
            workload.max_new_tokens = workload.max_new_tokens.min(DISCARDED_TOKENS);
        }
        let configuration = &self.plan.configurations[launched.launch.configuration];
        let which = Which { seed: self.plan.seed, block: launched.launch.block, role, index };
        let Some(prompts) = self.prompts.get(&configuration.model.path) else {
            return Err(Stop::Broken(anyhow::anyhow!("no prompts for `{}`", configuration.model.path)));
        };
        let ids = match prompts.ids(&workload, which) {
            Ok(ids) => ids,
            Err(error) => {
                let cause = Cause::Unsupported(format!("{error:#}"));
                return Err(launched.talk.fault(stage(role, index), cause).into());
            }
        };
        let id = launched.asked;
        launched.asked += 1;
        let capabilities = launched.hello().map(|hello| &hello.capabilities);
        let mut request = prompts.request(&workload, &ids, capabilities, id);
        // The second warm-up request is the streamed pass: it shows whether the engine's stamps are when tokens come.
        let gives_ids = launched.hello().is_some_and(|hello| hello.output == Output::Ids);
        let streams = gives_ids && capabilities.is_some_and(|capabilities| capabilities.stream);
        let streamed = if workload.warmup == Some(1) { 0 } else { 1 };
        request.stream = streams && role == Role::Warmup && index == streamed && workload.max_new_tokens > 1;
        let answer = self.converse(launched, request, &workload).await;
        let answer = answer.map_err(|cause| launched.talk.fault(stage(role, index), cause))?;
        launched.tree = launched.processes();
        let iteration = answer.generated.iterations.first().cloned().unwrap_or_default();
        // However dear, each case has one.
        let needed = role == Role::Measured && index == 0;
        let sample = Sample {
            launch: launched.launch.launch,
            case,
            index,
            role,
            prompt_hash: prompts::hash(&ids),
            sent_ns: answer.sent_ns,
            answered_ns: answer.answered_ns,
            iteration,
            peak_resident_bytes: memory::peak_resident_bytes(&launched.tree),
            held: launched.holding.read(&launched.tree, needed),
            device_memory: answer.generated.device_memory.clone(),
            cpu_ns: launched.worked.cpu_ns,
            waited_ns: launched.worked.waited_ns,
            late: verify::lateness(&answer),
        };
        self.record_sample(launched, sample)?;
        Ok((answer.generated, answer.answered_ns.saturating_sub(answer.sent_ns)))
    }

    pub(super) async fn converse(
        &mut self,
        launched: &mut Launched,
        request: Generate,
        workload: &Workload,
    ) -> Result<Answer, Cause> {
        let streamed = request.stream;
        let prompt_tokens = vec![request.prompt_ids.as_ref().map(|ids| ids.len() as u32)];
        let processes = launched.processor_time();
        let before = processes.so_far();
        let answer = self.within_the_cap(launched, request).await?;
        launched.worked = processes.so_far().since(before);
        if launched.launch.loaded.is_none() {
            // A generate before any load: its facts stand inside the answer.
            launched.launch.loaded = answer.generated.loaded.clone();
        }
        let facts = launched.launch.loaded.as_ref().map(|loaded| &loaded.facts);
        let expected = Expected {
            prompt_tokens,
            max_new_tokens: workload.max_new_tokens,
            ignore_eos: workload.ignore_eos,
            elapsed_ns: answer.answered_ns.saturating_sub(answer.sent_ns),
            ..Expected::default()
        };
        let eos_ids = facts.and_then(|facts| facts.eos_ids.as_deref()).unwrap_or_default();
        let vocabulary_size = facts.and_then(|facts| facts.vocabulary_size);
        expected.with_engine(launched.hello(), eos_ids, vocabulary_size).verify(&answer.generated)?;
        verify::verify_streamed(&answer, streamed)?;
        launched.talk.unasked()?;
        Ok(answer)
    }

    /// A request that takes longer than a case may is an answer of its own. A load in passing has its own deadline.
    async fn within_the_cap(&self, launched: &mut Launched, request: Generate) -> Result<Answer, Cause> {
        let longest = self.settings.deadlines.answer;
        let cap = Duration::from_nanos(self.plan.extent.case_cap_ns);
        let loads_in_passing = launched.asked < 2 && self.plan.mode == Mode::Warm;
        let capped = cap <= longest && (launched.launch.loaded.is_some() || !loads_in_passing);
        launched.talk.deadlines.answer = if capped { cap } else { longest };
        launched.talk.generate(request).await.map_err(|cause| match cause {
            Cause::Timeout(_) if capped => Cause::TooSlow(cap),
            cause => cause,
        })
    }

    fn record_sample(&mut self, launched: &Launched, sample: Sample) -> Result<(), Stop> {
        let (case, role) = (sample.case, sample.role);
        if launched.hello().is_none()
            && !self.recorder.record.launches.iter().any(|it| it.launch == sample.launch)
        {
            // A launch without hello is known as well as it will be after its first answer.
            self.recorder.take(Entry::Launch(Box::new(launched.launch.clone())))?;
        }
        self.recorder.take(Entry::Sample(Box::new(sample)))?;
        let planned = &self.plan.cases[case];
        let event = Event::Sampled {
            label: self.plan.configurations[planned.configuration].label.clone(),
            workload: planned.workload.label.clone(),
            warmup: role != Role::Measured,
            estimate: self.estimate(case, launched),
        };
        (self.listener)(event);
        Ok(())
    }

    /// The headline of a case over this launch's samples so far.
    fn estimate(&self, case: usize, launched: &Launched) -> Option<String> {
        let so_far = values::headline_so_far(&self.recorder.record, &launched.launch, case);
        so_far.map(|(metric, value)| metric.unit.show(value))
    }
}
