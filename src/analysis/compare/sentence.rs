//! Writes a comparison as a sentence: the engine, the verb, the change, the other side and the interval.

use super::within::Compared;
use crate::analysis::metric::{self, Metric, Unit, Wording};
use crate::analysis::values::workloads;
use crate::plan::{Order, Plan};
use crate::text;
use stats::{Comparison, NO_DIFFERENCE, NoRatio, Phrase, Verdict, with_other};

/// The sentence for a comparison within one record.
pub fn sentence(plan: &Plan, compared: &Compared) -> String {
    let label = |configuration: usize| format!("`{}`", text::line(&plan.configurations[configuration].label));
    let parts = Sentence {
        subject: label(compared.configuration),
        metric: compared.metric,
        workload: workload_name(plan, &compared.workload, compared.metric),
        other: Other::Named(label(compared.against)),
    };
    parts.of_result(plan, &compared.result)
}

/// The sentence for a case against another case of the same configuration.
pub fn of_cases(
    plan: &Plan,
    metric: &'static Metric,
    subject: String,
    [case, against]: [&str; 2],
    result: &Result<Comparison, NoRatio>,
) -> String {
    let other = Other::Named(format!("`{against}`"));
    Sentence { subject, metric, workload: Some(case.into()), other }.of_result(plan, result)
}

/// The workload's name for a sentence. `None` if it is the plan's only workload, or the only one with this headline metric, or if
/// it has the name of the metric: `decodes`, not `decodes (decode)`.
pub fn workload_name(plan: &Plan, workload: &str, metric: &Metric) -> Option<String> {
    let all = workloads(plan);
    let with_headline: Vec<&str> = all
        .iter()
        .filter(|it| metric::headline(plan, it).is_some_and(|headline| headline.id == metric.id))
        .map(|it| it.label.as_str())
        .collect();
    let is_clear = all.len() == 1 || with_headline == [workload] || workload == metric.title;
    (!is_clear).then(|| text::line(workload))
}

/// The reason why a comparison has no verdict: `tentative: 3 blocks, no verdict`.
pub fn why_no_verdict(plans: &[&Plan], caution: &str, blocks: usize) -> String {
    if plans.iter().any(|plan| plan.order == Order::Sequential) {
        return "measured sequentially: no verdict".into();
    }
    let plural = if blocks == 1 { "" } else { "s" };
    format!("{caution}: {blocks} block{plural}, no verdict")
}

/// The parts of a sentence, in their order.
pub struct Sentence {
    pub subject: String,
    pub metric: &'static Metric,
    /// The workload's name, where the sentence needs it.
    pub workload: Option<String>,
    pub other: Other,
}

/// The other side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Other {
    Named(String),
    /// The same configuration in the base, called `before`.
    Before,
}

impl Sentence {
    fn of_result(&self, plan: &Plan, result: &Result<Comparison, NoRatio>) -> String {
        match (result, &self.other) {
            (Ok(Comparison { decision, evidence, blocks, .. }), _) => {
                let phrase = Phrase::of_decision(decision, evidence, self.metric.kind());
                self.complete(decision.verdict, &phrase, || why_no_verdict(&[plan], phrase.caution, *blocks))
            }
            (Err(refusal), Other::Named(other)) => {
                self.with_message(&format!("no comparison with {other}: {refusal}"))
            }
            (Err(refusal), Other::Before) => self.with_message(&format!("no comparison: {refusal}")),
        }
    }

    /// The complete sentence for a verdict. Without a verdict, the sentence ends with the reason.
    pub fn complete(&self, verdict: Option<Verdict>, phrase: &Phrase, reason: impl Fn() -> String) -> String {
        let (start, noun, Phrase { change, bounds, .. }) = (self.start(), self.noun(), phrase);
        let other = match &self.other {
            Other::Named(other) => other,
            Other::Before => "before",
        };
        match verdict {
            Some(Verdict::Inconclusive) if self.other == Other::Before => {
                format!("{noun}: the change is {change} {bounds}")
            }
            Some(Verdict::Inconclusive) => format!("{noun}: {change} against {other} {bounds}"),
            Some(Verdict::Same) => {
                let equal = match self.metric.wording {
                    Wording::Speed(_) => format!("{start} as fast"),
                    Wording::Amount(resource) => {
                        format!("{} needs as much {resource}{}", self.subject, self.in_parentheses())
                    }
                };
                format!("{equal} as {other}, {} {bounds}", change.trim_start_matches("the same "))
            }
            Some(Verdict::Faster | Verdict::Slower) => {
                format!("{} {bounds}", self.with_change(change, other))
            }
            None if change == NO_DIFFERENCE => {
                let range = if bounds.is_empty() { String::new() } else { format!(" {bounds}") };
                match self.other {
                    Other::Before => format!("{noun}: {change}{range} ({})", reason()),
                    Other::Named(_) => format!("{noun}: {change} against {other}{range} ({})", reason()),
                }
            }
            None => format!("{} {bounds} ({})", self.with_change(change, other), reason()),
        }
    }

    /// The subject and the metric, then a message in place of a result.
    pub fn with_message(&self, message: &str) -> String {
        format!("{}: {message}", self.noun())
    }

    /// The sentence up to the interval: `a` decodes 4.1x as fast as `b`; `a` needs 4 % more memory than `b`.
    fn with_change(&self, change: &str, other: &str) -> String {
        match self.metric.wording {
            Wording::Speed(_) => format!("{} {}", self.start(), with_other(change, other)),
            Wording::Amount(resource) => {
                let change = format!("{change} {resource}{}", self.in_parentheses());
                format!("{} needs {}", self.subject, with_other(&change, other))
            }
        }
    }

    /// The subject with its metric as a noun, for a text after a colon: `a`, TTFT (ttft 128); `a`, memory needed.
    fn noun(&self) -> String {
        match self.metric.wording {
            Wording::Speed(_) => format!("{}, {}{}", self.subject, self.metric.title, self.in_parentheses()),
            Wording::Amount(_) => self.start(),
        }
    }

    /// The subject with its verb or noun: `a` decodes; `a`, memory needed.
    fn start(&self) -> String {
        let workload = self.in_parentheses();
        match self.metric.wording {
            Wording::Speed(verb) => format!("{} {verb}{workload}", self.subject),
            // The word "needed" does not fit a perplexity.
            Wording::Amount(value) if self.metric.unit == Unit::Perplexity => {
                format!("{}, {value}{workload}", self.subject)
            }
            Wording::Amount(resource) => format!("{}, {resource} needed{workload}", self.subject),
        }
    }

    fn in_parentheses(&self) -> String {
        self.workload.as_ref().map_or(String::new(), |name| format!(" ({name})"))
    }
}

#[cfg(test)]
mod tests;
