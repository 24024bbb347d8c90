//! The output check after the last block. The check before the blocks says nothing about the engine's output while it is
//! measured. So the verifier checks measured samples whose ids are not those of its own output.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use protocol::IgnoreEos;

use super::checks::{OutputChecks, is_breach, longer_budget};
use super::doubt::{Doubt, doubts, greedy_ids, places};
use super::footprint::has_no_room_for;
use super::launch::Launched;
use super::patience::Patience;
use super::schedule::Schedule;
use super::stop::Stop;
use crate::plan::prompts::{self, Which};
use crate::plan::{Model, Proof};
use crate::record::{Entry, Opinion};
use crate::run::event::Event;
use crate::run::process::Cause;

/// The check takes a twentieth of the run's time within these bounds, or the rest of a budget, and never more than it needs.
/// Without it no measurement is verified.
const PART: u32 = 20;
const LEAST: Duration = Duration::from_secs(10);
const MOST: Duration = Duration::from_secs(60);
/// An id with a higher log-probability is likelier than all others together. The limit is ln 1/2 and a little for rounding.
const LIKELIER_THAN_ALL: f64 = -0.69;

/// The verifier's answer about one token.
#[derive(Debug, Clone, Copy)]
struct Said {
    place: usize,
    theirs: u32,
    own: u32,
    theirs_logprob: Option<f64>,
    own_logprob: Option<f64>,
}

impl OutputChecks<'_, '_> {
    pub async fn verify_measured_tokens(&mut self, schedule: &Schedule<'_>) -> Result<()> {
        if self.plan.proof == Proof::Off {
            return Ok(());
        }
        for model in self.models_asked_about() {
            // The record already says why there is no verifier, or none that answers.
            let said = |it: &crate::record::Unproved| it.model.as_ref() == Some(&model.path);
            if !self.journal.record().unproved.iter().any(said) {
                self.judge(schedule, &model).await?;
            }
        }
        Ok(())
    }

    fn models_asked_about(&self) -> Vec<Model> {
        let asked = self.journal.record().held_out.iter();
        let models = || self.plan.configurations.iter().map(|it| &it.model);
        asked.filter_map(|it| models().find(|model| model.path == it.model).cloned()).collect()
    }

    async fn judge(&mut self, schedule: &Schedule<'_>, model: &Model) -> Result<()> {
        let witness = self.plan.witness_of(model);
        let mut doubts = doubts(self.journal.record(), model, witness);
        self.leave_out_what_was_asked_in_text(&mut doubts)?;
        if doubts.is_empty() {
            return Ok(());
        }
        let Some(witness) = witness else {
            return self
                .nobody_vouches(model, "its measured tokens were shown to nobody: no witness can run here");
        };
        if let Some(reason) = has_no_room_for(&self.plan.configurations[witness]) {
            return self.unproved_model(model, reason, None);
        }
        let patience = self.patience_of_the_court(schedule);
        let no_time = |all: usize| format!("the budget left no time to check the tokens of {all} samples");
        if patience.budget_is_over() {
            return self.unproved_model(model, no_time(doubts.len()), longer_budget());
        }
        let label = self.plan.configurations[witness].label.clone();
        self.journal.tell(Event::Judging { label: label.clone(), samples: doubts.len() });
        let cause = match self.launches.launch_within(self.journal, witness, patience.left_of_budget()).await
        {
            Ok(None) => return self.unproved_model(model, no_time(doubts.len()), longer_budget()),
            Ok(Some(mut launched)) if launched.hello().is_some() => {
                let asked = self.ask_the_witness(&mut launched, model, &doubts, patience).await?;
                // Its exit does not matter any more.
                let grace = patience.for_an_end(launched.talk.deadlines.shutdown);
                let _ = tokio::time::timeout(grace, launched.talk.shutdown()).await;
                let grace = patience.for_an_end(grace);
                launched.talk.process.end(if asked.is_ok() { grace } else { Duration::ZERO }).await;
                asked.err()
            }
            Ok(Some(mut launched)) => {
                launched.talk.process.end(Duration::ZERO).await;
                Some(Cause::Unsupported("knows `generate` alone".into()))
            }
            Err(Stop::Fault(failed)) => Some(failed.fault.cause),
            Err(Stop::Broken(error)) => return Err(error),
        };
        let Some(cause) = cause else { return Ok(()) };
        let reason = format!("the tokens of measured samples: {label}: {}: {cause}", cause.kind());
        self.unproved_model(model, reason, cause.hint())
    }

