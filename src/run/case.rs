//! One case in one launch: its requirements, its warm-up, its rounds.

use std::time::{Duration, Instant};

use protocol::IgnoreEos;

use super::journal::{Event, Journal};
use super::launch::{Launched, load_request, stage};
use super::other_processes::OtherProcesses;
use super::request::Requests;
use super::schedule::Schedule;
use super::warm_up::WarmUp;
use crate::plan::axes::Value;
use crate::plan::prompts::IDENTICAL_WARM_UPS;
use crate::plan::scenario::Kind;
use crate::plan::{Plan, Workload};
use crate::record::{self, RequestKind, Sample, WarmUpEnd};
use crate::run::process::{Cause, LaunchError, Stage};

/// Makes the requests of a plan's cases, one launch at a time.
pub(super) struct Cases<'r, 'a> {
    pub plan: &'a Plan,
    pub journal: &'r mut Journal<'a>,
    pub requests: &'r Requests<'a>,
    pub other_processes: &'r mut OtherProcesses,
}

impl Cases<'_, '_> {
    /// Measures the launch itself by its first requests.
    pub async fn measure_launch_case(
        &mut self,
        launched: &mut Launched,
        case: usize,
    ) -> Result<(), LaunchError> {
        self.begin(launched, case)?;
        for round in 0..self.plan.cases[case].workload.rounds {
            self.requests.make(self.journal, launched, case, RequestKind::Measured, round).await?;
        }
        Ok(())
    }

    /// Warms up with requests like the measured ones, until `WarmUp::end` gives a reason to end, such as steady times or the end
    /// of `limit`. Gives the median time of the last requests in nanoseconds; `None` without requests.
    pub async fn warm_up(
        &mut self,
        launched: &mut Launched,
        case: usize,
        schedule: &mut Schedule<'_>,
        limit: Duration,
    ) -> Result<Option<f64>, LaunchError> {
        self.begin(launched, case)?;
        let workload = self.plan.cases[case].workload.clone();
        let needed_before = schedule.needed_warm_ups.get(&case).copied();
        let (begun, mut warm_up) = (Instant::now(), WarmUp::default());
        let mut first: Option<Sample> = None;
        let ended_by = loop {
            if schedule.time_budget.is_spent() && warm_up.requests() > 0 {
                break WarmUpEnd::Time;
            }
            if let Some(end) = warm_up.end(workload.warmup, needed_before, begun.elapsed() < limit) {
                break end;
            }
            let index = warm_up.requests();
            let sample = self.requests.make(self.journal, launched, case, RequestKind::Warmup, index).await?;
            warm_up.push(sample.elapsed_ns());
            // The first requests have the same prompt, so a deterministic engine must give them equal answers.
            let first = first.get_or_insert_with(|| sample.clone());
            // The sums of a step depend on the requests that share it, so overlapping requests may give other ids.
            if index < IDENTICAL_WARM_UPS
                && !workload.shape.overlaps()
                && let Err(cause) = verify_same_ids(launched, &workload, first, &sample)
            {
                return Err(launched.failure(stage(RequestKind::Warmup, index), cause));
            }
        };
        if ended_by == WarmUpEnd::Steady {
            schedule.needed_warm_ups.insert(case, warm_up.needed());
        }
        let (launch, requests) = (launched.launch.launch, warm_up.requests());
        launched.warmed_up(self.journal, record::WarmUp { launch, case, requests, ended_by })?;
        Ok(warm_up.request_ns())
    }

    /// Makes the measured request of a round, after a discarded one if `discards_first` is true. If another process disturbed the
    /// measured request, it is discarded too and repeated once. Returns the measured time.
    pub async fn request_round(
        &mut self,
        launched: &mut Launched,
        case: usize,
        round: u32,
        discards_first: bool,
    ) -> Result<Duration, LaunchError> {
        if discards_first {
            self.requests.make(self.journal, launched, case, RequestKind::Discarded, round).await?;
        }
        let begin = self.other_processes.begin().await?;
        let mut sample = self.measure_once(launched, case, round, 0).await?;
        let disturbed = self.other_processes.end(begin, launched).await?;
        for process in &disturbed.new {
            let label = &self.plan.configurations[launched.launch.configuration].label;
            let message = format!(
                "machine: {process} while `{label}` was measured; each such request is measured again; end what started during the \
                 run, or find the engine that starts it"
            );
            self.journal.warn(None, message)?;
        }
        if disturbed.is_disturbed {
            // The next request repeats this one, so this one is no sample.
            let discarded = Sample { kind: RequestKind::Discarded, ..sample };
            self.requests.record_sample(self.journal, discarded)?;
            sample = self.measure_once(launched, case, round, 1).await?;
        }
        let elapsed = Duration::from_nanos(sample.elapsed_ns());
        self.requests.record_sample(self.journal, sample)?;
        Ok(elapsed)
    }

