//! One case in one launch: what it needs, how it is warmed up, its rounds.

use std::time::{Duration, Instant};

use protocol::{Generated, IgnoreEos};

use super::launch::{Launched, load_request, stage};
use super::warm_up::WarmUp;
use super::{Run, Stop};
use crate::plan::Workload;
use crate::plan::prompts::PAIR;
use crate::record::{self, Entry, Role, WarmUpEnd};
use crate::run::event::Event;
use crate::run::process::{Cause, Stage};

impl Run<'_> {
    /// What is about the launch itself: its first request.
    pub(super) async fn ask_case_of_launch(
        &mut self,
        launched: &mut Launched,
        case: usize,
    ) -> Result<(), Stop> {
        self.begin(launched, case)?;
        for round in 0..self.plan.cases[case].workload.rounds {
            self.ask(launched, case, Role::Measured, round).await?;
        }
        Ok(())
    }

    /// Requests of the case's full shape until they take equally long. Gives what one takes.
    pub(super) async fn warm_up(
        &mut self,
        launched: &mut Launched,
        case: usize,
        limit: Duration,
    ) -> Result<Option<f64>, Stop> {
        self.begin(launched, case)?;
        let workload = self.plan.cases[case].workload.clone();
        let before = self.warm_after.get(&case).copied();
        let (begun, mut warm_up) = (Instant::now(), WarmUp::default());
        let mut first: Option<Generated> = None;
        let ended_by = loop {
            if self.pace.is_spent() && warm_up.requests() > 0 {
                break WarmUpEnd::Time;
            }
            if let Some(end) = warm_up.end(workload.warmup, before, begun.elapsed() < limit) {
                break end;
            }
            let index = warm_up.requests();
            let (answer, elapsed_ns) = self.ask(launched, case, Role::Warmup, index).await?;
            warm_up.push(elapsed_ns);
            // The pair is one request, so its answers are one answer.
            let first = first.get_or_insert_with(|| answer.clone());
            if index < PAIR
                && let Err(cause) = same_ids(launched, &workload, first, &answer)
            {
                return Err(launched.talk.fault(stage(Role::Warmup, index), cause).into());
            }
        };
        if ended_by == WarmUpEnd::Steady {
            self.warm_after.insert(case, warm_up.needed());
        }
        let (launch, requests) = (launched.launch.launch, warm_up.requests());
        self.recorder.take(Entry::WarmUp(record::WarmUp { launch, case, requests, ended_by }))?;
        Ok(warm_up.request_ns())
    }

    /// One round: the measured request, of which it gives the time, and where the engine has rested one before it that is thrown
    /// away.
    pub(super) async fn ask_round(
        &mut self,
        launched: &mut Launched,
        case: usize,
        round: u32,
        rested: bool,
    ) -> Result<Duration, Stop> {
        if rested {
            self.ask(launched, case, Role::Discarded, round).await?;
        }
        let (_, ns) = self.ask(launched, case, Role::Measured, round).await?;
        Ok(Duration::from_nanos(ns))
    }

    fn begin(&mut self, launched: &mut Launched, case: usize) -> Result<(), Stop> {
        let workload = &self.plan.cases[case].workload;
        let label = self.plan.configurations[launched.launch.configuration].label.clone();
        (self.listener)(Event::CaseStarted { label, workload: workload.label.clone() });
        supports(launched, workload).map_err(|cause| launched.talk.fault(Stage::Load, cause).into())
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
