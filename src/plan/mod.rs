//! The plan of a run, made from arguments: the measured configurations and cases in order. `Names` become `Resolved`, then a
//! `Selection`, then a `Plan`. This code reads no clock and starts no process. `models` reads model files, `prompts` reads
//! their tokenizers and stored prompts, `texts` reads the user's file of prompts, and `selection` calls the engine registry and
//! `models`. All other files do no input or output.

pub mod arguments;
pub mod arrivals;
pub mod axes;
pub mod budget;
pub mod context;
pub mod dtype;
mod inputs;
pub mod latency_limits;
mod length_files;
mod lengths;
mod memory_fit;
mod metric_id;
pub mod models;
pub mod prompts;
mod roles;
mod rows;
pub mod scenario;
pub mod selection;
pub mod targets;
pub mod texts;
mod traces;
pub mod values;

use std::path::Path;
use std::time::Duration;

use protocol::Sampling;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::engines::Candidate;
use crate::engines::manifest::{self, PresetComparison};
use crate::machine::Device;
use crate::plan::axes::{AxisValues, Shape};
use crate::plan::latency_limits::LatencyLimits;
use crate::plan::scenario::{Kind, Scenario};
use crate::plan::texts::{OwnText, TextFile};
use crate::shell::{Unavailable, pasteable};
use stats::Random;

pub use metric_id::MetricId;

/// The configurations and cases of a run, with the rules for their order and number.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub mode: Mode,
    #[serde(default)]
    pub order: Order,
    pub extent: Extent,
    pub seed: u64,
    /// A number of this run that enters every measured prompt except the user's own, so that no answer of an earlier run fits.
    /// It is drawn when the run begins. Older records lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
    /// The reference, with which the other configurations are compared: a label, an engine, or an engine with a dtype. These
    /// may name a row of each model.
    pub reference: String,
    #[serde(default, alias = "proof")]
    pub verification: Verification,
    pub configurations: Vec<Configuration>,
    pub cases: Vec<Case>,
    /// The limits for the latency of requests, which make up the goodput.
    #[serde(default, skip_serializing_if = "LatencyLimits::is_empty")]
    pub latency_limits: LatencyLimits,
    /// The bounds that results must keep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<targets::Target>,
    /// The names of the tables that the scenarios and suites of the run add to its report. `None` in older records, and in a run
    /// without a report of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tables: Option<Vec<String>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One process of a configuration answers all its requests in a block.
    #[default]
    Warm,
    /// One process for each request: start, load, answer, end.
    OneShot,
}

/// Whether outputs are checked, and by which verifier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verification {
    /// The engine whose manifest says `reference`, if it can run. For held-out text, reference answers replace its answers, if
    /// the model's folder has some.
    #[default]
    Usual,
    /// The engine that the user named. It also answers for held-out text, even if there are reference answers.
    Named,
    Off,
}

/// The order of requests to several configurations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Every block launches every configuration, and its rounds interleave their requests. The machine's state affects all of
    /// them alike.
    #[default]
    Interleaved,
    /// Configurations are measured one after the other. There are no verdicts, because drift of the machine looks like a
    /// difference.
    Sequential,
}

/// The settings that bound the length of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Extent {
    /// The fixed number of blocks. `None`: interim analyses or the time budget end the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u32>,
    /// The half-width at which the interval of a ratio is narrow enough: 0.02 is 2 % of the ratio.
    pub target: f64,
    /// The time budget of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_ns: Option<u64>,
    /// The user set neither a budget nor a number of blocks. The first block is then measured completely, however long it takes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_default_budget: bool,
    /// The time limit of a request. A case with a longer request fails as too slow.
    #[serde(rename = "case_cap_ns")]
    pub max_request_ns: u64,
}

impl Default for Extent {
    fn default() -> Self {
        Self {
            blocks: None,
            target: 0.02,
            budget_ns: None,
            has_default_budget: false,
            max_request_ns: 60_000_000_000,
        }
    }
}

/// The time budget of a run, unless the user sets a budget or a number of blocks.
pub const DEFAULT_BUDGET: Duration = Duration::from_secs(180);

impl Extent {
    /// Adds the default budget, unless the user has set the length of the run.
    fn with_default_budget(self) -> Self {
        let is_set = self.budget_ns.is_some() || self.blocks.is_some();
        let budget_ns = self.budget_ns.or((!is_set).then_some(DEFAULT_BUDGET.as_nanos() as u64));
        Self { budget_ns, has_default_budget: !is_set, ..self }
    }

