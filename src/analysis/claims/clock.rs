//! Compares the engine's times with the orchestrator's clock. Wrong stamps leave a gap: before `start_ns`, after
//! the last token, after `end_ns`, or until a streamed token arrives. If an engine computes all tokens first and stamps them
//! together at the end, there is no gap. But a request for many tokens takes longer than a request for one token, and the
//! difference is the time of the other tokens.
//!
//! A gap that every request has is no overhead if it is longer than any correct engine needs.
//!
//! `spans` measures the gaps, `growth` compares the gaps of requests of different lengths, and `groups` finds tokens that are
//! stamped in groups.

mod groups;
mod growth;
mod spans;

use std::collections::BTreeMap;

use protocol::Stamp;

use super::configuration_data::{About, ConfigurationData, Contradiction, time};
use crate::plan::Mode;
use crate::record::{RequestKind, Sample};
use growth::Growth;
use spans::Length;
use stats::{median, quantile};

/// The time that the clock of a correct engine may leave out: for reading the request, writing the answer, the scheduler.
const ALLOWED_NS: f64 = 20e6;
/// The time that the clock of a correct engine may leave out, as a share of the request. The larger of both bounds counts.
const ALLOWED_SHARE: f64 = 0.05;
/// The quantile of the spans that is compared: a false clock affects every request, a busy machine delays only some.
const SPAN_QUANTILE: f64 = 0.25;
/// The least number of requests. If there are fewer, a busy machine may have delayed all of them.
const MIN_REQUESTS: usize = 3;
/// The least number of requests of a case for the check of tokens that are stamped together. On a busy machine the prefill of each of
/// three requests was delayed, and a correct engine was contradicted.
const MIN_REQUESTS_STAMPED: usize = 9;
/// If each of many requests leaves out more than this share, the clock is false, even if the time is below `ALLOWED_NS`. The time
/// must also be far above that of another engine in the same run. This check is for runs whose requests all have about the same
/// length; for other runs, there is the check in `growth`.
const MIN_SHARE_OF_EACH: f64 = 0.25;
/// The least number of requests for the check of each request.
const MANY_REQUESTS: usize = 20;
/// The accepted missing time is `MIN_NS` plus this many times the shortest missing time of another engine.
const MIN_RATIO_TO_OTHER: f64 = 3.0;
/// The missing time that is accepted even if another engine has none.
const MIN_NS: f64 = 1e6;

/// The largest accepted value of the smallest overhead. A correct engine in Python reached 2.4 ms on a busy machine.
const MAX_LEAST_OVERHEAD_NS: f64 = 8e6;
/// The least number of launches, each with `MIN_REQUESTS` or more, for the check of the smallest overhead.
const MIN_LAUNCHES: usize = 3;

/// The least share of the later tokens' time that lies between the stamps of a correct engine. The noise of a
/// machine does not explain a missing half.
const MIN_STAMPED_SHARE: f64 = 0.5;
/// The least ratio of the later tokens' time to the time of a request for one token. A smaller ratio may be noise of the
/// prefill.
const MIN_RATIO_TO_FIRST: f64 = 0.25;

/// A span of a request that should be close to zero.
struct Span {
    /// The length of the span in nanoseconds.
    ns: Length,
    /// The description of a false claim with these numbers.
    message: fn(&CaseSpan) -> String,
    /// The description of a span that is longer in one case than in others. `None` if the span is known of too few requests.
    growth_message: Option<fn(&str, &Growth) -> String>,
    /// The description of a span that is long in every request. `None` if the span may have this length.
    constant_message: Option<fn(&CaseSpan) -> String>,
}

/// These words must not change, because warnings of older records contain them.
const LEAVES_OUT: &str = "its clock leaves out";
const LATE: &str = "after their stamps";

