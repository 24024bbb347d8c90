//! Compares the times of two kinds of prompts of the same length: windows of text, and dependent prompts. An engine that computes
//! all tokens of a prompt takes as long for both. An engine that computes only a part of the prompts of one kind does not.

use std::collections::BTreeMap;

use super::configuration_data::{About, ConfigurationData, Contradiction, time};
use crate::analysis::metric::{self, MetricId};
use crate::plan::Prompt;
use crate::record::Sample;
use crate::text::{plural, three_digits, with_commas};
use stats::median;

/// The difference of the times that shows a false claim. A smaller one may be due to a change of the machine's speed.
struct Evidence {
    faster: PromptKind,
    /// The least number of launches.
    launches: usize,
    /// The least share of the launches that have at least this ratio.
    share: f64,
    ratio: f64,
    /// The least number of cases, or all if fewer can show it: among many cases, one may differ by chance.
    cases: usize,
}

/// A repeated token may be cheaper for a correct engine, for example with experts (MoE). Text never is. So a pattern must be much
/// faster than text.
const EVIDENCE: [Evidence; 3] = [
    Evidence { faster: PromptKind::Text, launches: 5, share: 1.0, ratio: 1.25, cases: 2 },
    Evidence { faster: PromptKind::Text, launches: 3, share: 0.8, ratio: 3.0, cases: 1 },
    Evidence { faster: PromptKind::Pattern, launches: 3, share: 0.8, ratio: 3.0, cases: 1 },
];
/// The least difference of the times. A shorter one may be due to the caches of the machine.
const MIN_GAIN_NS: f64 = 2e5;

/// The kinds of prompts. The number is the index of the times of the kind.
#[derive(Debug, Clone, Copy)]
enum PromptKind {
    Text = 0,
    Pattern = 1,
}

pub fn contradictions(subject: &ConfigurationData, _: &[ConfigurationData]) -> Vec<Contradiction> {
    let cases: Vec<Fastest> = subject.cases().filter_map(|case| Fastest::of(subject, case)).collect();
    let shown = EVIDENCE.iter().flat_map(|evidence| {
        let showing: Vec<&Fastest> = cases.iter().filter(|it| it.shows(evidence)).collect();
        let is_enough = showing.len() >= evidence.cases.min(cases.len());
        showing.into_iter().filter(move |_| is_enough).map(|it| (it, evidence.faster))
    });
    let worst = shown.max_by(|(a, faster), (b, other)| a.ratio(*faster).total_cmp(&b.ratio(*other)));
    worst.map(|(fastest, faster)| fastest.contradiction(subject, faster)).into_iter().collect()
}

/// The time to the first token of the fastest request of each kind, in each launch of a case. Other load does not affect the
/// fastest one, unless it lasts longer than the requests of a launch.
struct Fastest {
    case: usize,
    tokens: u32,
    by_launch: Vec<[f64; 2]>,
}

impl Fastest {
    /// `None` without a launch that had requests of both kinds.
    fn of(subject: &ConfigurationData, case: usize) -> Option<Self> {
        let Prompt::Tokens(tokens) = subject.case(case).workload.prompt else { return None };
        let first_token = metric::by_id(MetricId::FIRST_TOKEN);
        let mut fastest: BTreeMap<u32, [f64; 2]> = BTreeMap::new();
        // An engine that takes text may make another number of tokens of it.
        let has_length = |it: &&Sample| it.iteration.sequences.iter().all(|it| it.prompt_tokens == tokens);
        for sample in subject.values.samples(case).filter(has_length) {
            let Some(ns) = median(&subject.values.of_request(sample, first_token)) else { continue };
            let kind = if sample.dependent { PromptKind::Pattern } else { PromptKind::Text };
            let of_kind = &mut fastest.entry(sample.launch).or_insert([f64::INFINITY; 2])[kind as usize];
            *of_kind = of_kind.min(ns);
        }
        let by_launch: Vec<[f64; 2]> =
            fastest.into_values().filter(|it| it.iter().all(|ns| ns.is_finite())).collect();
        (!by_launch.is_empty()).then_some(Self { case, tokens, by_launch })
    }

    fn shows(&self, evidence: &Evidence) -> bool {
        let exceeds = |times: &&[f64; 2]| {
            let (fast, slow) = in_order(times, evidence.faster);
            slow / fast > evidence.ratio && slow - fast > MIN_GAIN_NS
        };
        let exceeding = self.by_launch.iter().filter(exceeds).count();
        let launches = self.by_launch.len();
        launches >= evidence.launches && exceeding as f64 >= evidence.share * launches as f64
    }

    /// The median over launches of a value of the faster and the slower time.
    fn middle(&self, faster: PromptKind, value: fn((f64, f64)) -> f64) -> f64 {
        let values: Vec<f64> = self.by_launch.iter().map(|it| value(in_order(it, faster))).collect();
        median(&values).unwrap_or(f64::NAN)
    }

    fn ratio(&self, faster: PromptKind) -> f64 {
        self.middle(faster, |(fast, slow)| slow / fast)
    }

    fn contradiction(&self, subject: &ConfigurationData, faster: PromptKind) -> Contradiction {
        let (fast_kind, slow_kind) = match faster {
            PromptKind::Text => ("text", "a repeated pattern"),
            PromptKind::Pattern => ("a repeated pattern", "text"),
        };
        let tokens = plural(with_commas(self.tokens as usize), "prompt token");
        let ratio = three_digits(self.ratio(faster));
        let message = format!(
            "reports {tokens} in every request of {}, but answers prompts of {fast_kind} {ratio} times as fast as \
             prompts of {slow_kind}. Its first token comes after {} instead of {} ({} launches)",
            subject.case_name(self.case),
            time(self.middle(faster, |(fast, _)| fast)),
            time(self.middle(faster, |(_, slow)| slow)),
            self.by_launch.len()
        );
        let observed = format!("{ratio} times as fast with prompts of {fast_kind}");
        subject.contradiction(About::PromptTokens, tokens, observed, &message)
    }
}

/// The time of the faster kind, and that of the other.
fn in_order(times: &[f64; 2], faster: PromptKind) -> (f64, f64) {
    (times[faster as usize], times[1 - faster as usize])
}
