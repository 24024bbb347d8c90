//! One case in one launch: its requests, each answer verified and recorded.

use protocol::{Generate, Generated, IgnoreEos};

use super::launch::{Launched, load_request, stage};
use super::{Run, Stop};
use crate::engine::{Answer, Cause, Stage};
use crate::event::Event;
use crate::machine::memory;
use crate::metric::{self, Observation};
use crate::plan::Workload;
use crate::prompts::{self, Which};
use crate::record::{Entry, Role, Sample};
use crate::stats::median;
use crate::verify::{self, Expected};

/// Streamed tokens may come so much later than the engine stamped them before a reader is told.
const LATENESS_BOUND_NS: i64 = 20_000_000;

/// So much of a request may lie outside `start_ns` to `end_ns`: reading it, writing the answer, a scheduler's whim.
const LEFT_OUT_BOUND_NS: f64 = 20e6;
const LEFT_OUT_BOUND_SHARE: f64 = 0.05;

impl Run<'_> {
    /// Warm-up and measured requests of a case to an engine that is loaded.
    pub(super) async fn ask_case(&mut self, launched: &mut Launched, case: usize) -> Result<(), Stop> {
        let workload = self.plan.cases[case].workload.clone();
        let label = self.plan.configurations[self.plan.cases[case].configuration].label.clone();
        (self.listener)(Event::CaseStarted { label, workload: workload.label.clone() });
        if let Err(cause) = supports(launched, &workload) {
            return Err(launched.talk.fault(Stage::Load, cause).into());
        }
        let mut first_warmup: Option<Generated> = None;
        let roles = (0..workload.warmup).map(|index| (Role::Warmup, index));
        for (role, index) in roles.chain((0..workload.samples).map(|index| (Role::Measured, index))) {
            let answer = self.ask(launched, case, role, index).await?;
            if role == Role::Warmup {
                // All warm-up requests of a launch are one request.
                let first = first_warmup.get_or_insert_with(|| answer.clone());
                if let Err(cause) = same_ids(launched, &workload, first, &answer) {
                    return Err(launched.talk.fault(stage(role, index), cause).into());
                }
            }
        }
        self.warn_of_time_left_out(launched, case)
    }

    /// An engine's clock may not start late or stop early: what it leaves out would be nobody's.
    fn warn_of_time_left_out(&mut self, launched: &Launched, case: usize) -> Result<(), Stop> {
        let samples = &self.recorder.record.samples;
        let here =
            samples.iter().rev().take_while(|it| it.launch == launched.launch.launch && it.case == case);
        // A load in passing stands before the first start.
        let here = here.filter(|it| it.index > 0 || launched.hello().is_some());
        let elapsed = |it: &Sample| it.answered_ns.saturating_sub(it.sent_ns);
        let counted = |it: &Sample| it.iteration.end_ns.saturating_sub(it.iteration.start_ns);
        let (elapsed, left_out): (Vec<f64>, Vec<f64>) =
            here.map(|it| (elapsed(it) as f64, elapsed(it).saturating_sub(counted(it)) as f64)).unzip();
        let (Some(elapsed), Some(left_out)) = (median(&elapsed), median(&left_out)) else { return Ok(()) };
        let bound = LEFT_OUT_BOUND_NS.max(LEFT_OUT_BOUND_SHARE * elapsed);
        if left_out <= bound {
            return Ok(());
        }
        let (label, late, bound) = (&self.plan.cases[case].workload.label, left_out / 1e6, bound / 1e6);
        let message = format!(
            "{label}: its clock leaves out {late:.0} ms of each request: it lies before `start_ns` or after `end_ns` (median; bound {bound:.0} ms)"
        );
        Ok(self.warn(launched.launch.configuration, message)?)
    }

    /// The single request of a process: what a shell would pipe into it, and the end of stdin.
    pub(super) async fn ask_cold(
        &mut self,
        launched: &mut Launched,
        case: usize,
        index: u32,
    ) -> Result<(), Stop> {
        if let Err(cause) = supports(launched, &self.plan.cases[case].workload) {
            return Err(launched.talk.fault(Stage::Load, cause).into());
        }
        let index_of_configuration = launched.launch.configuration;
        let configuration = &self.plan.configurations[index_of_configuration];
        // Options reach an engine through `load` alone; without any, the environment says it all.
        if !configuration.options.is_empty() {
            let request = load_request(configuration, self.model_path(index_of_configuration));
            let loaded = launched.talk.load(request, |_| {}).await;
            let (loaded, loaded_ns) = loaded.map_err(|cause| launched.talk.fault(Stage::Load, cause))?;
            (launched.launch.loaded, launched.launch.loaded_ns) = (Some(loaded), Some(loaded_ns));
        }
        self.ask(launched, case, Role::Measured, index).await.map(|_| ())
    }

    async fn ask(
        &mut self,
        launched: &mut Launched,
        case: usize,
        role: Role,
        index: u32,
    ) -> Result<Generated, Stop> {
        let workload = &self.plan.cases[case].workload;
        let configuration = &self.plan.configurations[launched.launch.configuration];
        let which = Which { seed: self.plan.seed, round: launched.launch.round, role, index };
        let Some(prompts) = self.prompts.get(&configuration.model.path) else {
            return Err(Stop::Broken(anyhow::anyhow!("no prompts for `{}`", configuration.model.path)));
        };
        let ids = match prompts.ids(workload, which) {
            Ok(ids) => ids,
            Err(error) => {
                let cause = Cause::Unsupported(format!("{error:#}"));
                return Err(launched.talk.fault(stage(role, index), cause).into());
            }
        };
        let id = launched.asked;
        launched.asked += 1;
        let capabilities = launched.hello().map(|hello| &hello.capabilities);
        let mut request = prompts.request(workload, &ids, capabilities, id);
        // The last warm-up request is the streamed pass: it shows whether the engine's stamps are when tokens come.
        let streams = capabilities.is_some_and(|capabilities| capabilities.stream);
        request.stream =
            streams && role == Role::Warmup && index + 1 == workload.warmup && workload.max_new_tokens > 1;
        let answer = self.converse(launched, request, workload.clone()).await;
        let answer = answer.map_err(|cause| launched.talk.fault(stage(role, index), cause))?;
        if let Some(late_ns) = verify::lateness_ns(&answer).filter(|&late_ns| late_ns > LATENESS_BOUND_NS) {
            let (late, bound) = (late_ns / 1_000_000, LATENESS_BOUND_NS / 1_000_000);
            let message = format!(
                "tokens arrive {late} ms after their stamps (median; bound {bound} ms): see `stamp` in its hello"
            );
            self.warn(launched.launch.configuration, message)?;
        }
        let iteration = answer.generated.iterations.first().cloned().unwrap_or_default();
        let sample = Sample {
            launch: launched.launch.launch,
            case,
            index,
            role,
            prompt_hash: prompts::hash(&ids),
            sent_ns: answer.sent_ns,
            answered_ns: answer.answered_ns,
            iteration,
            peak_resident_bytes: memory::peak_resident_bytes(&memory::tree(launched.talk.process.pid)),
        };
        self.record_sample(launched, sample)?;
        Ok(answer.generated)
    }

    async fn converse(
        &mut self,
        launched: &mut Launched,
        request: Generate,
        workload: Workload,
    ) -> Result<Answer, Cause> {
        let streamed = request.stream;
        let prompt_tokens = vec![request.prompt_ids.as_ref().map(|ids| ids.len() as u32)];
        let answer = launched.talk.generate(request).await?;
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
        if streamed {
            verify::verify_streamed(&answer)?;
        }
        launched.talk.unasked()?;
        Ok(answer)
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
            warmup: role == Role::Warmup,
            estimate: self.estimate(case, launched),
        };
        (self.listener)(event);
        Ok(())
    }

    /// The headline of a case over this launch's samples so far.
    fn estimate(&self, case: usize, launched: &Launched) -> Option<String> {
        let metric = metric::named(&self.plan.cases[case].workload.headline)?;
        let (plan, launch) = (&self.plan, &launched.launch);
        let here = |sample: &&Sample| {
            sample.case == case && sample.launch == launch.launch && sample.role == Role::Measured
        };
        let samples = self.recorder.record.samples.iter().rev().take(100).filter(here);
        let seen = samples.filter_map(|sample| Observation::of(plan, launch, sample));
        let values: Vec<f64> = seen.flat_map(|seen| (metric.of)(&seen)).collect();
        median(&values).map(|value| metric.unit.show(value))
    }
}

