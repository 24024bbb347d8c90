//! The changes of a judgement: each is a comparison or a failure, with values, a severity and a sentence.

use std::collections::BTreeMap;
use std::fmt;

use crate::analysis::compare::between::{ComparedRecord, Key, MetricComparison, SMALLEST_THRESHOLD};
use crate::analysis::compare::comparable::shared_workloads;
use crate::analysis::compare::sentence::{Other, Sentence, why_no_verdict, workload_name};
use crate::analysis::compare::within::Compared;
use crate::analysis::metric::{self, METRICS, Metric, MetricId, change_of_perplexity};
use crate::plan::Workload;
use crate::plan::scenario::Kind;
use crate::record::{Failure, FailureKind, RunRecord};
use crate::text;
use stats::{
    FloorSource, Phrase, Severity, SeverityThresholds, SourcedFloor, Verdict, geometric_mean, median,
};

/// The change of one metric of one configuration in one workload.
#[derive(Debug, Clone)]
pub struct Change {
    /// The workload's label.
    pub workload: String,
    pub metric: &'static Metric,
    /// The label in the new record.
    pub configuration: String,
    /// The label in the base.
    pub before: String,
    /// Whether the exit status depends on this change. It does for the workload's headline metric.
    pub gating: bool,
    /// The median of the blocks' medians in the base, in the metric's unit.
    pub base: Option<f64>,
    /// The median of the blocks' medians in the new record, in the metric's unit.
    pub new: Option<f64>,
    pub outcome: Outcome,
    pub severity: Severity,
    pub sentence: String,
}

/// The words for a refusal that is no failure.
pub const REFUSES_IN_BOTH: &str = "refuses as before, as it must";

#[derive(Debug, Clone)]
pub enum Outcome {
    Compared(MetricComparison, Phrase),
    /// The comparison of two perplexities, which have no noise.
    Exact(PerplexityChange),
    /// The configuration was measured in the base and fails in the new record: the most severe change.
    FailsNow(String),
    /// The configuration failed in the base and was measured in the new record.
    FailedBefore(String),
    FailedInBoth(String),
    /// The configuration refused in both records what it must refuse.
    RefusedInBoth(String),
    /// The reason why there is no comparison.
    NotCompared(String),
}

/// The change of the perplexity of the same text, as a share: 0.01 is 1 % more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PerplexityChange(pub f64);

impl PerplexityChange {
    /// A smaller change is no difference.
    pub const THRESHOLD: f64 = 0.001;
    /// A larger worsening is critical.
    const CRITICAL: f64 = 0.01;

    /// The ratio of the base to the new value: above 1 is better.
    pub fn times_as_good(self) -> f64 {
        1.0 / (1.0 + self.0)
    }

    fn verdict(self) -> Verdict {
        match self.0 {
            change if change > Self::THRESHOLD => Verdict::Slower,
            change if change < -Self::THRESHOLD => Verdict::Faster,
            _ => Verdict::Same,
        }
    }

    fn severity(self) -> Severity {
        match self.0 {
            change if change > Self::CRITICAL => Severity::Critical,
            change if change > Self::THRESHOLD => Severity::Warning,
            _ => Severity::Informative,
        }
    }
}

impl fmt::Display for PerplexityChange {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let percent = 100.0 * self.0.abs();
        match self.verdict() {
            Verdict::Slower => write!(f, "{percent:.2} % higher"),
            Verdict::Faster => write!(f, "{percent:.2} % lower"),
            Verdict::Same | Verdict::Inconclusive => f.write_str("the same within 0.1 %"),
        }
    }
}

/// The mean ratio of one configuration to its base, over all its workloads.
#[derive(Debug, Clone, PartialEq)]
pub struct Mean {
    pub configuration: String,
    /// The number of workloads.
    pub workloads: usize,
    /// `None` if a workload has no ratio: leaving out the workload would favour an engine that failed in it.
    pub ratio: Option<f64>,
    /// The number of ratios whose comparison is inconclusive.
    pub inconclusive: usize,
}

impl Outcome {
    pub fn verdict(&self) -> Option<Verdict> {
        match self {
            Self::Compared(found, _) => found.decision.verdict,
            Self::Exact(change) => Some(change.verdict()),
            _ => None,
        }
    }
}

