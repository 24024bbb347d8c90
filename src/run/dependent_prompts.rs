//! The search for prompts whose next token depends on their first half. The verifier gets random candidates, once for each model
//! and length. The prompts found are stored by the identity of the weights, because the search takes up to a minute.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use stats::Random;

use super::blocking::off_thread;
use super::checks::OutputChecks;
use super::journal::{Event, Journal};
use super::launch::Launched;
use super::launches::{Launches, end};
use super::memory_groups::memory_shortage;
use super::request::Requests;
use crate::plan::prompts::Prompts;
use crate::plan::prompts::dependent::{DependentPrompt, DependentPrompts, NextToken, stored_path};
use crate::plan::{Model, Plan, Prompt, Verification};
use crate::run::process::{Cause, LaunchError};
use crate::text::plural;

/// The longest time of the search for all lengths of a model. The time that the costs of dtypes took is subtracted from it.
const SEARCH_TIME: Duration = Duration::from_secs(60);
/// The longest time of the search in `model reference-answers`, which measures no engine.
const COMMAND_SEARCH_TIME: Duration = Duration::from_secs(300);
/// If the user set a budget, the search has at most the budget divided by this. The default budget does not shorten it.
const BUDGET_DIVISOR: u32 = 20;
/// The number of prompts of each length, and how many of them must suffice for weights in 4 bits.
const PROMPTS: usize = 8;
const PROMPTS_FOR_4_BITS: usize = 3;
/// The largest gap of a correct token in 4 bits, as in `analysis/agreement/bounds.rs`.
const MARGIN_FOR_4_BITS: f64 = 4.0;
/// The search ends after this many prompts, even if they do not suffice for weights in 4 bits.
const MAX_FOUND: usize = 32;
/// Fewer prompts prove nothing.
const MIN_PROMPTS: u32 = 2;
/// The number of scored tokens for each token of a prompt, in a full search and in a quick one.
const SCORED_RATIO_FULL: f64 = 6.0;
const SCORED_RATIO_QUICK: f64 = 1.6;
/// The number of tokens of text by which the speed of the verifier is measured.
const PROBE_TOKENS: usize = 256;
/// The time of a request that does not depend on its length, as the number of tokens that take about as long.
const REQUEST_TOKENS: u32 = 256;
/// A trained model gives some token of a text a higher log-probability than this, ln(0.2). A model with random weights does not.
const TRAINED_LOGPROB: f64 = -1.609;
/// The search of a length ends after this many candidates if none of them is suitable.
const MAX_FRUITLESS: usize = 30;
/// A salt is the random ids in front of a prompt. The likeliest next token must be the same with this many salts.
const SALTS: usize = 3;
/// After the whole prompt, the token has at least this log-probability: ln(0.75). So other tokens are less likely by a nat, which
/// is the largest error of a token in 8 or 16 bits.
const MIN_LOGPROB: f64 = -0.287;
/// The largest stored margin, in nats. A probability of 1 has no finite margin.
const MAX_MARGIN: f64 = 20.0;
/// After a part of the prompt, the token has at most this log-probability: ln(1/3).
const MAX_LOGPROB_AFTER_PART: f64 = -1.098;

