//! A round of a workload with overlapping requests: a window of them, recorded as one sample.

use std::time::Duration;

use protocol::{Generate, Iteration};

use super::launch::{Launched, verify_answer};
use super::verify::{self, Expected};
use crate::analysis::metric::{self, Observation};
use crate::plan::arrivals::{Rate, arrivals};
use crate::plan::latency_limits::LatencyLimits;
use crate::plan::prompts::{PromptKey, Prompts};
use crate::plan::scenario::Kind;
use crate::plan::{Mode, Workload};
use crate::record::{RequestKind, RequestTimes, Sample, SearchStep};
use crate::run::process::{self, Cause, Served, Wishes};

/// A window of requests, which can be made with a launched engine.
pub(super) struct Window<'a> {
    pub prompts: &'a Prompts,
    pub workload: &'a Workload,
    /// The key of its prompts.
    pub key: PromptKey,
    /// The limits for latency of the run.
    pub limits: LatencyLimits,
    /// The longest time without an answer.
    pub longest: Duration,
}

impl Window<'_> {
    /// The prompts of the requests; of a later turn of a conversation, its new text.
    pub fn texts(&self) -> Result<Vec<Vec<u32>>, Cause> {
        self.prompts.batch(self.workload, self.key).map_err(|error| Cause::reported_unsupported(&error))
    }

    /// Makes the requests as the workload says: from users, at a rate, or at the highest rate. Requests arrive at a rate only in measured
    /// windows: others need not last long.
    pub async fn make(&self, launched: &mut Launched) -> Result<Sample, Cause> {
        let shape = &self.workload.shape;
        if let Some(trace) = shape.trace.filter(|_| self.key.kind == RequestKind::Measured) {
            return self.make_with(launched, Wishes::At(trace.arrivals())).await;
        }
        match shape.request_rate.filter(|_| self.key.kind == RequestKind::Measured) {
            Some(Rate::Highest) => self.make_at_highest_rate(launched).await,
            Some(Rate::PerSecond(thousandths)) => {
                self.make_with(launched, self.at_rate(f64::from(thousandths) / 1000.0)).await
            }
            None => self.make_with(launched, Wishes::Users(shape.most_at_once() as usize)).await,
        }
    }

    /// Requests at this rate. Of conversations, fewer arrive, so that the mean rate of all their requests is this one.
    fn at_rate(&self, per_second: f64) -> Wishes {
        let shape = &self.workload.shape;
        let seed = Prompts::arrival_seed(self.workload, self.key);
        let per_second = per_second / f64::from(shape.turns.max(1));
        Wishes::At(arrivals(per_second, shape.burstiness, shape.conversations(), seed))
    }

    /// Searches the highest rate that keeps the limits, by bisection below the rate of answers to requests that are all wanted at once.
    async fn make_at_highest_rate(&self, launched: &mut Launched) -> Result<Sample, Cause> {
        let (requests, users) = (self.workload.shape.sequences(), self.workload.shape.conversations());
        let at_once = self.make_with(launched, Wishes::Users(users as usize)).await?;
        let (mut held, mut failed) = (0.0, f64::from(requests) * 1e9 / at_once.elapsed_ns().max(1) as f64);
        let (mut best, mut slowest, mut search) = (None, None, Vec::new());
        for step in 1..=SEARCH_STEPS {
            // The first step is at the upper bound.
            let rate = if step == 1 { failed } else { 0.5 * (held + failed) };
            // Each step has prompts of its own. A search may be repeated once.
            let repeat = 2 * step;
            let index = Sample::prompt_index(self.key.index, repeat);
            let window = Window { key: PromptKey { index, ..self.key }, ..*self };
            let sample = Sample { repeat, ..window.make_with(launched, window.at_rate(rate)).await? };
            let within_limits = self.share_within_limits(launched, &sample);
            let is_held = within_limits >= ENOUGH;
            search.push(SearchStep { rate, within_limits, held: is_held });
            match is_held {
                true => (held, best) = (rate, Some(sample)),
                false => (failed, slowest) = (rate, Some(sample)),
            }
            if held >= failed {
                break;
            }
        }
        let sample = best.or(slowest).unwrap_or(at_once);
        Ok(Sample { search, ..sample })
    }

    fn share_within_limits(&self, launched: &Launched, sample: &Sample) -> f64 {
        let plain = Observation::without_record(sample, &launched.launch, Kind::Serve, Mode::Warm);
        let observed = Observation { shape: self.workload.shape, latency_limits: self.limits, ..plain };
        metric::share_within_limits(&observed).unwrap_or(0.0)
    }

    /// Makes the requests at the given times, and verifies each answer. The sample has the sequences of all answers, with times since the
    /// start of the window.
    async fn make_with(&self, launched: &mut Launched, wishes: Wishes) -> Result<Sample, Cause> {
        let Self { prompts, workload, longest, .. } = *self;
        let (shape, texts) = (&workload.shape, self.texts()?);
        let deadline = launched.conversation.deadlines.answer.min(longest);
        let cpu_time = launched.cpu_time();
        let Launched { conversation, launch, requests: ids, .. } = launched;
        let launch = &*launch;
        let capabilities = launch.hello.as_ref().map(|hello| &hello.capabilities);
        let engine = capabilities.map_or(1, |it| it.concurrency.max(1)) as usize;
        let mut request = |prompt: &Vec<u32>, index: usize| {
            *ids += 1;
            Generate {
                max_new_tokens: shape.output_length(workload.max_new_tokens, index as u32),
                ..prompts.request(workload, std::slice::from_ref(prompt), capabilities, *ids - 1)
            }
        };
        let turns = shape.turns.max(1) as usize;
        let mut prompts_so_far: Vec<Vec<u32>> = texts.iter().step_by(turns).cloned().collect();
        let firsts = prompts_so_far.iter().enumerate();
        let firsts: Vec<Generate> = firsts.map(|(number, prompt)| request(prompt, number * turns)).collect();
        let next_turn = |number: usize, answered: &[Served]| -> Result<Option<Generate>, Cause> {
            let index = number * turns + answered.len();
            let Some(last) = answered.last().filter(|_| answered.len() < turns) else { return Ok(None) };
            // The next prompt has this answer, so it must be valid.
            verify_answer(launch, &last.answer, self.expected(last))?;
            let mut sequences = last.answer.generated.iterations.iter().flat_map(|it| &it.sequences);
            let prompt = sequences.next().map(|answer| {
                let before = std::mem::take(&mut prompts_so_far[number]);
                prompts.next_turn(&before, answer, &texts[index])
            });
            let next = prompt.as_ref().map(|prompt| request(prompt, index));
            prompts_so_far[number] = prompt.unwrap_or_default();
            Ok(next)
        };
        let before = cpu_time.read();
        let served = process::serve(conversation, firsts, next_turn, wishes, engine, deadline).await;
        let served = served.map_err(|cause| cause.if_too_slow(deadline == longest, longest))?;
        launched.cpu_use_of_request = cpu_time.read().since(before);
        for served in &served {
            launched.verify(&served.answer, self.expected(served))?;
            verify::verify_not_streamed(&served.answer)?;
        }
        launched.conversation.refuse_unrequested()?;
        Ok(sample(served))
    }

    /// The values that an answer must agree with.
    fn expected(&self, served: &Served) -> Expected {
        Expected {
            prompt_tokens: vec![served.prompt_tokens],
            max_new_tokens: served.max_new_tokens,
            ignore_eos: self.workload.ignore_eos,
            ..Expected::default()
        }
    }
}

