//! The parts that both output checks use, `held_out` before the blocks and `measured_tokens` after them: requests to one launch,
//! time limits, and the reasons for missing checks. A check that was not possible discards no result.

use std::time::{Duration, Instant};

use anyhow::Result;
use protocol::{Generate, Id, IgnoreEos, Score, Scored};

use super::journal::Journal;
use super::launch::Launched;
use super::launches::Launches;
use super::needed_time::NeededTime;
use super::request::Requests;
use crate::engines::registry::{Registry, set_up_command};
use crate::plan::{Model, Plan, Verification};
use crate::record::{Entry, NotChecked};
use crate::run::process::Cause;
use crate::run::verify::{Expected, verify_scores};
use crate::text::{estimated_time, plural, with_commas};

/// The time limit of a request that is made even if little time remains, unless the run's budget ends earlier.
const MAX_REQUEST_TIME: Duration = Duration::from_secs(60);
/// The shortest useful time for an answer.
const MIN_REQUEST_TIME: Duration = Duration::from_secs(1);
/// Increases a time that is estimated from shorter texts, because the time of attention grows with the square of the tokens.
const ATTENTION_FACTOR: f64 = 1.5;

pub(super) struct OutputChecks<'r, 'a> {
    pub plan: &'a Plan,
    pub journal: &'r mut Journal<'a>,
    pub launches: &'r mut Launches<'a>,
    pub requests: &'r Requests<'a>,
    /// The end of the run's budget, if the user set one.
    pub budget_ends: Option<Instant>,
    pub needed: NeededTime,
}

impl OutputChecks<'_, '_> {
    pub fn add_unchecked(&mut self, index: usize, reason: String, hint: Option<String>) -> Result<()> {
        let not_checked = NotChecked { configuration: Some(index), reason, hint, ..NotChecked::default() };
        self.journal.take(Entry::NotChecked(not_checked))
    }

    /// Records that the check of a configuration had too little time. The last entry of the record has the hint. `is_known`: whether
    /// `needed` has the time that the check needs.
    pub fn add_short(&mut self, index: usize, reason: String, is_known: bool) -> Result<()> {
        self.needed.add_short(is_known);
        let configuration = Some(index);
        let not_checked = NotChecked { configuration, reason, needs_time: true, ..NotChecked::default() };
        self.journal.take(Entry::NotChecked(not_checked))
    }

    /// Records that the check of a model's measured tokens had too little time.
    pub fn add_short_of_model(&mut self, model: &Model, reason: String, is_known: bool) -> Result<()> {
        self.needed.add_short(is_known);
        let model = Some(model.path.clone());
        let not_checked = NotChecked { model, reason, needs_time: true, ..NotChecked::default() };
        self.journal.take(Entry::NotChecked(not_checked))
    }

    /// Records that no verifier can check a model's outputs. The hint is the command that sets up the default verifier, or
    /// `--verifier` if the user chose another one.
    pub fn add_missing_verifier(&mut self, model: &Model, reason: &str) -> Result<()> {
        let set_up_command = Registry::open().ok().and_then(|registry| {
            let verifier = registry.named(registry.reference()?)?;
            let command = set_up_command(verifier.own_program());
            // Without a checkout, nothing can be built here.
            Some(if registry.root.is_some() {
                command
            } else {
                format!("{command} # in a checkout of the source")
            })
        });
        let hint = set_up_command.filter(|_| self.plan.verification == Verification::Usual);
        let hint = hint.unwrap_or_else(|| "--verifier ENGINE".into());
        self.add_unchecked_model(model, reason.into(), Some(hint))
    }

    pub fn add_unchecked_model(&mut self, model: &Model, reason: String, hint: Option<String>) -> Result<()> {
        let model = Some(model.path.clone());
        let not_checked = NotChecked { model, reason, hint, ..NotChecked::default() };
        self.journal.take(Entry::NotChecked(not_checked))
    }
}

pub(super) fn is_invalid_answer(cause: &Cause) -> bool {
    matches!(cause, Cause::Protocol(_) | Cause::WrongOutput(_))
}

impl Launched {
    /// The log-probability of every id but the first, and the time until the answer.
    pub async fn score(
        &mut self,
        ids: &[u32],
        time_limit: Duration,
    ) -> Result<(Vec<Option<f64>>, Duration), Cause> {
        let (mut scored, took) = self.request_score(ids, false, time_limit).await?;
        Ok((scored.logprobs.swap_remove(0), took))
    }

