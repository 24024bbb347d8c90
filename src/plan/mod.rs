//! Arguments to a plan: which configurations, which cases, in which order. Pure: no clock, no process, no file.

pub mod asked;
mod beside;
pub mod dtype;
mod metric_id;
pub mod prompts;
pub mod scenario;

use std::collections::BTreeSet;
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

impl Asked {
    /// A row may be the witness itself.
    fn vouched_by(&self, candidate: &Candidate, device: &Device, dtype: Option<&str>) -> bool {
        let who = |it: &Candidate| (it.engine.clone(), it.preset.clone(), it.on(device).command.clone());
        self.witness.as_ref().is_some_and(|witness| who(witness) == who(candidate))
            && device.is_cpu()
            && dtype.is_none_or(|dtype| dtype == WITNESS_DTYPE)
    }
}

impl Plan {
    pub fn new(asked: &Asked) -> Self {
        let mut plan = Self {
            mode: asked.mode,
            order: asked.order,
            extent: asked.extent,
            seed: asked.seed,
            reference: asked.reference.clone(),
            proof: asked.proof,
            ..Self::default()
        };
        let workloads: Vec<Workload> =
            asked.scenarios.iter().flat_map(|scenario| workloads(asked, scenario)).collect();
        for model in &asked.models {
            for device in &asked.devices {
                for dtype in &asked.dtypes {
                    for &threads in &asked.threads {
                        for candidate in &asked.candidates {
                            let configuration =
                                configuration(asked, candidate, model, device, dtype, threads);
                            plan.add(configuration, &workloads);
                        }
                    }
                }
            }
        }
        let references: BTreeSet<usize> = plan.pairs().into_iter().map(|(_, reference)| reference).collect();
        references.into_iter().for_each(|reference| plan.add_twin(reference));
        for model in &asked.models {
            plan.add_witness(asked, model);
        }
        plan
    }

    pub fn workloads_of(&self, configuration: usize) -> Vec<Workload> {
        let cases = self.cases.iter().filter(|case| case.configuration == configuration);
        cases.map(|case| case.workload.clone()).collect()
    }

    /// A configuration and its cases; a label that is taken gets a number.
    pub fn add(&mut self, mut configuration: Configuration, workloads: &[Workload]) {
        let wanted = configuration.label.clone();
        let mut number = 2;
        while self.configurations.iter().any(|other| other.label == configuration.label) {
            configuration.label = format!("{wanted} #{number}");
            number += 1;
        }
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

fn configuration(
    asked: &Asked,
    candidate: &Candidate,
    model: &Model,
    device: &Device,
    dtype: &Option<String>,
    threads: u32,
) -> Configuration {
    let mut label = candidate.engine.clone();
    label.extend(candidate.preset.iter().map(|preset| format!(":{preset}")));
    // A factor that varies is part of the name; one that does not is in the caption.
    let factors = [
        (asked.models.len() > 1, model.name.clone()),
        (asked.devices.len() > 1, device.to_string()),
        (asked.dtypes.len() > 1, dtype.clone().unwrap_or_else(|| "default dtype".into())),
        (asked.threads.len() > 1, format!("{threads} {}", if threads == 1 { "thread" } else { "threads" })),
    ];
    for (_, name) in factors.into_iter().filter(|(varies, _)| *varies) {
        label.push_str(&format!(" {name}"));
    }
    let dtype = dtype.clone().or_else(|| candidate.dtype.clone());
    let mut options = candidate.options.clone();
    options.extend(asked.options.clone());
    let start = candidate.on(device).clone();
    Configuration {
        label,
        engine: candidate.engine.clone(),
        preset: candidate.preset.clone(),
        command: start.command,
        model: model.clone(),
        device: device.clone(),
        threads,
        options,
        unavailable: start.unavailable,
        beside: None,
        // What a device holds is not freed by stopping its process.
        alone: candidate.alone || !device.is_cpu(),
        vouches: asked.vouched_by(candidate, device, dtype.as_deref()),
        dtype,
        against: candidate.against.clone(),
    }
}

/// One workload for each prompt length, or one for the prompt that was given.
fn workloads(asked: &Asked, scenario: &Scenario) -> Vec<Workload> {
    let workload = |prompt: Prompt, label: String| {
        let max_new_tokens = asked.max_new_tokens.unwrap_or(scenario.max_new_tokens);
        Workload {
            scenario: scenario.name.into(),
            label,
            kind: scenario.kind,
            headline: scenario.headline,
            prompt,
            max_new_tokens,
            ignore_eos: max_new_tokens > 1,
            sampling: asked
                .temperature
                .filter(|&temperature| temperature > 0.0)
                .map(|temperature| Sampling { temperature, seed: asked.seed, ..Sampling::default() }),
            warmup: if scenario.kind == Kind::Launch { Some(0) } else { asked.warmup },
            rounds: if scenario.kind == Kind::Launch { 1 } else { asked.rounds.unwrap_or(scenario.rounds) },
        }
    };
    match &asked.prompt {
        Some(text) => vec![workload(Prompt::Text(text.clone()), scenario.name.into())],
        None => {
            let label = |tokens: &u32| match scenario.prompt_tokens {
                [_] => scenario.name.to_string(),
                _ => format!("{} {tokens}", scenario.name),
            };
            scenario
                .prompt_tokens
                .iter()
                .map(|tokens| workload(Prompt::Tokens(*tokens), label(tokens)))
                .collect()
        }
    }
}

#[cfg(test)]
mod tests;
