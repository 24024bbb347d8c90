//! The output check before the blocks. Each engine gives the log-probabilities of held-out text and continues a prompt. The
//! answers are recorded unchanged, and the analysis of the record evaluates them.

use std::time::{Duration, Instant};

use anyhow::Result;
use protocol::Output;

use super::checks::{CheckTime, OutputChecks, ReasonToSkip, Scoring, is_invalid_answer};
use super::journal::Event;
use super::launch::{EXIT_GRACE, Launched};
use super::launches::end;
use super::memory_groups::memory_shortage;
use super::schedule::Schedule;
use super::time_budget::TimeBudget;
use crate::plan::{Mode, Model, Role, Verification};
use crate::record::{Continued, Entry, HeldOut, HeldOutScores};
use crate::run::blocking::off_thread;
use crate::run::process::{Cause, EngineFailure, LaunchError, Stage, describe_exit};
use crate::run::reference_answers;
use crate::text::plural;

/// The weight of a configuration in the time of all checks. The verifier has twice the time of another engine, because without its
/// answers nothing can be compared.
pub fn check_weight(is_verifier: bool) -> u32 {
    if is_verifier { 2 } else { 1 }
}

/// The share of a configuration in the time of all checks.
#[derive(Clone, Copy)]
struct Share<'t> {
    time_budget: &'t TimeBudget,
    weight: u32,
    /// The weights of this configuration and of later ones.
    weights_left: u32,
}

impl OutputChecks<'_, '_> {
    pub async fn check_held_out(&mut self, schedule: &mut Schedule<'_>) -> Result<()> {
        if self.plan.verification == Verification::Off {
            return Ok(());
        }
        let models = self.models_to_check(schedule);
        let mut weights_left: u32 = models.iter().map(|model| self.weight_of_model(schedule, model)).sum();
        for model in models {
            let weight = self.weight_of_model(schedule, &model);
            self.check_held_out_of(schedule, &model, weights_left).await?;
            weights_left = weights_left.saturating_sub(weight);
        }
        Ok(())
    }

    /// The weights of all configurations on a model, with that of its verifier.
    fn weight_of_model(&self, schedule: &Schedule, model: &Model) -> u32 {
        let verifier = self.plan.verifier_of(model);
        let checked = self.checked_on(schedule, model).into_iter().filter(|&index| Some(index) != verifier);
        checked.count() as u32 * check_weight(false) + verifier.map_or(0, |_| check_weight(true))
    }

    fn checked_on(&self, schedule: &Schedule, model: &Model) -> Vec<usize> {
        let all = self.plan.configurations.iter().enumerate();
        let on_model = all.filter(|(_, it)| it.model.path == model.path).map(|(index, _)| index);
        on_model.filter(|&index| self.is_checked(schedule, index)).collect()
    }

    /// The models to check, each once.
    fn models_to_check(&self, schedule: &Schedule) -> Vec<Model> {
        let mut models: Vec<Model> = Vec::new();
        for index in (0..self.plan.configurations.len()).filter(|&index| self.is_checked(schedule, index)) {
            let model = &self.plan.configurations[index].model;
            if !models.iter().any(|it| it.path == model.path) {
                models.push(model.clone());
            }
        }
        models
    }

    /// Whether a configuration is checked. Rows and baselines are checked; a twin is not, because it equals a row.
    fn is_checked(&self, schedule: &Schedule, index: usize) -> bool {
        let configuration = &self.plan.configurations[index];
        let is_measured = matches!(configuration.role, None | Some(Role::Baseline { .. }));
        let has_failed = || !self.plan.cases_of(index).is_empty() && !schedule.has_open_cases(index);
        is_measured
            && configuration.unavailable.is_none()
            && self.requests.prompts(&configuration.model.path).is_some()
            && !has_failed()
    }