impl Change {
    /// Whether the change is known. A failure in both records leaves it unknown. A new failure need not count here, because it is
    /// critical in any case.
    pub fn is_known(&self) -> bool {
        matches!(self.outcome, Outcome::Compared(..) | Outcome::Exact(_) | Outcome::FailedBefore(_))
    }

    /// Whether nothing was decided: there is no comparison, no verdict, or an inconclusive verdict.
    pub fn is_inconclusive(&self) -> bool {
        match &self.outcome {
            Outcome::Compared(found, _) => {
                matches!(found.decision.verdict, None | Some(Verdict::Inconclusive))
            }
            Outcome::NotCompared(_) => true,
            // A failure is a certain result.
            Outcome::Exact(_)
            | Outcome::FailsNow(_)
            | Outcome::FailedBefore(_)
            | Outcome::FailedInBoth(_)
            | Outcome::RefusedInBoth(_) => false,
        }
    }

    pub fn verdict(&self) -> Option<Verdict> {
        self.outcome.verdict()
    }

    pub fn comparison(&self) -> Option<&MetricComparison> {
        if let Outcome::Compared(comparison, _) = &self.outcome { Some(comparison) } else { None }
    }
}

/// Converts a comparison within a record to the form of a comparison between two records.
pub fn of_within(compared: Compared) -> (Key, Result<MetricComparison, String>) {
    let index = compared.metric.index().unwrap_or(METRICS.len());
    let key = (compared.workload, index, (compared.against, compared.configuration));
    let found = compared.result.map(|it| MetricComparison {
        threshold_source: match it.floor.filter(|_| !it.decision.thresholds.is_smallest()) {
            Some(SourcedFloor { source: FloorSource::Calibration, .. }) => "calibration",
            Some(SourcedFloor { source: FloorSource::Twin, .. }) => "twin",
            None => SMALLEST_THRESHOLD,
        },
        evidence: it.evidence,
        decision: it.decision,
        blocks: (it.blocks, it.blocks),
        p_mann_whitney: it.p.mann_whitney,
    });
    (key, found.map_err(|refusal| refusal.to_string()))
}

/// The changes of all pairs, by workload and metric.
pub fn of_pairs(
    base: &ComparedRecord,
    new: &ComparedRecord,
    pairs: &[(usize, usize)],
    found: &BTreeMap<Key, Result<MetricComparison, String>>,
    thresholds: SeverityThresholds,
) -> Vec<Change> {
    let mut changes = Vec::new();
    let shared = shared_workloads(&base.record.header.plan, &new.record.header.plan);
    for (_, workload) in shared {
        let headline = metric::headline(&new.record.header.plan, workload).map(|it| it.name());
        for (metric_index, metric) in METRICS.iter().enumerate() {
            for &pair in pairs {
                let key = (workload.label.clone(), metric_index, pair);
                let gating = headline == Some(metric.name());
                // Of a scored text, only the perplexity is compared.
                if workload.kind == Kind::Score && !gating {
                    continue;
                }
                let of_pair = Pair { base, new, workload, metric, pair, gating };
                changes.extend(of_pair.change(metric_index, found.get(&key), thresholds));
            }
        }
    }
    changes
}

/// The mean of each configuration over the headline metrics of its workloads.
pub fn means(changes: &[Change]) -> Vec<Mean> {
    let mut changes_of: Vec<(&str, Vec<&Change>)> = Vec::new();
    // A perplexity is no speed.
    for change in changes.iter().filter(|it| it.gating && it.metric.id != MetricId::PERPLEXITY) {
        match changes_of.iter_mut().find(|(configuration, _)| *configuration == change.configuration) {
            Some((_, changes)) => changes.push(change),
            None => changes_of.push((&change.configuration, vec![change])),
        }
    }
    let mean = |(configuration, changes): (&str, Vec<&Change>)| {
        let ratio = |change: &&Change| {
            // A comparison without a verdict has no ratio for the mean.
            let found = change.comparison().filter(|found| found.decision.verdict.is_some());
            found.map(|found| found.evidence.estimate().exp())
        };
        Mean {
            configuration: configuration.into(),
            workloads: changes.len(),
            ratio: geometric_mean(&changes.iter().map(ratio).collect::<Vec<_>>()),
            inconclusive: changes.iter().filter(|it| it.verdict() == Some(Verdict::Inconclusive)).count(),
        }
    };
    // A single workload needs no mean.
    changes_of.into_iter().filter(|(_, changes)| changes.len() > 1).map(mean).collect()
}

