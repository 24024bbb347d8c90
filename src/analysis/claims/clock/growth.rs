//! Compares a span of requests of different lengths. The time in which a correct engine reads a request and writes its answer
//! does not depend on the length of the request. If an engine stamps a share of the time too early, the span is long in long
//! requests and short in short ones. The shortest span of the other requests is therefore the overhead of this engine on this
//! machine.
//!
//! A busy machine delays answers too, by some milliseconds and not in every request. So a difference counts in two cases: if all
//! requests of every launch show it, or if three of four requests of most launches show more than such a delay.
//! `claims/tests/clock_rates.rs` has the rate of false accusations.

use std::collections::BTreeMap;

use super::super::configuration_data::ConfigurationData;
use super::spans::Length;
use crate::record::RequestKind;
use stats::{median, quantile};

/// The largest accepted growth as a share of the request. A correct engine on a busy machine reached 0.04.
const MAX_SHARE: f64 = 0.1;
/// The largest accepted growth for the check of every request of every launch, in nanoseconds and as a share of the overhead.
/// The overhead of a correct engine differs between cases by up to 0.1 ms, or in Python by 0.6 ms of 2 ms.
const MAX_NS_OF_ALL: f64 = 3e5;
const MAX_SHARE_OF_OVERHEAD: f64 = 0.5;
/// The largest accepted growth for the check of three of four requests of most launches: a delay by a scheduler is rarely longer.
const MAX_NS_OF_MOST: f64 = 3e6;
/// The growth that this check also accepts for each waiting thread of the engine (mean over a request). Beside eight compilers on
/// two cores, one thread waited: long requests were answered 3 to 6 ms late, short requests seldom.
const MAX_NS_OF_WAITING_THREAD: f64 = 1e7;
const MOST_QUANTILE: f64 = 0.25;
/// The least number of requests of a case in a launch, and the least number of launches.
const MIN_REQUESTS: usize = 3;
const MIN_LAUNCHES: usize = 3;

/// A case whose span is longer than the span of other requests. All values are medians over launches.
pub struct Growth {
    pub case: usize,
    /// The span in this case: the shortest one, or the one that three of four requests reach, depending on the check.
    pub span_ns: f64,
    /// The shortest span of the other requests of a launch, by the measure of `span_ns`.
    pub other_ns: f64,
    /// The time of a request.
    pub elapsed_ns: f64,
    /// The largest accepted span.
    pub bound_ns: f64,
}

/// The case with the largest growth, as a share of the time of its requests, among the cases beyond the bound.
pub fn largest(subject: &ConfigurationData, length: Length) -> Option<Growth> {
    let spans = SpansByLaunch::of(subject, length);
    let beyond_bound = subject.cases().filter_map(|case| spans.growth(case));
    let share = |it: &Growth| (it.span_ns - it.other_ns) / it.elapsed_ns;
    beyond_bound.max_by(|a, b| share(a).total_cmp(&share(b)))
}

/// Whether other requests of the same launches show the overhead of the engine, so that `largest` can judge this case.
pub fn is_overhead_known(subject: &ConfigurationData, length: Length, case: usize) -> bool {
    SpansByLaunch::of(subject, length).with_others(case).len() >= MIN_LAUNCHES
}

/// The case of requests, and whether they were discarded: those after a pause are shorter than the others.
type Group = (usize, bool);

struct Request {
    span_ns: f64,
    elapsed_ns: f64,
    /// The time in which threads of the engine were ready but waited for a core.
    waited_ns: f64,
}

/// The spans of the requests of one launch and one group, and their times.
struct GroupSpans {
    shortest_ns: f64,
    /// Three of four requests have at least this span.
    of_most_ns: f64,
    /// The time of the fastest request.
    fastest_ns: f64,
    /// The median time of a request.
    elapsed_ns: f64,
    /// The mean number of the engine's threads that are ready but wait for a core. 0 if the kernel does not count their waiting.
    waiting_threads: f64,
}

/// The spans of a configuration by launch and group.
struct SpansByLaunch(BTreeMap<u32, BTreeMap<Group, GroupSpans>>);

