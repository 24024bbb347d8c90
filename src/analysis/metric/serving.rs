//! Metrics of overlapping requests. Their times begin when a user wants a request, so the wait for a busy engine counts.

use super::observation::{Observation, per_second, positive_span};
use crate::plan::scenario::Kind;
use crate::record::{RequestTimes, output_tokens};
use protocol::Sequence;

/// A request of a window.
#[derive(Clone, Copy)]
struct Request<'a> {
    times: &'a RequestTimes,
    sequence: &'a Sequence,
}

impl Request<'_> {
    fn first_token_ns(&self) -> Option<f64> {
        positive_span(*stamps(self.sequence).first()?, self.times.wanted_ns)
    }

    fn total_ns(&self) -> Option<f64> {
        positive_span(self.times.answered_ns, self.times.wanted_ns)
    }

    /// The mean time of the tokens after the first one.
    fn time_per_token_ns(&self) -> Option<f64> {
        let stamps = stamps(self.sequence);
        let span = positive_span(*stamps.last()?, *stamps.first()?)?;
        let after_first = output_tokens(self.sequence).saturating_sub(1);
        (after_first > 0).then(|| span / after_first as f64)
    }

    /// The longest time between two tokens, or chunks of text.
    fn longest_gap_ns(&self) -> Option<f64> {
        let gaps = stamps(self.sequence).windows(2).map(|it| it[1].saturating_sub(it[0])).max();
        gaps.map(|ns| ns as f64)
    }
}

/// The requests of a window. Empty for a request that runs alone.
fn all<'a>(observed: &Observation<'a>) -> impl Iterator<Item = Request<'a>> + use<'a> {
    let sample = observed.sample;
    sample
        .requests
        .iter()
        .zip(&sample.iteration.sequences)
        .map(|(times, sequence)| Request { times, sequence })
}

/// The requests whose latency counts, in the order of the wishes: those with the usual number of others beside them. The first ones find
/// an idle engine, or all begin at once; beside the last ones, others end. The time at which a request is wanted decides, and not the
/// answer: otherwise late answers would be left out.
fn counted<'a>(observed: &Observation<'a>) -> Vec<Request<'a>> {
    let mut requests: Vec<Request> = all(observed).collect();
    requests.sort_by_key(|it| it.times.wanted_ns);
    let cut = match observed.shape.has_arrivals() {
        true => requests.len() / CUT_PARTS,
        false => observed.shape.concurrency.unwrap_or(0) as usize,
    };
    match requests.len() > 2 * cut {
        true => requests[cut..requests.len() - cut].to_vec(),
        // All requests begin at once.
        false => requests,
    }
}

/// Of arrivals at a rate, one of so many parts is left out at the start, and one at the end.
const CUT_PARTS: usize = 8;

/// The time of each first token since its user wanted the request.
pub fn first_tokens(observed: &Observation) -> Vec<f64> {
    counted(observed).iter().filter_map(Request::first_token_ns).collect()
}

/// The time of each first token since its request was sent.
pub fn first_tokens_since_sent(observed: &Observation) -> Vec<f64> {
    let since_sent = |it: &Request| positive_span(*stamps(it.sequence).first()?, it.times.sent_ns);
    counted(observed).iter().filter_map(since_sent).collect()
}

/// The time of each whole answer since its user wanted the request.
pub fn totals(observed: &Observation) -> Vec<f64> {
    counted(observed).iter().filter_map(Request::total_ns).collect()
}

/// The mean time of the tokens after the first one, of each request.
pub fn times_per_token(observed: &Observation) -> Vec<f64> {
    counted(observed).iter().filter_map(Request::time_per_token_ns).collect()
}

/// Requests per second in the steady part.
pub fn request_rate(observed: &Observation) -> Option<f64> {
    let (from_ns, to_ns) = steady(observed)?;
    let answered = all(observed).filter(|it| it.times.answered_ns > from_ns && it.times.answered_ns <= to_ns);
    per_second(answered.count() as u64, to_ns, from_ns)
}

