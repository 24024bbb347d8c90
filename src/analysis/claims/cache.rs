//! Checks the claim about prefix caches by a repeated prompt. All other prompts that the plan draws begin with different ids,
//! so a prefix cache can speed up only the second request with the repeated prompt. Cases that allow prefix caches say nothing.

use super::configuration_data::{About, ConfigurationData, Contradiction, time};
use crate::analysis::metric;
use crate::plan::prompts::IDENTICAL_WARM_UPS;
use crate::plan::{Prompt, Workload};
use crate::record::{RequestKind, Sample};
use crate::text::three_digits;
use stats::median;

/// The largest number of ids at the start that different prompts share: a tokenizer may put BOS before every text, and the four
/// random ids after it (the salt) may be equal by chance.
const MAX_SHARED_TOKENS: u32 = 5;
/// The least number of tokens in the repeated prompt: for a shorter prompt, a cache saves too little time.
const MIN_PROMPT_TOKENS: u32 = 64;
/// The least ratio that shows a cache: the time of the fastest new prompt divided by the time of the repeated prompt.
const MIN_RATIO: f64 = 2.0;
/// The least number of launches for `MIN_RATIO`. Over fewer, a change of the machine's speed could explain such a ratio.
const MIN_LAUNCHES: usize = 3;
/// The least ratio that shows a cache over fewer launches.
const MIN_RATIO_OVER_FEW: f64 = 4.0;
/// The least time that the repeated prompt saves: several times the cost of a pause or of a cold core.
const MIN_GAIN_NS: f64 = 2e6;

pub fn contradictions(subject: &ConfigurationData, _: &[ConfigurationData]) -> Vec<Contradiction> {
    // Only an explicit denial of a cache is a false claim.
    let denied = subject.fact(|facts| facts.prefix_cache) == Some(false);
    let repeat = FasterRepeat::of(subject).filter(|_| denied).map(|it| {
        subject.contradiction(About::PrefixCache, reported_cache(subject).into(), it.observed, &it.message)
    });
    reported_tokens(subject).into_iter().chain(repeat).collect()
}

/// A sentence on a cache about which the engine reports nothing. The measured prompts do not repeat, so a cache does not
/// improve the results.
pub fn remark(subject: &ConfigurationData) -> Option<String> {
    let is_silent = subject.fact(|facts| facts.prefix_cache).is_none();
    FasterRepeat::of(subject).filter(|_| is_silent).map(|it| it.message)
}

/// A contradiction if the engine itself reports cached tokens for a prompt that it had not received earlier.
fn reported_tokens(subject: &ConfigurationData) -> Option<Contradiction> {
    let is_without = |sample: &&Sample| !subject.case(sample.case).workload.shape.prefix_cache;
    let sequences =
        subject.measured().filter(is_without).flat_map(|sample| sample.iteration.sequences.iter());
    let cached =
        sequences.filter_map(|sequence| Some((sequence.cached_prompt_tokens?, sequence.prompt_tokens)));
    let (cached, prompt) = cached.filter(|(cached, _)| *cached > MAX_SHARED_TOKENS).max()?;
    let (reported, observed) = (reported_cache(subject), format!("{cached} of {prompt} tokens"));
    let message = format!(
        "reports {reported} and {observed} of a measured prompt as cached: its times to first token do not \
         include the whole prompt"
    );
    Some(subject.contradiction(About::PrefixCache, reported.into(), observed, &message))
}

/// The claim about a prefix cache, in words.
fn reported_cache(subject: &ConfigurationData) -> &'static str {
    match subject.fact(|facts| facts.prefix_cache) {
        Some(true) => "a prefix cache",
        Some(false) => "no prefix cache",
        None => "nothing about a prefix cache",
    }
}

/// The observation that an engine answers a repeated prompt much faster.
struct FasterRepeat {
    observed: String,
    message: String,
}