impl SpansByLaunch {
    fn of(subject: &ConfigurationData, length: Length) -> Self {
        let mut requests: BTreeMap<u32, BTreeMap<Group, Vec<Request>>> = BTreeMap::new();
        // A streamed request may be treated in another way than the measured ones.
        for sample in subject.samples.iter().filter(|it| it.late.is_none()) {
            if let Some(span_ns) = length(subject, sample) {
                let group = (sample.case, sample.kind == RequestKind::Discarded);
                let of_group = requests.entry(sample.launch).or_default().entry(group).or_default();
                of_group.push(Request {
                    span_ns: span_ns as f64,
                    elapsed_ns: sample.elapsed_ns() as f64,
                    waited_ns: sample.waited_ns.unwrap_or(0) as f64,
                });
            }
        }
        let by_launch = requests.into_iter().map(|(launch, groups)| {
            let groups =
                groups.into_iter().filter_map(|(group, requests)| Some((group, GroupSpans::of(requests)?)));
            (launch, groups.collect())
        });
        Self(by_launch.collect())
    }

    /// The spans of a case in each launch, with the spans of the other groups of the launch.
    fn with_others(&self, case: usize) -> Vec<(&GroupSpans, Vec<&GroupSpans>)> {
        let launches = self.0.values().filter_map(|groups| {
            let others = groups.iter().filter(|(group, _)| **group != (case, false));
            let others: Vec<&GroupSpans> = others.map(|(_, other)| other).collect();
            Some((groups.get(&(case, false))?, others)).filter(|(_, others)| !others.is_empty())
        });
        launches.collect()
    }

    /// The growth of a case over the other requests, if it exceeds a bound.
    fn growth(&self, case: usize) -> Option<Growth> {
        let launches = self.with_others(case);
        let shortest = |groups: &[&GroupSpans], span: fn(&GroupSpans) -> f64| {
            groups.iter().map(|it| span(it)).fold(f64::INFINITY, f64::min)
        };
        let of_all = launches.iter().map(|(spans, others)| {
            let other_ns = shortest(others, |it| it.shortest_ns);
            let least = MAX_NS_OF_ALL.max(MAX_SHARE_OF_OVERHEAD * other_ns);
            let bound_ns = other_ns + least.max(MAX_SHARE * spans.fastest_ns);
            Growth { case, span_ns: spans.shortest_ns, other_ns, elapsed_ns: spans.elapsed_ns, bound_ns }
        });
        let of_most = launches.iter().map(|(spans, others)| {
            let other_ns = shortest(others, |it| it.of_most_ns);
            let delay_ns = MAX_NS_OF_MOST + MAX_NS_OF_WAITING_THREAD * spans.waiting_threads;
            let bound_ns = other_ns + delay_ns.max(MAX_SHARE * spans.elapsed_ns);
            Growth { case, span_ns: spans.of_most_ns, other_ns, elapsed_ns: spans.elapsed_ns, bound_ns }
        });
        let (of_all, of_most): (Vec<Growth>, Vec<Growth>) = (of_all.collect(), of_most.collect());
        let exceeding = |growths: &[Growth]| growths.iter().filter(|it| it.span_ns > it.bound_ns).count();
        match launches.len() {
            ..MIN_LAUNCHES => None,
            count if exceeding(&of_most) * 2 > count => Growth::median(&of_most),
            count if exceeding(&of_all) == count => Growth::median(&of_all),
            _ => None,
        }
    }
}

impl GroupSpans {
    fn of(requests: Vec<Request>) -> Option<Self> {
        let sum = |value: fn(&Request) -> f64| requests.iter().map(value).sum::<f64>();
        let waiting_threads = sum(|it| it.waited_ns) / sum(|it| it.elapsed_ns);
        let mut spans: Vec<f64> = requests.iter().map(|it| it.span_ns).collect();
        let mut elapsed: Vec<f64> = requests.iter().map(|it| it.elapsed_ns).collect();
        spans.sort_unstable_by(f64::total_cmp);
        elapsed.sort_unstable_by(f64::total_cmp);
        let group = Self {
            shortest_ns: *spans.first()?,
            of_most_ns: quantile(&spans, MOST_QUANTILE)?,
            fastest_ns: *elapsed.first()?,
            elapsed_ns: quantile(&elapsed, 0.5)?,
            waiting_threads,
        };
        (spans.len() >= MIN_REQUESTS).then_some(group)
    }
}

impl Growth {
    fn median(launches: &[Self]) -> Option<Self> {
        let middle = |value: fn(&Self) -> f64| median(&launches.iter().map(value).collect::<Vec<_>>());
        Some(Self {
            case: launches.first()?.case,
            span_ns: middle(|it| it.span_ns)?,
            other_ns: middle(|it| it.other_ns)?,
            elapsed_ns: middle(|it| it.elapsed_ns)?,
            bound_ns: middle(|it| it.bound_ns)?,
        })
    }
}
