//! Turns a plan into a run record. A failed case is recorded, and the run continues. An error of this program ends the run.
//!
//! `block`, `held_out` and `measured_tokens` do the work with `journal`, `schedule`, `launches` and `request`; `run` combines
//! them.

mod ask;
mod block;
mod blocking;
mod case;
mod checks;
mod conversion;
pub mod dtype_costs;
mod held_out;
mod journal;
mod launch;
mod launches;
mod limits;
mod measured_tokens;
mod memory_groups;
mod needed_time;
mod other_processes;
pub mod overhead;
mod page_cache;
mod participants;
mod pass;
pub mod process;
mod read_text;
pub mod reference_answers;
mod request;
mod schedule;
mod serve;
mod text_scores;
mod time_budget;
mod token_check_time;
mod unverified;
pub mod verify;
mod warm_up;

pub use ask::ask_load_values;
pub use block::{is_paused_between_requests, is_slowed_by_pause};
pub use held_out::check_weight;
pub use journal::{Event, Listener};
pub use launch::{Settings, launching, load_request};
pub use token_check_time::{VerifierTimes, token_check_time};
pub use warm_up::{fewest_requests, usual_requests};

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::watch;

use crate::machine::{self, QuietCheck};
use crate::plan::budget::TokenCheck;
use crate::plan::texts::OwnText;
use crate::plan::{Configuration, Plan, Prompt, Role};
use crate::record::{End, Entry, Failure, FailureKind, Recorder, RunEnd, Stage};
use crate::shell::Unavailable;
use crate::text::plural;

use block::Blocks;
use blocking::off_thread;
use checks::OutputChecks;
use journal::Journal;
use launches::Launches;
use other_processes::OtherProcesses;
use request::Requests;
use schedule::Schedule;
use text_scores::TextScoring;

/// Carries out the plan in the record's header until its end or an interrupt. The last entry says which came first.
pub async fn run(
    recorder: &mut Recorder,
    listener: Listener<'_>,
    settings: Settings,
    mut interrupted: watch::Receiver<u32>,
) -> Result<End> {
    let (started, keeper) = (Instant::now(), settings.keeper.as_ref().map(|it| it.pid));
    let plan = &recorder.record.header.plan.clone();
    let mut journal = Journal::new(recorder, listener);
    let mut schedule = Schedule::of(plan);
    let record = journal.path();
    let is_twin = |it: &&Configuration| matches!(it.role, Some(Role::Twin { .. }));
    let twins = plan.configurations.iter().filter(is_twin).map(|it| it.label.clone()).collect();
    journal.send(Event::RunStarted {
        configurations: plan.measured().len(),
        blocks: plan.extent.blocks,
        twins,
        record,
    });
    let mut quiet = None;
    // Cancelling drops the engine of a launch, which ends the engine's processes.
    let end = tokio::select! {
        biased;
        _ = interrupted.wait_for(|&count| count > 0) => End::Interrupted,
        ran = measure(plan, &mut journal, &mut schedule, &mut quiet, settings) => ran.map(|()| End::Finished)?,
    };
    if end == End::Interrupted {
        journal.send(Event::Interrupted);
    }
    let warnings = quiet.map(|quiet: QuietCheck| quiet.warnings_after(end == End::Interrupted));
    journal.warn_all(warnings.unwrap_or_default())?;
    if let Some(keeper) = keeper {
        let escaped = off_thread(move || process::end_descendants(keeper)).await?;
        // After an interrupt, probes of this program may still run.
        if end == End::Finished && !escaped.is_empty() {
            let escaped = escaped.join(", ");
            journal.warn(
                None,
                format!("an engine left processes without `ORCHESTRATE_LAUNCH`: {escaped}; they were ended"),
            )?;
        }
    }
    let ns = |time: Duration| u64::try_from(time.as_nanos()).ok();
    let (elapsed_ns, token_check_ns) = (ns(started.elapsed()), schedule.needed.token_check.and_then(ns));
    let needs_budget = schedule.needed_budget();
    journal.take(Entry::End(RunEnd { end, elapsed_ns, token_check_ns, needs_budget }))?;
    journal.finish(end)?;
    Ok(end)
}

/// Carries out the preparations, the output check before the blocks, the blocks, and the output check after them. `quiet` is set
/// as soon as the machine's counters are read.
async fn measure<'a>(
    plan: &'a Plan,
    journal: &mut Journal<'a>,
    schedule: &mut Schedule<'a>,
    quiet: &mut Option<QuietCheck>,
    settings: Settings,
) -> Result<()> {
    let mut other_processes = OtherProcesses::at_start_of_run(journal.record().header.core_lock).await?;
    *quiet = Some(probe_quiet(plan, journal).await?);
    warn_about_fixed_prompt(plan, journal)?;
    let mut requests = Requests::of(plan);
    record_unavailable(plan, journal, &mut requests, schedule).await?;
    record_overhead(plan, journal, schedule).await?;
    pass::sample_idle_energy(plan, journal).await?;
    let (run, expected) = (journal.record().header.id.clone(), settings.token_check);
    let mut launches = Launches::of(plan, &run, settings);
    let (launches, budget_ends) = (&mut launches, schedule.budget_ends());
    dtype_costs::add(plan, journal, launches, &requests, budget_ends).await?;
    let requests = &requests;
    let needed = std::mem::take(&mut schedule.needed);
    let mut checks = OutputChecks { plan, journal, launches, requests, budget_ends, needed };
    checks.check_held_out(schedule).await?;
    schedule.needed = checks.needed;
    TextScoring { plan, journal, launches, requests }.score_all(schedule).await?;
    let times_of = |verifier| VerifierTimes::of(journal.record(), verifier);
    let token_check = token_check_time(plan, schedule.time_budget.wanted_blocks, times_of).or(expected);
    schedule.time_budget.measuring_begins(plan, TokenCheck::of(plan, token_check));
    let other_processes = &mut other_processes;
    let warned_of_memory_groups = false;
    Blocks {
        plan,
        journal,
        launches,
        requests,
        schedule,
        other_processes: &mut *other_processes,
        warned_of_memory_groups,
    }
    .run()
    .await?;
    if let Some(warning) = other_processes.not_named() {
        journal.warn(None, warning)?;
    }
    let needed = std::mem::take(&mut schedule.needed);
    let mut checks = OutputChecks { plan, journal, launches, requests, budget_ends, needed };
    checks.verify_measured_tokens(schedule).await?;
    schedule.needed = checks.needed;
    Ok(())
}