    /// `Err` in it is the reason why the verifier stopped answering.
    async fn ask_the_witness(
        &mut self,
        launched: &mut Launched,
        model: &Model,
        doubts: &[Doubt],
        patience: Patience,
    ) -> Result<Result<(), Cause>> {
        let mut known: HashMap<(String, Vec<u32>), Vec<Said>> = HashMap::new();
        let (mut left_out, mut refused) = (0, None);
        for doubt in doubts {
            let sample = &self.journal.record().samples[doubt.sample];
            let Some(output) = greedy_ids(self.journal.record(), sample).map(<[u32]>::to_vec) else {
                continue;
            };
            let question = (sample.prompt_hash.clone(), output);
            if !known.contains_key(&question) {
                let Some(prompt) = self.prompt_of(doubt).filter(|_| !patience.is_over()) else {
                    left_out += 1;
                    continue;
                };
                match ask_about(launched, &prompt, &question.1, doubt.differs_at, patience).await {
                    Ok(said) => {
                        known.insert(question.clone(), said);
                    }
                    Err(cause) if cause.engine_lives() && !is_breach(&cause) => {
                        left_out += 1;
                        refused = Some(cause.to_string());
                    }
                    // The budget cut off the request, not the engine.
                    Err(Cause::Timeout(_)) if patience.budget_is_over() => {
                        left_out += 1;
                        continue;
                    }
                    Err(cause) => return Ok(Err(cause)),
                }
            }
            self.record_opinions(launched, doubt, known.get(&question).map_or(&[], Vec::as_slice))?;
        }
        if left_out > 0 {
            let seconds = patience.whole.as_secs();
            let why = refused.unwrap_or_else(|| format!("there were {seconds} s for it"));
            let all = doubts.len();
            let reason = format!("the tokens of {left_out} of {all} samples were not looked at: {why}");
            let hint = if patience.budget_is_over() { longer_budget() } else { None };
            self.unproved_model(model, reason, hint)?;
        }
        Ok(Ok(()))
    }

    fn record_opinions(&mut self, launched: &Launched, doubt: &Doubt, said: &[Said]) -> Result<()> {
        let sample = &self.journal.record().samples[doubt.sample];
        let (launch, case, index) = (sample.launch, sample.case, sample.index);
        let masks = self.journal.record().launches_of(doubt.configuration).any(|it| {
            it.hello.as_ref().is_some_and(|hello| hello.capabilities.ignore_eos == IgnoreEos::Masked)
        });
        let facts = launched.launch.loaded.as_ref().map(|loaded| &loaded.facts);
        let eos_ids = facts.and_then(|facts| facts.eos_ids.clone()).unwrap_or_default();
        for said in said {
            // If EOS comes next, an engine that masks it must give another id.
            if masks && said.own != said.theirs && eos_ids.contains(&said.own) {
                continue;
            }
            self.journal.take(Entry::Opinion(Opinion {
                witness: launched.launch.configuration,
                launch,
                case,
                index,
                place: said.place as u32,
                theirs: said.theirs,
                own: said.own,
                theirs_logprob: said.theirs_logprob,
                own_logprob: said.own_logprob,
            }))?;
        }
        Ok(())
    }

    /// Leaves out engines that received text, because they made their own ids from it.
    fn leave_out_what_was_asked_in_text(&mut self, doubts: &mut Vec<Doubt>) -> Result<()> {
        let record = self.journal.record();
        let takes_ids = |configuration: usize| {
            let mut launches = record.launches_of(configuration);
            launches.any(|it| it.hello.as_ref().is_some_and(|hello| hello.capabilities.prompt_ids))
        };
        let in_text = |doubt: &&Doubt| !takes_ids(doubt.configuration);
        let mut left_out: Vec<usize> = doubts.iter().filter(in_text).map(|it| it.configuration).collect();
        left_out.sort_unstable();
        left_out.dedup();
        doubts.retain(|doubt| !left_out.contains(&doubt.configuration));
        for configuration in left_out {
            let reason = "its prompts were sent as text, so that nobody knows which ids its output follows";
            self.unproved(configuration, reason.into(), None)?;
        }
        Ok(())
    }