    pub fn budget(&self) -> Option<Duration> {
        self.budget_ns.map(Duration::from_nanos)
    }

    /// The budget that the user set. Nothing may begin after its end.
    pub fn set_budget(&self) -> Option<Duration> {
        self.budget().filter(|_| !self.has_default_budget)
    }
}

/// The dtype in which the verifier computes.
pub const VERIFIER_DTYPE: &str = "f32";

/// The role of a configuration that has no row of its own, but is needed to judge a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", try_from = "RoleFields")]
pub enum Role {
    /// A copy of the configuration with index `of`. The difference between the copy and the original is noise.
    Twin { of: usize },
    /// The program of a baseline, measured again in turn with the configuration with index `of`.
    Baseline { of: usize },
    /// The verifier. It is only used for output checks, so its only cases are those that score text.
    Verifier,
    /// This program as an engine that computes nothing. It is measured in turn with the rows of a scenario of queries: its time
    /// is the pipe's share of their times.
    NullEngine,
}

/// The JSON of a `Role`, in current words and in the words of record version 3. The tag of an enum cannot have an alias.
#[derive(Deserialize)]
struct RoleFields {
    #[serde(alias = "what")]
    kind: String,
    of: Option<usize>,
}

impl TryFrom<RoleFields> for Role {
    type Error = String;

    fn try_from(RoleFields { kind, of }: RoleFields) -> Result<Self, String> {
        match (kind.as_str(), of) {
            ("twin", Some(of)) => Ok(Self::Twin { of }),
            ("baseline", Some(of)) => Ok(Self::Baseline { of }),
            ("verifier" | "witness", None) => Ok(Self::Verifier),
            ("null_engine", None) => Ok(Self::NullEngine),
            _ => Err(format!("unknown role `{kind}`, or a wrong `of`")),
        }
    }
}

/// An engine with all its settings, on one model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// The name of the configuration's row: unique in the plan.
    pub label: String,
    pub engine: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// The command that starts the engine. Empty when the engine cannot be started.
    pub command: Vec<String>,
    pub model: Model,
    pub device: Device,
    /// `None` leaves the choice to the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    pub threads: u32,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub options: Map<String, Value>,
    /// The reason why the engine cannot be measured, and a remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<Unavailable>,
    /// Whether `unavailable` is about a setting that the engine does not support, on any machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsupported: bool,
    #[serde(default, alias = "beside", skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Whether the engine needs a memory group of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// This engine is the verifier of its model: the outputs of other engines are compared with its answers.
    #[serde(default, alias = "vouches", skip_serializing_if = "std::ops::Not::not")]
    pub verifies: bool,
    /// Another preset of the same engine that the manifest compares this preset with, in addition to the reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<PresetComparison>,
}

/// A model, with the facts that the plan needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    pub name: String,
    pub path: String,
    /// `safetensors` or `gguf`. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// The dtype of most bytes of the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Identifies the weights, independent of their format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The most tokens of a prompt and its output. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizes: Option<Sizes>,
}

/// The size of a model in numbers that do not depend on the dtype.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    pub parameters: u64,
    /// The parameters that are read to decode one token. An embedding that is only looked up counts as one vector.
    pub read_per_token: u64,
    /// The parameters of the output layer, which a prompt needs only for its last token.
    pub output: u64,
    /// The numbers in the keys and values of one position, over all layers.
    pub kv_numbers_per_position: u64,
    /// The multiplications of attention for one token and one position that it attends to, over all heads and layers.
    pub attended_per_position: u64,
}

impl Sizes {
    /// The bytes of weights that decoding one token reads; `None` for an unknown dtype.
    pub fn weight_bytes(&self, dtype: &str) -> Option<f64> {
        Some(self.read_per_token as f64 * dtype::bits(dtype)? / 8.0).filter(|&bytes| bytes > 0.0)
    }
}

/// One configuration with one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// An index into the plan's configurations.
    pub configuration: usize,
    pub workload: Workload,
}

