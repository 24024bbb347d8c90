//! The output check before the blocks. Each engine gives the log-probabilities of held-out text and continues a prompt. The
//! answers are recorded unchanged, and the analysis of the record judges them.

use std::time::Duration;

use anyhow::Result;
use protocol::Output;

use super::checks::{OutputChecks, is_breach, longer_budget};
use super::footprint::has_no_room_for;
use super::launch::{LAST_WORDS, Launched};
use super::launches::end;
use super::patience::Patience;
use super::question::Scoring;
use super::schedule::Schedule;
use super::stop::{Failed, Stop};
use crate::plan::{Beside, Mode, Model, Proof};
use crate::record::{Continued, Entry, HeldOut, Scored};
use crate::run::event::Event;
use crate::run::process::{Cause, Stage};
use crate::run::witness;

impl OutputChecks<'_, '_> {
    pub async fn prove(&mut self, schedule: &mut Schedule<'_>) -> Result<()> {
        if self.plan.proof == Proof::Off {
            return Ok(());
        }
        for model in self.models_to_prove(schedule) {
            self.prove_on(schedule, &model).await?;
        }
        schedule.pace.measuring_begins(self.plan);
        Ok(())
    }

    /// The models to check, each once.
    fn models_to_prove(&self, schedule: &Schedule) -> Vec<Model> {
        let mut models: Vec<Model> = Vec::new();
        for index in (0..self.plan.configurations.len()).filter(|&index| self.is_to_prove(schedule, index)) {
            let model = &self.plan.configurations[index].model;
            if !models.iter().any(|it| it.path == model.path) {
                models.push(model.clone());
            }
        }
        models
    }

    /// Whether a configuration is checked: rows and the programs of baselines are. A twin is the same engine as its row.
    fn is_to_prove(&self, schedule: &Schedule, index: usize) -> bool {
        let configuration = &self.plan.configurations[index];
        let beside = matches!(configuration.beside, None | Some(Beside::Baseline { .. }));
        let has_failed = || !self.plan.cases_of(index).is_empty() && !schedule.has_open_cases(index);
        beside
            && configuration.unavailable.is_none()
            && self.requests.prompts(&configuration.model.path).is_some()
            && !has_failed()
    }

    async fn prove_on(&mut self, schedule: &mut Schedule<'_>, model: &Model) -> Result<()> {
        let Some(prompts) = self.requests.prompts(&model.path) else { return Ok(()) };
        let held_out = prompts.held_out(&model.path);
        self.journal.take(Entry::HeldOut(held_out.clone()))?;
        let on_it = |&index: &usize| self.plan.configurations[index].model.path == model.path;
        let configurations = 0..self.plan.configurations.len();
        let mut asked: Vec<usize> =
            configurations.filter(on_it).filter(|&index| self.is_to_prove(schedule, index)).collect();
        let kept = match self.plan.proof {
            Proof::Usual => witness::kept(model, &held_out),
            // A user who names a verifier wants its answers, not kept ones.
            Proof::Named | Proof::Off => None,
        };
        match (kept, self.plan.witness_of(model)) {
            (Some(kept), _) => self.journal.take(Entry::Kept(kept))?,
            (None, Some(witness)) if !asked.contains(&witness) => asked.push(witness),
            (None, Some(_)) => {}
            (None, None) => {
                let why =
                    "what engines say of held-out text: no engine that vouches for outputs can run here";
                self.nobody_vouches(model, why)?;
            }
        }
        let patience = schedule.pace.proof(asked.len());
        for index in asked {
            if let Some(reason) = has_no_room_for(&self.plan.configurations[index]) {
                self.unproved_model(model, reason, None)?;
                continue;
            }
            if schedule.pace.has_proved_enough() {
                let reason = "the budget leaves no time to ask for proof".into();
                self.unproved(index, reason, longer_budget())?;
                continue;
            }
            // The verifier has twice the time, because without its answers nothing can be compared.
            let patience = if self.plan.witness_of(model) == Some(index) { patience * 2 } else { patience };
            let proved = self.prove_one(index, &held_out, patience).await;
            if let Err(failed) = Stop::survive(proved)? {
                self.fails_to_prove(schedule, index, failed)?;
            }
        }
        Ok(())
    }

    async fn prove_one(&mut self, index: usize, held_out: &HeldOut, patience: Duration) -> Result<(), Stop> {
        let label = self.plan.configurations[index].label.clone();
        self.journal.tell(Event::Proving { label });
        let left = Patience::begins(patience, self.budget_ends).left_of_budget();
        let Some(mut launched) = self.launches.launch_within(self.journal, index, left).await? else {
            let reason = "the budget was used up while it was loaded for an output check".into();
            return Ok(self.unproved(index, reason, longer_budget())?);
        };
        if launched.hello().is_none() {
            launched.talk.process.end(Duration::ZERO).await;
            return Ok(self.unproved(index, "knows `generate` alone, and no `score`".into(), None)?);
        }
        let patience = Patience::begins(patience, self.budget_ends);
        let asked = self.ask_for_proof(&mut launched, held_out, patience).await;
        let usual = launched.talk.deadlines.shutdown;
        // If the budget is too short for a shutdown, the engine is ended at once.
        let alive = asked.is_ok() && patience.for_an_end(usual) == usual;
        let ended = end(self.journal, launched, alive).await;
        asked.and(ended.map_err(Stop::from))
    }

