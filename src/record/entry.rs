//! The entries of a record. Each is one line.

use protocol::{DeviceMemory, HelloFacts, Iteration, Loaded, Sequence};
use serde::{Deserialize, Serialize};

use super::failure::Failure;
use crate::machine::Machine;
use crate::machine::observed::{Energy, GpuPass, HeldMemory, UsedGpuMemory};
use crate::plan::prompts::held_out::HeldOut;
use crate::plan::{MetricId, Plan, RequestKind};
use stats::{NoiseFloor, StoppedBy};

/// One line of a record. `Entry::read` parses it, because serde's own parser for an inner tag buffers every value.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum Entry {
    Header(Box<Header>),
    Launch(Box<Launch>),
    Sample(Box<Sample>),
    WarmUp(WarmUp),
    Closed(Closed),
    Failure(Failure),
    Warning(Warning),
    HeldOut(HeldOut),
    Scored(HeldOutScores),
    Continued(Continued),
    ReferenceAnswers(ReferenceAnswers),
    ReferenceToken(ReferenceToken),
    CheckedOutput(CheckedOutput),
    DtypeCosts(DtypeCosts),
    NotChecked(NotChecked),
    Limits(Limits),
    Pass(Pass),
    Idle(Idle),
    Overhead(Overhead),
    End(RunEnd),
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub record_version: u32,
    pub id: String,
    /// UTC, as RFC 3339 writes it.
    pub started: String,
    pub orchestrate_version: String,
    /// The commit that `orchestrate` was built from, with `-dirty` if its sources had changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The command line that the user typed.
    pub command: Vec<String>,
    /// The run as a run file (TOML), with the options of the command line. Older records lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_file: Option<String>,
    pub machine: Machine,
    /// A digest of the machine, for a search among records. This program writes it and never reads it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fingerprint: String,
    pub plan: Plan,
    /// Whether other runs on the same cores were excluded. Older records lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_lock: Option<CoreLockState>,
    /// The calibrated noise floors of this machine at the start of the run.
    #[serde(default, alias = "floors", skip_serializing_if = "Vec::is_empty")]
    pub noise_floors: Vec<CalibratedFloor>,
}

/// Whether other runs of this program on the same cores were excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoreLockState {
    /// No other run used the cores.
    Held,
    /// Another run used the cores, and the user measured anyway.
    Shared,
    /// The user turned the lock off.
    Off,
    /// The folder of the locks could not be used.
    Unavailable,
}

/// The calibrated noise floor of one configuration on this machine, by one metric of one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CalibratedFloor {
    pub configuration: usize,
    /// The workload's label.
    pub workload: String,
    pub metric: MetricId,
    /// The floor for measurements side by side, in the same run.
    pub paired: NoiseFloor,
    /// The floor for measurements at different times, in two runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between: Option<NoiseFloor>,
    /// The time of the calibration, in RFC 3339.
    pub since: String,
}

/// The lifetime of one engine process. Times are on the orchestrator's clock, from just before the start of the process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// Launches are numbered from 0 as they are recorded.
    pub launch: u32,
    pub configuration: usize,
    pub block: u32,
    /// The launch was only for output checks, or in older records for a search for prompts. It has no samples.
    #[serde(default, alias = "proves", skip_serializing_if = "std::ops::Not::not")]
    pub for_output_checks: bool,
    pub pid: u32,
    /// Absent in one-shot mode, and for an engine that supports only `generate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hello: Option<HelloFacts>,
    /// The arrival of the answer to `hello`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hello_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<Loaded>,
    /// The arrival of the answer to `load`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_ns: Option<u64>,
    /// The conversion of the model, if the engine does not read the model's own format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub converted: Option<Converted>,
    /// The memory in use on each GPU just before the process was started. Empty for an engine on the CPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus_before: Vec<UsedGpuMemory>,
    /// The bytes of the model's files, if a case measures launches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_bytes: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Converted {
    pub format: String,
    pub dtype: String,
    pub path: String,
}

