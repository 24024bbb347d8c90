//! Compares the times of two kinds of prompts of the same length: windows of text, and dependent prompts. An engine that computes
//! all tokens of a prompt takes as long for both. One that recognises the kind, and computes a part of the prompts of one kind,
//! does not.

use std::collections::BTreeMap;

use super::subject::{About, Contradiction, Subject, time};
use crate::analysis::metric::{self, MetricId};
use crate::plan::Prompt;
use crate::text::{three_digits, with_commas};
use stats::median;

/// The ratios of the times of both kinds that show a difference. Otherwise, a change of the machine's speed could explain it.
const EVIDENCE: [Evidence; 2] =
    [Evidence { launches: 5, share: 1.0, ratio: 1.25 }, Evidence { launches: 3, share: 0.8, ratio: 2.0 }];
/// The least difference of the times. A shorter one may be due to the caches of the machine.
const MIN_GAIN_NS: f64 = 2e5;

pub fn contradictions(subject: &Subject, _: &[Subject]) -> Vec<Contradiction> {
    let cases = subject.cases().filter_map(|case| Some((case, Times::of(subject, case)?)));
    let worst = cases.max_by(|(_, a), (_, b)| a.ratio.total_cmp(&b.ratio));
    let contradiction = worst.map(|(case, times)| {
        let tokens = match subject.case(case).workload.prompt {
            Prompt::Tokens(tokens) => with_commas(tokens as usize),
            Prompt::Text(_) => String::from("all"),
        };
        let ratio = three_digits(times.ratio);
        let message = format!(
            "reports {tokens} prompt tokens in every request of {}, but answers prompts of {} {ratio} times as fast as prompts of \
             {}: its first token comes after {} instead of {} ({} launches)",
            subject.case_name(case),
            times.faster,
            times.slower,
            time(times.faster_ns),
            time(times.slower_ns),
            times.launches
        );
        let observed = format!("{ratio} times as fast with prompts of {}", times.faster);
        subject.contradiction(About::PromptTokens, format!("{tokens} prompt tokens"), observed, &message)
    });
    contradiction.into_iter().collect()
}

/// At least this many launches, of which this share has at least this ratio, in the same direction.
struct Evidence {
    launches: usize,
    share: f64,
    ratio: f64,
}

/// The times to the first token of a case, for prompts of the faster and of the slower kind.
struct Times {
    faster: &'static str,
    slower: &'static str,
    faster_ns: f64,
    slower_ns: f64,
    ratio: f64,
    launches: usize,
}

impl Times {
    /// The medians over launches of the fastest request of each kind. The fastest one is not affected by other load, unless this
    /// load lasts longer than the requests of a launch. `None` unless enough launches agree.
    fn of(subject: &Subject, case: usize) -> Option<Self> {
        let first_token = metric::by_id(MetricId::FIRST_TOKEN);
        let mut fastest: BTreeMap<u32, [f64; 2]> = BTreeMap::new();
        for sample in subject.values.samples(case) {
            let Some(ns) = median(&subject.values.of_request(sample, first_token)) else { continue };
            let of_launch = fastest.entry(sample.launch).or_insert([f64::INFINITY; 2]);
            let of_kind = &mut of_launch[usize::from(sample.dependent)];
            *of_kind = of_kind.min(ns);
        }
        let pairs: Vec<[f64; 2]> =
            fastest.into_values().filter(|it| it.iter().all(|ns| ns.is_finite())).collect();
        let kinds = [("text", "a repeated pattern", 0, 1), ("a repeated pattern", "text", 1, 0)];
        kinds.into_iter().find_map(|(faster, slower, fast, slow)| {
            let shows = |evidence: &Evidence| {
                let exceeds =
                    |[fast, slow]: [f64; 2]| slow / fast > evidence.ratio && slow - fast > MIN_GAIN_NS;
                let exceeding = pairs.iter().filter(|pair| exceeds([pair[fast], pair[slow]])).count();
                pairs.len() >= evidence.launches && exceeding as f64 >= evidence.share * pairs.len() as f64
            };
            if !EVIDENCE.iter().any(shows) {
                return None;
            }
            let middle =
                |value: &dyn Fn(&[f64; 2]) -> f64| median(&pairs.iter().map(value).collect::<Vec<_>>());
            Some(Self {
                faster,
                slower,
                faster_ns: middle(&|it| it[fast])?,
                slower_ns: middle(&|it| it[slow])?,
                ratio: middle(&|it| it[slow] / it[fast])?,
                launches: pairs.len(),
            })
        })
    }
}
