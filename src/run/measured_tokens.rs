//! The output check after the last block. The check before the blocks says nothing about the engine's output while it is
//! measured. So the verifier checks measured samples whose ids are not those of its own output.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use protocol::IgnoreEos;

use super::checks::{CheckTime, OutputChecks, is_breach, longer_budget};
use super::journal::Event;
use super::launch::Launched;
use super::memory_groups::exceeds_memory;
use super::schedule::Schedule;
use super::unchecked::{UncheckedSample, greedy_ids, positions, unchecked_samples};
use crate::plan::prompts::{self, PromptKey};
use crate::plan::{Model, Verification};
use crate::record::{Entry, ReferenceToken};
use crate::run::process::{Cause, Stop};

/// The check takes a twentieth of the run's time within these bounds, or the rest of a budget, and never more than it needs.
/// Without it no measurement is verified.
const PART: u32 = 20;
const MIN: Duration = Duration::from_secs(10);
const MOST: Duration = Duration::from_secs(60);
/// An id with a higher log-probability is likelier than all others together. The limit is ln 1/2 and a little for rounding.
const LIKELIER_THAN_ALL: f64 = -0.69;

/// The verifier's answer about one token.
#[derive(Debug, Clone, Copy)]
struct TokenPair {
    position: usize,
    engine_token: u32,
    verifier_token: u32,
    engine_logprob: Option<f64>,
    verifier_logprob: Option<f64>,
}

impl OutputChecks<'_, '_> {
    pub async fn verify_measured_tokens(&mut self, schedule: &Schedule<'_>) -> Result<()> {
        if self.plan.verification == Verification::Off {
            return Ok(());
        }
        for model in self.checked_models() {
            // The record already says why there is no verifier, or none that answers.
            let pairs = |it: &crate::record::NotChecked| it.model.as_ref() == Some(&model.path);
            if !self.journal.record().not_checked.iter().any(pairs) {
                self.check_tokens_of(schedule, &model).await?;
            }
        }
        Ok(())
    }

    fn checked_models(&self) -> Vec<Model> {
        let asked = self.journal.record().held_out.iter();
        let models = || self.plan.configurations.iter().map(|it| &it.model);
        asked.filter_map(|it| models().find(|model| model.path == it.model).cloned()).collect()
    }

    async fn check_tokens_of(&mut self, schedule: &Schedule<'_>, model: &Model) -> Result<()> {
        let verifier = self.plan.verifier_of(model);
        let mut unchecked_samples = unchecked_samples(self.journal.record(), model, verifier);
        self.omit_text_prompts(&mut unchecked_samples)?;
        if unchecked_samples.is_empty() {
            return Ok(());
        }
        let Some(verifier) = verifier else {
            return self.no_verifier(model, "its measured tokens were not checked: no verifier can run here");
        };
        if let Some(reason) = exceeds_memory(&self.plan.configurations[verifier]) {
            return self.model_not_checked(model, reason, None);
        }
        let check_time = self.check_time(schedule);
        let no_time = |all: usize| format!("the budget left no time to check the tokens of {all} samples");
        if check_time.budget_is_over() {
            return self.model_not_checked(model, no_time(unchecked_samples.len()), longer_budget());
        }
        let label = self.plan.configurations[verifier].label.clone();
        self.journal.tell(Event::CheckingTokens { label: label.clone(), samples: unchecked_samples.len() });
        let cause = match self
            .launches
            .launch_within(self.journal, verifier, check_time.left_of_budget())
            .await
        {
            Ok(None) => {
                return self.model_not_checked(model, no_time(unchecked_samples.len()), longer_budget());
            }
            Ok(Some(mut launched)) if launched.hello().is_some() => {
                let asked = self.query_verifier(&mut launched, model, &unchecked_samples, check_time).await?;
                // Its exit does not matter any more.
                let grace = check_time.for_an_end(launched.conversation.deadlines.shutdown);
                let _ = tokio::time::timeout(grace, launched.conversation.shutdown()).await;
                let grace = check_time.for_an_end(grace);
                launched.conversation.process.end(if asked.is_ok() { grace } else { Duration::ZERO }).await;
                asked.err()
            }
            Ok(Some(mut launched)) => {
                launched.conversation.process.end(Duration::ZERO).await;
                Some(Cause::Unsupported("supports only `generate`".into()))
            }
            Err(Stop::Fault(fault)) => Some(fault.cause),
            Err(Stop::Broken(error)) => return Err(error),
        };
        let Some(cause) = cause else { return Ok(()) };
        let reason = format!("the tokens of measured samples: {label}: {}: {cause}", cause.kind());
        self.model_not_checked(model, reason, cause.hint())
    }