/// One request, with the facts that the engine reported and the facts that the orchestrator observed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub launch: u32,
    pub case: usize,
    /// The round; in `stress`, the number of earlier measured requests. Of a warm-up request: the number of earlier warm-up requests of the same case in the launch.
    pub index: u32,
    #[serde(alias = "role")]
    pub kind: RequestKind,
    /// The number of earlier requests of the same round: those that other processes disturbed, which are recorded as discarded, and the
    /// earlier steps of a search. Each repetition has a prompt of its own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeat: u32,
    /// A digest of the prompt's ids.
    pub prompt_hash: String,
    /// A digest of the ids that the recipe gives: without the nonce of the run. Absent if it equals `prompt_hash`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe_hash: Option<String>,
    /// Whether the next token can depend on the first half of the prompt, which repeats a pattern.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dependent: bool,
    /// The time of sending, since the start of the process.
    pub sent_ns: u64,
    /// The arrival of the answer's bytes, since the start of the process.
    pub answered_ns: u64,
    pub iteration: Iteration,
    /// Of a window of overlapping requests: the times of each, in the order of the sequences. The times of the window are above,
    /// and those in `iteration` begin with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<RequestTimes>,
    /// Of a search for the highest rate: its steps. The other values are those of the step with the highest rate that kept the limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<SearchStep>,
    /// The scores of a text, in a workload that scores one. The times above are those of all its requests together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<TextScores>,
    /// The peak memory of the engine's process tree so far, as the kernel counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_resident_bytes: Option<u64>,
    /// The memory of the process tree after the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<HeldMemory>,
    /// The device memory that the engine reports with its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<DeviceMemory>,
    /// CPU time of the process tree from the request to its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<u64>,
    /// The time in which the engine's threads were ready to run and waited for a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ns: Option<u64>,
    /// Absent if the request was not streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Late>,
}

/// The times of one of several overlapping requests, since the start of their window, on the orchestrator's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestTimes {
    /// The time at which its user wanted it. It is sent later if the engine takes no further request.
    pub wanted_ns: u64,
    pub sent_ns: u64,
    pub answered_ns: u64,
}

/// A window of a search for the highest rate that keeps the limits for latency.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchStep {
    /// Requests per second.
    pub rate: f64,
    /// The share of the requests that kept the limits.
    pub within_limits: f64,
    /// Whether this share is enough.
    pub held: bool,
}

/// The log-probabilities that one configuration gave to a text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TextScores {
    pub windows: Vec<WindowScores>,
    /// The bytes of the text after the last window, which are not scored.
    #[serde(default)]
    pub left_out_bytes: u64,
}

/// The scores of one window of a text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowScores {
    /// A value for every scored token. `None` is minus infinity.
    pub logprobs: Vec<Option<f64>>,
    /// The bytes of the scored tokens' text.
    pub text_bytes: u64,
    /// The time from the request to its answer, on the orchestrator's clock.
    pub elapsed_ns: u64,
}

impl TextScores {
    /// The log-probabilities of all windows.
    pub fn logprobs(&self) -> impl Iterator<Item = &Option<f64>> {
        self.windows.iter().flat_map(|it| &it.logprobs)
    }

    pub fn text_bytes(&self) -> u64 {
        self.windows.iter().map(|it| it.text_bytes).sum()
    }
}

/// How the warm-up of a case ended in a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmUp {
    pub launch: u32,
    pub case: usize,
    pub requests: u32,
    pub ended_by: WarmUpEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarmUpEnd {
    /// The median times of the last three windows, of three requests each, agreed within 10 %.
    Steady,
    /// The launch made as many requests as an earlier launch needed.
    AsBefore,
    /// The time limit of the warm-up ended before the times agreed.
    Time,
    /// The user set the number of requests.
    #[serde(alias = "asked")]
    SetByUser,
}

/// The end of a workload's measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// The workload's label.
    pub workload: String,
    /// The number of measured blocks.
    pub blocks: u32,
    pub by: StoppedBy,
    /// If the budget ended before the blocks that a verdict needs: a sufficient budget, as `--budget` takes it. Only older records
    /// have it here; others have it in the last entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs_budget: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<usize>,
    /// The text of the warning, with the remedy if there is one.
    pub message: String,
}

/// The warning about a row that is left out of a block. It is equal for all engines, so that a report can show it once. Its hint is the
/// budget of the last entry.
pub const FEWER_BLOCKS: &str =
    "fewer blocks than other engines, because a block takes too long for the time budget";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum End {
    Finished,
    Interrupted,
}

/// The last entry of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    #[serde(flatten)]
    pub end: End,
    /// The time of the whole run after the set-up. Older records lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed_ns: Option<u64>,
    /// The time that the check of the measured tokens took, or would have taken with more time. Absent if it is unknown or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_check_ns: Option<u64>,
    /// If something had too little time: a budget for all parts of the run, as `--budget` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs_budget: Option<String>,
}

impl From<End> for RunEnd {
    fn from(end: End) -> Self {
        Self { end, elapsed_ns: None, token_check_ns: None, needs_budget: None }
    }
}

/// The machine's limits just before a block, or after the last one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The block that follows; after the last one, the number of blocks.
    pub block: u32,
    #[serde(flatten)]
    pub probed: machine_limits::Limits,
}

/// The time from the engine's time stamp of a streamed token to the token's arrival: of the first token, and the median.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    pub first_ns: i64,
    pub median_ns: i64,
}