/// The share of the requests that keep all limits of the run. `None` without limits.
pub fn share_within_limits(observed: &Observation) -> Option<f64> {
    let limits = observed.latency_limits;
    let counted = counted(observed);
    if limits.is_empty() || counted.is_empty() || observed.kind != Kind::Serve {
        return None;
    }
    let keeps = |limit: Option<u64>, value: Option<f64>| {
        // A request without a value, such as one of a single token, keeps the limit.
        limit.zip(value).is_none_or(|(limit, value)| value <= limit as f64)
    };
    let keeps_all = |it: &&Request| {
        keeps(limits.first_token_ns, it.first_token_ns())
            && keeps(limits.inter_token_ns, it.longest_gap_ns())
            && keeps(limits.time_per_token_ns, it.time_per_token_ns())
            && keeps(limits.total_ns, it.total_ns())
    };
    Some(counted.iter().filter(keeps_all).count() as f64 / counted.len() as f64)
}

/// The highest rate that keeps the limits, between the last steps of a search. If no rate was too high, the highest one of the search.
pub fn highest_rate(observed: &Observation) -> Option<f64> {
    let steps = &observed.sample.search;
    let of = |held: bool| steps.iter().filter(move |it| it.held == held).map(|it| it.rate);
    let lowest_failed = of(false).reduce(f64::min);
    let highest_held = of(true).reduce(f64::max);
    match (highest_held, lowest_failed) {
        (Some(held), Some(failed)) => Some(0.5 * (held + failed)),
        (held, _) => held,
    }
}

/// The requests per second that keep all limits of the run.
pub fn goodput(observed: &Observation) -> Option<f64> {
    Some(share_within_limits(observed)? * request_rate(observed)?)
}

/// The mean number of requests without a first token in the steady part: those that wait, and those whose prompt is computed.
pub fn queue(observed: &Observation) -> Option<f64> {
    let (from_ns, to_ns) = steady(observed)?;
    let waited_ns = |it: Request| {
        let until_ns = stamps(it.sequence).first().copied().unwrap_or(it.times.answered_ns);
        until_ns.min(to_ns).saturating_sub(it.times.wanted_ns.max(from_ns))
    };
    let waited_ns: u64 = all(observed).map(waited_ns).sum();
    Some(waited_ns as f64 / positive_span(to_ns, from_ns)?)
}

/// The number of parts of a window in `queue_over_time`.
pub const QUEUE_PARTS: usize = 4;

/// The mean number of requests without a first token, in each part of the whole window: from its start to its last answer. In a window that
/// is too much for the engine, it grows from part to part.
pub fn queue_over_time(observed: &Observation) -> Option<[f64; QUEUE_PARTS]> {
    let requests = || observed.sample.requests.iter();
    let end_ns = requests().map(|it| it.answered_ns).max().filter(|_| observed.kind == Kind::Serve)?;
    let start_ns = requests().map(|it| it.wanted_ns).min()?;
    let part_ns = positive_span(end_ns, start_ns)? / QUEUE_PARTS as f64;
    Some(std::array::from_fn(|part| {
        let from_ns = start_ns as f64 + part as f64 * part_ns;
        let waited_ns = |it: Request| {
            let until_ns = stamps(it.sequence).first().copied().unwrap_or(it.times.answered_ns) as f64;
            (until_ns.min(from_ns + part_ns) - (it.times.wanted_ns as f64).max(from_ns)).max(0.0)
        };
        all(observed).map(waited_ns).sum::<f64>() / part_ns
    }))
}