/// The most windows of a search at a rate. Each one after the first halves the range: six end within a 32nd of the rate of answers to
/// requests that are all wanted at once.
const SEARCH_STEPS: u32 = 6;
/// The share of requests within the limits at which a rate counts as held.
const ENOUGH: f64 = 0.9;

/// The sample of a window. An engine's clock starts when it has read the request, so its times are added to the time of sending.
fn sample(served: Vec<Served>) -> Sample {
    let start_ns = served.iter().map(|it| it.wanted_ns).min().unwrap_or_default();
    let answered_ns = served.iter().map(|it| it.answer.answered_ns).max().unwrap_or_default();
    let end_ns = answered_ns.saturating_sub(start_ns);
    let (mut requests, mut sequences, mut device_memory) = (Vec::new(), Vec::new(), None);
    for Served { wanted_ns, answer, .. } in served {
        let since_start = |ns: u64| ns.saturating_sub(start_ns);
        let sent_ns = since_start(answer.sent_ns);
        let answered_ns = since_start(answer.answered_ns);
        requests.push(RequestTimes { wanted_ns: since_start(wanted_ns), sent_ns, answered_ns });
        device_memory = answer.generated.device_memory.or(device_memory);
        for mut sequence in answer.generated.iterations.into_iter().flat_map(|it| it.sequences) {
            let stamps = sequence.token_ns.iter_mut().flatten();
            let stamps = stamps.chain(sequence.chunks.iter_mut().flatten().map(|chunk| &mut chunk.ns));
            stamps.for_each(|ns| *ns = ns.saturating_add(sent_ns));
            sequences.push(sequence);
        }
    }
    let iteration = Iteration { start_ns: 0, end_ns, sequences };
    Sample { sent_ns: start_ns, answered_ns, iteration, requests, device_memory, ..Sample::default() }
}

#[cfg(test)]
mod tests {
    use protocol::{Generated, Sequence};

    use super::*;
    use crate::run::process::Answer;

    fn served(wanted_ns: u64, sent_ns: u64, answered_ns: u64, stamps: &[u64]) -> Served {
        let sequence = Sequence { token_ns: Some(stamps.to_vec()), ..Sequence::default() };
        let iteration = Iteration { start_ns: 1, end_ns: answered_ns - sent_ns, sequences: vec![sequence] };
        let generated = Generated { iterations: vec![iteration], ..Generated::default() };
        let answer = Answer { generated, tokens: Vec::new(), sent_ns, answered_ns };
        Served { wanted_ns, prompt_tokens: None, max_new_tokens: 2, answer }
    }

    #[test]
    fn a_window_has_the_times_of_all_its_requests_since_its_start() {
        let sample = sample(vec![served(100, 110, 200, &[30, 60]), served(100, 200, 300, &[40, 90])]);
        assert_eq!((sample.sent_ns, sample.answered_ns, sample.iteration.end_ns), (100, 300, 200));
        let stamps: Vec<_> =
            sample.iteration.sequences.iter().map(|it| it.token_ns.clone().unwrap()).collect();
        assert_eq!(stamps, [[40, 70], [140, 190]]);
        let second = RequestTimes { wanted_ns: 0, sent_ns: 100, answered_ns: 200 };
        assert_eq!(sample.requests[1], second);
    }
}