    /// Scores windows in growing order: the first ones predict the time of the others. The continuation of a prompt comes last.
    async fn ask_for_proof(
        &mut self,
        launched: &mut Launched,
        held_out: &HeldOut,
        patience: Patience,
    ) -> Result<(), Stop> {
        match launched.hello().is_some_and(|hello| hello.capabilities.score) {
            true => self.score_windows(launched, held_out, patience).await?,
            false => self.unproved(launched.launch.configuration, "offers no `score`".into(), None)?,
        }
        self.go_on_with_the_prompt(launched, held_out, patience).await
    }

    async fn score_windows(
        &mut self,
        launched: &mut Launched,
        held_out: &HeldOut,
        patience: Patience,
    ) -> Result<(), Stop> {
        let (configuration, launch) = (launched.launch.configuration, launched.launch.launch);
        let mut scoring = Scoring::default();
        for (sequence, ids) in held_out.sequences.iter().enumerate() {
            if let Some(reason) = scoring.has_no_room(ids.len(), launched, patience) {
                return Ok(self.unproved(configuration, reason, None)?);
            }
            match launched.score(ids, patience.for_what_is_left()).await {
                Ok((logprobs, took)) => {
                    scoring.took(ids.len(), took);
                    let elapsed_ns = took.as_nanos() as u64;
                    let scored = Scored { configuration, launch, sequence, logprobs, elapsed_ns };
                    self.journal.take(Entry::Scored(scored))?;
                }
                // The budget cut off the request, not the engine.
                Err(cause @ Cause::Timeout(_)) if patience.budget_is_over() => {
                    let so_far = scoring.so_far();
                    let reason = format!("the budget was used up while it scored: {cause}{so_far}");
                    return Ok(self.unproved(configuration, reason, longer_budget())?);
                }
                Err(cause) if cause.engine_lives() && !is_breach(&cause) => {
                    let tokens = ids.len();
                    let reason = format!("`score` of {tokens} tokens: {cause}{}", scoring.so_far());
                    self.unproved(configuration, reason, cause.hint())?;
                    return self.let_it_end(launched).await;
                }
                Err(cause) => return Err(launched.fault(Stage::Proof, cause)),
            }
        }
        Ok(())
    }

    async fn go_on_with_the_prompt(
        &mut self,
        launched: &mut Launched,
        held_out: &HeldOut,
        patience: Patience,
    ) -> Result<(), Stop> {
        let (configuration, launch) = (launched.launch.configuration, launched.launch.launch);
        let cannot = match launched.hello() {
            Some(hello) if hello.output == Output::Text => Some("gives text, not ids"),
            Some(hello) if !hello.capabilities.prompt_ids => Some("takes text, not ids"),
            _ if held_out.prompt.is_empty() || held_out.max_new_tokens == 0 => {
                Some("the context has no room")
            }
            _ if patience.is_over() => Some("no time was left to go on with a prompt"),
            _ => None,
        };
        if let Some(reason) = cannot {
            return Ok(self.unproved(configuration, reason.into(), None)?);
        }
        match launched.go_on(&held_out.prompt, held_out.max_new_tokens, patience.for_what_is_left()).await {
            Ok(ids) => Ok(self.journal.take(Entry::Continued(Continued { configuration, launch, ids }))?),
            Err(cause @ Cause::Timeout(_)) if patience.budget_is_over() => {
                let reason = format!("the budget was used up while it went on with a prompt: {cause}");
                Ok(self.unproved(configuration, reason, longer_budget())?)
            }
            Err(cause) if cause.engine_lives() && !is_breach(&cause) => {
                self.unproved(configuration, format!("`generate`: {cause}"), cause.hint())?;
                self.let_it_end(launched).await
            }
            Err(cause) => Err(launched.fault(Stage::Proof, cause)),
        }
    }

    /// Waits briefly for the end of an engine that sent `failed` because it cannot go on.
    async fn let_it_end(&mut self, launched: &mut Launched) -> Result<(), Stop> {
        match launched.talk.process.wait(LAST_WORDS).await {
            Some(_) => {
                let cause = Cause::Exited("its process after it had said `failed`".into());
                Err(launched.fault(Stage::Proof, cause))
            }
            None => Ok(()),
        }
    }

    /// Records a failed check. A breach of the protocol or a failed load is the row's failure, as in a block. After other
    /// failures the engine can still be measured.
    fn fails_to_prove(&mut self, schedule: &mut Schedule, index: usize, failed: Failed) -> Result<()> {
        let configuration = &self.plan.configurations[index];
        let is_witness = configuration.beside == Some(Beside::Witness);
        // One-shot processes speak only `generate`, so this failure does not concern them.
        let in_a_block_too = self.plan.mode == Mode::Warm && failed.fault.when != Stage::Proof;
        if !is_witness && (in_a_block_too || is_breach(&failed.fault.cause)) {
            if let Some(twin) = self.plan.twin_of(index) {
                schedule.close_cases_of(twin);
            }
            return schedule.fail(self.journal, index, None, failed);
        }
        let fault = failed.fault;
        let reason = format!("{} at {}: {}", fault.cause.kind(), fault.when, fault.cause);
        match is_witness {
            true => {
                let (label, model) = (configuration.label.clone(), configuration.model.clone());
                self.unproved_model(&model, format!("{label}: {reason}"), fault.cause.hint())
            }
            false => self.unproved(index, reason, fault.cause.hint()),
        }
    }
}