    /// `Err` in it is the reason why the verifier stopped answering.
    async fn query_verifier(
        &mut self,
        launched: &mut Launched,
        model: &Model,
        unchecked_samples: &[UncheckedSample],
        check_time: CheckTime,
    ) -> Result<Result<(), Cause>> {
        let mut known: HashMap<(String, Vec<u32>), Vec<TokenPair>> = HashMap::new();
        let (mut left_out, mut refused) = (0, None);
        for unchecked in unchecked_samples {
            let sample = &self.journal.record().samples[unchecked.sample];
            let Some(output) = greedy_ids(self.journal.record(), sample).map(<[u32]>::to_vec) else {
                continue;
            };
            let question = (sample.prompt_hash.clone(), output);
            if !known.contains_key(&question) {
                let Some(prompt) = self.prompt_of(unchecked).filter(|_| !check_time.is_over()) else {
                    left_out += 1;
                    continue;
                };
                match query_tokens(launched, &prompt, &question.1, unchecked.differs_at, check_time).await {
                    Ok(pairs) => {
                        known.insert(question.clone(), pairs);
                    }
                    Err(cause) if cause.engine_survives() && !is_breach(&cause) => {
                        left_out += 1;
                        refused = Some(cause.to_string());
                    }
                    // The budget cut off the request, not the engine.
                    Err(Cause::Timeout(_)) if check_time.budget_is_over() => {
                        left_out += 1;
                        continue;
                    }
                    Err(cause) => return Ok(Err(cause)),
                }
            }
            self.record_reference_tokens(
                launched,
                unchecked,
                known.get(&question).map_or(&[], Vec::as_slice),
            )?;
        }
        if left_out > 0 {
            let seconds = check_time.whole.as_secs();
            let why = refused.unwrap_or_else(|| format!("the check had {seconds} s"));
            let all = unchecked_samples.len();
            let reason = format!("the tokens of {left_out} of {all} samples were not checked: {why}");
            let hint = if check_time.budget_is_over() { longer_budget() } else { None };
            self.model_not_checked(model, reason, hint)?;
        }
        Ok(Ok(()))
    }

    fn record_reference_tokens(
        &mut self,
        launched: &Launched,
        unchecked: &UncheckedSample,
        pairs: &[TokenPair],
    ) -> Result<()> {
        let sample = &self.journal.record().samples[unchecked.sample];
        let (launch, case, index) = (sample.launch, sample.case, sample.index);
        let masks = self.journal.record().launches_of(unchecked.configuration).any(|it| {
            it.hello.as_ref().is_some_and(|hello| hello.capabilities.ignore_eos == IgnoreEos::Masked)
        });
        let facts = launched.launch.loaded.as_ref().map(|loaded| &loaded.facts);
        let eos_ids = facts.and_then(|facts| facts.eos_ids.clone()).unwrap_or_default();
        for pairs in pairs {
            // If EOS comes next, an engine that masks it must give another id.
            if masks && pairs.verifier_token != pairs.engine_token && eos_ids.contains(&pairs.verifier_token)
            {
                continue;
            }
            self.journal.take(Entry::ReferenceToken(ReferenceToken {
                verifier: launched.launch.configuration,
                launch,
                case,
                index,
                position: pairs.position as u32,
                engine_token: pairs.engine_token,
                verifier_token: pairs.verifier_token,
                engine_logprob: pairs.engine_logprob,
                verifier_logprob: pairs.verifier_logprob,
            }))?;
        }
        Ok(())
    }

    /// Leaves out engines that received text, because they made their own ids from it.
    fn omit_text_prompts(&mut self, unchecked_samples: &mut Vec<UncheckedSample>) -> Result<()> {
        let record = self.journal.record();
        let takes_ids = |configuration: usize| {
            let mut launches = record.launches_of(configuration);
            launches.any(|it| it.hello.as_ref().is_some_and(|hello| hello.capabilities.prompt_ids))
        };
        let in_text = |unchecked: &&UncheckedSample| !takes_ids(unchecked.configuration);
        let mut left_out: Vec<usize> =
            unchecked_samples.iter().filter(in_text).map(|it| it.configuration).collect();
        left_out.sort_unstable();
        left_out.dedup();
        unchecked_samples.retain(|unchecked| !left_out.contains(&unchecked.configuration));
        for configuration in left_out {
            let reason = "its prompts were sent as text, so their ids are unknown";
            self.not_checked(configuration, reason.into(), None)?;
        }
        Ok(())
    }