    /// The log-probability of every id but the first, and the most likely id at each of these positions with its log-probability,
    /// if the engine gives them.
    pub async fn score_with_most_likely(
        &mut self,
        ids: &[u32],
        time_limit: Duration,
    ) -> Result<(Vec<Option<f64>>, Option<Vec<(u32, f64)>>), Cause> {
        let (mut scored, _) = self.request_score(ids, true, time_limit).await?;
        let most_likely = scored.most_likely_ids.zip(scored.most_likely_logprobs);
        let most_likely = most_likely.map(|(mut ids, mut logprobs)| {
            ids.swap_remove(0).into_iter().zip(logprobs.swap_remove(0)).collect()
        });
        Ok((scored.logprobs.swap_remove(0), most_likely))
    }

    async fn request_score(
        &mut self,
        ids: &[u32],
        most_likely: bool,
        time_limit: Duration,
    ) -> Result<(Scored, Duration), Cause> {
        let id = Some(Id::Number(self.next_id()));
        let request = Score { id, sequences: vec![ids.to_vec()], most_likely };
        let deadline = self.conversation.deadlines.answer.min(time_limit);
        let (scored, took) = self.conversation.score(request.clone(), deadline).await?;
        verify_scores(&scored, &request.sequences)?;
        Ok((scored, took))
    }

    /// The greedy continuation of a prompt, past EOS if the engine can ignore it.
    pub async fn continue_prompt(
        &mut self,
        prompt: &[u32],
        max_new_tokens: u32,
        time_limit: Duration,
    ) -> Result<Vec<u32>, Cause> {
        let ignore_eos = self.hello().is_some_and(|hello| hello.capabilities.ignore_eos != IgnoreEos::No);
        let (id, prompt_ids) = (Some(Id::Number(self.next_id())), Some(prompt.to_vec()));
        let request = Generate { id, prompt_ids, max_new_tokens, ignore_eos, ..Generate::default() };
        let deadline = self.conversation.deadlines.answer.min(time_limit);
        let mut answer = self.conversation.generate(request, deadline).await?;
        let prompt_tokens = vec![Some(prompt.len() as u32)];
        self.verify(&answer, Expected { prompt_tokens, max_new_tokens, ignore_eos, ..Expected::default() })?;
        self.conversation.refuse_unrequested()?;
        let mut sequences = answer.generated.iterations.drain(..).flat_map(|it| it.sequences);
        let ids = sequences.next().and_then(|sequence| sequence.output_ids);
        ids.ok_or_else(|| Cause::Unsupported("gives text, not ids".into()))
    }
}

/// The reason why a held-out text is not scored.
pub(super) enum ReasonToSkip {
    /// It exceeds the engine's context.
    Context(String),
    /// There is too little time. The text would take the second value, if that is known.
    Time(String, Option<Duration>),
}

/// The number of tokens scored so far, and the time that a token takes.
#[derive(Debug, Default)]
pub(super) struct Scoring {
    tokens: usize,
    /// The time per token in the slowest text. The first text counts only until the second one is scored, because the
    /// first request may read the weights from the disk or compile kernels.
    per_token: Duration,
    texts: usize,
}

impl Scoring {
    pub fn add(&mut self, tokens: usize, time: Duration) {
        let per_token = time / tokens.max(1) as u32;
        self.per_token = if self.texts < 2 { per_token } else { self.per_token.max(per_token) };
        self.tokens += tokens;
        self.texts += 1;
    }

    /// The reason why a held-out text of this length is not scored; `None` if it is scored.
    pub fn reason_to_skip(
        &self,
        tokens: usize,
        launched: &Launched,
        check_time: CheckTime,
    ) -> Option<ReasonToSkip> {
        let context = launched.facts().and_then(|facts| facts.context_tokens);
        if let Some(context) = context.filter(|&context| (context as usize) < tokens) {
            let so_far = self.so_far();
            let reason = format!(
                "a held-out text of {} exceeds its context of {context}{so_far}",
                plural(tokens, "token")
            );
            return Some(ReasonToSkip::Context(reason));
        }
        if self.tokens == 0 {
            let reason = format!(
                "no log-probabilities were requested: the {} of the check were over",
                estimated_time(check_time.total)
            );
            return check_time.is_over().then_some(ReasonToSkip::Time(reason, None));
        }
        let estimate = self.estimate(tokens);
        let left = check_time.left();
        let is_too_long = check_time.is_over() || estimate > left;
        is_too_long.then(|| {
            let reason = format!(
                "the held-out text of {} was not scored: it would take {}, and the check had {} left",
                plural(with_commas(tokens), "token"),
                estimated_time(estimate),
                estimated_time(left)
            );
            ReasonToSkip::Time(reason, Some(estimate))
        })
    }

    /// The expected time of a text with this many tokens.
    fn estimate(&self, tokens: usize) -> Duration {
        self.per_token.mul_f64(tokens as f64 * ATTENTION_FACTOR)
    }

