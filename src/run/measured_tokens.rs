//! The output check after the last block. The check before the blocks says nothing about the output of measured requests. So the
//! verifier also checks measured samples, unless the verifier's measured output has the same ids.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use anyhow::Result;
use protocol::IgnoreEos;

use super::checks::{CheckTime, OutputChecks, is_invalid_answer};
use super::journal::Event;
use super::launch::Launched;
use super::memory_groups::memory_shortage;
use super::read_text::read_text;
use super::schedule::Schedule;
use super::unverified::{
    Output, UnverifiedSample, further_samples, greedy_output, positions, unverified_samples,
};
use crate::plan::budget::{TOKEN_CHECK_DIVISOR, TokenCheck};
use crate::plan::prompts;
use crate::plan::{Extent, Model, Verification};
use crate::record::{CheckedOutput, DifferingToken, Entry, ReadText, ReferenceToken, Sample};
use crate::run::process::{Cause, LaunchError};
use crate::text::plural;

/// Without a budget, the time limit of the check is the run's time / `RUN_DIVISOR`, but at least `MIN_TIME` or the expected time
/// of the check, and at most `MAX_TIME`. With the default budget, it is the rest of the budget, within the same bounds. With a
/// budget that the user set, it is the rest, but at most `MAX_TIME`, a tenth of the budget or the expected time, whichever is
/// longest.
const RUN_DIVISOR: u32 = 20;
const MIN_TIME: Duration = Duration::from_secs(10);
const MAX_TIME: Duration = Duration::from_secs(120);
/// The tokens of further samples that differ from the verifier's are counted until the check has taken this long.
const FURTHER_TIME: Duration = Duration::from_secs(5);
/// An id with a higher log-probability is likelier than all other ids together. The value is ln(1/2), raised for rounding.
const MAJORITY_LOGPROB: f64 = -0.69;

impl OutputChecks<'_, '_> {
    pub async fn verify_measured_tokens(&mut self, schedule: &Schedule<'_>) -> Result<()> {
        if self.plan.verification == Verification::Off {
            return Ok(());
        }
        for model in self.checked_models() {
            // If there is no verifier, or it did not answer, the record already has the reason.
            let mut not_checked = self.journal.record().not_checked.iter();
            if !not_checked.any(|it| it.model.as_ref() == Some(&model.path)) {
                self.check_tokens_of(schedule, &model).await?;
            }
        }
        Ok(())
    }

    fn checked_models(&self) -> Vec<Model> {
        let checked = self.journal.record().held_out.iter();
        let models = || self.plan.configurations.iter().map(|it| &it.model);
        checked.filter_map(|it| models().find(|model| model.path == it.model).cloned()).collect()
    }

    async fn check_tokens_of(&mut self, schedule: &Schedule<'_>, model: &Model) -> Result<()> {
        let verifier = self.plan.verifier_of(model);
        let mut unverified_samples = unverified_samples(self.journal.record(), model, verifier);
        self.omit_text_prompts(&mut unverified_samples)?;
        if unverified_samples.is_empty() {
            return Ok(());
        }
        let Some(verifier) = verifier else {
            let reason = "the measured tokens were not checked: no verifier can run here";
            return self.add_missing_verifier(model, reason);
        };
        if let Some(reason) = memory_shortage(&self.plan.configurations[verifier]) {
            return self.add_unchecked_model(model, reason, None);
        }
        let duration = check_duration(&self.plan.extent, schedule.ran(), schedule.time_budget.token_check);
        let check_time = CheckTime::start(duration, self.budget_ends);
        let samples = unverified_samples.len();
        let further = further_samples(self.journal.record(), model, Some(verifier), &unverified_samples);
        let is_of_checked =
            |it: &UnverifiedSample| unverified_samples.iter().any(|of| of.configuration == it.configuration);
        let further: Vec<UnverifiedSample> = further.into_iter().filter(is_of_checked).collect();
        let subject = format!("a check of the tokens of {}", plural(samples, "sample"));
        let no_time = self.plan.extent.too_short_for(&subject);
        if check_time.budget_is_over() {
            return self.add_short_of_model(model, no_time, false);
        }
        let began = Instant::now();
        let label = self.plan.configurations[verifier].label.clone();
        self.journal.send(Event::CheckingTokens { label: label.clone(), samples });
        let left = check_time.left_of_budget();
        let launched = self.launches.launch_for_check(self.journal, verifier, left).await;
        let cause = match LaunchError::separate(launched)? {
            Ok(None) => return self.add_short_of_model(model, no_time, false),
            Ok(Some(mut launched)) if launched.hello().is_some() => {
                let launch = began.elapsed();
                let answered = self
                    .query_verifier(&mut launched, model, &unverified_samples, &further, check_time)
                    .await?;
                let others = self.needed.token_check.unwrap_or_default();
                let answered = answered.map(|took| self.needed.token_check = Some(others + launch + took));
                // The answers are recorded, so a wrong exit is ignored.
                let grace = check_time.exit_limit(launched.conversation.deadlines.shutdown);
                let _ = tokio::time::timeout(grace, launched.conversation.shutdown()).await;
                let grace = check_time.exit_limit(grace);
                launched
                    .conversation
                    .process
                    .end(if answered.is_ok() { grace } else { Duration::ZERO })
                    .await;
                answered.err()
            }
            Ok(Some(mut launched)) => {
                launched.conversation.process.end(Duration::ZERO).await;
                Some(Cause::Unsupported("supports only `generate`".into()))
            }
            Err(failure) => Some(failure.cause),
        };
        let Some(cause) = cause else { return Ok(()) };
        let reason =
            format!("the tokens of measured samples were not checked: {label}: {}: {cause}", cause.kind());
        self.add_unchecked_model(model, reason, cause.hint())
    }

