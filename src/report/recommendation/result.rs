//! A recommendation as data, for every format.

use serde::Serialize;

use crate::analysis::agreement::Status;
use stats::Verdict;

/// The recommendation from a record. JSON has these names: add, never rename.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Recommendation {
    pub report_version: u32,
    /// The record's id.
    pub record: String,
    /// The workload of the time to first token.
    pub first_token: Option<String>,
    /// The workload of the decode rate.
    pub decode: Option<String>,
    pub models: Vec<ModelRecommendation>,
    /// Engines, presets and a GPU without a result, with the reason and the remedy.
    pub not_tried: Vec<EngineWithReason>,
    /// The presets of the measured engines that the record does not measure.
    pub untried_presets: Vec<String>,
    /// The recommendation in sentences, for people.
    pub sentences: Vec<String>,
}

/// The recommended engines for one model.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ModelRecommendation {
    pub model: String,
    /// The engine with the lowest latency, or the preferred one of those that tie with it. Absent if no engine can be
    /// recommended.
    pub best: Option<Choice>,
    /// The best of the engines whose weights have at least the precision of the model, or whose output is exact.
    pub without_quantization: Option<Choice>,
    /// The best of the other engines: their weights have a lower or an unknown precision.
    pub lower_precision: Option<Choice>,
    /// Measured engines that are not recommended, with the reason.
    pub not_recommended: Vec<EngineWithReason>,
}

/// An engine or a GPU that was not measured, or a measured engine that is not recommended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EngineWithReason {
    pub engine: String,
    pub reason: String,
    pub hint: Option<String>,
}

/// A recommended engine. JSON has these names: add, never rename.
#[derive(Debug, Clone, Serialize)]
pub struct Choice {
    /// The label of the engine's row.
    pub engine: String,
    pub dtype: Option<String>,
    pub status: Status,
    /// The difference from the verifier's log-probabilities, in nats (root mean square).
    pub nats: Option<f64>,
    /// The latency of a chat answer.
    pub latency_ns: f64,
    pub first_token_ns: Option<f64>,
    /// Tokens per second after the first token.
    pub decode_rate: Option<f64>,
    pub peak_bytes: Option<f64>,
    /// The engine with which the chosen engine was compared, and the result.
    pub against: Option<SpeedUp>,
    /// The other engines that tie with the fastest one. If there are some, speed did not decide.
    pub ties: Vec<String>,
}

/// The speed-up of a recommended engine over another one.
#[derive(Debug, Clone, Serialize)]
pub struct SpeedUp {
    pub engine: String,
    /// Above 1 if the recommended engine is faster than this one.
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
    /// Null without a verdict: too few blocks, or sequential order.
    pub verdict: Option<Verdict>,
    /// The reason why the verdict is inconclusive although the interval does not include 1.
    pub why_inconclusive: Option<String>,
    pub blocks: usize,
}