impl FasterRepeat {
    fn of(subject: &ConfigurationData) -> Option<Self> {
        // The user's own prompts have no salt, and requests may repeat them, so no other prompt is surely new to a cache.
        let is_salted = |it: &Workload| matches!(it.prompt, Prompt::Tokens(_)) && !it.shape.prefix_cache;
        let salted = subject.cases().filter(|&case| is_salted(&subject.case(case).workload));
        let repeats = salted.filter_map(|case| Some((case, RepeatTimes::of(subject, case)?)));
        let (case, repeat) = repeats.max_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio))?;
        let ratio = three_digits(repeat.ratio);
        let message = format!(
            "reports {}, but answers a repeated prompt {ratio} times as fast. Its first token in {} comes after {} instead of {} \
             (the fastest new prompt of each launch; {})",
            reported_cache(subject),
            subject.case_name(case),
            time(repeat.repeated_ns),
            time(repeat.other_ns),
            if repeat.launches == 1 {
                "1 launch".to_string()
            } else {
                format!("{} launches", repeat.launches)
            },
        );
        Some(Self { observed: format!("{ratio} times as fast"), message })
    }
}

/// The time to the first token of a repeated prompt, and of the fastest request of the same length with a new prompt.
struct RepeatTimes {
    repeated_ns: f64,
    other_ns: f64,
    ratio: f64,
    launches: usize,
}

impl RepeatTimes {
    /// The median times over launches. `None` unless the median ratio and the ratios of more than half of the launches show a
    /// cache.
    fn of<'a>(subject: &ConfigurationData<'a>, case: usize) -> Option<Self> {
        let first_token = metric::by_id(metric::MetricId::FIRST_TOKEN);
        let first_ns = |sample: &'a Sample| median(&subject.values.of_request(sample, first_token));
        let times_by_launch: Vec<(f64, f64)> = subject
            .launches
            .keys()
            .filter_map(|launch| {
                let requests =
                    || subject.samples.iter().copied().filter(|it| (it.launch, it.case) == (*launch, case));
                let warm_up =
                    |index| requests().find(|it| it.kind == RequestKind::Warmup && it.index == index);
                let (first, repeated) = (warm_up(0)?, warm_up(1)?);
                let is_long =
                    repeated.iteration.sequences.iter().all(|it| it.prompt_tokens >= MIN_PROMPT_TOKENS);
                // A discarded request followed a pause of the engine's processes, or other processes disturbed it.
                // The first request with the repeated prompt is new to a cache, too: it shows that the machine was not faster
                // before the other prompts.
                let others = requests().filter(|it| match it.kind {
                    RequestKind::Warmup => it.index == 0 || it.index >= IDENTICAL_WARM_UPS,
                    RequestKind::Measured => true,
                    RequestKind::Discarded => false,
                });
                let others: Vec<f64> = others.filter_map(first_ns).collect();
                let is_long_repeat = is_long && first.prompt_hash == repeated.prompt_hash;
                let fastest = others.into_iter().reduce(f64::min);
                Some((first_ns(repeated)?, fastest?)).filter(|_| is_long_repeat)
            })
            .collect();
        let min_ratio = if times_by_launch.len() < MIN_LAUNCHES { MIN_RATIO_OVER_FEW } else { MIN_RATIO };
        let is_faster =
            |(repeated, other): &&(f64, f64)| other / repeated > min_ratio && other - repeated > MIN_GAIN_NS;
        let most_are_faster = times_by_launch.iter().filter(is_faster).count() * 2 > times_by_launch.len();
        let (repeated, other): (Vec<f64>, Vec<f64>) = times_by_launch.iter().copied().unzip();
        let ratios: Vec<f64> = times_by_launch.iter().map(|(repeated, other)| other / repeated).collect();
        let ratio = median(&ratios).filter(|ratio| most_are_faster && *ratio > min_ratio)?;
        Some(Self {
            repeated_ns: median(&repeated)?,
            other_ns: median(&other)?,
            ratio,
            launches: times_by_launch.len(),
        })
    }
}