    /// Asks the verifier about each sample and records its answers. Returns the time that this takes without further samples. The
    /// inner `Err` is the reason why the verifier stopped.
    async fn query_verifier(
        &mut self,
        launched: &mut Launched,
        model: &Model,
        unverified_samples: &[UnverifiedSample],
        further: &[UnverifiedSample],
        check_time: CheckTime,
    ) -> Result<Result<Duration, Cause>> {
        let (begun, mut took) = (Instant::now(), Duration::ZERO);
        let mut answers_by_request: HashMap<(String, Vec<u32>), Answers> = HashMap::new();
        let (mut left_out, mut last_refusal) = (0, None);
        for unverified in unverified_samples.iter().chain(further) {
            if unverified.is_further() && (begun.elapsed() > FURTHER_TIME || check_time.is_over()) {
                break;
            }
            let sample = &self.journal.record().samples[unverified.sample];
            let (prompt_hash, read) = match greedy_output(self.journal.record(), sample) {
                Some(Output::Ids(ids)) => (sample.prompt_hash.clone(), Ok(ids.to_vec())),
                Some(Output::Text { text, tokens }) => (sample.prompt_hash.clone(), Err((text, tokens))),
                None => continue,
            };
            let (output, read) = match read {
                Ok(ids) => (ids, None),
                Err((text, tokens)) => {
                    let prompt = self.prompt_of(unverified).filter(|_| !check_time.is_over());
                    let path = &model.path;
                    let (Some(prompt), Some(prompts)) = (prompt, self.requests.prompts(path)) else {
                        left_out += 1;
                        continue;
                    };
                    match read_text(launched, prompts, &prompt, (&text, tokens), check_time).await {
                        Ok(read) => (read.ids.clone(), Some(read)),
                        Err(Cause::Timeout(_)) if check_time.budget_is_over() => {
                            left_out += 1;
                            continue;
                        }
                        Err(cause) if cause.engine_survives() && !is_invalid_answer(&cause) => {
                            left_out += 1;
                            last_refusal = Some(cause.to_string());
                            continue;
                        }
                        Err(cause) => return Ok(Err(cause)),
                    }
                }
            };
            // The ids of a prompt in text are others than those of the plan, so their answers are kept apart.
            let prompt_hash = if read.is_some() { format!("text {prompt_hash}") } else { prompt_hash };
            let request = (prompt_hash, output);
            if let Some(answer) = known_answer(&answers_by_request, &request) {
                let answers = Answers { tokens: vec![answer], differing: Some(Vec::new()) };
                answers_by_request.insert(request.clone(), answers);
            }
            if !answers_by_request.contains_key(&request) {
                let Some(prompt) = self.prompt_of(unverified).filter(|_| !check_time.is_over()) else {
                    left_out += 1;
                    continue;
                };
                match query_tokens(launched, &prompt, &request.1, unverified, check_time).await {
                    Ok(answers) => {
                        answers_by_request.insert(request.clone(), answers);
                    }
                    // The check is complete without further samples.
                    Err(cause) if unverified.is_further() && cause.engine_survives() => break,
                    Err(cause) if cause.engine_survives() && !is_invalid_answer(&cause) => {
                        left_out += 1;
                        last_refusal = Some(cause.to_string());
                        continue;
                    }
                    // The end of the budget stopped this request. The engine did not fail.
                    Err(Cause::Timeout(_)) if check_time.budget_is_over() => {
                        left_out += 1;
                        continue;
                    }
                    Err(cause) => return Ok(Err(cause)),
                }
            }
            let positions = request.1.len();
            let answers = &answers_by_request[&request];
            if unverified.is_further() && answers.differing.is_none() {
                break;
            }
            self.record_reference_tokens(launched, unverified, answers, positions, read)?;
            if !unverified.is_further() {
                took = begun.elapsed();
            }
        }
        let (total, checked) = (unverified_samples.len(), unverified_samples.len().saturating_sub(left_out));
        if left_out > 0 {
            let reason =
                format!("the tokens of {left_out} of {} were not checked: ", plural(total, "sample"));
            match last_refusal {
                // If the verifier refused a request, more time does not help.
                Some(refusal) => self.add_unchecked_model(model, reason + &refusal, None)?,
                None => {
                    let seconds = check_time.total.as_secs();
                    let reason = format!("{reason}the check was limited to {seconds} s");
                    self.add_short_of_model(model, reason, checked > 0)?;
                }
            }
        }
        // The samples take turns, so those that were left out take as long as the others.
        Ok(Ok(took.mul_f64(total as f64 / checked.max(1) as f64)))
    }

