//! The values of a single request: its times, and its rates of tokens.

use protocol::{Iteration, Sequence, Stamp};

use super::observation::{Observation, per_second, positive_span};
use super::serving;
use crate::plan::Mode;
use crate::plan::scenario::Kind;
use crate::record::{Sample, output_tokens};

pub fn cold_start(observed: &Observation) -> Vec<f64> {
    let is_first_request =
        observed.mode == Mode::OneShot || (observed.kind == Kind::Launch && observed.sample.index == 0);
    let first_ns = observed.timed_sequences().map(|timed| timed.first_ns).min().filter(|_| is_first_request);
    // The time counts back from the answer: `sent_ns` is too early for a request that waited in the pipe while the engine
    // started.
    let since_first_ns = first_ns.map(|ns| observed.sample.iteration.end_ns.saturating_sub(ns));
    since_first_ns.and_then(|ns| positive_span(observed.sample.answered_ns, ns)).into_iter().collect()
}

pub fn total_of(sample: &Sample, mode: Mode) -> Vec<f64> {
    let from_ns = if mode == Mode::OneShot { 0 } else { sample.sent_ns };
    positive_span(sample.answered_ns, from_ns).into_iter().collect()
}

pub fn warm_run(observed: &Observation) -> Option<f64> {
    let is_warm = observed.cold.is_some_and(|cold| !std::ptr::eq(cold, observed.sample));
    total_of(observed.sample, observed.mode).first().copied().filter(|_| is_warm)
}

/// The bytes of the model's files per second of the cold start.
pub fn load_rate(observed: &Observation) -> Option<f64> {
    let bytes = observed.launch.files_bytes?;
    let ns = cold_start(observed).first().copied().filter(|_| observed.kind == Kind::Launch)?;
    Some(bytes as f64 * 1e9 / ns)
}

pub fn warm_up_gain(observed: &Observation) -> Vec<f64> {
    let cold = observed.cold.and_then(|cold| total_of(cold, observed.mode).first().copied());
    cold.zip(warm_run(observed)).map(|(cold, warm)| 1.0 - warm / cold).into_iter().collect()
}

pub fn query(observed: &Observation) -> Option<f64> {
    let Sample { sent_ns, answered_ns, .. } = observed.sample;
    positive_span(*answered_ns, *sent_ns).filter(|_| observed.kind == Kind::Query)
}

pub fn first_token(observed: &Observation) -> Vec<f64> {
    if observed.kind == Kind::Serve {
        return serving::first_tokens(observed);
    }
    let start_ns = observed.sample.iteration.start_ns;
    observed.timed_sequences().filter_map(|timed| positive_span(timed.first_ns, start_ns)).collect()
}

pub fn inter_token(observed: &Observation) -> Vec<f64> {
    if observed.stamp() != Stamp::Token || observed.may_draft {
        return Vec::new();
    }
    let gaps = |times: &[u64]| -> Vec<f64> {
        times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64).collect()
    };
    let sequences = observed.sample.iteration.sequences.iter();
    let of_sequence = |sequence: &Sequence| match (&sequence.token_ns, &sequence.chunks) {
        (Some(times), _) => gaps(times),
        (None, Some(chunks)) if chunks.iter().all(|chunk| chunk.tokens == Some(1)) => {
            gaps(&chunks.iter().map(|chunk| chunk.ns).collect::<Vec<_>>())
        }
        _ => Vec::new(),
    };
    sequences.flat_map(of_sequence).collect()
}

pub fn prefill_rate(observed: &Observation) -> Vec<f64> {
    let iteration = &observed.sample.iteration;
    let computed = |sequence: &Sequence| {
        u64::from(sequence.prompt_tokens.saturating_sub(sequence.cached_prompt_tokens.unwrap_or(0)))
    };
    let tokens: u64 = iteration.sequences.iter().map(computed).sum();
    let latest_first_ns = observed.timed_sequences().map(|timed| timed.first_ns).max();
    let is_warm = observed.kind.is_warm();
    let rate = latest_first_ns.filter(|_| is_warm).and_then(|ns| per_second(tokens, ns, iteration.start_ns));
    rate.into_iter().collect()
}

/// Whether the metric of the request's rate is `effective` and not `decode`: its scenario compares drafts.
pub fn has_effective_rate(observed: &Observation) -> bool {
    observed.kind == Kind::Speculative
}

pub fn acceptance(observed: &Observation) -> Option<f64> {
    let sequences = &observed.sample.iteration.sequences;
    let sum = |count: fn(&Sequence) -> Option<u32>| {
        sequences.iter().map(|it| count(it).map(u64::from)).sum::<Option<u64>>()
    };
    let (drafted, accepted) = (sum(|it| it.drafted_tokens)?, sum(|it| it.accepted_tokens)?);
    (drafted > 0 && observed.may_draft).then(|| accepted as f64 / drafted as f64)
}

pub fn decode_rate(observed: &Observation) -> Vec<f64> {
    // Prompts of some requests are computed between the tokens of others.
    if observed.kind == Kind::Serve {
        return Vec::new();
    }
    let tokens = observed.timed_sequences().map(|timed| timed.after_first).sum();
    let rate = observed.first_and_last_ns().and_then(|(first, last)| per_second(tokens, last, first));
    rate.into_iter().collect()
}

pub fn throughput(observed: &Observation) -> Vec<f64> {
    let Iteration { start_ns, end_ns, sequences } = &observed.sample.iteration;
    let tokens = sequences.iter().map(output_tokens).sum();
    per_second(tokens, *end_ns, *start_ns).into_iter().collect()
}