/// Searches for the prompts that the plan needs and that are not stored yet. `used` is the time that the costs of dtypes took.
pub(super) async fn add_missing(
    plan: &Plan,
    journal: &mut Journal<'_>,
    launches: &mut Launches<'_>,
    requests: &mut Requests<'_>,
    budget_ends: Option<Instant>,
    used: Duration,
) -> Result<()> {
    if plan.verification != Verification::Usual {
        return Ok(());
    }
    let mut models: Vec<&Model> = Vec::new();
    for model in plan.cases.iter().map(|case| &plan.configurations[case.configuration].model) {
        if !models.iter().any(|it| it.path == model.path) {
            models.push(model);
        }
    }
    for model in models {
        let Some(verifier) = plan.verifier_of(model) else { continue };
        let lengths = missing_lengths(plan, model, requests);
        if lengths.is_empty() {
            continue;
        }
        if let Some(reason) = memory_shortage(&plan.configurations[verifier]) {
            journal.send(Event::Detail(format!(
                "no search for prompts whose next token depends on their first half: {reason}"
            )));
            continue;
        }
        let usual_time = SEARCH_TIME.saturating_sub(used);
        let time =
            plan.extent.set_budget().map_or(usual_time, |budget| usual_time.min(budget / BUDGET_DIVISOR));
        let left = budget_ends.map_or(time, |ends| time.min(ends.saturating_duration_since(Instant::now())));
        let label = plan.configurations[verifier].label.clone();
        journal.send(Event::FindingPrompts { label, limit: left });
        let begun = Instant::now();
        // An engine that cannot start fails in the output check too, which records the failure.
        let launched = launches.launch_for_check(journal, verifier, Some(left)).await;
        let Ok(Some(mut launched)) = LaunchError::separate(launched)? else { continue };
        let (found, is_idle) = match requests.prompts(&model.path) {
            Some(prompts) => search(prompts, &mut launched, &lengths, begun + left).await,
            None => (DependentPrompts::default(), true),
        };
        end(journal, launched, is_idle).await?;
        let (count, seconds) = (plural(found.prompts.len(), "prompt"), begun.elapsed().as_secs_f64());
        journal.send(Event::Detail(format!(
            "found {count} whose next token depends on their first half in {seconds:.1} s"
        )));
        // A search that was cut short begins again in the next run.
        let had_all_time = left == usual_time && (is_idle || begun.elapsed() >= left);
        let is_complete = had_all_time || lengths.iter().all(|&it| found.of_length(it).count() >= PROMPTS);
        requests.add_dependent_prompts(&model.path, found);
        let known = requests.prompts(&model.path).map(|it| it.dependent_prompts().clone());
        if let Some(known) = known.filter(|_| is_complete) {
            // Without a stored file, the next run searches again.
            let stored = off_thread(move || store(&known)).await?;
            if let Err(error) = stored {
                journal.warn(None, format!("prompts were not stored for later runs: {error:#}"))?;
            }
        }
    }
    Ok(())
}

/// The prompt lengths that need dependent prompts and for which nothing is stored.
fn missing_lengths(plan: &Plan, model: &Model, requests: &Requests) -> Vec<u32> {
    let Some(prompts) = requests.prompts(&model.path) else { return Vec::new() };
    let of_model =
        plan.cases.iter().filter(|it| plan.configurations[it.configuration].model.path == model.path);
    let needed =
        of_model.filter(|it| Prompts::can_depend(&it.workload) && prompts.excess(&it.workload).is_none());
    let mut lengths: Vec<u32> = needed
        .filter_map(|it| match it.workload.prompt {
            Prompt::Tokens(tokens) => Some(tokens),
            Prompt::Text(_) => None,
        })
        .filter(|tokens| !prompts.dependent_prompts().searched.contains(tokens))
        .collect();
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

fn store(prompts: &DependentPrompts) -> Result<()> {
    let Some(path) = prompts.identity.as_deref().and_then(stored_path) else { return Ok(()) };
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    std::fs::write(&partial, prompts.text()?)?;
    Ok(std::fs::rename(&partial, &path)?)
}

impl OutputChecks<'_, '_> {
    /// In a run without cases (`model reference-answers`), searches for prompts of the lengths of all scenarios.
    pub async fn find_dependent_prompts(&self, launched: &mut Launched) -> Option<DependentPrompts> {
        let path = &self.plan.configurations[launched.launch.configuration].model.path;
        let prompts = self.requests.prompts(path).filter(|_| self.plan.cases.is_empty())?;
        Some(
            search(prompts, launched, &prompts.dependent_lengths(), Instant::now() + COMMAND_SEARCH_TIME)
                .await
                .0,
        )
    }
}

/// Searches for prompts of these lengths. Returns those that were found, and whether the engine has answered every request. A
/// failed request ends the search. It is no failure of the run here, because a failure of the engine also shows in the output
/// check.
async fn search(
    prompts: &Prompts,
    launched: &mut Launched,
    lengths: &[u32],
    ends: Instant,
) -> (DependentPrompts, bool) {
    let hello = launched.hello();
    let can_search = hello.is_some_and(|it| it.capabilities.score && it.capabilities.prompt_ids);
    let by = hello.map_or_else(String::new, |it| format!("{} {}", it.engine, it.version));
    let known = prompts.dependent_prompts();
    let (identity, text) = (known.identity.clone(), known.text.clone());
    let mut found = DependentPrompts { by, identity, text, searched: lengths.to_vec(), prompts: Vec::new() };
    if !can_search {
        return (found, true);
    }
    let random = Random::seeded(0);
    let mut search = Search { prompts, launched, random, until: ends, ends };
    let is_idle = search.find_all(lengths, &mut found.prompts).await.is_ok();
    launched.is_unanswered |= !is_idle;
    (found, is_idle)
}

/// How a length is searched in its share of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SearchKind {
    /// Each prompt is verified with several salts and parts.
    Full,
    /// With a large model, each prompt has one request, and two for parts of it. A prompt counts only if its next token
    /// has a margin that is large enough for weights in 4 bits.
    Quick,
}

