//! Scores texts before the blocks, for the workloads of kind `Score`. Each configuration scores the same windows once, in a launch
//! of its own: a score has no noise, so a second one would be equal. The model's verifier scores them too, because the drift of the
//! other engines is measured from its values.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::block::within_budget;
use super::case::check_support;
use super::journal::{Event, Journal};
use super::launch::{EXIT_GRACE, Launched, Purpose};
use super::launches::{Launches, end};
use super::request::Requests;
use super::schedule::Schedule;
use crate::plan::axes::PageCache;
use crate::plan::prompts::{self, windows::Windows};
use crate::plan::scenario::Kind;
use crate::plan::{Plan, Role};
use crate::record::{
    Closed, Entry, Failure, FailureKind, RequestKind, Sample, Stage, TextScores, WindowScores,
};
use crate::run::process::{Cause, EngineFailure, LaunchError};
use crate::text::plural;
use stats::StoppedBy;

/// The first window may wait for the disk or for a compiler, so the times of this many windows predict the rest.
const WINDOWS_TO_PREDICT: usize = 2;

pub(super) struct TextScoring<'r, 'a> {
    pub plan: &'a Plan,
    pub journal: &'r mut Journal<'a>,
    pub launches: &'r mut Launches<'a>,
    pub requests: &'r Requests<'a>,
}

/// The result of scoring a text.
enum ScoringEnd {
    Complete,
    /// The budget has no time for all windows.
    Partly {
        windows: usize,
        of: usize,
    },
}

impl TextScoring<'_, '_> {
    pub async fn score_all(&mut self, schedule: &mut Schedule<'_>) -> Result<()> {
        let has_text = |&index: &usize| !schedule.open_cases(index, &[Kind::Score]).is_empty();
        let configurations: Vec<usize> = (0..self.plan.configurations.len()).filter(has_text).collect();
        for (position, &index) in configurations.iter().enumerate() {
            let ends = self.end_of_share(schedule, configurations.len() - position);
            self.score_with(schedule, index, ends).await?;
        }
        let mut closed: Vec<&str> = Vec::new();
        for workload in self.plan.cases.iter().map(|it| &it.workload).filter(|it| it.kind == Kind::Score) {
            if !closed.contains(&workload.label.as_str()) {
                closed.push(&workload.label);
                let (workload, by) = (workload.label.clone(), StoppedBy::Fixed);
                self.journal.take(Entry::Closed(Closed { workload, blocks: 1, by, needs_budget: None }))?;
            }
        }
        Ok(())
    }

    /// The end of a configuration's time, if the user set a budget. If there are blocks too, they have half of the budget.
    fn end_of_share(&self, schedule: &Schedule, configurations: usize) -> Option<Instant> {
        let now = Instant::now();
        let left = schedule.budget_ends()?.saturating_duration_since(now);
        let share = if self.plan.has_blocks() { left / 2 } else { left };
        Some(now + share / configurations as u32)
    }

    async fn score_with(
        &mut self,
        schedule: &mut Schedule<'_>,
        index: usize,
        ends: Option<Instant>,
    ) -> Result<()> {
        let mut idle: Option<Launched> = None;
        for case in schedule.open_cases(index, &[Kind::Score]) {
            let mut launched = match idle.take() {
                Some(launched) => launched,
                None => match self.launch(schedule, index, case, ends).await? {
                    Some(launched) => launched,
                    None => continue,
                },
            };
            let outcome = LaunchError::separate(self.score_text(&mut launched, case, ends).await)?;
            let can_continue = match &outcome {
                Ok(_) => !launched.is_unanswered,
                // An engine that cannot go on sends `failed` and ends. The next text then gets a new launch.
                Err(failure) => {
                    failure.cause.engine_survives()
                        && launched.conversation.process.wait(EXIT_GRACE).await.is_none()
                }
            };
            match can_continue {
                true => idle = Some(launched),
                false => end(self.journal, launched, false).await?,
            }
            match outcome {
                Ok(ScoringEnd::Complete) => schedule.end_case(case),
                Ok(ScoringEnd::Partly { windows, of }) => self.record_no_time(schedule, case, windows, of)?,
                Err(failure) => self.record_failure(schedule, index, Some(case), failure)?,
            }
        }
        match idle {
            Some(launched) => end(self.journal, launched, true).await,
            None => Ok(()),
        }
    }

    /// Launches the engine. `None` if it failed or had no time, which is recorded.
    async fn launch(
        &mut self,
        schedule: &mut Schedule<'_>,
        index: usize,
        case: usize,
        ends: Option<Instant>,
    ) -> Result<Option<Launched>> {
        // A launch of the verifier has no measured samples.
        let purpose =
            if self.is_verifier(index) { Purpose::OutputCheck } else { Purpose::Block(0, PageCache::Kept) };
        let Some(launched) = within_budget(ends, self.launches.launch(self.journal, index, purpose)).await
        else {
            self.record_no_time(schedule, case, 0, self.plan.cases[case].workload.rounds as usize)?;
            return Ok(None);
        };
        match LaunchError::separate(launched)? {
            Ok(launched) => Ok(Some(launched)),
            Err(failure) => self.record_failure(schedule, index, None, failure).map(|()| None),
        }
    }

