//! Checks the claim about prefix caches by a repeated prompt. Every prompt but that of the pair begins with ids of its own. So a
//! prefix cache can answer only the second request of the pair.

use super::subject::{About, Contradiction, Subject, time};
use crate::analysis::metric;
use crate::plan::Prompt;
use crate::plan::prompts::IDENTICAL_WARM_UPS;
use crate::record::{RequestKind, Sample};
use crate::text::three_digits;
use stats::median;

/// Ids that prompts share by chance or by design: those that a tokenizer puts before every text, and a salt of four.
const SHARED: u32 = 5;
/// The shortest prompt for this check: in a shorter one a cache saves nothing.
const MIN_TOKENS: u32 = 64;
/// The ratio that shows a cache: the time of the fastest other prompt to that of the repeated one.
const MIN_RATIO: f64 = 2.0;
/// With fewer launches, a change of the machine's speed could explain such a ratio.
const FEW_LAUNCHES: usize = 3;
const MIN_RATIO_OF_FEW: f64 = 4.0;
/// Several times the cost of a pause or a cold core for one request.
const MIN_GAIN_NS: f64 = 2e6;

pub fn contradictions(subject: &Subject, _: &[Subject]) -> Vec<Contradiction> {
    from_cache(subject).into_iter().chain(repeated(subject)).collect()
}

/// The engine itself reports cached tokens, for prompts that it had not observed before.
fn from_cache(subject: &Subject) -> Option<Contradiction> {
    let sequences = subject.measured().flat_map(|sample| sample.iteration.sequences.iter());
    let cached =
        sequences.filter_map(|sequence| Some((sequence.cached_prompt_tokens?, sequence.prompt_tokens)));
    let (cached, prompt) = cached.filter(|(cached, _)| *cached > SHARED).max()?;
    let (reported, observed) = (reported_cache(subject), format!("{cached} of {prompt} tokens"));
    let message = format!(
        "states {reported}, and reports {observed} of a measured prompt as cached: its first tokens do not cover whole \
         prompts"
    );
    Some(subject.contradiction(About::PrefixCache, true, reported.into(), observed, &message))
}

fn reported_cache(subject: &Subject) -> &'static str {
    match subject.fact(|facts| facts.prefix_cache) {
        Some(true) => "a prefix cache",
        Some(false) => "no prefix cache",
        None => "nothing about a prefix cache",
    }
}

fn repeated(subject: &Subject) -> Option<Contradiction> {
    let claims = subject.fact(|facts| facts.prefix_cache);
    if claims == Some(true) {
        return None;
    }
    // A prompt that is given as text is the same for every request.
    let salted =
        subject.cases().filter(|&case| matches!(subject.case(case).workload.prompt, Prompt::Tokens(_)));
    let worst = salted.filter_map(|case| Some((case, Pair::of(subject, case)?)));
    let (case, pair) = worst.max_by(|one, other| one.1.times.total_cmp(&other.1.times))?;
    let times = three_digits(pair.times);
    let message = format!(
        "states {}, but answers a repeated prompt {times} times as fast: its first token in {} comes after {} instead of {} \
         (the fastest other prompt of each launch; {})",
        reported_cache(subject),
        subject.case_name(case),
        time(pair.again_ns),
        time(pair.other_ns),
        if pair.launches == 1 { "1 launch".to_string() } else { format!("{} launches", pair.launches) },
    );
    // The measured prompts do not repeat, so the results hold; an explicit denial of a cache does not.
    let observed = format!("{times} times as fast");
    let (is_denied, reported) = (claims == Some(false), reported_cache(subject).into());
    Some(subject.contradiction(About::PrefixCache, is_denied, reported, observed, &message))
}

/// The time to the first token of a repeated prompt, and of the fastest other prompt of the same length.
struct Pair {
    again_ns: f64,
    other_ns: f64,
    times: f64,
    launches: usize,
}

impl Pair {
    /// The pair, where the median launch and more than half of all launches show a cache.
    fn of<'a>(subject: &Subject<'a>, case: usize) -> Option<Self> {
        let first_token = metric::of(metric::MetricId::FIRST_TOKEN);
        let first_ns = |sample: &'a Sample| median(&subject.values.of_request(sample, first_token));
        let pairs: Vec<(f64, f64)> = subject
            .launches
            .keys()
            .filter_map(|launch| {
                let here =
                    || subject.samples.iter().copied().filter(|it| (it.launch, it.case) == (*launch, case));
                let warm_up = |index| here().find(|it| it.kind == RequestKind::Warmup && it.index == index);
                let (first, again) = (warm_up(0)?, warm_up(1)?);
                let long = again.iteration.sequences.iter().all(|it| it.prompt_tokens >= MIN_TOKENS);
                // A discarded request is shorter, and comes after a pause.
                let others = here().filter(|it| match it.kind {
                    RequestKind::Warmup => it.index >= IDENTICAL_WARM_UPS,
                    RequestKind::Measured => true,
                    RequestKind::Discarded => false,
                });
                let others: Vec<f64> = others.filter_map(first_ns).collect();
                let same = long && first.prompt_hash == again.prompt_hash;
                let fastest = others.into_iter().reduce(f64::min);
                Some((first_ns(again)?, fastest?)).filter(|_| same)
            })
            .collect();
        let times = if pairs.len() < FEW_LAUNCHES { MIN_RATIO_OF_FEW } else { MIN_RATIO };
        let faster = |(again, other): &&(f64, f64)| other / again > times && other - again > MIN_GAIN_NS;
        let often = pairs.iter().filter(faster).count() * 2 > pairs.len();
        let (again, other): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let ratios: Vec<f64> = pairs.iter().map(|(again, other)| other / again).collect();
        let times = median(&ratios).filter(|found| often && *found > times)?;
        Some(Self { again_ns: median(&again)?, other_ns: median(&other)?, times, launches: pairs.len() })
    }
}
