//! Before anything is measured, each engine is asked what can be held against the others' word: how likely the ids of
//! held-out text are to it, and how it goes on with a prompt. What it answers is recorded as it stands; whether it is right
//! is found out from the record.

use std::time::Duration;

use anyhow::Result;
use model_files::size;
use protocol::Output;

use super::block::PROGRAM_BYTES;
use super::launch::{LAST_WORDS, Launched};
use super::patience::Patience;
use super::question::Scoring;
use super::{Run, Stop};
use crate::engines::manifest;
use crate::machine::memory;
use crate::plan::{Beside, Mode, Model, Proof};
use crate::record::{Continued, Entry, HeldOut, Scored, Unproved};
use crate::run::event::Event;
use crate::run::process::{Cause, Fault, Stage};
use crate::run::witness;
use crate::shell::this_program;

const F32_BYTES: u64 = 4;

impl Run<'_> {
    pub(super) async fn prove(&mut self) -> Result<()> {
        if self.plan.proof == Proof::Off {
            return Ok(());
        }
        for model in self.models_to_prove() {
            self.prove_on(&model).await?;
        }
        self.pace.measuring_begins(&self.plan);
        Ok(())
    }

    /// Each model that an engine can be asked about, once.
    fn models_to_prove(&self) -> Vec<Model> {
        let mut models: Vec<Model> = Vec::new();
        for index in (0..self.plan.configurations.len()).filter(|&index| self.is_to_prove(index)) {
            let model = &self.plan.configurations[index].model;
            if !models.iter().any(|it| it.path == model.path) {
                models.push(model.clone());
            }
        }
        models
    }

    /// Rows and the programs of baselines; a twin is its row once more.
    fn is_to_prove(&self, index: usize) -> bool {
        let configuration = &self.plan.configurations[index];
        let beside = matches!(configuration.beside, None | Some(Beside::Baseline { .. }));
        let has_failed = || !self.plan.cases_of(index).is_empty() && !self.has_open_cases(index);
        beside
            && configuration.unavailable.is_none()
            && self.prompts.contains_key(&configuration.model.path)
            && !has_failed()
    }

    async fn prove_on(&mut self, model: &Model) -> Result<()> {
        let Some(held_out) = self.prompts.get(&model.path).map(|prompts| prompts.held_out(&model.path))
        else {
            return Ok(());
        };
        self.recorder.take(Entry::HeldOut(held_out.clone()))?;
        let on_it = |&index: &usize| self.plan.configurations[index].model.path == model.path;
        let configurations = 0..self.plan.configurations.len();
        let mut asked: Vec<usize> =
            configurations.filter(on_it).filter(|&index| self.is_to_prove(index)).collect();
        let kept = match self.plan.proof {
            Proof::Usual => witness::kept(model, &held_out),
            // Whoever names a witness wants to hear that one.
            Proof::Named | Proof::Off => None,
        };
        match (kept, self.plan.witness_of(model)) {
            (Some(kept), _) => self.recorder.take(Entry::Kept(kept))?,
            (None, Some(witness)) if !asked.contains(&witness) => asked.push(witness),
            (None, Some(_)) => {}
            (None, None) => {
                let why =
                    "what engines say of held-out text: no engine that vouches for outputs can run here";
                self.nobody_vouches(model, why)?;
            }
        }
        let patience = self.pace.proof(asked.len());
        for index in asked {
            if let Some(reason) = self.has_no_room_for(index) {
                self.unproved_model(model, reason, None)?;
                continue;
            }
            if self.pace.has_proved_enough() {
                let reason = "the budget leaves no time to ask for proof".into();
                self.unproved(index, reason, Some("a longer `--budget`".into()))?;
                continue;
            }
            // Without its word nothing that the others say is proof.
            let patience = if self.plan.witness_of(model) == Some(index) { patience * 2 } else { patience };
            self.prove_one(index, &held_out, patience).await?;
        }
        Ok(())
    }

    /// Why a witness that nobody asked to be measured is not started: in f32 it may be many times as large as what is measured.
    pub(super) fn has_no_room_for(&self, index: usize) -> Option<String> {
        let configuration = &self.plan.configurations[index];
        let parameters =
            configuration.model.sizes.filter(|_| configuration.beside == Some(Beside::Witness))?.parameters;
        let needs = parameters.saturating_mul(F32_BYTES).saturating_add(PROGRAM_BYTES);
        let available = memory::available_bytes().filter(|&available| needs > available)?;
        let label = &configuration.label;
        Some(format!(
            "{label}: in f32 it needs about {}, and {} of memory are free",
            size(needs),
            size(available)
        ))
    }

    async fn prove_one(&mut self, index: usize, held_out: &HeldOut, patience: Duration) -> Result<()> {
        let label = self.plan.configurations[index].label.clone();
        (self.listener)(Event::Proving { label });
        let budget_ends = self.budget_ends();
        let left = Patience::begins(patience, budget_ends).left_of_budget();
        let mut launched = match self.launch_within(index, left).await {
            Ok(Some(launched)) => launched,
            Ok(None) => {
                let reason = "the budget was used up while it was loaded for an output check".into();
                return self.unproved(index, reason, Some("a longer `--budget`".into()));
            }
            Err(Stop::Fault(fault)) => return self.fails_to_prove(index, self.last_launch(), fault),
            Err(Stop::Broken(error)) => return Err(error),
        };
        let launch = launched.launch.launch;
        if launched.hello().is_none() {
            launched.talk.process.end(Duration::ZERO).await;
            // No record refers to it.
            self.launches -= 1;
            return self.unproved(index, "knows `generate` alone, and no `score`".into(), None);
        }
        let patience = Patience::begins(patience, budget_ends);
        let asked = self.ask_for_proof(&mut launched, held_out, patience).await;
        let usual = launched.talk.deadlines.shutdown;
        let asked = match asked {
            // Where a budget is short of the time that a shutdown may take, it is ended at once.
            Ok(()) => self.end(launched, patience.for_an_end(usual) == usual).await,
            Err(stop) => {
                self.end(launched, false).await.ok();
                Err(stop)
            }
        };
        match asked {
            Ok(()) => Ok(()),
            Err(Stop::Fault(fault)) => self.fails_to_prove(index, Some(launch), fault),
            Err(Stop::Broken(error)) => Err(error),
        }
    }

    /// Windows in growing order: the first ones say how long the others will take. What nothing says that of comes last.
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
                    self.recorder.take(Entry::Scored(scored))?;
                }
                Err(cause) if cause.engine_lives() && !is_breach(&cause) => {
                    let tokens = ids.len();
                    let reason = format!("`score` of {tokens} tokens: {cause}{}", scoring.so_far());
                    self.unproved(configuration, reason, cause.hint())?;
                    return self.let_it_end(launched).await;
                }
                Err(cause) => return Err(launched.talk.fault(Stage::Proof, cause).into()),
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
            Ok(ids) => Ok(self.recorder.take(Entry::Continued(Continued { configuration, launch, ids }))?),
            Err(cause) if cause.engine_lives() && !is_breach(&cause) => {
                self.unproved(configuration, format!("`generate`: {cause}"), cause.hint())?;
                self.let_it_end(launched).await
            }
            Err(cause) => Err(launched.talk.fault(Stage::Proof, cause).into()),
        }
    }

    /// One that cannot go on says `failed` and ends: it can be asked nothing more.
    async fn let_it_end(&mut self, launched: &mut Launched) -> Result<(), Stop> {
        match launched.talk.process.wait(LAST_WORDS).await {
            Some(_) => {
                let cause = Cause::Exited("its process after it had said `failed`".into());
                Err(launched.talk.fault(Stage::Proof, cause).into())
            }
            None => Ok(()),
        }
    }

    /// What breaks the protocol, and what cannot even be loaded, is the row's failure, as it would be in a block. Whatever else
    /// happens is no reason to lose what can still be measured.
    fn fails_to_prove(&mut self, index: usize, launch: Option<u32>, fault: Fault) -> Result<()> {
        let configuration = &self.plan.configurations[index];
        let is_witness = configuration.beside == Some(Beside::Witness);
        // One-shots speak no protocol but `generate`.
        let in_a_block_too = self.plan.mode == Mode::Warm && fault.when != Stage::Proof;
        if !is_witness && (in_a_block_too || is_breach(&fault.cause)) {
            if let Some(twin) = self.plan.twin_of(index) {
                self.failed.extend(self.plan.cases_of(twin));
            }
            return self.fail(index, None, launch, fault);
        }
        let reason = format!("{} at {}: {}", fault.cause.kind(), fault.when, fault.cause);
        match is_witness {
            true => {
                let (label, model) = (configuration.label.clone(), configuration.model.clone());
                self.unproved_model(&model, format!("{label}: {reason}"), fault.cause.hint())
            }
            false => self.unproved(index, reason, fault.cause.hint()),
        }
    }

    pub(super) fn unproved(&mut self, index: usize, reason: String, hint: Option<String>) -> Result<()> {
        let unproved = Unproved { configuration: Some(index), model: None, reason, hint };
        self.recorder.take(Entry::Unproved(unproved))
    }

    /// Of the engine that says what a model's output should be, with how one comes to run here.
    pub(super) fn nobody_vouches(&mut self, model: &Model, why: &str) -> Result<()> {
        let reference = manifest::embedded().ok().and_then(|all| {
            let found = all.iter().find(|it| it.manifest.reference);
            found.map(|engine| format!("{} setup {}", this_program(), engine.manifest.name))
        });
        let hint = reference.filter(|_| self.plan.proof == Proof::Usual);
        self.unproved_model(model, why.into(), Some(hint.unwrap_or_else(|| "--witness ENGINE".into())))
    }

    pub(super) fn unproved_model(
        &mut self,
        model: &Model,
        reason: String,
        hint: Option<String>,
    ) -> Result<()> {
        let unproved = Unproved { configuration: None, model: Some(model.path.clone()), reason, hint };
        self.recorder.take(Entry::Unproved(unproved))
    }
}

/// It answered, and the answer is none.
pub(super) fn is_breach(cause: &Cause) -> bool {
    matches!(cause, Cause::Protocol(_) | Cause::WrongOutput(_))
}
