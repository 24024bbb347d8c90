//! Metrics of overlapping requests. Their times begin when a user wants a request, so the wait for a busy engine counts.

use super::observation::{Observation, per_second, positive_span};
use crate::plan::scenario::Kind;
use crate::record::{RequestTimes, output_tokens};
use protocol::Sequence;

/// The requests of a window with their sequences. Empty for a request that runs alone.
fn requests<'a>(
    observed: &Observation<'a>,
) -> impl Iterator<Item = (&'a RequestTimes, &'a Sequence)> + use<'a> {
    observed.sample.requests.iter().zip(&observed.sample.iteration.sequences)
}

/// The time of each first token since its user wanted the request.
pub fn first_tokens(observed: &Observation) -> Vec<f64> {
    requests(observed)
        .filter_map(|(times, sequence)| positive_span(*stamps(sequence).first()?, times.wanted_ns))
        .collect()
}

/// The time of each whole answer since its user wanted the request.
pub fn totals(observed: &Observation) -> Vec<f64> {
    requests(observed).filter_map(|(times, _)| positive_span(times.answered_ns, times.wanted_ns)).collect()
}

/// The mean time of the tokens after the first one, of each request.
pub fn times_per_token(observed: &Observation) -> Vec<f64> {
    let of_request = |(_, sequence): (&RequestTimes, &Sequence)| {
        let stamps = stamps(sequence);
        let span = positive_span(*stamps.last()?, *stamps.first()?)?;
        let after_first = output_tokens(sequence).saturating_sub(1);
        (after_first > 0).then(|| span / after_first as f64)
    };
    requests(observed).filter_map(of_request).collect()
}

/// Requests per second while all users are served.
pub fn request_rate(observed: &Observation) -> Option<f64> {
    let (from_ns, to_ns) = steady(observed)?;
    let answered =
        requests(observed).filter(|(times, _)| times.answered_ns > from_ns && times.answered_ns <= to_ns);
    per_second(answered.count() as u64, to_ns, from_ns)
}

/// Tokens per second while all users are served.
pub fn served_rate(observed: &Observation) -> Option<f64> {
    let (from_ns, to_ns) = steady(observed)?;
    let is_steady = |ns: &&u64| **ns > from_ns && **ns <= to_ns;
    let tokens = |(times, sequence): (&RequestTimes, &Sequence)| match &sequence.token_ns {
        Some(stamps) => stamps.iter().filter(is_steady).count() as u64,
        // Without a stamp for each token, all tokens of an answer come with it.
        None if is_steady(&&times.answered_ns) => output_tokens(sequence),
        None => 0,
    };
    per_second(requests(observed).map(tokens).sum(), to_ns, from_ns)
}

/// The part of a window in which every user has an open request, without its start: from the first answer until the last request is
/// wanted. If all requests are wanted at the start, the whole window.
fn steady(observed: &Observation) -> Option<(u64, u64)> {
    if observed.kind != Kind::Serve {
        return None;
    }
    let times = || observed.sample.requests.iter();
    let last_wanted_ns = times().map(|it| it.wanted_ns).max()?;
    let first_answered_ns = times().map(|it| it.answered_ns).min()?;
    match first_answered_ns < last_wanted_ns {
        true => Some((first_answered_ns, last_wanted_ns)),
        false => Some((0, times().map(|it| it.answered_ns).max()?)),
    }
}

/// The times of tokens, or of chunks of text.
fn stamps(sequence: &Sequence) -> Vec<u64> {
    match (&sequence.token_ns, &sequence.chunks) {
        (Some(stamps), _) => stamps.clone(),
        (None, Some(chunks)) => chunks.iter().map(|chunk| chunk.ns).collect(),
        (None, None) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Mode;
    use crate::record::{Launch, Sample};
    use protocol::Iteration;

    /// Two users with two requests each. The engine takes one request at a time, and each takes 100 ns: 50 ns for the first token
    /// and 25 ns for each of two others.
    fn window() -> Sample {
        let times = |wanted_ns, sent_ns| RequestTimes { wanted_ns, sent_ns, answered_ns: sent_ns + 100 };
        let requests = vec![times(0, 0), times(0, 100), times(100, 200), times(200, 300)];
        let sequence = |times: &RequestTimes| {
            let stamps = [50, 75, 100].map(|ns| times.sent_ns + ns).to_vec();
            Sequence { output_ids: Some(vec![1; 3]), token_ns: Some(stamps), ..Sequence::default() }
        };
        let sequences = requests.iter().map(sequence).collect();
        let iteration = Iteration { start_ns: 0, end_ns: 400, sequences };
        Sample { requests, iteration, answered_ns: 400, ..Sample::default() }
    }

    #[test]
    fn the_wait_for_a_busy_engine_counts() {
        let (sample, launch) = (window(), Launch::default());
        let observed = Observation::without_record(&sample, &launch, Kind::Serve, Mode::Warm);
        assert_eq!(first_tokens(&observed), [50.0, 150.0, 150.0, 150.0]);
        assert_eq!(totals(&observed), [100.0, 200.0, 200.0, 200.0]);
        assert_eq!(times_per_token(&observed), [25.0; 4]);
    }

    #[test]
    fn rates_are_those_of_the_time_in_which_all_users_are_served() {
        let (sample, launch) = (window(), Launch::default());
        let observed = Observation::without_record(&sample, &launch, Kind::Serve, Mode::Warm);
        // From the first answer at 100 ns until the last request is wanted at 200 ns: one answer of three tokens.
        assert_eq!((request_rate(&observed), served_rate(&observed)), (Some(1e7), Some(3e7)));
        let all_at_once = Sample {
            requests: sample.requests.iter().map(|it| RequestTimes { wanted_ns: 0, ..*it }).collect(),
            ..sample.clone()
        };
        let observed = Observation { sample: &all_at_once, ..observed };
        assert_eq!((request_rate(&observed), served_rate(&observed)), (Some(1e7), Some(3e7)));
        let alone = Observation { kind: Kind::Warm, ..observed };
        assert_eq!((request_rate(&alone), served_rate(&alone)), (None, None));
    }
}