    /// The ids of a sample's prompt, made again.
    fn prompt_of(&self, doubt: &Doubt) -> Option<Vec<u32>> {
        let record = self.journal.record();
        let sample = &record.samples[doubt.sample];
        let block = record.launches.iter().find(|it| it.launch == sample.launch)?.block;
        let which = Which { seed: self.plan.seed, block, role: sample.role, index: sample.index };
        let path = &self.plan.configurations[doubt.configuration].model.path;
        let ids = self.requests.prompts(path)?.ids(&self.plan.cases[sample.case].workload, which).ok()?;
        (prompts::hash(&ids) == sample.prompt_hash).then_some(ids)
    }

    fn patience_of_the_court(&self, schedule: &Schedule) -> Patience {
        let budget = self.plan.extent.budget_ns.map(Duration::from_nanos);
        Patience::begins(time(budget, schedule.ran()), self.budget_ends)
    }
}

/// The rest of a budget after the blocks, which `Pace` keeps free.
fn time(budget: Option<Duration>, ran: Duration) -> Duration {
    match budget {
        Some(budget) => budget.saturating_sub(ran).min(MOST),
        None => (ran / PART).clamp(LEAST, MOST),
    }
}

/// The verifier's answers about some tokens of an output. Tokens without time for a check are left out.
async fn ask_about(
    witness: &mut Launched,
    prompt: &[u32],
    output: &[u32],
    differs_at: Option<usize>,
    patience: Patience,
) -> Result<Vec<Said>, Cause> {
    let context = witness.launch.loaded.as_ref().and_then(|loaded| loaded.facts.context_tokens);
    let room = context.map_or(usize::MAX, |context| (context as usize).saturating_sub(prompt.len()));
    let output = &output[..output.len().min(room)];
    let scores = witness.hello().is_some_and(|hello| hello.capabilities.score);
    let likely = match scores && !output.is_empty() {
        true => {
            let all = witness.score(&[prompt, output].concat(), patience.for_a_request()).await?.0;
            all.into_iter().skip(prompt.len().saturating_sub(1)).collect()
        }
        false => Vec::new(),
    };
    let mut said = Vec::new();
    for place in places(output.len(), differs_at, &likely) {
        if patience.budget_is_over() || (patience.is_over() && !said.is_empty()) {
            break;
        }
        let theirs_logprob = likely.get(place).copied().flatten();
        match ask_about_one(witness, prompt, output, place, theirs_logprob, patience).await {
            Ok(of_it) => said.push(of_it),
            // The answers about the other tokens still count.
            Err(Cause::Timeout(_)) if patience.budget_is_over() && !said.is_empty() => break,
            Err(cause) => return Err(cause),
        }
    }
    Ok(said)
}

async fn ask_about_one(
    witness: &mut Launched,
    prompt: &[u32],
    output: &[u32],
    place: usize,
    theirs_logprob: Option<f64>,
    patience: Patience,
) -> Result<Said, Cause> {
    let scores = witness.hello().is_some_and(|hello| hello.capabilities.score);
    let (before, theirs) = ([prompt, &output[..place]].concat(), output[place]);
    let is_own = theirs_logprob.is_some_and(|logprob| logprob > LIKELIER_THAN_ALL);
    let own = match is_own {
        true => theirs,
        false => *witness.go_on(&before, 1, patience.for_a_request()).await?.first().unwrap_or(&theirs),
    };
    let own_logprob = match own == theirs {
        true => theirs_logprob,
        false if scores => {
            let its = witness.score(&[&before[..], &[own]].concat(), patience.for_a_request()).await?.0;
            its.last().copied().flatten()
        }
        false => None,
    };
    Ok(Said { place, theirs, own, theirs_logprob, own_logprob })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_has_what_the_blocks_left_of_a_budget_and_never_more() {
        let of = |budget: Option<u64>, ran| {
            time(budget.map(Duration::from_secs), Duration::from_secs(ran)).as_secs()
        };
        assert_eq!(of(Some(200), 190), 10);
        assert_eq!(of(Some(200), 199), 1);
        assert_eq!(of(Some(200), 400), 0);
        assert_eq!(of(Some(200), 10), MOST.as_secs());
        assert_eq!(of(None, 400), 20);
        assert_eq!(of(None, 1), LEAST.as_secs());
    }
}