/// The sampled pass of one case in one launch. No table shows its times. The counts below are those of the requests in which
/// energy and GPUs were sampled. Without such requests, they are those of the one request in which memory was sampled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    pub launch: u32,
    pub case: usize,
    pub requests: u32,
    pub prompt_tokens: u64,
    pub new_tokens: u64,
    /// The time of all requests together, on the orchestrator's clock.
    pub elapsed_ns: u64,
    /// The shortest time of several requests that generate one token each, on the orchestrator's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_token_ns: Option<u64>,
    /// The largest memory of the process tree in the request in which memory was sampled, by proportional set size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<HeldMemory>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub energy: Vec<Energy>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuPass>,
}

/// The energy that the counters showed while the run was idle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    pub energy: Vec<Energy>,
}

/// The orchestrator's overhead, measured with an engine that computes nothing, at the start of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overhead {
    /// The median time from a request to its answer, without the engine's own work.
    pub request_ns: u64,
    /// The median time that each streamed token adds.
    pub streamed_token_ns: u64,
    pub requests: u32,
}

/// The log-probabilities that one configuration gave to the ids of one held-out sequence.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HeldOutScores {
    pub configuration: usize,
    pub launch: u32,
    /// An index into `HeldOut::sequences`.
    pub sequence: usize,
    /// A value for every id except the first. `None` is minus infinity.
    pub logprobs: Vec<Option<f64>>,
    /// The time from the request to its answer, on the orchestrator's clock.
    pub elapsed_ns: u64,
    /// The peak memory of the engine's process tree so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_resident_bytes: Option<u64>,
}

/// One configuration's continuation of the held-out prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Continued {
    pub configuration: usize,
    pub launch: u32,
    pub ids: Vec<u32>,
}

/// Reference answers in f32 that are stored beside a model. They replace the verifier's answers for held-out text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReferenceAnswers {
    /// The model's path, as in configurations.
    pub model: String,
    /// The name and version of the engine that answered.
    pub by: String,
    /// The log-probabilities of each sequence in `HeldOut::sequences`, as in `HeldOutScores::logprobs`.
    pub logprobs: Vec<Vec<Option<f64>>>,
    pub continued: Vec<u32>,
}

/// The verifier's answer for one token of a sample, given all tokens before it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReferenceToken {
    /// The verifier's configuration.
    #[serde(alias = "witness")]
    pub verifier: usize,
    /// The sample that is checked: its launch, its case and its index.
    pub launch: u32,
    pub case: usize,
    pub index: u32,
    /// The token's position in the output.
    #[serde(alias = "place")]
    pub position: u32,
    #[serde(alias = "theirs")]
    pub engine_token: u32,
    /// The token that the verifier gives at this position.
    #[serde(alias = "own")]
    pub verifier_token: u32,
    /// The log-probability that the verifier gives to `engine_token`.
    #[serde(default, alias = "theirs_logprob", skip_serializing_if = "Option::is_none")]
    pub engine_logprob: Option<f64>,
    /// The log-probability that the verifier gives to `verifier_token`.
    #[serde(default, alias = "own_logprob", skip_serializing_if = "Option::is_none")]
    pub verifier_logprob: Option<f64>,
}

/// The verifier's comparison of all tokens of a sample's output, each given all tokens before it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckedOutput {
    /// The verifier's configuration.
    pub verifier: usize,
    pub launch: u32,
    pub case: usize,
    pub index: u32,
    /// The number of compared tokens, from the start of the output.
    pub positions: u32,
    /// The tokens that are not the verifier's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differing: Vec<DifferingToken>,
    /// The ids that were read from the output of an engine that gives text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<ReadText>,
}

/// The ids of an output in text: of all ids with this text, those that the verifier finds likeliest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadText {
    pub ids: Vec<u32>,
    /// The characters of the text after the reported number of tokens.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unread: u32,
    /// The tokens of the prompt, by the model's own tokenizer if the prompt was sent as text.
    pub prompt_tokens: u32,
}

/// A token that is not the verifier's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct DifferingToken {
    pub position: u32,
    pub engine_token: u32,
    pub verifier_token: u32,
    /// The log-probability that the verifier gives to `engine_token`. `None` is minus infinity.
    pub engine_logprob: Option<f64>,
    /// The log-probability that the verifier gives to `verifier_token`.
    pub verifier_logprob: f64,
}

/// The effect of narrow dtypes on the verifier's own answers, measured once for each model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DtypeCosts {
    /// The model's path, as in configurations.
    pub model: String,
    /// The name and version of the engine that answered.
    pub by: String,
    pub costs: Vec<DtypeCost>,
    /// The dtypes that were not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmeasured: Vec<UnmeasuredCost>,
}