impl SearchKind {
    /// `None` if there is not enough time for the fewest useful prompts.
    fn that_fits(time: Duration, tokens: u32, per_token: Duration) -> Option<Self> {
        let needs = |scored_ratio: f64| (per_token * tokens * MIN_PROMPTS).mul_f64(scored_ratio);
        [(Self::Full, SCORED_RATIO_FULL), (Self::Quick, SCORED_RATIO_QUICK)]
            .into_iter()
            .find(|(_, scored_ratio)| needs(*scored_ratio) <= time)
            .map(|(kind, _)| kind)
    }
}

struct Search<'s> {
    prompts: &'s Prompts,
    launched: &'s mut Launched,
    random: Random,
    /// The end of the search for this length.
    until: Instant,
    /// The end of the search for all lengths.
    ends: Instant,
}

impl Search<'_> {
    async fn find_all(&mut self, lengths: &[u32], found: &mut Vec<DependentPrompt>) -> Result<(), Cause> {
        let begun = Instant::now();
        let (per_token, is_trained) = self.probe().await?;
        if !is_trained {
            return Ok(());
        }
        // The time of a request grows with its length. So each length has a share of the time by its tokens, and the time that
        // shorter ones did not use.
        let time = self.ends.saturating_duration_since(begun);
        let all: u32 = lengths.iter().map(|tokens| tokens + REQUEST_TOKENS).sum();
        let mut so_far = 0;
        for &tokens in lengths {
            so_far += tokens + REQUEST_TOKENS;
            self.until = begun + time.mul_f64(f64::from(so_far) / f64::from(all));
            self.random = Random::seeded(u64::from(tokens));
            let left = self.until.saturating_duration_since(Instant::now());
            let mut of_length = Vec::new();
            let searched = match SearchKind::that_fits(left, tokens, per_token) {
                Some(SearchKind::Full) => self.find(tokens, &mut of_length).await,
                Some(SearchKind::Quick) => self.find_quickly(tokens, &mut of_length).await,
                None => Ok(()),
            };
            of_length.sort_by(|a, b| b.next.margin.total_cmp(&a.next.margin));
            of_length.truncate(PROMPTS);
            found.append(&mut of_length);
            searched?;
        }
        Ok(())
    }

    /// Measures the verifier's time for a token of text. Also returns whether the model is surer of some token than random
    /// weights allow.
    async fn probe(&mut self) -> Result<(Duration, bool), Cause> {
        let ids = self.prompts.text_start(PROBE_TOKENS);
        // The first request of a launch is slower.
        let (likeliest, _) = self.score(&ids).await?;
        let is_trained = likeliest.iter().any(|(_, logprob)| *logprob > TRAINED_LOGPROB);
        let begun = Instant::now();
        self.score(&ids).await?;
        Ok((begun.elapsed() / ids.len().max(1) as u32, is_trained))
    }

    async fn find(&mut self, tokens: u32, found: &mut Vec<DependentPrompt>) -> Result<(), Cause> {
        let is_enough = |found: &[DependentPrompt]| {
            let suffices = found.iter().filter(|it| is_for_4_bits(&it.next)).count() >= PROMPTS_FOR_4_BITS;
            found.len() >= PROMPTS && suffices || found.len() >= MAX_FOUND
        };
        let mut tried = 0;
        while !is_enough(found) && Instant::now() < self.until && (tried < MAX_FRUITLESS || !found.is_empty())
        {
            let candidate = self.prompts.candidate(tokens, &mut self.random);
            tried += 1;
            let Some(end_tokens) = self.promising_end(&candidate).await? else { continue };
            found.extend(self.verify(DependentPrompt { end_tokens, ..candidate }).await?);
        }
        Ok(())
    }

    /// Finds `MIN_PROMPTS` prompts, because fewer are useless and more take too long.
    async fn find_quickly(&mut self, tokens: u32, found: &mut Vec<DependentPrompt>) -> Result<(), Cause> {
        while found.len() < MIN_PROMPTS as usize && Instant::now() < self.until {
            let candidate = self.prompts.candidate(tokens, &mut self.random);
            let salt = self.prompts.random_salt(&mut self.random);
            let ids = self.prompts.dependent_ids(&candidate, &salt);
            let Some((token, logprob)) = self.likeliest_after(&ids).await? else { continue };
            let next = NextToken { token, margin: margin(logprob), after_parts: Vec::new() };
            if !is_for_4_bits(&next) {
                continue;
            }
            // The first and the last part show most: the half and, of a long prompt, its last 64 ids.
            let mut parts = DependentPrompt::parts(&ids);
            parts.drain(1..parts.len() - 1);
            if let Some(after_parts) = self.after_parts(parts, token).await? {
                found.push(DependentPrompt { next: NextToken { after_parts, ..next }, ..candidate });
            }
        }
        Ok(())
    }

    /// The number of the pattern's ids after which the likeliest token depends on the first half. One request for the prompt and
    /// one for its last half answer for all numbers.
    async fn promising_end(&mut self, candidate: &DependentPrompt) -> Result<Option<usize>, Cause> {
        let salt = self.prompts.random_salt(&mut self.random);
        let ids = self.prompts.dependent_ids(candidate, &salt);
        let (whole, _) = self.score(&ids).await?;
        let (half, logprobs) = self.score(&ids[ids.len() / 2..]).await?;
        let first = |length: usize| length.saturating_sub(candidate.pattern_tokens);
        let (from, from_half) = (first(whole.len()), first(half.len()));
        let depends = |&end: &usize| {
            let ((token, logprob), (other, _)) = (whole[from + end], half[from_half + end]);
            // The log-probability after the half is known for the pattern's own next id.
            let is_unlikely = ids[first(ids.len()) + end] != token
                || logprobs[from_half + end].is_none_or(|it| it <= MAX_LOGPROB_AFTER_PART);
            logprob >= MIN_LOGPROB && token != other && is_unlikely
        };
        let ends = (1..candidate.pattern_tokens).filter(depends);
        Ok(ends.max_by(|&a, &b| whole[from + a].1.total_cmp(&whole[from + b].1)))
    }

    async fn verify(&mut self, mut candidate: DependentPrompt) -> Result<Option<DependentPrompt>, Cause> {
        let mut next: Option<NextToken> = None;
        for _ in 0..SALTS {
            let salt = self.prompts.random_salt(&mut self.random);
            let ids = self.prompts.dependent_ids(&candidate, &salt);
            let Some((token, logprob)) = self.likeliest_after(&ids).await? else { return Ok(None) };
            let is_same = next.as_ref().is_none_or(|it| it.token == token);
            if logprob < MIN_LOGPROB || !is_same {
                return Ok(None);
            }
            let margin = margin(logprob);
            match &mut next {
                Some(next) => next.margin = next.margin.min(margin),
                None => {
                    let parts = DependentPrompt::parts(&ids);
                    let Some(after_parts) = self.after_parts(parts, token).await? else { return Ok(None) };
                    next = Some(NextToken { token, margin, after_parts });
                }
            }
        }
        candidate.next = next.unwrap_or_default();
        Ok(Some(candidate))
    }

    /// The likeliest tokens after these parts of a prompt. `None` if the token is likely after one of them.
    async fn after_parts(&mut self, parts: Vec<Vec<u32>>, token: u32) -> Result<Option<Vec<u32>>, Cause> {
        let mut after_parts = Vec::new();
        for part in parts {
            let (likeliest, logprobs) = self.score(&[&part, &[token][..]].concat()).await?;
            let logprob = logprobs.last().copied().flatten().unwrap_or(f64::NEG_INFINITY);
            match likeliest.last() {
                Some((other, _)) if *other != token && logprob <= MAX_LOGPROB_AFTER_PART => {
                    after_parts.push(*other)
                }
                _ => return Ok(None),
            }
        }
        after_parts.sort_unstable();
        after_parts.dedup();
        Ok(Some(after_parts))
    }

    async fn likeliest_after(&mut self, ids: &[u32]) -> Result<Option<(u32, f64)>, Cause> {
        // The answer has the likeliest token at the positions of ids, so one more id is needed. Which id it is has no effect.
        Ok(self.score(&[ids, &ids[..1]].concat()).await?.0.last().copied())
    }

    /// The likeliest id at the position of every id but the first, and the log-probability of every id but the first.
    async fn score(&mut self, ids: &[u32]) -> Result<(Vec<(u32, f64)>, Vec<Option<f64>>), Cause> {
        let limit = self.ends.saturating_duration_since(Instant::now());
        let (logprobs, likeliest) = self.launched.score_with_most_likely(ids, limit).await?;
        let likeliest = likeliest.filter(|it| it.len() == logprobs.len());
        let no_likeliest = || Cause::Unsupported("gives no likeliest ids".into());
        Ok((likeliest.ok_or_else(no_likeliest)?, logprobs))
    }
}