    /// Scores the windows of a text one after the other, and records them as one sample.
    async fn score_text(
        &mut self,
        launched: &mut Launched,
        case: usize,
        ends: Option<Instant>,
    ) -> Result<ScoringEnd, LaunchError> {
        let (configuration, workload) =
            (&self.plan.configurations[self.plan.cases[case].configuration], &self.plan.cases[case].workload);
        let (label, name) = (configuration.label.clone(), workload.label.clone());
        self.journal.send(Event::CaseStarted { label, workload: name });
        check_support(launched, workload).map_err(|cause| launched.failure(Stage::Load, cause))?;
        let prompts = self.requests.prompts(&configuration.model.path).context("no prompts for the model")?;
        let windows = prompts
            .windows(workload)
            .map_err(|error| launched.failure(Stage::Load, Cause::reported_unsupported(&error)))?;
        let sent_ns = launched.conversation.since_start(Instant::now());
        let Windows { ids, text_bytes, before_text, left_out_bytes } = windows;
        let mut scores = TextScores { windows: Vec::new(), left_out_bytes };
        for (window, &text_bytes) in ids.iter().zip(&text_bytes) {
            let (scored, of) = (scores.windows.len(), ids.len());
            let left = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero() || time_of(&scores, of - scored) > left) {
                return Ok(ScoringEnd::Partly { windows: scored, of });
            }
            let cap = Duration::from_nanos(self.plan.extent.max_request_ns);
            let answer_deadline = launched.conversation.deadlines.answer;
            let answer = launched.score(window, left.map_or(cap, |left| left.min(cap))).await;
            let (logprobs, took) = match answer {
                Ok(answer) => answer,
                Err(Cause::Timeout(_)) if left.is_some_and(|left| left < cap.min(answer_deadline)) => {
                    launched.is_unanswered = true;
                    return Ok(ScoringEnd::Partly { windows: scored, of });
                }
                Err(Cause::Timeout(_)) if cap <= answer_deadline => {
                    return Err(launched.failure(Stage::Sample(scored as u32), Cause::TooSlow(cap)));
                }
                Err(cause) => return Err(launched.failure(Stage::Sample(scored as u32), cause)),
            };
            let logprobs = logprobs.into_iter().skip(before_text).collect();
            scores.windows.push(WindowScores { logprobs, text_bytes, elapsed_ns: took.as_nanos() as u64 });
        }
        let answered_ns = launched.conversation.since_start(Instant::now());
        let (peak_resident_bytes, held) = launched.read_memory(Duration::ZERO).await?;
        let sample = Sample {
            launch: launched.number(self.journal)?,
            case,
            kind: RequestKind::Measured,
            prompt_hash: prompts::hash_of_batch(&ids),
            sent_ns,
            answered_ns,
            scores: Some(scores),
            peak_resident_bytes,
            held,
            ..Sample::default()
        };
        self.requests.record_sample(self.journal, sample)?;
        Ok(ScoringEnd::Complete)
    }

    fn record_failure(
        &mut self,
        schedule: &mut Schedule,
        index: usize,
        case: Option<usize>,
        failure: EngineFailure,
    ) -> Result<()> {
        let failure = failure.into_failure(index, case);
        if !self.is_verifier(index) {
            return schedule.record_failure(self.journal, failure);
        }
        self.warn_of_missing_reference(schedule, index, &format!("{}: {}", failure.kind, failure.message))
    }

    fn record_no_time(
        &mut self,
        schedule: &mut Schedule,
        case: usize,
        windows: usize,
        of: usize,
    ) -> Result<()> {
        let configuration = self.plan.cases[case].configuration;
        let subject = format!("{} ({windows} were scored)", plural(of, "window"));
        let message = format!("no time: {}", self.plan.extent.too_short_for(&subject));
        schedule.needed.add_short(false);
        if self.is_verifier(configuration) {
            return self.warn_of_missing_reference(schedule, configuration, &message);
        }
        let hint = (windows > 0).then(|| format!("--iterations {windows}"));
        let (case, kind) = (Some(case), FailureKind::NoTime);
        let failure = Failure { configuration, case, kind, message, hint, ..Failure::default() };
        schedule.record_failure(self.journal, failure)
    }

    /// The verifier has no row, so its failure is a warning.
    fn warn_of_missing_reference(
        &mut self,
        schedule: &mut Schedule,
        index: usize,
        reason: &str,
    ) -> Result<()> {
        schedule.end_cases_of(index);
        self.journal
            .warn(Some(index), format!("the text was not scored in f32, so there is no drift: {reason}"))
    }

    fn is_verifier(&self, index: usize) -> bool {
        self.plan.configurations[index].role == Some(Role::Verifier)
    }
}

/// The expected time of more windows; zero if the times so far predict nothing.
fn time_of(scores: &TextScores, more: usize) -> Duration {
    let predicting = scores.windows.get(1..).unwrap_or_default();
    if scores.windows.len() < WINDOWS_TO_PREDICT {
        return Duration::ZERO;
    }
    let ns: u64 = predicting.iter().map(|it| it.elapsed_ns).sum();
    Duration::from_nanos(ns / predicting.len() as u64) * more as u32
}
