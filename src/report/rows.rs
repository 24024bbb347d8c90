//! The rows of a report. A row is a case with its engine, and with its results or its failure. Every text is one line, safe to
//! print; only a hint may have several lines.

use std::fmt;

use serde::{Serialize, Serializer};

use super::resources::Resources;
use super::wall_time::WallTime;
use crate::analysis::metric::growth::GrowthPerMinute;
use crate::analysis::metric::limits::Key;
use crate::analysis::metric::serving::QUEUE_PARTS;
use crate::analysis::metric::share::{Absent, StatedPeak};
use crate::analysis::metric::{METRICS, Metric, MetricId, Shown};
use crate::machine::Device;
use crate::record::{FailureKind, Stage, TextScores, WarmUp};
use stats::{StoppedBy, Summary};

/// A larger ratio of a row's largest launch median to its smallest is probably caused by the machine, not by the engine.
const MAX_NORMAL_SPREAD: f64 = 2.0;

/// One case: an engine configuration with one workload.
#[derive(Debug, Clone)]
pub struct Row {
    pub case: Case,
    pub engine: Engine,
    pub launches: usize,
    /// The number of measured requests of this case.
    pub samples: usize,
    pub summaries: Vec<MetricSummary>,
    /// The machine's limit for the headline, or the reason why there is none. `Ok(None)` if neither is known.
    pub limit: Result<Option<Key>, Absent>,
    /// The peak that a data sheet states for the headline, and the name of its GPU, if they are known.
    pub stated_peak: Option<StatedPeak>,
    /// The label of the row's reference; the row's own label where the row is the reference.
    pub reference: Option<String>,
    /// One for each launch that had a warm-up.
    pub warm_ups: Vec<WarmUp>,
    pub wall_time: Option<WallTime>,
    pub resources: Option<Resources>,
    /// The scored text, if the workload scores a text.
    pub scored_text: Option<ScoredText>,
    /// How the engine changed, if it was in use for a set time.
    pub stress: Option<Stress>,
    /// The mean number of requests without a first token in each quarter of a round, if requests overlap. The mean over all rounds.
    pub queue_over_time: Option<[f64; QUEUE_PARTS]>,
    pub failure: Option<FailureSummary>,
    /// Whether an observation contradicts a claim of the engine, so that its results may look too good. Such a row has
    /// no rank.
    pub contradicted: bool,
}

/// The scored part of a text. JSON has these names: add, never rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ScoredText {
    pub windows: usize,
    pub tokens: usize,
    /// The tokens to which the engine gave the probability 0. With one such token, the loss is infinite, so the text has no value for it.
    pub impossible_tokens: usize,
    pub bytes: u64,
    /// The bytes after the last window.
    pub left_out_bytes: u64,
}

impl From<&TextScores> for ScoredText {
    fn from(scores: &TextScores) -> Self {
        Self {
            windows: scores.windows.len(),
            tokens: scores.logprobs().count(),
            impossible_tokens: scores.logprobs().filter(|it| it.is_none()).count(),
            bytes: scores.text_bytes(),
            left_out_bytes: scores.left_out_bytes,
        }
    }
}

/// An engine that was in use for a set time. JSON has these names: add, never rename.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Stress {
    /// The time of its requests, warm-ups included.
    pub used_ns: u64,
    /// The measured requests that have an answer.
    pub requests: usize,
    /// The requests that failed.
    pub errors: usize,
    /// In each minute of requests, in the second half of the time: as a share of the latency. Null with too few requests.
    pub latency: Option<GrowthPerMinute>,
    /// In bytes of anonymous memory.
    pub memory: Option<GrowthPerMinute>,
}

impl Stress {
    /// The growth that a metric states.
    pub fn growth(&self, metric: MetricId) -> Option<GrowthPerMinute> {
        match metric {
            MetricId::LATENCY_GROWTH => self.latency,
            MetricId::MEMORY_GROWTH => self.memory,
            _ => None,
        }
    }
}

/// The planned workload of a row.
#[derive(Debug, Clone)]
pub struct Case {
    pub label: String,
    pub scenario: String,
    pub headline: Option<&'static Metric>,
    /// The engine scores a text, and generates nothing.
    pub scores_text: bool,
    /// Its requests allow prefix caches.
    pub prefix_cache: bool,
    /// Measured requests in each block.
    pub rounds: u32,
    /// The planned warm-up requests; `None` where the run itself decided when each warm-up ended.
    pub warmup: Option<u32>,
}

/// A configuration with the facts that it reported. A fact that it did not report is absent. JSON has these names: add, never
/// rename.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Engine {
    /// Unique in the plan. Progress lines, notes and hints use this name.
    pub label: String,
    /// The engine and its preset. A table uses this name if it has a column for each option that varies.
    #[serde(skip)]
    pub name: String,
    #[serde(rename = "name")]
    pub engine: String,
    pub model: String,
    pub version: Option<String>,
    pub device: Option<Device>,
    pub dtype: Option<Dtype>,
    pub threads: Option<u32>,
    #[serde(skip)]
    pub requested: Requested,
}