    fn record_reference_tokens(
        &mut self,
        launched: &Launched,
        unverified: &UnverifiedSample,
        answers: &Answers,
        positions: usize,
        read: Option<ReadText>,
    ) -> Result<()> {
        let sample = &self.journal.record().samples[unverified.sample];
        let (launch, case, index) = (sample.launch, sample.case, sample.index);
        let masks_eos = self.journal.record().launches_of(unverified.configuration).any(|it| {
            it.hello.as_ref().is_some_and(|hello| hello.capabilities.ignore_eos == IgnoreEos::Masked)
        });
        let eos_ids = launched.facts().and_then(|facts| facts.eos_ids.as_deref()).unwrap_or_default();
        // Where the verifier gives EOS, an engine that masks EOS must give another id.
        let must_differ = |verifier_token: u32| masks_eos && eos_ids.contains(&verifier_token);
        for answer in &answers.tokens {
            if answer.verifier_token != answer.engine_token && must_differ(answer.verifier_token) {
                continue;
            }
            let answer = ReferenceToken { launch, case, index, ..answer.clone() };
            self.journal.take(Entry::ReferenceToken(answer))?;
        }
        if let Some(differing) = &answers.differing {
            let differing = differing.iter().filter(|it| !must_differ(it.verifier_token)).copied().collect();
            let (verifier, positions) = (launched.launch.configuration, positions as u32);
            let checked = CheckedOutput { verifier, launch, case, index, positions, differing, read };
            self.journal.take(Entry::CheckedOutput(checked))?;
        }
        Ok(())
    }

    /// Removes the samples of engines that received text and gave ids, because such an engine makes its own ids from the text. Of an
    /// engine that also gives text, the whole text is checked, so it must divide the prompt as the model's tokenizer does.
    fn omit_text_prompts(&mut self, unverified_samples: &mut Vec<UnverifiedSample>) -> Result<()> {
        let record = self.journal.record();
        let takes_ids = |configuration: usize| {
            let mut launches = record.launches_of(configuration);
            launches.any(|it| it.hello.as_ref().is_some_and(|hello| hello.capabilities.prompt_ids))
        };
        let gives_text = |unverified: &UnverifiedSample| {
            matches!(greedy_output(record, &record.samples[unverified.sample]), Some(Output::Text { .. }))
        };
        let in_text =
            |unverified: &&UnverifiedSample| !takes_ids(unverified.configuration) && !gives_text(unverified);
        let left_out: BTreeSet<usize> =
            unverified_samples.iter().filter(in_text).map(|it| it.configuration).collect();
        unverified_samples.retain(|unverified| !left_out.contains(&unverified.configuration));
        for configuration in left_out {
            let reason = "its prompts were sent as text, so their ids are unknown";
            self.add_unchecked(configuration, reason.into(), None)?;
        }
        Ok(())
    }