const SPANS: [Span; 3] = [
    Span {
        ns: spans::left_out,
        message: |observed| {
            let CaseSpan { case, span_ns, elapsed_ns, bound_ns } = observed;
            let (reported, passed) = (time(elapsed_ns - span_ns), time(*elapsed_ns));
            format!(
                "{LEAVES_OUT} {} of a request in {case}: it reports {reported} from `start_ns` to `end_ns`, but its answer \
                 comes after {passed} (in at least three of four requests; bound {})",
                time(*span_ns),
                time(*bound_ns)
            )
        },
        growth_message: Some(|case, growth| {
            format!(
                "{LEAVES_OUT} {} of a request of {} in {case}, but only {} of its other requests: an overhead does not depend on \
                 the length of a request (bound {})",
                time(growth.span_ns),
                time(growth.elapsed_ns),
                time(growth.other_ns),
                time(growth.bound_ns)
            )
        }),
        constant_message: Some(|observed| {
            format!(
                "{LEAVES_OUT} at least {} of every request, also of those of {} in {}: reading a request and writing an answer \
                 does not take so long (bound {})",
                time(observed.span_ns),
                time(observed.elapsed_ns),
                observed.case,
                time(observed.bound_ns)
            )
        }),
    },
    Span {
        ns: spans::after_last,
        message: |observed| {
            format!(
                "its last token is stamped {} before `end_ns` in {}, in requests of {} (in at least three of four requests; \
                 bound {}): its stamps are too early",
                time(observed.span_ns),
                observed.case,
                time(observed.elapsed_ns),
                time(observed.bound_ns)
            )
        },
        growth_message: Some(|case, growth| {
            format!(
                "its last token is stamped {} before `end_ns` in {case}, in requests of {}, but only {} in its other requests \
                 (bound {}): its stamps are too early",
                time(growth.span_ns),
                time(growth.elapsed_ns),
                time(growth.other_ns),
                time(growth.bound_ns)
            )
        }),
        // An engine may work after the last token, for example on the text of the answer.
        constant_message: None,
    },
    Span {
        ns: spans::token_delay,
        message: |observed| {
            format!(
                "tokens arrive {} {LATE} in {} (streamed; bound {}): see `stamp` in its hello",
                time(observed.span_ns),
                observed.case,
                time(observed.bound_ns)
            )
        },
        // At most one request of a case is streamed in each launch.
        growth_message: None,
        constant_message: None,
    },
];

/// The span in the requests of a case, with the bound that it exceeds.
struct CaseSpan {
    case: String,
    span_ns: f64,
    elapsed_ns: f64,
    bound_ns: f64,
}

pub fn contradictions(subject: &ConfigurationData, all: &[ConfigurationData]) -> Vec<Contradiction> {
    // In one-shot mode a request waits in the pipe while its process starts, so it is older than the engine's clock.
    let is_one_shot = subject.record.header.plan.mode == Mode::OneShot;
    let spans = if is_one_shot { &[] } else { SPANS.as_slice() };
    let gaps = spans.iter().filter_map(|span| {
        contradiction(subject, all, span)
            .or_else(|| growing(subject, span.ns, span.growth_message?))
            .or_else(|| constant(subject, all, span.ns, span.constant_message?))
    });
    // A step that checks drafts gives several tokens at once.
    let is_plain = |case: &usize| subject.case(*case).workload.shape.speculation.is_off();
    let stamped_together = subject.cases().filter(is_plain).find_map(|case| stamped_together(subject, case));
    let in_groups = subject.cases().find_map(|case| groups::contradiction(subject, case));
    gaps.chain(stamped_together.or(in_groups)).collect()
}

/// Whether both texts say that the clock leaves time out, or both say that tokens come late.
pub fn is_repeated(contradiction: &str, warning: &str) -> bool {
    [LEAVES_OUT, LATE].iter().any(|words| contradiction.contains(words) && warning.contains(words))
}

/// The false claim for the case in which the span is the largest share of a request.
fn contradiction(
    subject: &ConfigurationData,
    all: &[ConfigurationData],
    span: &Span,
) -> Option<Contradiction> {
    let excessive = subject.cases().filter_map(|case| excessive_span(subject, all, span, case));
    let share = |observed: &CaseSpan| observed.span_ns / observed.elapsed_ns;
    let observed = excessive.max_by(|a, b| share(a).total_cmp(&share(b)))?;
    let reported = time(observed.elapsed_ns - observed.span_ns);
    let (elapsed, message) = (time(observed.elapsed_ns), (span.message)(&observed));
    Some(subject.contradiction(About::Clock, reported, elapsed, &message))
}