    async fn check_held_out_of(
        &mut self,
        schedule: &mut Schedule<'_>,
        model: &Model,
        mut weights_left: u32,
    ) -> Result<()> {
        let Some(prompts) = self.requests.prompts(&model.path) else { return Ok(()) };
        let held_out = prompts.held_out(&model.path);
        self.journal.take(Entry::HeldOut(held_out.clone()))?;
        let mut selected = self.checked_on(schedule, model);
        let stored = match self.plan.verification {
            Verification::Usual => {
                let (model, held_out) = (model.clone(), held_out.clone());
                off_thread(move || reference_answers::find(&model, &held_out)).await?
            }
            // A user who names a verifier wants its answers, not stored ones.
            Verification::Named | Verification::Off => None,
        };
        match (stored, self.plan.verifier_of(model)) {
            (Some(stored), _) => self.journal.take(Entry::ReferenceAnswers(stored))?,
            (None, Some(verifier)) if !selected.contains(&verifier) => selected.push(verifier),
            (None, Some(_)) => {}
            (None, None) => {
                let reason = "held-out text was not checked: no verifier can run here";
                self.add_missing_verifier(model, reason)?;
            }
        }
        let of = selected.len();
        for (position, index) in selected.into_iter().enumerate() {
            if let Some(reason) = memory_shortage(&self.plan.configurations[index]) {
                self.add_unchecked_model(model, reason, None)?;
                continue;
            }
            if schedule.time_budget.is_check_time_over() {
                let reason = self.plan.extent.too_short_for("an output check");
                self.add_short(index, reason, false)?;
                continue;
            }
            let weight = check_weight(self.plan.verifier_of(model) == Some(index));
            let share = Share { time_budget: &schedule.time_budget, weight, weights_left };
            weights_left = weights_left.saturating_sub(weight);
            let label = self.plan.configurations[index].label.clone();
            self.journal.send(Event::CheckingOutput { label, number: position + 1, of });
            let outcome = self.check_configuration(index, &held_out, share).await;
            if let Err(failure) = LaunchError::separate(outcome)? {
                self.record_failed_check(schedule, index, failure)?;
            }
        }
        Ok(())
    }

    async fn check_configuration(
        &mut self,
        index: usize,
        held_out: &HeldOut,
        share: Share<'_>,
    ) -> Result<(), LaunchError> {
        let began = Instant::now();
        let left = self.budget_ends.map(|ends| ends.saturating_duration_since(began));
        let Some(mut launched) = self.launches.launch_for_check(self.journal, index, left).await? else {
            let reason =
                self.plan.extent.too_short_for("an output check, which ended while the engine was loaded");
            return Ok(self.add_short(index, reason, false)?);
        };
        if launched.hello().is_none() {
            launched.conversation.process.end(Duration::ZERO).await;
            return Ok(self.add_unchecked(index, "supports only `generate`, not `score`".into(), None)?);
        }
        let limit = share.time_budget.output_check_limit(share.weight, share.weights_left);
        let check_time = CheckTime::start(limit, self.budget_ends);
        let answered = self.request_answers(&mut launched, held_out, check_time).await;
        let more = *answered.as_ref().unwrap_or(&Duration::ZERO);
        self.needed.add_first_check(share.weight, began.elapsed(), more);
        let shutdown_limit = launched.conversation.deadlines.shutdown;
        // If the budget is too short for a shutdown, the engine is ended at once.
        let is_idle = answered.is_ok() && !launched.is_unanswered;
        let can_shut_down = is_idle && check_time.exit_limit(shutdown_limit) == shutdown_limit;
        let ended = end(self.journal, launched, can_shut_down).await;
        answered.map(drop).and(ended.map_err(LaunchError::from))
    }

    /// Scores the held-out texts from short to long, because the times of shorter texts predict the time of a longer one. Then
    /// continues the prompt. Returns the time that the check would have needed in addition, as far as it is known.
    async fn request_answers(
        &mut self,
        launched: &mut Launched,
        held_out: &HeldOut,
        check_time: CheckTime,
    ) -> Result<Duration, LaunchError> {
        let mut more = Duration::ZERO;
        match launched.hello().is_some_and(|hello| hello.capabilities.score) {
            true => more = self.score_texts(launched, held_out, check_time).await?,
            false => {
                self.add_unchecked(launched.launch.configuration, "does not support `score`".into(), None)?
            }
        }
        self.continue_prompt_of(launched, held_out, check_time).await?;
        Ok(more)
    }

    async fn score_texts(
        &mut self,
        launched: &mut Launched,
        held_out: &HeldOut,
        check_time: CheckTime,
    ) -> Result<Duration, LaunchError> {
        let (configuration, launch) = (launched.launch.configuration, launched.launch.launch);
        let mut scoring = Scoring::default();
        for (sequence, ids) in held_out.sequences.iter().enumerate() {
            match scoring.reason_to_skip(ids.len(), launched, check_time) {
                None => {}
                Some(ReasonToSkip::Context(reason)) => {
                    self.add_unchecked(configuration, reason, None)?;
                    return Ok(Duration::ZERO);
                }
                Some(ReasonToSkip::Time(reason, needed)) => {
                    self.add_short(configuration, reason, needed.is_some())?;
                    return Ok(needed.unwrap_or_default());
                }
            }
            match launched.score(ids, check_time.request_limit()).await {
                Ok((logprobs, took)) => {
                    scoring.add(ids.len(), took);
                    let elapsed_ns = took.as_nanos() as u64;
                    let (peak_resident_bytes, _) = launched.read_memory(Duration::MAX).await?;
                    let scored = HeldOutScores {
                        configuration,
                        launch,
                        sequence,
                        logprobs,
                        elapsed_ns,
                        peak_resident_bytes,
                    };
                    self.journal.take(Entry::Scored(scored))?;
                }
                Err(cause) => {
                    let (request, so_far) =
                        (format!("`score` of {}", plural(ids.len(), "token")), scoring.so_far());
                    self.record_no_answer(launched, check_time, &request, cause, &so_far).await?;
                    return Ok(Duration::ZERO);
                }
            }
        }
        Ok(Duration::ZERO)
    }