/// Whether the engine can do what the workload needs.
fn supports(launched: &Launched, workload: &Workload) -> Result<(), Cause> {
    let Some(hello) = launched.hello() else {
        // The smallest engine is asked all the same and its answer verified, but nothing would show how it sampled.
        let refused = Cause::Unsupported(
            "the scenario needs `sampling`, and without `hello` nothing says that this engine samples".into(),
        );
        return if workload.sampling.is_some() { Err(refused) } else { Ok(()) };
    };
    let missing = match &hello.capabilities {
        capabilities if workload.ignore_eos && capabilities.ignore_eos == IgnoreEos::No => "ignore_eos",
        capabilities if workload.sampling.is_some() && !capabilities.sampling => "sampling",
        _ => return Ok(()),
    };
    Err(Cause::Unsupported(format!("the scenario needs `{missing}`, which this engine does not offer")))
}

/// The same greedy request in the same launch gives the same ids, where hello says so.
fn same_ids(
    launched: &Launched,
    workload: &Workload,
    first: &Generated,
    second: &Generated,
) -> Result<(), Cause> {
    let promised = launched.hello().is_some_and(|hello| hello.deterministic) && workload.sampling.is_none();
    let ids = |generated: &Generated| -> Vec<_> {
        let sequences = generated.iterations.iter().flat_map(|iteration| &iteration.sequences);
        sequences.map(|sequence| sequence.output_ids.clone()).collect()
    };
    if promised && ids(first) != ids(second) {
        return Err(Cause::WrongOutput("the same greedy request gave other ids the second time".into()));
    }
    Ok(())
}