    /// The ids of a sample's prompt, made again. If the engine got the prompt as text: the ids that it must make of this text.
    fn prompt_of(&self, unverified: &UnverifiedSample) -> Option<Vec<u32>> {
        let record = self.journal.record();
        let sample = &record.samples[unverified.sample];
        let block = record.launches.iter().find(|it| it.launch == sample.launch)?.block;
        let index = Sample::prompt_index(sample.index, sample.repeat);
        let key = self.plan.prompt_key(block, sample.kind, index);
        let path = &self.plan.configurations[unverified.configuration].model.path;
        let (prompts, workload) = (self.requests.prompts(path)?, &self.plan.cases[sample.case].workload);
        let texts = prompts.batch(workload, key).ok()?;
        let batch = prompts.conversations(workload, texts, &sample.iteration.sequences);
        let is_same = prompts::hash_of_batch(&batch) == sample.prompt_hash;
        let ids = batch.into_iter().nth(record.checked_sequence(sample)).filter(|_| is_same)?;
        let mut launches = record.launches_of(unverified.configuration);
        let takes_ids =
            launches.any(|it| it.hello.as_ref().is_some_and(|hello| hello.capabilities.prompt_ids));
        if takes_ids { Some(ids) } else { prompts.ids_of_text(workload, &ids).ok() }
    }
}

/// The answer about an output of one token, if an earlier answer about the same prompt shows that this token is the verifier's
/// own. It saves a request with a long prompt: the longest prompts have outputs of one token.
fn known_answer(
    answers: &HashMap<(String, Vec<u32>), Answers>,
    (prompt, output): &(String, Vec<u32>),
) -> Option<ReferenceToken> {
    let [token] = output[..] else { return None };
    let same_prompt =
        answers.iter().filter(|((other, _), _)| other == prompt).flat_map(|(_, answers)| &answers.tokens);
    let answer = { same_prompt }.find(|it| it.position == 0 && it.verifier_token == token)?;
    let engine_logprob = answer.verifier_logprob;
    Some(ReferenceToken { engine_token: token, engine_logprob, ..answer.clone() })
}

/// The time limit of the check. `ran` is the time since the start of the run. `TimeBudget` reserves time for the check.
fn check_duration(extent: &Extent, ran: Duration, expected: TokenCheck) -> Duration {
    let least = expected.needed().clamp(MIN_TIME, MAX_TIME);
    let most = |budget: Duration| MAX_TIME.max(budget / TOKEN_CHECK_DIVISOR).max(expected.needed());
    match extent.budget() {
        Some(budget) if extent.has_default_budget => budget.saturating_sub(ran).clamp(least, MAX_TIME),
        Some(budget) => budget.saturating_sub(ran).min(most(budget)),
        None => (ran / RUN_DIVISOR).clamp(least, MAX_TIME),
    }
}

/// The verifier's answers about one output.
#[derive(Default)]
struct Answers {
    /// The answers about the most important tokens.
    tokens: Vec<ReferenceToken>,
    /// All tokens of the output that are not the verifier's. `None` if the verifier does not give its likeliest tokens, or if the
    /// output does not fit its context.
    differing: Option<Vec<DifferingToken>>,
}

/// The verifier's answers about an output. Tokens for which no time remains are left out.
async fn query_tokens(
    verifier: &mut Launched,
    prompt: &[u32],
    output: &[u32],
    unverified: &UnverifiedSample,
    check_time: CheckTime,
) -> Result<Answers, Cause> {
    let all_tokens = output.len();
    let context = verifier.facts().and_then(|facts| facts.context_tokens);
    let max_output = context.map_or(usize::MAX, |context| (context as usize).saturating_sub(prompt.len()));
    let output = &output[..output.len().min(max_output)];
    let scores = verifier.hello().is_some_and(|hello| hello.capabilities.score);
    let (mut logprobs, mut most_likely) = (Vec::new(), Vec::new());
    if scores && !output.is_empty() {
        let (ids, limit) = ([prompt, output].concat(), check_time.necessary_request_limit());
        let (all, all_most_likely) = verifier.score_with_most_likely(&ids, limit).await?;
        let before = prompt.len().saturating_sub(1);
        logprobs = all.into_iter().skip(before).collect();
        most_likely = all_most_likely.unwrap_or_default().into_iter().skip(before).collect();
    }
    let is_complete = most_likely.len() == all_tokens && logprobs.len() == all_tokens;
    let differing = is_complete.then(|| differing_tokens(output, &logprobs, &most_likely));
    let mut answers = Vec::new();
    let UnverifiedSample { differs_at, max_positions, .. } = *unverified;
    for position in positions(output.len(), differs_at, &logprobs, max_positions) {
        if let Some(&(verifier_token, logprob)) = most_likely.get(position) {
            answers.push(ReferenceToken {
                verifier: verifier.launch.configuration,
                position: position as u32,
                engine_token: output[position],
                verifier_token,
                engine_logprob: logprobs.get(position).copied().flatten(),
                verifier_logprob: Some(logprob),
                ..Default::default()
            });
            continue;
        }
        if check_time.budget_is_over() || (check_time.is_over() && !answers.is_empty()) {
            break;
        }
        let engine_logprob = logprobs.get(position).copied().flatten();
        match query_token(verifier, prompt, output, position, engine_logprob, check_time).await {
            Ok(answer) => answers.push(answer),
            // The answers about the other tokens still count.
            Err(Cause::Timeout(_)) if check_time.budget_is_over() && !answers.is_empty() => break,
            Err(cause) => return Err(cause),
        }
    }
    Ok(Answers { tokens: answers, differing })
}