    async fn continue_prompt_of(
        &mut self,
        launched: &mut Launched,
        held_out: &HeldOut,
        check_time: CheckTime,
    ) -> Result<(), LaunchError> {
        let (configuration, launch) = (launched.launch.configuration, launched.launch.launch);
        if launched.is_unanswered {
            // The reason is recorded, and the engine may still compute.
            return Ok(());
        }
        if check_time.is_over() {
            let reason = "no time was left to continue a prompt".into();
            return Ok(self.add_short(configuration, reason, false)?);
        }
        if launched.hello().is_some_and(|hello| hello.output == Output::Text) {
            // The verifier reads the texts of measured samples after the last block.
            return Ok(());
        }
        let obstacle = match launched.hello() {
            Some(hello) if !hello.capabilities.prompt_ids => Some("takes text, not ids"),
            _ if held_out.prompt.is_empty() || held_out.max_new_tokens == 0 => {
                Some("its context is too small for a continuation")
            }
            _ => None,
        };
        if let Some(reason) = obstacle {
            return Ok(self.add_unchecked(configuration, reason.into(), None)?);
        }
        let time_limit = check_time.request_limit();
        match launched.continue_prompt(&held_out.prompt, held_out.max_new_tokens, time_limit).await {
            Ok(ids) => {
                let continued = Continued { configuration, launch, ids };
                Ok(self.journal.take(Entry::Continued(continued))?)
            }
            Err(cause) => self.record_no_answer(launched, check_time, "`generate`", cause, "").await,
        }
    }

    /// Records why a request of the check has no answer. An invalid answer or the end of the engine is a failure of the engine.
    async fn record_no_answer(
        &mut self,
        launched: &mut Launched,
        check_time: CheckTime,
        request: &str,
        cause: Cause,
        so_far: &str,
    ) -> Result<(), LaunchError> {
        let configuration = launched.launch.configuration;
        // The end of the check stopped the request. The engine did not fail.
        if check_time.explains(&cause, launched.conversation.deadlines.answer) {
            launched.is_unanswered = true;
            let reason = match self.plan.extent.budget() {
                Some(_) => {
                    let why = self.plan.extent.too_short_for("the output check");
                    format!("{why}: {request} was not answered in the time that was left{so_far}")
                }
                None => format!("{request} was not answered before the end of the check: {cause}{so_far}"),
            };
            return Ok(self.add_short(configuration, reason, false)?);
        }
        if !cause.engine_survives() || is_invalid_answer(&cause) {
            return Err(launched.failure(Stage::OutputCheck, cause));
        }
        self.add_unchecked(configuration, format!("{request} failed: {cause}{so_far}"), cause.hint())?;
        // An engine that cannot go on sends `failed` and ends.
        match launched.conversation.process.wait(EXIT_GRACE).await {
            Some(status) => {
                let cause = Cause::ExitedAfterFailed(describe_exit(status));
                Err(launched.failure(Stage::OutputCheck, cause))
            }
            None => Ok(()),
        }
    }

    /// Records a failed check. An invalid answer or a failed launch becomes the row's failure, as in a block. After other
    /// failures the engine can still be measured.
    fn record_failed_check(
        &mut self,
        schedule: &mut Schedule,
        index: usize,
        failure: EngineFailure,
    ) -> Result<()> {
        let configuration = &self.plan.configurations[index];
        let is_verifier = configuration.role == Some(Role::Verifier);
        // A one-shot process gets no `hello`, and `load` only if options are set. So this failure may not concern it.
        let would_fail_in_block = self.plan.mode == Mode::Warm && failure.when != Stage::OutputCheck;
        if !is_verifier && (would_fail_in_block || is_invalid_answer(&failure.cause)) {
            if let Some(twin) = self.plan.twin_of(index) {
                schedule.end_cases_of(twin);
            }
            return schedule.record_failure(self.journal, failure.into_failure(index, None));
        }
        let reason = format!("{} at {}: {}", failure.cause.kind(), failure.when, failure.cause);
        match is_verifier {
            true => {
                let (label, model) = (configuration.label.clone(), configuration.model.clone());
                self.add_unchecked_model(&model, format!("{label}: {reason}"), failure.cause.hint())
            }
            false => self.add_unchecked(index, reason, failure.cause.hint()),
        }
    }
}