/// A scenario at one value of each axis, with the settings of the command line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    pub scenario: String,
    /// Its name in tables: the scenario, and the values of axes that vary or are unusual.
    pub label: String,
    pub kind: Kind,
    pub headline: MetricId,
    pub prompt: Prompt,
    /// The length of the scenario's prompt, if the context of the model holds only the shorter one in `prompt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortened_from: Option<u32>,
    pub max_new_tokens: u32,
    #[serde(flatten)]
    pub shape: Shape,
    /// True if more than one token is requested, because the output must have the same length for every engine.
    pub ignore_eos: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// The number of warm-up requests that the user set. `None`: until their times agree, within a time limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup: Option<u32>,
    /// The number of rounds in a block: each configuration has one measured request in each round. Of a workload that scores
    /// text: the most windows.
    pub rounds: u32,
    /// The user's text to score. `None`: the held-out text of this project, or a workload that scores nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scored_text: Option<TextFile>,
}

impl Workload {
    /// Whether each token is the likeliest one. A temperature of zero has this effect too.
    pub fn is_greedy(&self) -> bool {
        self.sampling.is_none_or(|sampling| sampling.temperature <= 0.0)
    }

    /// The tokens of the longest prompt, which is the last one of a conversation. `of_texts`: those of the longest of the user's texts;
    /// `None` if they are unknown.
    pub fn longest_prompt(&self, of_texts: impl FnOnce(&[String]) -> Option<usize>) -> Option<usize> {
        let prefix = self.shape.shared_prefix as usize;
        let text = match &self.prompt {
            Prompt::Tokens(tokens) => (*tokens as usize).saturating_sub(prefix),
            Prompt::Text(text) => of_texts(text.texts())?,
        };
        let earlier_turns = self.shape.turns.saturating_sub(1) as usize;
        Some(prefix + text + earlier_turns * (text + self.max_new_tokens as usize))
    }

    /// The time for which each engine is in use in a block, in a workload that sets this time in place of a number of requests.
    pub fn time_in_use(&self) -> Option<Duration> {
        let round = self.shape.duration.filter(|_| self.kind == Kind::Stress)?;
        Some(round.duration() * self.rounds)
    }

    /// The feature that an engine must report in `hello`, or else it does not get the requests. `None` if the requests are sent to
    /// any engine. A one-shot process gets no `hello`.
    pub fn needs_in_hello(&self) -> Option<&'static str> {
        match &self.shape {
            _ if self.kind == Kind::Query => Some("facts"),
            _ if self.kind == Kind::Score => Some("score"),
            _ if self.sampling.is_some() => Some("sampling"),
            shape if shape.text.needs_ids() => Some("prompt_ids"),
            shape if shape.batch > 1 => Some("a batch"),
            shape if shape.overlaps() => Some("ids of requests"),
            shape if !shape.use_cache => Some("use_cache: false"),
            shape if !shape.speculation.is_off() => Some("speculation"),
            _ => None,
        }
    }

    #[cfg(test)]
    pub fn specimen(prompt: Prompt) -> Self {
        Self {
            scenario: "decode".into(),
            label: "decode".into(),
            kind: Kind::Warm,
            headline: MetricId::DECODE_RATE,
            prompt,
            shortened_from: None,
            max_new_tokens: 8,
            shape: Shape::default(),
            ignore_eos: true,
            sampling: None,
            warmup: Some(1),
            rounds: 2,
            scored_text: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// This many tokens for each request: a random window of a text, a dependent prompt, or a window to score.
    Tokens(u32),
    Text(OwnText),
}

/// The purpose of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    Warmup,
    /// A request whose time does not count: the first one after the engine's processes were paused while another engine was
    /// measured, or one that other processes disturbed.
    Discarded,
    #[default]
    Measured,
}

/// The engines, models, scenarios and settings of a plan. Its lists form a cross product.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    pub candidates: Vec<Candidate>,
    /// The verifier, where it can run.
    pub verifier: Option<Candidate>,
    /// The device of the verifier; `None` is the CPU.
    pub verifier_device: Option<Device>,
    pub verification: Verification,
    /// The command that starts this program as an engine that computes nothing.
    pub null_engine: Vec<String>,
    pub models: Vec<Model>,
    pub scenarios: Vec<Scenario>,
    pub devices: Vec<Device>,
    pub dtypes: Vec<Option<String>>,
    pub threads: Vec<u32>,
    pub options: Map<String, Value>,
    pub reference: String,
    pub mode: Mode,
    pub order: Order,
    pub extent: Extent,
    pub seed: u64,
    /// The nonce that the user set.
    pub nonce: Option<u64>,
    pub prompt: Option<String>,
    pub scored_text: Option<TextFile>,
    pub axes: AxisValues,
    pub rounds: Option<u32>,
    pub warmup: Option<u32>,
    pub temperature: Option<f64>,
    pub latency_limits: LatencyLimits,
    pub targets: Vec<targets::Target>,
}

