//! Arguments to a plan: which configurations, which cases, in which order. Pure: no clock, no process, no file.

use protocol::Sampling;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::scenario::{Kind, Scenario};

/// The ordered list of what will be launched and asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub mode: Mode,
    /// How often each configuration is launched. The launch is the unit of replication.
    pub launches: u32,
    pub seed: u64,
    /// The label of the configuration that ratios are taken against.
    pub reference: String,
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
    pub device: String,
    /// `None` leaves it to the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    pub threads: u32,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub options: Map<String, Value>,
    /// Why it cannot be started here, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<Unavailable>,
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
}

/// A reason in one line, and a command that can be pasted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unavailable {
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
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
    pub headline: String,
    pub prompt: Prompt,
    pub max_new_tokens: u32,
    /// Asked for wherever more than one token is: the output's length must be the same for every engine.
    pub ignore_eos: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    pub warmup: u32,
    /// Measured requests in each launch.
    pub samples: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// So many tokens of the default text, another window of it for each sample.
    Tokens(u32),
    Text(String),
}

/// An engine that was asked for, as the registry found it.
#[derive(Debug, Clone, Default)]
pub struct Candidate {
    pub engine: String,
    pub preset: Option<String>,
    pub options: Map<String, Value>,
    pub command: Vec<String>,
    pub unavailable: Option<Unavailable>,
}

/// What the command line asks for, names resolved. Lists make the cross product.
#[derive(Debug, Clone)]
pub struct Asked {
    pub candidates: Vec<Candidate>,
    pub models: Vec<Model>,
    pub scenarios: Vec<&'static Scenario>,
    pub devices: Vec<String>,
    pub dtypes: Vec<Option<String>>,
    pub threads: Vec<u32>,
    pub options: Map<String, Value>,
    pub reference: String,
    pub mode: Mode,
    pub launches: u32,
    pub seed: u64,
    pub prompt: Option<String>,
    pub max_new_tokens: Option<u32>,
    pub samples: Option<u32>,
    pub warmup: Option<u32>,
    pub temperature: Option<f64>,
}

/// Warm-up requests before a case unless the command line says otherwise.
const WARMUP: u32 = 2;

impl Plan {
    pub fn new(asked: &Asked) -> Self {
        let mut plan = Self {
            mode: asked.mode,
            launches: asked.launches,
            seed: asked.seed,
            reference: asked.reference.clone(),
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
        plan
    }

    fn add(&mut self, mut configuration: Configuration, workloads: &[Workload]) {
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

    /// The order in which a round launches the configurations: rotated by round, so that none is always first.
    pub fn order(&self, round: u32) -> impl Iterator<Item = usize> + use<> {
        let count = self.configurations.len();
        (0..count).map(move |place| (place + round as usize) % count)
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

fn configuration(
    asked: &Asked,
    candidate: &Candidate,
    model: &Model,
    device: &str,
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
    let mut options = candidate.options.clone();
    options.extend(asked.options.clone());
    Configuration {
        label,
        engine: candidate.engine.clone(),
        preset: candidate.preset.clone(),
        command: candidate.command.clone(),
        model: model.clone(),
        device: device.to_string(),
        dtype: dtype.clone(),
        threads,
        options,
        unavailable: candidate.unavailable.clone(),
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
            headline: scenario.headline.into(),
            prompt,
            max_new_tokens,
            ignore_eos: max_new_tokens > 1,
            sampling: asked
                .temperature
                .filter(|&temperature| temperature > 0.0)
                .map(|temperature| Sampling { temperature, seed: asked.seed, ..Sampling::default() }),
            warmup: if scenario.kind == Kind::Launch { 0 } else { asked.warmup.unwrap_or(WARMUP) },
            samples: if scenario.kind == Kind::Launch {
                1
            } else {
                asked.samples.unwrap_or(scenario.samples)
            },
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
mod tests {
    use super::*;

    fn asked() -> Asked {
        let candidate =
            |name: &str| Candidate { engine: name.into(), command: vec![name.into()], ..Default::default() };
        Asked {
            candidates: vec![candidate("a"), candidate("b")],
            models: vec![Model { name: "m".into(), path: "/m".into(), ..Model::default() }],
            scenarios: crate::scenario::named("default").unwrap(),
            devices: vec!["cpu".into()],
            dtypes: vec![None],
            threads: vec![1, 2],
            options: Map::new(),
            reference: "a".into(),
            mode: Mode::Warm,
            launches: 3,
            seed: 0,
            prompt: None,
            max_new_tokens: None,
            samples: None,
            warmup: None,
            temperature: None,
        }
    }

    #[test]
    fn lists_make_the_cross_product_and_what_varies_is_in_the_label() {
        let plan = Plan::new(&asked());
        let labels: Vec<_> =
            plan.configurations.iter().map(|configuration| configuration.label.as_str()).collect();
        assert_eq!(labels, ["a 1 thread", "b 1 thread", "a 2 threads", "b 2 threads"]);
        assert_eq!(plan.cases.len(), 4 * 6);
    }

    #[test]
    fn every_round_launches_each_configuration_once_and_none_is_always_first() {
        let plan = Plan::new(&asked());
        let firsts: Vec<_> = (0..4).map(|round| plan.order(round).next()).collect();
        assert_eq!(firsts, [Some(0), Some(1), Some(2), Some(3)]);
        let mut all: Vec<_> = plan.order(2).collect();
        all.sort();
        assert_eq!(all, [0, 1, 2, 3]);
    }

    #[test]
    fn the_launch_scenario_comes_first_wherever_the_user_named_it() {
        let mut asked = asked();
        asked.scenarios.reverse();
        let plan = Plan::new(&asked);
        assert_eq!(plan.cases[plan.cases_of(1)[0]].workload.scenario, "load");
    }

    #[test]
    fn the_same_engine_twice_gets_two_labels() {
        let mut asked = asked();
        asked.threads = vec![2];
        asked.candidates[1].engine = "a".into();
        let plan = Plan::new(&asked);
        assert_eq!(plan.configurations[1].label, "a #2");
    }

    #[test]
    fn what_the_command_line_sets_reaches_every_warm_workload() {
        let mut asked = asked();
        (asked.prompt, asked.samples, asked.max_new_tokens) = (Some("Hello".into()), Some(7), Some(9));
        let plan = Plan::new(&asked);
        let decode = plan.cases.iter().find(|case| case.workload.scenario == "decode").unwrap();
        assert_eq!(decode.workload.prompt, Prompt::Text("Hello".into()));
        assert_eq!((decode.workload.samples, decode.workload.max_new_tokens), (7, 9));
        let load = plan.cases.iter().find(|case| case.workload.scenario == "load").unwrap();
        assert_eq!(load.workload.samples, 1);
    }
}
