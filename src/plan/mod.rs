//! Arguments to a plan: which configurations, which cases, in which order.
//!
//! ```text
//! Selection --resolve--> Resolved --made_ready--> Asked --Plan::new--> Plan
//! ```
//!
//! No clock and no process anywhere. Two files read: `models` finds models and reads what their files say, with all weights
//! where they have no name yet; `prompts` opens a model for its tokenizer. `selection` asks the registry and `models`. All
//! others are pure.

mod beside;
pub mod dtype;
mod metric_id;
pub mod models;
pub mod prompts;
mod rows;
pub mod scenario;
pub mod selection;

use std::path::Path;

use protocol::Sampling;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::engines::Candidate;
use crate::engines::manifest::{self, Against};
use crate::machine::Device;
use crate::plan::scenario::{Kind, Scenario};
use crate::shell::Unavailable;
use crate::shell::pasteable;
use stats::Random;

pub use metric_id::MetricId;

/// The ordered list of what will be launched and asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub mode: Mode,
    #[serde(default)]
    pub order: Order,
    pub extent: Extent,
    pub seed: u64,
    /// The label (or engine) of the configurations that the others are compared with.
    pub reference: String,
    #[serde(default)]
    pub proof: Proof,
    pub configurations: Vec<Configuration>,
    pub cases: Vec<Case>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One process answers every request of a launch.
    #[default]
    Warm,
    /// One process for each request: start, load, answer, end.
    OneShot,
}

/// Whether engines are asked for proof, and whose word counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// The word of the tree's reference engine: as it is kept beside the model, or of itself where it can run.
    #[default]
    Usual,
    /// That of the engine that was named, asked in this run.
    Named,
    Off,
}

/// In which order the requests of a block are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Every block launches every configuration, and its rounds ask them in turn: what the machine does to one it does to
    /// all.
    #[default]
    Interleaved,
    /// One configuration to its end, then the next. What drifts meanwhile passes for a difference, so there are no
    /// verdicts.
    Sequential,
}

/// How long an experiment goes on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Extent {
    /// So many, whatever they show. `None`: until the intervals are narrow, or the time is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u32>,
    /// How well ratios are to be known: 0.02 is to 2 %.
    pub target: f64,
    /// For the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_ns: Option<u64>,
    /// A request that takes longer makes its case too slow.
    pub case_cap_ns: u64,
}

impl Default for Extent {
    fn default() -> Self {
        Self { blocks: None, target: 0.02, budget_ns: None, case_cap_ns: 60_000_000_000 }
    }
}

/// What an engine computes in whose word is taken.
pub const WITNESS_DTYPE: &str = "f32";

/// A configuration that is no row of its own: it is measured beside another for what it says about that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Beside {
    /// The same once more: what the two differ by is noise.
    Twin { of: usize },
    /// The program that a baseline was measured with.
    Baseline { of: usize },
    /// An engine in f32 that the others' output is held against. It has no cases: it is asked for proof alone.
    Witness,
}

/// An engine with everything that is set about it, on one model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// What rows call it: unique in the plan.
    pub label: String,
    pub engine: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// What is started; empty when it cannot be.
    pub command: Vec<String>,
    pub model: Model,
    pub device: Device,
    /// `None` leaves it to the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    pub threads: u32,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub options: Map<String, Value>,
    /// Why it cannot be started here, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<Unavailable>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Beside>,
    /// No other engine is kept, stopped, while it is measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// What it says of a model in f32 is what the others are held against: its engine's manifest says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vouches: bool,
    /// What its manifest wants it held against, beside the reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<Against>,
}

/// A model as the plan knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    pub name: String,
    pub path: String,
    /// `safetensors` or `gguf`, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// The dtype of most of its bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Names the weights in whatever format they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizes: Option<Sizes>,
}

/// How large a model is in numbers that no dtype changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    pub parameters: u64,
    /// Parameters that a decoded token reads: of a table that is looked up, one row.
    pub read_per_token: u64,
    /// Of these: the output's, which a prompt needs for its last token alone.
    pub output: u64,
    /// Keys and values of one position.
    pub kv_numbers_per_position: u64,
    /// Numbers of keys and of values that one query is multiplied with at one position, over all heads and layers.
    pub attended_per_position: u64,
}

impl Sizes {
    /// The bytes of weights that one token of a decode reads; `None` of a dtype that is not known here.
    pub fn weight_bytes(&self, dtype: &str) -> Option<f64> {
        Some(self.read_per_token as f64 * dtype::bits(dtype)? / 8.0).filter(|&bytes| bytes > 0.0)
    }
}

/// One configuration in one scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// An index into the plan's configurations.
    pub configuration: usize,
    pub workload: Workload,
}