/// The false claim for the case in which the span is longer than in other requests.
fn growing(
    subject: &ConfigurationData,
    length: Length,
    message: fn(&str, &Growth) -> String,
) -> Option<Contradiction> {
    let growth = growth::largest(subject, length)?;
    let reported = time(growth.elapsed_ns - growth.span_ns);
    let message = message(&subject.case_name(growth.case), &growth);
    Some(subject.contradiction(About::Clock, reported, time(growth.elapsed_ns), &message))
}

/// The false claim of an engine whose span is too long even in the request of each launch that has the shortest span.
fn constant(
    subject: &ConfigurationData,
    all: &[ConfigurationData],
    length: Length,
    message: fn(&CaseSpan) -> String,
) -> Option<Contradiction> {
    let span_ns = least_of_launches(subject, length)?;
    // If the machine delays other engines too, the delay is not the engine's.
    let others = all.iter().filter(|other| other.configuration.engine != subject.configuration.engine);
    let other_ns = others.filter_map(|other| least_of_launches(other, length)).fold(0.0, f64::max);
    let usual_ns = MAX_LEAST_OVERHEAD_NS.max(MIN_RATIO_TO_OTHER * other_ns);
    // A constant span distorts the shortest requests most.
    let times = subject.cases().filter_map(|case| {
        let elapsed: Vec<f64> = subject.values.samples(case).map(|it| it.elapsed_ns() as f64).collect();
        Some((case, median(&elapsed)?))
    });
    let (case, elapsed_ns) = times.min_by(|a, b| a.1.total_cmp(&b.1))?;
    let bound_ns = usual_ns.max(ALLOWED_SHARE * elapsed_ns);
    if span_ns <= bound_ns {
        return None;
    }
    let observed = CaseSpan { case: subject.case_name(case), span_ns, elapsed_ns, bound_ns };
    let reported = time(elapsed_ns - span_ns);
    Some(subject.contradiction(About::Clock, reported, time(elapsed_ns), &message(&observed)))
}

/// The shortest span of all requests. A busy machine delays only some of them. `None` if too few launches have enough requests.
fn least_of_launches(subject: &ConfigurationData, length: Length) -> Option<f64> {
    let mut by_launch: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    // A streamed request may be treated in another way than the measured ones.
    for sample in subject.samples.iter().filter(|it| it.late.is_none()) {
        by_launch.entry(sample.launch).or_default().extend(length(subject, sample));
    }
    let launches: Vec<Vec<u64>> = by_launch.into_values().filter(|it| it.len() >= MIN_REQUESTS).collect();
    let least = launches.iter().flatten().min().map(|&ns| ns as f64);
    least.filter(|_| launches.len() >= MIN_LAUNCHES)
}

/// The span of a case, if it exceeds its bound.
fn excessive_span(
    subject: &ConfigurationData,
    all: &[ConfigurationData],
    span: &Span,
    case: usize,
) -> Option<CaseSpan> {
    let spans = Spans::of(subject, span, case).filter(|spans| spans.requests >= MIN_REQUESTS)?;
    let allowed = ALLOWED_NS.max(ALLOWED_SHARE * spans.elapsed_ns);
    let bound = spans.bound_of_each(subject, all, span, case);
    let bound_ns = if spans.span_ns > allowed { allowed } else { bound? };
    let Spans { span_ns, elapsed_ns, .. } = spans;
    Some(CaseSpan { case: subject.case_name(case), span_ns, elapsed_ns, bound_ns })
}

/// The spans of the requests of a case, in all launches.
struct Spans {
    requests: usize,
    /// The quantile of the spans: three of four requests have a span of at least this length.
    span_ns: f64,
    /// The shortest span.
    least_ns: f64,
    /// The smallest share of a span in its request.
    least_share: f64,
    /// The median time of a request.
    elapsed_ns: f64,
}