/// A pair of configurations, by one metric of one workload.
struct Pair<'a> {
    base: &'a ComparedRecord<'a>,
    new: &'a ComparedRecord<'a>,
    workload: &'a Workload,
    metric: &'static Metric,
    pair: (usize, usize),
    gating: bool,
}

impl Pair<'_> {
    /// The change; `None` for a metric that does not gate and that one side lacks.
    fn change(
        &self,
        metric_index: usize,
        found: Option<&Result<MetricComparison, String>>,
        thresholds: SeverityThresholds,
    ) -> Option<Change> {
        let outcome = self.outcome(found)?;
        let kind = self.metric.kind();
        let severity = match &outcome {
            Outcome::Compared(found, _) => found.decision.verdict.map_or(Severity::Informative, |verdict| {
                Severity::of(verdict, found.evidence.estimate(), kind, thresholds)
            }),
            Outcome::Exact(change) => change.severity(),
            Outcome::FailsNow(_) => Severity::Critical,
            _ => Severity::Informative,
        };
        let label = |record: &RunRecord, it: usize| text::line(&record.header.plan.configurations[it].label);
        let before = label(self.base.record, self.pair.0);
        let configuration = label(self.new.record, self.pair.1);
        Some(Change {
            workload: text::line(&self.workload.label),
            metric: self.metric,
            sentence: self.sentence(&outcome, &before, &configuration),
            before,
            configuration,
            gating: self.gating,
            base: median_of_blocks(self.base, self.workload, metric_index, self.pair.0),
            new: median_of_blocks(self.new, self.workload, metric_index, self.pair.1),
            outcome,
            severity,
        })
    }

    fn outcome(&self, found: Option<&Result<MetricComparison, String>>) -> Option<Outcome> {
        let [base_failure, new_failure] =
            [(self.base, self.pair.0, "the base"), (self.new, self.pair.1, "the new record")].map(
                |(side, configuration, name)| {
                    let failed = failure(side.record, self.workload, configuration);
                    failed.or_else(|| wrong_output(side, configuration, name))
                },
            );
        if self.gating {
            match (base_failure, new_failure) {
                (Some((base_kind, _)), Some((kind, new))) if base_kind == kind => {
                    let is_expected = kind == FailureKind::Refused;
                    return Some(if is_expected {
                        Outcome::RefusedInBoth(new)
                    } else {
                        Outcome::FailedInBoth(new)
                    });
                }
                (Some((_, base)), Some((_, new))) => {
                    return Some(Outcome::NotCompared(format!(
                        "it failed before ({base}) and fails now ({new})"
                    )));
                }
                // A used-up time budget is not a failure of the engine.
                (None, Some((FailureKind::NoTime, new))) => return Some(Outcome::NotCompared(new)),
                (None, Some((_, new))) => return Some(Outcome::FailsNow(new)),
                (Some((_, base)), None) => return Some(Outcome::FailedBefore(base)),
                (None, None) => {}
            }
        }
        if self.workload.kind == Kind::Score {
            return Some(self.exact());
        }
        match found {
            Some(Ok(found)) => {
                let phrase = Phrase::of_decision(&found.decision, &found.evidence, self.metric.kind());
                Some(Outcome::Compared(found.clone(), phrase))
            }
            Some(Err(why)) => Some(Outcome::NotCompared(why.clone())),
            None => self.gating.then(|| Outcome::NotCompared("one of the two runs has no sample".into())),
        }
    }

    /// The change of the perplexity, if both sides scored the same text.
    fn exact(&self) -> Outcome {
        let scored = |side: &ComparedRecord<'_>, configuration: usize| {
            let case = case_of(side.record, self.workload, configuration)?;
            let sample = side.record.measured().find(|it| it.case == case)?;
            Some((sample.recipe().to_string(), sample.scores.clone()?))
        };
        let both = scored(self.base, self.pair.0).zip(scored(self.new, self.pair.1));
        let Some(((base_text, base), (new_text, new))) = both else {
            return Outcome::NotCompared("one of the two runs has no sample".into());
        };
        if base_text != new_text {
            return Outcome::NotCompared("the scored texts differ".into());
        }
        if let Some(change) = change_of_perplexity(&new, &base) {
            return Outcome::Exact(PerplexityChange(change));
        }
        let has_value = |scores| change_of_perplexity(scores, scores).is_some();
        let impossible = || "it finds a token of the text impossible".to_string();
        match (has_value(&base), has_value(&new)) {
            (true, false) => Outcome::FailsNow(impossible()),
            (false, true) => Outcome::FailedBefore(impossible()),
            (false, false) => Outcome::FailedInBoth(impossible()),
            // The change to a far larger perplexity is too large for a number.
            (true, true) if change_of_perplexity(&base, &new).is_some() => {
                Outcome::FailsNow("the perplexity is larger by a factor too large for a number".into())
            }
            (true, true) => Outcome::NotCompared("the numbers of scored tokens differ".into()),
        }
    }

    fn sentence(&self, outcome: &Outcome, before: &str, configuration: &str) -> String {
        // Within one record, `before` is the baseline's label, and the word "before" says enough.
        let needs_no_label = before == configuration || std::ptr::eq(self.base.record, self.new.record);
        let parts = Sentence {
            subject: format!("`{configuration}`"),
            metric: self.metric,
            workload: workload_name(&self.new.record.header.plan, &self.workload.label, self.metric),
            other: if needs_no_label { Other::Before } else { Other::Named(format!("`{before}` before")) },
        };
        match outcome {
            Outcome::Compared(found, phrase) => parts.complete(found.decision.verdict, phrase, || {
                let plans = [self.base, self.new].map(|it| &it.record.header.plan);
                why_no_verdict(&plans, phrase.caution, found.blocks.0.min(found.blocks.1))
            }),
            Outcome::Exact(change) => {
                let than = if change.verdict() == Verdict::Same { "as" } else { "than" };
                let other = if needs_no_label { "before".to_string() } else { format!("`{before}` before") };
                parts.with_message(&format!("{change} {than} {other}"))
            }
            Outcome::FailsNow(how) => {
                parts.with_message(&format!("fails now, but was measured before ({how})"))
            }
            Outcome::FailedBefore(how) => parts.with_message(&format!("valid now, but not before ({how})")),
            Outcome::FailedInBoth(how) => parts.with_message(&format!("fails as before ({how})")),
            Outcome::RefusedInBoth(how) => parts.with_message(&format!("{REFUSES_IN_BOTH} ({how})")),
            Outcome::NotCompared(why) => parts.with_message(&format!("not compared: {why}")),
        }
    }
}