/// A scenario at one prompt length, with what the command line set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    pub scenario: String,
    /// What rows call it: the scenario, and the prompt length where it has several.
    pub label: String,
    pub kind: Kind,
    pub headline: MetricId,
    pub prompt: Prompt,
    pub max_new_tokens: u32,
    /// Asked for wherever more than one token is: the output's length must be the same for every engine.
    pub ignore_eos: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// So many requests before the measured ones; `None`: until they take equally long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup: Option<u32>,
    /// Rounds of each block: measured requests in each launch.
    pub rounds: u32,
}

impl Workload {
    /// Each token is the likeliest one: also at a temperature of zero, whatever the seed.
    pub fn is_greedy(&self) -> bool {
        self.sampling.is_none_or(|sampling| sampling.temperature <= 0.0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// So many tokens of the default text, another window of it for each sample.
    Tokens(u32),
    Text(String),
}

/// The purpose of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Warmup,
    /// The first one after the engine's processes had been stopped while another was measured.
    Discarded,
    #[default]
    Measured,
}

/// What the command line asks for, names resolved. Lists make the cross product.
#[derive(Debug, Clone)]
pub struct Asked {
    pub candidates: Vec<Candidate>,
    /// The engine that vouches, where it can run.
    pub witness: Option<Candidate>,
    pub proof: Proof,
    pub models: Vec<Model>,
    pub scenarios: Vec<&'static Scenario>,
    pub devices: Vec<Device>,
    pub dtypes: Vec<Option<String>>,
    pub threads: Vec<u32>,
    pub options: Map<String, Value>,
    pub reference: String,
    pub mode: Mode,
    pub order: Order,
    pub extent: Extent,
    pub seed: u64,
    pub prompt: Option<String>,
    pub max_new_tokens: Option<u32>,
    pub rounds: Option<u32>,
    pub warmup: Option<u32>,
    pub temperature: Option<f64>,
}

impl Plan {
    pub fn workloads_of(&self, configuration: usize) -> Vec<Workload> {
        let cases = self.cases.iter().filter(|case| case.configuration == configuration);
        cases.map(|case| case.workload.clone()).collect()
    }

    /// A configuration and its cases; a label that is taken gets a number.
    /// A configuration and its cases; a label that is taken gets a number.
    pub fn add(&mut self, mut configuration: Configuration, workloads: &[Workload]) {
        let is_taken = |label: &str| self.configurations.iter().any(|other| other.label == label);
        configuration.label = free_label(configuration.label, is_taken);
        let index = self.configurations.len();
        self.configurations.push(configuration);
        self.cases.extend(
            workloads.iter().map(|workload| Case { configuration: index, workload: workload.clone() }),
        );
    }

    /// The order in which a block launches these configurations: drawn once for the run by its seed and rotated by block, so
    /// that none is always first.
    pub fn order_of(&self, configurations: &[usize], block: u32) -> Vec<usize> {
        let mut order = configurations.to_vec();
        Random::seeded(self.seed).shuffle(&mut order);
        let count = order.len().max(1);
        order.rotate_left(block as usize % count);
        order
    }

    /// The cases of a configuration, launch scenarios first: they are about the launch's first request.
    pub fn cases_of(&self, configuration: usize) -> Vec<usize> {
        let of = |kind| {
            let cases = self.cases.iter().enumerate();
            cases
                .filter(move |(_, case)| case.configuration == configuration && case.workload.kind == kind)
                .map(|(index, _)| index)
        };
        of(Kind::Launch).chain(of(Kind::Warm)).collect()
    }
}

impl Configuration {
    /// What `-e` takes for it, as a shell takes that: the path of a program that was given by its path, else the engine's
    /// name and its preset's. Labels are neither.
    pub fn asked_as(&self) -> String {
        let program = self.command.first().map(Path::new);
        // Who has a preset has a manifest.
        let by_path = program.filter(|path| {
            self.preset.is_none() && path.file_name().is_some_and(|name| name == self.engine.as_str())
        });
        let name = || self.preset.iter().fold(self.engine.clone(), |name, preset| format!("{name}:{preset}"));
        let ours = manifest::embedded().is_ok_and(|all| all.iter().any(|it| it.manifest.name == self.engine));
        let asked = by_path.filter(|_| !ours).map_or_else(name, |path| path.to_string_lossy().into_owned());
        pasteable(&[asked])
    }
}

/// With a number where it is taken.
fn free_label(wanted: String, is_taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2_u32..).map(|number| format!("{wanted} #{number}"));
    std::iter::once(wanted.clone()).chain(numbered).find(|label| !is_taken(label)).unwrap_or(wanted)
}

#[cfg(test)]
pub mod specimen;
#[cfg(test)]
mod tests;