/// The verifier in one dtype, compared with itself in f32 on held-out text. In `bf16` and `f16` it computes in that dtype. In
/// `q8_0` and `q4_0` it computes in f32 on weights that were rounded to that format.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DtypeCost {
    pub dtype: String,
    /// The number of compared log-probabilities.
    pub tokens: usize,
    /// The root mean square of the differences of log-probabilities over all tokens, in nats.
    pub rms: f64,
    /// The same over the stretch of tokens in which it is largest.
    pub stretch_rms: f64,
    /// The number of positions whose likeliest token was compared.
    pub positions: usize,
    /// The number of these positions at which the narrow dtype gives another token.
    pub changed: usize,
    /// The gaps of some changed tokens: by how many nats they are less likely in f32 than the likeliest token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<f64>,
}

/// A dtype that was not measured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmeasuredCost {
    pub dtype: String,
    pub reason: String,
}

/// An output check that was not possible, with the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotChecked {
    /// Absent when the check concerns every configuration on the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub reason: String,
    /// More time would complete the check. The hint is then the budget of the last entry.
    #[serde(default, skip_serializing_if = "is_false")]
    pub needs_time: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Each repetition of a request adds this to the index of its prompt.
const PROMPTS_PER_REPEAT: u32 = 1 << 20;

impl Sample {
    /// Identifies the text, the tokenizer, the length and the seed of the prompt: equal in all runs with the same recipe.
    pub fn recipe(&self) -> &str {
        self.recipe_hash.as_deref().unwrap_or(&self.prompt_hash)
    }

    /// The index of the prompt of a request.
    pub fn prompt_index(index: u32, repeat: u32) -> u32 {
        index.saturating_add(repeat.saturating_mul(PROMPTS_PER_REPEAT))
    }

    /// The time from the request to its answer, on the orchestrator's clock.
    pub fn elapsed_ns(&self) -> u64 {
        self.answered_ns.saturating_sub(self.sent_ns)
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The number of new tokens of a sequence: the number of its ids, or else the number that the engine reports.
pub fn output_tokens(sequence: &Sequence) -> u64 {
    match (&sequence.output_ids, sequence.output_tokens) {
        (Some(ids), _) => ids.len() as u64,
        (None, Some(count)) => u64::from(count),
        (None, None) => 0,
    }
}

impl Entry {
    /// Parses the line twice: first only its tag, then the entry of that kind.
    pub fn read(line: &[u8]) -> serde_json::Result<Self> {
        let Tag { entry } = serde_json::from_slice(line)?;
        Ok(match entry {
            EntryKind::Header => {
                let mut header: Box<Header> = serde_json::from_slice(line)?;
                header.plan.rename_earlier_verifiers();
                Self::Header(header)
            }
            EntryKind::Launch => Self::Launch(serde_json::from_slice(line)?),
            EntryKind::Sample => Self::Sample(serde_json::from_slice(line)?),
            EntryKind::WarmUp => Self::WarmUp(serde_json::from_slice(line)?),
            EntryKind::Closed => Self::Closed(serde_json::from_slice(line)?),
            EntryKind::Failure => Self::Failure(serde_json::from_slice(line)?),
            EntryKind::Warning => Self::Warning(serde_json::from_slice(line)?),
            EntryKind::HeldOut => Self::HeldOut(serde_json::from_slice(line)?),
            EntryKind::Scored => Self::Scored(serde_json::from_slice(line)?),
            EntryKind::Continued => Self::Continued(serde_json::from_slice(line)?),
            EntryKind::ReferenceAnswers => Self::ReferenceAnswers(serde_json::from_slice(line)?),
            EntryKind::ReferenceToken => Self::ReferenceToken(serde_json::from_slice(line)?),
            EntryKind::CheckedOutput => Self::CheckedOutput(serde_json::from_slice(line)?),
            EntryKind::DtypeCosts => Self::DtypeCosts(serde_json::from_slice(line)?),
            EntryKind::NotChecked => Self::NotChecked(serde_json::from_slice(line)?),
            EntryKind::Limits => Self::Limits(serde_json::from_slice(line)?),
            EntryKind::Pass => Self::Pass(serde_json::from_slice(line)?),
            EntryKind::Idle => Self::Idle(serde_json::from_slice(line)?),
            EntryKind::Overhead => Self::Overhead(serde_json::from_slice(line)?),
            EntryKind::End => Self::End(serde_json::from_slice(line)?),
        })
    }
}

#[derive(Deserialize)]
struct Tag {
    entry: EntryKind,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum EntryKind {
    Header,
    Launch,
    Sample,
    WarmUp,
    Closed,
    Failure,
    Warning,
    HeldOut,
    Scored,
    Continued,
    #[serde(alias = "kept", alias = "stored_answers")]
    ReferenceAnswers,
    #[serde(alias = "opinion")]
    ReferenceToken,
    CheckedOutput,
    DtypeCosts,
    #[serde(alias = "unproved")]
    NotChecked,
    Limits,
    Pass,
    Idle,
    Overhead,
    End,
}
