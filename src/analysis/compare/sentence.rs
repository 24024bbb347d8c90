//! A comparison as a sentence: the engine, its verb, the change, the other side and the certainty.

use super::within::Compared;
use crate::analysis::metric::{self, Does, Metric};
use crate::analysis::values::workloads;
use crate::plan::{Order, Plan};
use crate::text;
use stats::{Comparison, NO_DIFFERENCE, Phrase, Verdict};

/// The sentence for a comparison within one record.
pub fn sentence(plan: &Plan, compared: &Compared) -> String {
    let label = |configuration: usize| format!("`{}`", text::line(&plan.configurations[configuration].label));
    let parts = Sentence {
        subject: label(compared.configuration),
        metric: compared.metric,
        case: case(plan, &compared.workload, compared.metric),
        other: Other::Named(label(compared.against)),
    };
    match &compared.result {
        Ok(Comparison { decision, evidence, blocks, .. }) => {
            let phrase = Phrase::of_decision(decision, evidence, compared.metric.quality());
            parts.of(decision.verdict, &phrase, || why_no_verdict(&[plan], phrase.caution, *blocks))
        }
        Err(refusal) => {
            parts.with_message(&format!("no comparison with {}: {refusal}", label(compared.against)))
        }
    }
}

/// The workload's name for a sentence. `None` where it is clear: it is the only one with this headline metric, or the only one.
pub fn case(plan: &Plan, workload: &str, metric: &Metric) -> Option<String> {
    let all = workloads(plan);
    let by_it: Vec<&str> = all
        .iter()
        .filter(|it| metric::headline(plan, it).is_some_and(|headline| headline.id == metric.id))
        .map(|it| it.label.as_str())
        .collect();
    let clear = all.len() == 1 || by_it == [workload];
    (!clear).then(|| text::line(workload))
}

/// The reason why a comparison of these plans has no verdict: `tentative: 3 blocks, no verdict`.
pub fn why_no_verdict(plans: &[&Plan], caution: &str, blocks: usize) -> String {
    if plans.iter().any(|plan| plan.order == Order::Sequential) {
        return "measured sequentially: no verdict".into();
    }
    let s = if blocks == 1 { "" } else { "s" };
    format!("{caution}: {blocks} block{s}, no verdict")
}

/// The parts of a sentence, in their order.
pub struct Sentence {
    pub subject: String,
    pub metric: &'static Metric,
    pub case: Option<String>,
    pub other: Other,
}

/// The other side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Other {
    Named(String),
    /// The same configuration in the base.
    Before,
}

impl Sentence {
    /// The sentence for a verdict, or with the reason `why` there is none.
    pub fn of(&self, verdict: Option<Verdict>, phrase: &Phrase, why: impl Fn() -> String) -> String {
        let (start, Phrase { change, bounds, .. }) = (self.start(), phrase);
        let other = match &self.other {
            Other::Named(other) => other,
            Other::Before => "before",
        };
        match verdict {
            Some(Verdict::Inconclusive) if self.other == Other::Before => {
                format!("{start}: the change is {change} {bounds}")
            }
            Some(Verdict::Inconclusive) => format!("{start}: {change} against {other} {bounds}"),
            Some(Verdict::Same) => {
                let equal = match self.metric.does {
                    Does::Speed(_) => format!("{start} as fast"),
                    Does::Amount(what) => {
                        format!("{} needs as much {what}{}", self.subject, self.in_parentheses())
                    }
                };
                format!("{equal} as {other}, {} {bounds}", change.trim_start_matches("the same "))
            }
            Some(Verdict::Faster | Verdict::Slower) => format!("{} {other} {bounds}", self.changed(change)),
            None if change == NO_DIFFERENCE && self.other == Other::Before => {
                format!("{start}: {change} ({})", why())
            }
            None if change == NO_DIFFERENCE => format!("{start}: {change} against {other} ({})", why()),
            None => format!("{} {other} {bounds} ({})", self.changed(change), why()),
        }
    }

    /// A sentence with another message about it.
    pub fn with_message(&self, what: &str) -> String {
        format!("{}: {what}", self.start())
    }

    /// The sentence up to the other side: `a` decodes 4.1 times as fast as; `a` needs 14 % more memory than.
    fn changed(&self, change: &str) -> String {
        let links = if change.contains(" times as ") { "as" } else { "than" };
        match self.metric.does {
            Does::Speed(_) => format!("{} {change} {links}", self.start()),
            Does::Amount(what) => {
                format!("{} needs {change} {what}{} {links}", self.subject, self.in_parentheses())
            }
        }
    }

    /// The subject with its verb or noun.
    fn start(&self) -> String {
        let case = self.in_parentheses();
        match self.metric.does {
            Does::Speed(verb) => format!("{} {verb}{case}", self.subject),
            Does::Amount(what) => format!("{}, {what} needed{case}", self.subject),
        }
    }

    fn in_parentheses(&self) -> String {
        self.case.as_ref().map_or(String::new(), |case| format!(" ({case})"))
    }
}

#[cfg(test)]
mod tests;