fn median_of_blocks(
    side: &ComparedRecord,
    workload: &Workload,
    metric: usize,
    configuration: usize,
) -> Option<f64> {
    let blocks = side.measured.blocks(side.workload(&workload.label)?, metric, configuration)?;
    let medians =
        blocks.values().filter_map(|rounds| median(&rounds.values().copied().collect::<Vec<f64>>()));
    median(&medians.collect::<Vec<f64>>())
}

/// The failure of an engine with wrong output, whose times prove nothing.
fn wrong_output(side: &ComparedRecord, configuration: usize, name: &str) -> Option<(FailureKind, String)> {
    let why = side.wrong_output(configuration)?;
    Some((FailureKind::WrongOutput, text::line(&format!("wrong output in {name}: {why}"))))
}

fn case_of(record: &RunRecord, workload: &Workload, configuration: usize) -> Option<usize> {
    let mut cases = record.header.plan.cases.iter();
    cases.position(|it| it.configuration == configuration && it.workload.label == workload.label)
}

/// The failure of a case, as its kind and one line.
fn failure(record: &RunRecord, workload: &Workload, configuration: usize) -> Option<(FailureKind, String)> {
    let case = case_of(record, workload, configuration);
    let about =
        |it: &&Failure| it.configuration == configuration && it.case.is_none_or(|it| Some(it) == case);
    let failure = record.failures.iter().find(about)?;
    if failure.kind == FailureKind::NoTime {
        return Some((FailureKind::NoTime, "the time budget ended before it was measured".into()));
    }
    if failure.kind == FailureKind::Refused {
        return Some((FailureKind::Refused, text::line(&failure.message)));
    }
    let when = if failure.when.is_empty() { String::new() } else { format!(" at {}", failure.when) };
    Some((failure.kind.clone(), text::line(&format!("{}{when}: {}", failure.kind, failure.message))))
}