/// By how much every other token is less likely than one with this log-probability: all others together have the remaining
/// probability. Rounded down to hundredths of a nat.
fn margin(logprob: f64) -> f64 {
    ((logprob - (-logprob.exp_m1()).ln()).min(MAX_MARGIN) * 100.0).floor() / 100.0
}

/// Whether no rounding to 4 bits explains another token.
fn is_for_4_bits(next: &NextToken) -> bool {
    next.margin > MARGIN_FOR_4_BITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::agreement::bounds::Precision;

    #[test]
    fn a_slow_verifier_searches_few_dependent_prompts_or_none() {
        let kind = |per_token_ms| {
            SearchKind::that_fits(Duration::from_secs(20), 1000, Duration::from_millis(per_token_ms))
        };
        assert_eq!([1, 5, 10].map(kind), [Some(SearchKind::Full), Some(SearchKind::Quick), None]);
    }

    #[test]
    fn a_margin_is_the_distance_to_all_other_tokens_together() {
        assert_eq!([0.6_f64.ln(), 0.75_f64.ln(), 0.0].map(margin), [0.4, 1.09, MAX_MARGIN]);
        let [for_8_bits, for_4_bits] =
            [Precision::Bits8, Precision::Bits4].map(|precision| precision.bounds().worst_gap);
        assert!(margin(MIN_LOGPROB) > for_8_bits);
        assert_eq!(MARGIN_FOR_4_BITS, for_4_bits);
    }
}