    async fn measure_once(
        &mut self,
        launched: &mut Launched,
        case: usize,
        round: u32,
        repeat: u32,
    ) -> Result<Sample, LaunchError> {
        let kind = RequestKind::Measured;
        self.requests.attempt(self.journal, launched, case, kind, round, repeat).await
    }

    fn begin(&mut self, launched: &mut Launched, case: usize) -> Result<(), LaunchError> {
        let workload = &self.plan.cases[case].workload;
        let label = self.plan.configurations[launched.launch.configuration].label.clone();
        self.journal.send(Event::CaseStarted { label, workload: workload.label.clone() });
        check_support(launched, workload).map_err(|cause| launched.failure(Stage::Load, cause))
    }

    /// Sends the only `generate` of a one-shot process, as a shell would pipe a line into it.
    pub async fn request_cold(
        &mut self,
        launched: &mut Launched,
        model: &str,
        case: usize,
        index: u32,
    ) -> Result<(), LaunchError> {
        if let Err(cause) = check_support(launched, &self.plan.cases[case].workload) {
            return Err(launched.failure(Stage::Load, cause));
        }
        let configuration = &self.plan.configurations[launched.launch.configuration];
        // Options reach an engine only through `load`. Without options the environment has all settings.
        if !configuration.options.is_empty() {
            let request = load_request(configuration, model);
            let loaded = launched.conversation.load(request, |_| {}).await;
            let (loaded, loaded_ns) = loaded.map_err(|cause| launched.failure(Stage::Load, cause))?;
            (launched.launch.loaded, launched.launch.loaded_ns) = (Some(loaded), Some(loaded_ns));
        }
        self.requests.make(self.journal, launched, case, RequestKind::Measured, index).await.map(|_| ())
    }
}

/// Checks that the engine supports the requests of a workload.
pub(super) fn check_support(launched: &Launched, workload: &Workload) -> Result<(), Cause> {
    let Some(hello) = launched.hello() else {
        let Some(needs) = workload.needs_in_hello() else { return Ok(()) };
        let refused = format!(
            "the scenario needs `{needs}`, which is unknown without `hello` (one-shot mode sends none)"
        );
        return Err(Cause::Unsupported(refused));
    };
    let (shape, facts) = (&workload.shape, launched.facts());
    let has_no_cache = facts.and_then(|facts| facts.use_cache) == Some(false);
    let missing = match &hello.capabilities {
        capabilities if workload.kind == Kind::Query && !capabilities.facts => "facts",
        capabilities if workload.kind == Kind::Score && !capabilities.score => "score",
        capabilities if shape.batch > capabilities.batch.max(1) => {
            let largest = capabilities.batch.max(1);
            return Err(Cause::Unsupported(format!(
                "the scenario needs a batch of {}, and the largest of this engine is {largest}",
                shape.batch
            )));
        }
        capabilities if !shape.use_cache && !capabilities.use_cache_toggle && !has_no_cache => {
            "use_cache: false"
        }
        capabilities if shape.padding.is_some_and(|side| !capabilities.padding_sides.contains(&side)) => {
            let side = shape.padding.map(Value::word).unwrap_or_default();
            return Err(Cause::Unsupported(format!(
                "the scenario needs the padding `{side}`, and this engine does not support it"
            )));
        }
        capabilities
            if !shape.speculation.is_off() && !capabilities.speculation.contains(&shape.speculation) =>
        {
            let kind = shape.speculation.word();
            return Err(Cause::Unsupported(format!(
                "the scenario needs the speculation `{kind}`, and this engine does not support it"
            )));
        }
        capabilities if workload.ignore_eos && capabilities.ignore_eos == IgnoreEos::No => "ignore_eos",
        capabilities if workload.sampling.is_some() && !capabilities.sampling => "sampling",
        capabilities if shape.text.needs_ids() && !capabilities.prompt_ids => "prompt_ids",
        _ => return Ok(()),
    };
    Err(Cause::Unsupported(format!("the scenario needs `{missing}`, and this engine does not support it")))
}

/// Verifies that the same greedy request gives the same ids in a launch, if the engine claims to be `deterministic`.
fn verify_same_ids(
    launched: &Launched,
    workload: &Workload,
    first: &Sample,
    second: &Sample,
) -> Result<(), Cause> {
    let promised = launched.hello().is_some_and(|hello| hello.deterministic) && workload.is_greedy();
    let ids = |sample: &Sample| -> Vec<_> {
        sample.iteration.sequences.iter().map(|sequence| sequence.output_ids.clone()).collect()
    };
    if promised && ids(first) != ids(second) {
        return Err(Cause::WrongOutput("the same greedy request gave other ids the second time".into()));
    }
    Ok(())
}