impl Selection {
    pub fn verifier_device(&self) -> Device {
        self.verifier_device.clone().unwrap_or_else(Device::cpu)
    }
}

impl Plan {
    pub fn is_null_engine(&self, configuration: usize) -> bool {
        self.configurations[configuration].role == Some(Role::NullEngine)
    }

    /// Whether the plan measures anything in blocks. A text is scored once, before them.
    pub fn has_blocks(&self) -> bool {
        self.cases.iter().any(|it| it.workload.kind != Kind::Score)
    }

    pub fn workloads_of(&self, configuration: usize) -> Vec<Workload> {
        let cases = self.cases.iter().filter(|case| case.configuration == configuration);
        cases.map(|case| case.workload.clone()).collect()
    }

    /// Adds a configuration and its cases. A label that is taken gets a number.
    pub fn add(&mut self, mut configuration: Configuration, workloads: &[Workload]) {
        let is_taken = |label: &str| self.configurations.iter().any(|other| other.label == label);
        configuration.label = unique_label(configuration.label, is_taken);
        let index = self.configurations.len();
        self.configurations.push(configuration);
        let case = |workload: &Workload| Case { configuration: index, workload: workload.clone() };
        self.cases.extend(workloads.iter().map(case));
    }

    /// The order in which a block launches these configurations. The run's seed shuffles it once and each block rotates it, so
    /// that none is always first.
    pub fn order_of(&self, configurations: &[usize], block: u32) -> Vec<usize> {
        let mut order = configurations.to_vec();
        Random::seeded(self.seed).shuffle(&mut order);
        let count = order.len().max(1);
        order.rotate_left(block as usize % count);
        order
    }

    /// Whether the model's files leave the page cache before some launches.
    pub fn drops_page_cache(&self) -> bool {
        self.cases.iter().any(|case| !case.workload.shape.page_cache.is_kept())
    }

    /// The cases of a configuration, launch scenarios first: they measure the launch's first request.
    pub fn cases_of(&self, configuration: usize) -> Vec<usize> {
        let all = 0..self.cases.len();
        let mut cases: Vec<usize> = all.filter(|&it| self.cases[it].configuration == configuration).collect();
        cases.sort_by_key(|&it| self.cases[it].workload.kind != Kind::Launch);
        cases
    }
}

impl Configuration {
    /// Whether a reference may have this name: the label, or the engine with its preset, with or without the dtype.
    fn is_named(&self, name: &str) -> bool {
        let engine = engine_name(&self.engine, self.preset.as_deref());
        let in_dtype = || self.dtype.as_ref().map(|dtype| name_in_dtype(&engine, dtype));
        self.label == name || engine == name || in_dtype().is_some_and(|it| it == name)
    }

    /// The argument of `-e` that selects the configuration, quoted for a shell: the program's path if the engine has no
    /// manifest, or else the names of engine and preset.
    pub fn engine_argument(&self) -> String {
        let program = self.command.first().map(Path::new);
        // Only an engine with a manifest has presets.
        let by_path = program.filter(|path| {
            self.preset.is_none() && path.file_name().is_some_and(|name| name == self.engine.as_str())
        });
        let name = || engine_name(&self.engine, self.preset.as_deref());
        let has_manifest =
            manifest::embedded().is_ok_and(|all| all.iter().any(|it| it.manifest.name == self.engine));
        let argument =
            by_path.filter(|_| !has_manifest).map_or_else(name, |path| path.to_string_lossy().into_owned());
        pasteable(&[argument])
    }
}

/// The name of an engine with its preset, as `-e` takes it.
pub fn engine_name(engine: &str, preset: Option<&str>) -> String {
    preset.map_or_else(|| engine.into(), |preset| format!("{engine}:{preset}"))
}

/// The name of a row among those of an engine in several dtypes: `toy f32`.
fn name_in_dtype(engine: &str, dtype: &str) -> String {
    format!("{engine} {dtype}")
}

/// The wanted label, with a number where it is taken.
fn unique_label(wanted: String, is_taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2_u32..).map(|number| format!("{wanted} #{number}"));
    std::iter::once(wanted.clone()).chain(numbered).find(|label| !is_taken(label)).unwrap_or(wanted)
}

#[cfg(test)]
mod tests;