    pub fn so_far(&self) -> String {
        match self.tokens {
            0 => "; no tokens were scored".into(),
            1 => "; 1 token was scored".into(),
            tokens => format!("; {} tokens were scored", with_commas(tokens)),
        }
    }
}

/// The time limit of an output check in one launch. It includes the start of the engine only in `measured_tokens`.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckTime {
    began: Instant,
    pub total: Duration,
    /// The end of a budget that the user set. No request and no launch continues after it.
    budget_ends: Option<Instant>,
}

impl CheckTime {
    pub fn start(total: Duration, budget_ends: Option<Instant>) -> Self {
        Self { began: Instant::now(), total, budget_ends }
    }

    pub fn left(&self) -> Duration {
        let left = self.total.saturating_sub(self.began.elapsed());
        self.left_of_budget().map_or(left, |of_budget| left.min(of_budget))
    }

    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// The time limit of a request: the remaining time, but at least `MIN_REQUEST_TIME`, unless the run's budget ends earlier.
    pub fn request_limit(&self) -> Duration {
        let left = self.left().max(MIN_REQUEST_TIME);
        whole_ms(self.left_of_budget().map_or(left, |of_budget| left.min(of_budget)))
    }

    /// The time limit of a request that is made even if little time remains. Only the run's budget shortens it.
    pub fn necessary_request_limit(&self) -> Duration {
        whole_ms(self.left_of_budget().map_or(MAX_REQUEST_TIME, |left| left.min(MAX_REQUEST_TIME)))
    }

    /// The time for an engine to end by itself.
    pub fn exit_limit(&self, usual: Duration) -> Duration {
        self.left_of_budget().map_or(usual, |left| left.min(usual))
    }

    /// The rest of the budget that the user set. `None` if the user set none.
    pub fn left_of_budget(&self) -> Option<Duration> {
        self.budget_ends.map(|ends| ends.saturating_duration_since(Instant::now()))
    }

    /// Whether the end of the check explains a missing answer: the engine had less time than the deadline of an answer.
    pub fn explains(&self, cause: &Cause, answer_deadline: Duration) -> bool {
        matches!(cause, Cause::Timeout(limit) if *limit < answer_deadline)
    }

    /// Whether the run's budget is used up. A missing answer then says nothing about the engine.
    pub fn budget_is_over(&self) -> bool {
        self.left_of_budget().is_some_and(|left| left.is_zero())
    }
}

/// Rounds a time limit down to whole milliseconds, because a recorded reason may name it.
fn whole_ms(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_budget_limits_every_request_and_the_exit_of_an_engine() {
        let over = CheckTime::start(HOUR, Some(Instant::now()));
        assert!(over.is_over() && over.budget_is_over());
        let zero = Duration::ZERO;
        assert_eq!(
            [over.left(), over.request_limit(), over.necessary_request_limit(), over.exit_limit(HOUR)],
            [zero; 4]
        );
        let short = CheckTime::start(HOUR, Some(Instant::now() + Duration::from_secs(30)));
        assert!(
            short.left() <= Duration::from_secs(30)
                && short.necessary_request_limit() <= Duration::from_secs(30)
        );
        let long = CheckTime::start(HOUR, Some(Instant::now() + HOUR));
        assert_eq!(long.necessary_request_limit(), MAX_REQUEST_TIME);
    }

    #[test]
    fn a_first_text_that_waits_for_the_disk_does_not_predict_the_time_of_a_longer_one() {
        let [slow, fast] = [19, 1].map(Duration::from_secs);
        let after = |times: &[Duration]| {
            let mut scoring = Scoring::default();
            times.iter().for_each(|&time| scoring.add(100, time));
            scoring.estimate(1000)
        };
        assert_eq!(after(&[slow, fast]), after(&[fast]));
        assert_eq!(after(&[fast, slow, fast]), after(&[slow]), "of the later texts, the slowest one counts");
    }

    #[test]
    fn an_answer_that_misses_only_the_end_of_the_check_is_no_timeout_of_the_engine() {
        let check_time = CheckTime::start(Duration::from_secs(3), None);
        let timeout = |seconds| Cause::Timeout(Duration::from_secs(seconds));
        assert!(check_time.explains(&timeout(3), HOUR) && !check_time.explains(&timeout(3600), HOUR));
        assert!(!check_time.explains(&Cause::Exited("exit code 3".into()), HOUR));
    }

    #[test]
    fn without_a_budget_a_request_has_its_usual_time() {
        let over = CheckTime::start(Duration::ZERO, None);
        assert!(over.is_over() && !over.budget_is_over());
        assert_eq!((over.necessary_request_limit(), over.exit_limit(HOUR)), (MAX_REQUEST_TIME, HOUR));
        assert_eq!((over.request_limit(), over.left_of_budget()), (MIN_REQUEST_TIME, None));
    }
}