impl Spans {
    fn of(subject: &ConfigurationData, span: &Span, case: usize) -> Option<Self> {
        // Discarded requests do not count: they follow a pause and are shorter than the others, or other processes disturbed
        // them.
        let requests =
            subject.samples.iter().filter(|it| it.case == case && it.kind != RequestKind::Discarded);
        let spans_and_times =
            requests.filter_map(|it| Some(((span.ns)(subject, it)? as f64, it.elapsed_ns() as f64)));
        let (mut spans, elapsed): (Vec<f64>, Vec<f64>) = spans_and_times.unzip();
        let shares = spans.iter().zip(&elapsed).map(|(span, elapsed)| span / elapsed);
        let least_share = shares.fold(f64::INFINITY, f64::min);
        spans.sort_unstable_by(f64::total_cmp);
        Some(Self {
            requests: spans.len(),
            span_ns: quantile(&spans, SPAN_QUANTILE)?,
            least_ns: *spans.first()?,
            least_share,
            elapsed_ns: median(&elapsed)?,
        })
    }

    /// The bound of the check of each request. `None` if some request does not exceed it, or if the check does not apply.
    fn bound_of_each(
        &self,
        subject: &ConfigurationData,
        all: &[ConfigurationData],
        span: &Span,
        case: usize,
    ) -> Option<f64> {
        if self.requests < MANY_REQUESTS || self.least_share <= MIN_SHARE_OF_EACH {
            return None;
        }
        // Another engine may have a smaller overhead. So its spans are used only if no other request shows the overhead of this
        // engine.
        if growth::is_overhead_known(subject, span.ns, case) {
            return None;
        }
        let label = &subject.case(case).workload.label;
        let others = all.iter().filter(|other| other.configuration.engine != subject.configuration.engine);
        let other_spans = others.filter_map(|other| {
            let mut cases = other.cases();
            let case = cases.find(|&it| other.case(it).workload.label == *label)?;
            Spans::of(other, span, case).filter(|spans| spans.requests >= MANY_REQUESTS)
        });
        let least = other_spans.map(|spans| spans.least_ns).reduce(f64::min)?;
        let bound = (MIN_SHARE_OF_EACH * self.elapsed_ns).max(MIN_NS + MIN_RATIO_TO_OTHER * least);
        (self.least_ns > bound).then_some(bound)
    }
}

/// The false claim of an engine whose stamps of a case lie too close together.
fn stamped_together(subject: &ConfigurationData, case: usize) -> Option<Contradiction> {
    let stamp = subject.launches.values().find_map(|launch| launch.hello.as_ref()).map(|hello| hello.stamp);
    let samples: Vec<&Sample> = subject.values.samples(case).collect();
    let passes = subject.record.passes.iter();
    let passes = passes.filter(|pass| pass.case == case && subject.launches.contains_key(&pass.launch));
    let one_token_ns = passes.filter_map(|pass| pass.one_token_ns).min()? as f64;
    // The shortest request counts, for many tokens as for one token.
    let shortest = samples.iter().min_by_key(|sample| sample.elapsed_ns())?;
    let later_tokens_ns = shortest.elapsed_ns() as f64 - one_token_ns;
    let stamped_ns = stamped_ns(shortest)? as f64;
    // A busy machine may delay every request a little, and may delay even the shortest of few requests.
    let is_long_enough = samples.len() >= MIN_REQUESTS_STAMPED
        && later_tokens_ns > ALLOWED_NS.max(MIN_RATIO_TO_FIRST * one_token_ns);
    if stamp == Some(Stamp::End) || !is_long_enough || stamped_ns >= MIN_STAMPED_SHARE * later_tokens_ns {
        return None;
    }
    let (reported, observed) = (time(stamped_ns), time(later_tokens_ns));
    let message = format!(
        "stamps its tokens in {} within {reported}, but a request for them takes {observed} longer than a request for one \
         token: the stamps are wrong",
        subject.case_name(case)
    );
    Some(subject.contradiction(About::Clock, reported, observed, &message))
}

/// The time from the first token of a sample to its last token, by the engine's stamps.
fn stamped_ns(sample: &Sample) -> Option<u64> {
    let [sequence] = sample.iteration.sequences.as_slice() else { return None };
    let times = sequence.token_ns.as_deref()?;
    times.last()?.checked_sub(*times.first()?)
}