/// The tokens of an output that are not the verifier's likeliest ones, by its log-probabilities at each position.
fn differing_tokens(
    output: &[u32],
    logprobs: &[Option<f64>],
    most_likely: &[(u32, f64)],
) -> Vec<DifferingToken> {
    let positions = output.iter().zip(logprobs).zip(most_likely).enumerate();
    let differing = positions.filter(|(_, ((token, _), (likeliest, _)))| *token != likeliest);
    let token = |(position, ((&engine_token, &engine_logprob), &(verifier_token, verifier_logprob)))| {
        DifferingToken {
            position: position as u32,
            engine_token,
            verifier_token,
            engine_logprob,
            verifier_logprob,
        }
    };
    differing.map(token).collect()
}

/// The verifier's answer about one token. It names no sample, because several samples may have the same output.
/// `engine_logprob` is the log-probability that the verifier gives to the engine's token.
async fn query_token(
    verifier: &mut Launched,
    prompt: &[u32],
    output: &[u32],
    position: usize,
    engine_logprob: Option<f64>,
    check_time: CheckTime,
) -> Result<ReferenceToken, Cause> {
    let scores = verifier.hello().is_some_and(|hello| hello.capabilities.score);
    let (mut ids, engine_token) = ([prompt, &output[..position]].concat(), output[position]);
    let mut verifier_token = engine_token;
    if engine_logprob.is_none_or(|logprob| logprob <= MAJORITY_LOGPROB) {
        let answer = verifier.continue_prompt(&ids, 1, check_time.necessary_request_limit()).await?;
        verifier_token = answer.first().copied().unwrap_or(engine_token);
    }
    let mut verifier_logprob = engine_logprob;
    if verifier_token != engine_token {
        ids.push(verifier_token);
        verifier_logprob = match scores {
            true => {
                verifier.score(&ids, check_time.necessary_request_limit()).await?.0.last().copied().flatten()
            }
            false => None,
        };
    }
    let (verifier, position) = (verifier.launch.configuration, position as u32);
    let answer = ReferenceToken { verifier, position, engine_token, verifier_token, ..Default::default() };
    Ok(ReferenceToken { engine_logprob, verifier_logprob, ..answer })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_check_has_at_most_the_rest_of_a_budget_that_the_user_set() {
        let expected = |extent: Extent, ran, expected| {
            check_duration(&extent, Duration::from_secs(ran), expected).as_secs()
        };
        let limit_of = |extent, ran| expected(extent, ran, TokenCheck::Off);
        let extent = |budget: Option<u64>| Extent {
            budget_ns: budget.map(|seconds| seconds * 1_000_000_000),
            ..Extent::default()
        };
        let limit_s = |budget, ran| limit_of(extent(budget), ran);
        assert_eq!(limit_s(Some(200), 190), 10);
        assert_eq!(limit_s(Some(200), 199), 1);
        assert_eq!(limit_s(Some(200), 400), 0);
        assert_eq!(limit_s(Some(200), 10), MAX_TIME.as_secs());
        assert_eq!(limit_s(Some(2000), 10), 200);
        assert_eq!(limit_s(None, 400), 20);
        assert_eq!(limit_s(None, 1), MIN_TIME.as_secs());
        // The check may end after the default budget.
        let by_default = |ran| limit_of(Extent { has_default_budget: true, ..extent(Some(180)) }, ran);
        assert_eq!([by_default(170), by_default(400), by_default(10)], [10, 10, MAX_TIME.as_secs()]);
        // A slow verifier has the time that it needs.
        let slow = |extent, seconds| expected(extent, 10, TokenCheck::Takes(Duration::from_secs(seconds)));
        assert_eq!([slow(extent(None), 40), slow(extent(None), 400)], [50, MAX_TIME.as_secs()]);
        assert_eq!(slow(extent(Some(1000)), 400), 500);
    }
}