/// Examines how quiet the machine is before anything is measured. The probe asks the GPUs' driver, which may hang, so it runs on
/// another thread.
async fn probe_quiet(plan: &Plan, journal: &mut Journal<'_>) -> Result<QuietCheck> {
    let engines = planned_engines(plan);
    let probe = move || {
        let quiet = QuietCheck::probe(&engines);
        let warnings = quiet.warnings_before(&engines, "before the run");
        (quiet, warnings)
    };
    let (quiet, warnings) = off_thread(probe).await?;
    journal.warn_all(warnings)?;
    Ok(quiet)
}

/// Records a failure for each configuration that cannot start or has no prompts, and for each case whose requests do not fit the
/// context.
async fn record_unavailable(
    plan: &Plan,
    journal: &mut Journal<'_>,
    requests: &mut Requests<'_>,
    schedule: &mut Schedule<'_>,
) -> Result<()> {
    for (index, configuration) in plan.configurations.iter().enumerate() {
        let refusal = match &configuration.unavailable {
            Some(unavailable) => {
                let kind = FailureKind::of_unavailable(configuration);
                Some((kind, unavailable.reason.clone(), unavailable.hint.clone()))
            }
            None => match requests.read_model(&configuration.model.path).await? {
                Ok(()) => None,
                Err(error) => {
                    let Unavailable { reason, hint } = Unavailable::of_error(&error);
                    Some((FailureKind::Model, reason, hint))
                }
            },
        };
        if let Some((kind, message, hint)) = refusal {
            let when = Stage::Start.to_string();
            let failure = Failure { configuration: index, kind, when, message, hint, ..Failure::default() };
            schedule.record_failure(journal, failure)?;
        } else {
            record_unfit_cases(index, plan, journal, requests, schedule)?;
        }
    }
    Ok(())
}

/// Records a failure for each case whose requests do not fit the context of its model. No engine gets such a request.
fn record_unfit_cases(
    index: usize,
    plan: &Plan,
    journal: &mut Journal<'_>,
    requests: &Requests<'_>,
    schedule: &mut Schedule<'_>,
) -> Result<()> {
    let configuration = &plan.configurations[index];
    let Some(prompts) = requests.prompts(&configuration.model.path) else { return Ok(()) };
    for case in plan.cases_of(index) {
        let Some(message) = prompts.excess(&plan.cases[case].workload) else { continue };
        if matches!(configuration.role, Some(Role::Twin { .. })) {
            schedule.end_case(case);
            continue;
        }
        // A depth is a value that the model does not support; another length is a mistake of the command line.
        let has_depth = plan.cases[case].workload.shape.depth > 0;
        let kind = if has_depth { FailureKind::Unsupported } else { FailureKind::Context };
        let when = Stage::Start.to_string();
        let failure =
            Failure { configuration: index, case: Some(case), kind, when, message, ..Failure::default() };
        schedule.record_failure(journal, failure)?;
    }
    Ok(())
}

/// Warns if the user gave prompts, because they are repeated.
fn warn_about_fixed_prompt(plan: &Plan, journal: &mut Journal) -> Result<()> {
    let mut own: Vec<&OwnText> = Vec::new();
    for case in &plan.cases {
        if let Prompt::Text(text) = &case.workload.prompt
            && !own.contains(&text)
        {
            own.push(text);
        }
    }
    own.into_iter().try_for_each(|text| {
        let message = match text {
            OwnText::One(_) => {
                "every request has the same prompt, so an engine with a prefix cache computes it once; without `--prompt` each \
                 request has a prompt of its own"
                    .to_string()
            }
            OwnText::File(file) => format!(
                "requests take the {} of `{}` in turn, so an engine with a prefix cache may know a prompt; without a file each \
                 request has a prompt of its own",
                plural(file.texts.len(), "prompt"),
                file.path
            ),
        };
        journal.warn(None, message)
    })
}

/// Records the current cost of a request to the null engine. If that fails, the run goes on with a warning.
async fn record_overhead(plan: &Plan, journal: &mut Journal<'_>, schedule: &Schedule<'_>) -> Result<()> {
    if !(0..plan.configurations.len()).any(|configuration| schedule.has_open_cases(configuration)) {
        return Ok(());
    }
    match overhead::measure_briefly(&journal.record().header.id).await {
        Ok(overhead) => journal.take(Entry::Overhead(overhead)),
        Err(error) => {
            let message = format!(
                "the overhead of `orchestrate` was not measured: {error:#}; try `orchestrate overhead`"
            );
            journal.warn(None, message)
        }
    }
}

/// The engines of a plan, with the facts that the machine's checks need.
fn planned_engines(plan: &Plan) -> Vec<machine::PlannedEngine> {
    let engine = |it: &Configuration| machine::PlannedEngine {
        label: it.role.is_none().then(|| it.label.clone()),
        program: it.command.first().map(PathBuf::from),
        device: it.device.clone(),
        threads: it.threads,
        unavailable: it.unavailable.is_some(),
    };
    plan.configurations.iter().map(engine).collect()
}