/// The share of the prompt tokens that came from a prefix cache. `None` if such caches are not allowed, or if an answer has no count.
pub fn cached_share(observed: &Observation) -> Option<f64> {
    let counted = counted(observed);
    let cached =
        counted.iter().map(|it| it.sequence.cached_prompt_tokens.map(u64::from)).sum::<Option<u64>>()?;
    let all: u64 = counted.iter().map(|it| u64::from(it.sequence.prompt_tokens)).sum();
    (observed.shape.prefix_cache && all > 0).then(|| cached as f64 / all as f64)
}

/// Tokens per second in the steady part.
pub fn served_rate(observed: &Observation) -> Option<f64> {
    let (from_ns, to_ns) = steady(observed)?;
    let is_steady = |ns: &&u64| **ns > from_ns && **ns <= to_ns;
    let tokens = |Request { times, sequence }: Request| match &sequence.token_ns {
        Some(stamps) => stamps.iter().filter(is_steady).count() as u64,
        // Without a stamp for each token, all tokens of an answer come with it.
        None if is_steady(&&times.answered_ns) => output_tokens(sequence),
        None => 0,
    };
    per_second(all(observed).map(tokens).sum(), to_ns, from_ns)
}

/// The part of a window without its start and its end. Of users: every user has an open request, from the first answer until the last
/// request is wanted. If all requests are wanted at the start, the whole window. Of arrivals at a rate: the time in which the requests
/// that count are wanted.
fn steady(observed: &Observation) -> Option<(u64, u64)> {
    if observed.kind != Kind::Serve {
        return None;
    }
    let times = || observed.sample.requests.iter();
    let whole = (0, times().map(|it| it.answered_ns).max()?);
    let (from_ns, to_ns) = match observed.shape.has_arrivals() {
        true => {
            let counted = counted(observed);
            (counted.first()?.times.wanted_ns, counted.last()?.times.wanted_ns)
        }
        false => (times().map(|it| it.answered_ns).min()?, times().map(|it| it.wanted_ns).max()?),
    };
    Some(if from_ns < to_ns { (from_ns, to_ns) } else { whole })
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
    use crate::plan::axes::Shape;
    use crate::plan::latency_limits::LatencyLimits;
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
        assert_eq!(first_tokens_since_sent(&observed), [50.0; 4]);
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

    /// Requests that are wanted every 100 ns, and are answered 80 ns later with three tokens, the first after 40 ns.
    fn arrivals(requests: u64) -> Sample {
        let times = |index| RequestTimes {
            wanted_ns: 100 * index,
            sent_ns: 100 * index,
            answered_ns: 100 * index + 80,
        };
        let requests: Vec<RequestTimes> = (0..requests).map(times).collect();
        let sequence = |times: &RequestTimes| {
            let stamps = [40, 50, 80].map(|ns| times.sent_ns + ns).to_vec();
            Sequence { output_ids: Some(vec![1; 3]), token_ns: Some(stamps), ..Sequence::default() }
        };
        let sequences = requests.iter().map(sequence).collect();
        let end_ns = requests.last().map_or(0, |it| it.answered_ns);
        Sample { iteration: Iteration { start_ns: 0, end_ns, sequences }, requests, ..Sample::default() }
    }

    fn with_shape(sample: &Sample, shape: Shape, measure: impl Fn(&Observation) -> Vec<f64>) -> Vec<f64> {
        let launch = Launch::default();
        measure(&Observation {
            shape,
            ..Observation::without_record(sample, &launch, Kind::Serve, Mode::Warm)
        })
    }

    #[test]
    fn the_first_and_the_last_requests_of_a_window_do_not_count_for_latency() {
        let sample = arrivals(16);
        let of_users = |users| Shape { concurrency: Some(users), ..Shape::default() };
        for (users, counted) in [(1, 14), (4, 8), (8, 16), (16, 16)] {
            assert_eq!(with_shape(&sample, of_users(users), totals), vec![80.0; counted], "{users}");
        }
        let at_a_rate = Shape { request_rate: "1".parse().ok(), ..Shape::default() };
        assert_eq!(with_shape(&sample, at_a_rate, totals).len(), 12);
    }

    #[test]
    fn rates_of_arrivals_are_those_of_the_time_in_which_the_counted_requests_are_wanted() {
        let shape = Shape { request_rate: "1".parse().ok(), ..Shape::default() };
        let value = |measure: fn(&Observation) -> Option<f64>| {
            with_shape(&arrivals(16), shape, |it| measure(it).into_iter().collect())[0]
        };
        // From 200 ns to 1,300 ns: one request in 100 ns. Of each, 40 ns pass before the first token.
        assert_eq!((value(request_rate), value(served_rate)), (1e7, 3e7));
        assert!((value(queue) - 0.4).abs() < 1e-9, "{}", value(queue));
        assert_eq!(with_shape(&arrivals(16), shape, first_tokens_since_sent), [40.0; 12]);
    }

    #[test]
    fn the_queue_over_time_shows_whether_an_engine_keeps_up() {
        let launch = Launch::default();
        let over_time = |sample: &Sample| {
            let observed = Observation::without_record(sample, &launch, Kind::Serve, Mode::Warm);
            queue_over_time(&observed).map(|parts| parts.map(|it| (it * 100.0).round() / 100.0))
        };
        // The four quarters have 100 ns. Each request takes 100 ns, and has its first token after 50 ns.
        assert_eq!(over_time(&window()), Some([1.5, 1.5, 1.5, 0.5]));
        let of_one = Sample { requests: window().requests[..1].to_vec(), ..window() };
        assert_eq!(over_time(&of_one), Some([1.0, 1.0, 0.0, 0.0]));
        assert_eq!(over_time(&Sample::default()), None);
    }

    #[test]
    fn the_share_of_cached_tokens_is_that_of_the_counted_requests_where_caches_are_allowed() {
        let mut sample = arrivals(16);
        for (index, sequence) in sample.iteration.sequences.iter_mut().enumerate() {
            // The first two requests do not count.
            (sequence.prompt_tokens, sequence.cached_prompt_tokens) =
                (40, Some(if index < 2 { 0 } else { 30 }));
        }
        let share = |sample: &Sample, prefix_cache| {
            let shape = Shape { request_rate: "1".parse().ok(), prefix_cache, ..Shape::default() };
            with_shape(sample, shape, |it| cached_share(it).into_iter().collect())
        };
        assert_eq!((share(&sample, true), share(&sample, false)), (vec![0.75], vec![]));
        sample.iteration.sequences[7].cached_prompt_tokens = None;
        assert_eq!(share(&sample, true), Vec::<f64>::new());
    }

    #[test]
    fn goodput_has_the_requests_that_keep_every_limit() {
        let (launch, mut sample) = (Launch::default(), arrivals(16));
        // One request of the twelve that count is late, and one of those that do not count.
        for index in [0, 5] {
            sample.requests[index].answered_ns += 15;
        }
        let within = |limits: LatencyLimits| {
            let shape = Shape { request_rate: "1".parse().ok(), ..Shape::default() };
            let plain = Observation::without_record(&sample, &launch, Kind::Serve, Mode::Warm);
            let observed = Observation { shape, latency_limits: limits, ..plain };
            share_within_limits(&observed).map(|share| (share * 12.0).round())
        };
        let none = LatencyLimits::default();
        assert_eq!(within(none), None);
        assert_eq!(within(LatencyLimits { total_ns: Some(80), ..none }), Some(11.0));
        assert_eq!(
            within(LatencyLimits { total_ns: Some(95), first_token_ns: Some(40), ..none }),
            Some(12.0)
        );
        assert_eq!(within(LatencyLimits { inter_token_ns: Some(29), ..none }), Some(0.0));
        assert_eq!(within(LatencyLimits { time_per_token_ns: Some(20), ..none }), Some(12.0));
        assert_eq!(within(LatencyLimits { first_token_ns: Some(39), ..none }), Some(0.0));
    }
}