    /// The ids of a sample's prompt, made again.
    fn prompt_of(&self, unchecked: &UncheckedSample) -> Option<Vec<u32>> {
        let record = self.journal.record();
        let sample = &record.samples[unchecked.sample];
        let block = record.launches.iter().find(|it| it.launch == sample.launch)?.block;
        let key = PromptKey { seed: self.plan.seed, block, kind: sample.kind, index: sample.index };
        let path = &self.plan.configurations[unchecked.configuration].model.path;
        let ids = self.requests.prompts(path)?.ids(&self.plan.cases[sample.case].workload, key).ok()?;
        (prompts::hash(&ids) == sample.prompt_hash).then_some(ids)
    }

    fn check_time(&self, schedule: &Schedule) -> CheckTime {
        let budget = self.plan.extent.budget_ns.map(Duration::from_nanos);
        CheckTime::begins(time(budget, schedule.ran()), self.budget_ends)
    }
}

/// The rest of a budget after the blocks, which `TimeBudget` keeps free.
fn time(budget: Option<Duration>, ran: Duration) -> Duration {
    match budget {
        Some(budget) => budget.saturating_sub(ran).min(MOST),
        None => (ran / PART).clamp(MIN, MOST),
    }
}

/// The verifier's answers about some tokens of an output. Tokens without time for a check are left out.
async fn query_tokens(
    verifier: &mut Launched,
    prompt: &[u32],
    output: &[u32],
    differs_at: Option<usize>,
    check_time: CheckTime,
) -> Result<Vec<TokenPair>, Cause> {
    let context = verifier.launch.loaded.as_ref().and_then(|loaded| loaded.facts.context_tokens);
    let room = context.map_or(usize::MAX, |context| (context as usize).saturating_sub(prompt.len()));
    let output = &output[..output.len().min(room)];
    let scores = verifier.hello().is_some_and(|hello| hello.capabilities.score);
    let logprobs = match scores && !output.is_empty() {
        true => {
            let all = verifier.score(&[prompt, output].concat(), check_time.for_a_request()).await?.0;
            all.into_iter().skip(prompt.len().saturating_sub(1)).collect()
        }
        false => Vec::new(),
    };
    let mut pairs = Vec::new();
    for position in positions(output.len(), differs_at, &logprobs) {
        if check_time.budget_is_over() || (check_time.is_over() && !pairs.is_empty()) {
            break;
        }
        let engine_logprob = logprobs.get(position).copied().flatten();
        match query_token(verifier, prompt, output, position, engine_logprob, check_time).await {
            Ok(pair) => pairs.push(pair),
            // The answers about the other tokens still count.
            Err(Cause::Timeout(_)) if check_time.budget_is_over() && !pairs.is_empty() => break,
            Err(cause) => return Err(cause),
        }
    }
    Ok(pairs)
}

async fn query_token(
    verifier: &mut Launched,
    prompt: &[u32],
    output: &[u32],
    position: usize,
    engine_logprob: Option<f64>,
    check_time: CheckTime,
) -> Result<TokenPair, Cause> {
    let scores = verifier.hello().is_some_and(|hello| hello.capabilities.score);
    let (before, engine_token) = ([prompt, &output[..position]].concat(), output[position]);
    let is_own = engine_logprob.is_some_and(|logprob| logprob > LIKELIER_THAN_ALL);
    let verifier_token = match is_own {
        true => engine_token,
        false => *verifier
            .continue_prompt(&before, 1, check_time.for_a_request())
            .await?
            .first()
            .unwrap_or(&engine_token),
    };
    let verifier_logprob = match verifier_token == engine_token {
        true => engine_logprob,
        false if scores => {
            let its = verifier
                .score(&[&before[..], &[verifier_token]].concat(), check_time.for_a_request())
                .await?
                .0;
            its.last().copied().flatten()
        }
        false => None,
    };
    Ok(TokenPair { position, engine_token, verifier_token, engine_logprob, verifier_logprob })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_check_has_at_most_the_rest_of_a_budget() {
        let of = |budget: Option<u64>, ran| {
            time(budget.map(Duration::from_secs), Duration::from_secs(ran)).as_secs()
        };
        assert_eq!(of(Some(200), 190), 10);
        assert_eq!(of(Some(200), 199), 1);
        assert_eq!(of(Some(200), 400), 0);
        assert_eq!(of(Some(200), 10), MOST.as_secs());
        assert_eq!(of(None, 400), 20);
        assert_eq!(of(None, 1), MIN.as_secs());
    }
}