/// A dtype as text: the dtype of the weights, or `bf16/f32` where the engine computes in another dtype.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dtype {
    pub weights: String,
    /// The dtype of the computation, if it differs from the dtype of the weights.
    pub compute: Option<String>,
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compute = self.compute.iter().map(|compute| format!("/{compute}"));
        write!(f, "{}{}", self.weights, compute.collect::<String>())
    }
}

impl Serialize for Dtype {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The options that the plan requested. An option that was left to the engine is absent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Requested {
    pub device: Option<Device>,
    pub dtype: Option<String>,
    pub threads: Option<u32>,
}

#[derive(Debug, Clone)]
pub struct MetricSummary {
    pub metric: &'static Metric,
    pub summary: Summary,
}

/// A configuration that failed as a whole.
#[derive(Debug, Clone, Serialize)]
pub struct FailedConfiguration {
    pub engine: Engine,
    pub failure: FailureSummary,
}

/// The reason why a case or a configuration has no values. JSON has these names: add, never rename.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FailureSummary {
    pub kind: FailureKind,
    pub when: String,
    pub message: String,
    /// A remedy in each line; the first can be pasted.
    pub hint: Option<String>,
    pub stderr: Vec<String>,
    /// The number of failures, at most one in each launch, except in `stress`. The other fields describe the first.
    pub times: usize,
}

/// How far a workload was measured: its blocks, and the reason for the end. JSON has these names: add, never rename.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MeasuredWorkload {
    /// The workload's label.
    pub workload: String,
    pub scenario: String,
    pub blocks: u32,
    /// The fewest and the most rounds of a case in one block; `None` where nothing was measured.
    #[serde(skip)]
    pub rounds: Option<(usize, usize)>,
    /// `None` where the run ended before the workload was complete.
    pub stopped_by: Option<StoppedBy>,
    /// If the budget ended before the blocks that a verdict needs: a sufficient budget.
    pub needs_budget: Option<String>,
}

/// The values of each key, in the order in which the keys first appear.
pub fn group_by_key<K: PartialEq, V>(pairs: impl Iterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in pairs {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

/// A line about the cases whose requests allow prefix caches. Others allow none.
pub fn with_prefix_caches(rows: &[Row]) -> Option<String> {
    let cases = rows.iter().filter(|row| row.case.prefix_cache).map(|row| (row.case.label.as_str(), ()));
    let cases: Vec<&str> = group_by_key(cases).into_iter().map(|(case, _)| case).collect();
    (!cases.is_empty()).then(|| format!("prefix caches are allowed in: {}", cases.join(", ")))
}

impl Row {
    pub fn is_reference(&self) -> bool {
        self.reference.as_ref() == Some(&self.engine.label)
    }

    /// The ratio of the largest launch median to the smallest, by the headline, where it is above `MAX_NORMAL_SPREAD`.
    pub fn wide_spread(&self) -> Option<f64> {
        let summary = self.summary(self.case.headline?.id).filter(|_| self.failure.is_none())?;
        summary.launch_spread().filter(|&spread| spread > MAX_NORMAL_SPREAD)
    }

    /// The headline metric's value as a share of the machine's limit for it.
    pub fn limit_share(&self) -> Option<f64> {
        self.share(Shown::OfLimit)
    }

    /// The headline metric's value as a share of the peak in the data sheet of the GPU.
    pub fn data_sheet_share(&self) -> Option<f64> {
        self.share(Shown::OfDataSheet)
    }

    fn share(&self, of: fn(MetricId) -> Shown) -> Option<f64> {
        let headline = self.case.headline?.id;
        let metric = METRICS.iter().find(|metric| metric.shown == of(headline))?;
        self.summary(metric.id).map(|it| it.estimate)
    }

    pub fn summary(&self, metric: MetricId) -> Option<&Summary> {
        self.summaries.iter().find(|it| it.metric.id == metric).map(|it| &it.summary)
    }
}

impl FailureSummary {
    /// `failed`, or `had no time` if the time budget ended first: that is no failure of the engine.
    pub fn verb(&self) -> &'static str {
        if self.kind == FailureKind::NoTime { "had no time" } else { "failed" }
    }

    /// Whether the engine did what it must do: it refused a request that cannot be computed.
    pub fn is_expected(&self) -> bool {
        self.kind == FailureKind::Refused
    }

    /// The failure in one line: `exited at sample 17: killed by signal 9 (3 times)`.
    pub fn line(&self) -> String {
        // The message is complete without a kind: the engine itself did not fail.
        if matches!(self.kind, FailureKind::TooSlow | FailureKind::NoTime) {
            return self.message.clone();
        }
        let times = if self.times > 1 { format!(" ({} times)", self.times) } else { String::new() };
        let when = match (&self.kind, self.when.as_str()) {
            (FailureKind::Unavailable, _) | (_, "") => String::new(),
            // The message says that the engine cannot start.
            (FailureKind::Start, when) if Stage::is_before_first_answer(when) => {
                return format!("{}{times}", self.message);
            }
            (_, when) => format!(" at {when}"),
        };
        format!("{}{when}: {}{times}", self.kind, self.message)
    }
}
