//! The arguments of an experiment, shared by the commands that measure.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

use super::judge::{BaselineArgs, ExtentArgs, JudgeArgs};
use super::view::ViewArgs;
use crate::machine::{CPU, Device, cpu};
use crate::plan::scenario;
use crate::plan::selection::Names;
use crate::plan::{Mode, Selection};

#[derive(Debug, Default, Args)]
pub struct RunArgs {
    /// Measure every engine that this machine can run; build and set up what is missing
    #[arg(long)]
    pub all: bool,
    /// Measure every preset of the selected engines; default: the default preset
    #[arg(long)]
    pub presets: bool,
    /// An engine by name (`NAME`, or `NAME:PRESET`), or the path of any program that speaks the protocol
    #[arg(short, long = "engine", value_name = "NAME|PATH")]
    pub engines: Vec<String>,
    /// A model folder or file; the default is the embedded one
    #[arg(short, long = "model", value_name = "PATH", value_delimiter = ',')]
    pub models: Vec<String>,
    /// Required architecture of the models, as in `llama` or `gpt2`; default: any
    #[arg(long, value_name = "ARCHITECTURE")]
    pub model_type: Option<String>,
    /// A scenario or a suite (see `orchestrate scenarios`)
    #[arg(short, long = "scenario", value_name = "NAME", value_delimiter = ',', default_value = scenario::SUITES[0].name)]
    pub scenarios: Vec<String>,
    /// Devices to run on, separated by commas
    #[arg(long, value_delimiter = ',', default_value = CPU, value_parser = Device::from_str)]
    pub device: Vec<Device>,
    /// Dtypes to load in, separated by commas; default: the engine's own
    #[arg(long, value_delimiter = ',')]
    pub dtype: Vec<String>,
    /// Threads of every engine; default: the number of cores
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Vec<u32>,
    /// Option of the engines themselves; the value is JSON or text
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub options: Vec<(String, serde_json::Value)>,
    /// Prompt text; default: the scenario's prompts
    #[arg(long)]
    pub prompt: Option<String>,
    /// Tokens to generate for each request; default: the scenario's number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_new_tokens: Option<u32>,
    /// Measured requests (rounds) of each case in each block; default: the scenario's number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: Option<u32>,
    /// Warm-up requests before them; default: until their times are steady
    #[arg(long, value_name = "N")]
    pub warmup: Option<u32>,
    /// Seed of prompts and of sampling
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Sampling temperature, 0 for greedy decoding; default: the scenario's
    #[arg(long, value_name = "T", value_parser = temperature, allow_negative_numbers = true)]
    pub temperature: Option<f64>,
    /// Use one process for all requests of a launch (`warm`), or one for each request (`one-shot`)
    #[arg(long, value_enum, default_value_t = Mode::Warm)]
    pub mode: Mode,
    /// Engine that the others are compared with; default: the reference engine of the tree
    #[arg(long, value_name = "ENGINE")]
    pub reference: Option<String>,
    /// Reference engine for output checks, or `none`; default: ORCHESTRATE_VERIFIER, else the tree's reference engine
    #[arg(long, value_name = "ENGINE", alias = "witness")]
    pub verifier: Option<String>,
    /// Measure only engines that are ready: build and set up nothing
    #[arg(long)]
    pub no_setup: bool,
    /// Longest time of one answer or one load, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: Option<u64>,
    #[command(flatten)]
    pub view: ViewArgs,
    /// Write the report as JSON to a file; `-` prints it instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Folder for the run record; default: `results` of the tree, else of the user's data folder
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Print all protocol lines and the engines' stderr
    #[arg(long)]
    pub debug: bool,
    #[command(flatten)]
    pub extent: ExtentArgs,
    #[command(flatten)]
    pub baseline: BaselineArgs,
    #[command(flatten)]
    pub judge: JudgeArgs,
}

/// Names the reference engine for output checks in every run of a shell or of a test.
const VERIFIER: &str = "ORCHESTRATE_VERIFIER";
/// The name of the same variable in earlier versions.
const OLD_VERIFIER: &str = "ORCHESTRATE_WITNESS";

impl RunArgs {
    pub fn names(&self) -> Names {
        Names {
            all: self.all,
            presets: self.presets,
            engines: self.engines.clone(),
            scenarios: self.scenarios.clone(),
            models: self.models.clone(),
            model_type: self.model_type.clone(),
            reference: self.reference.clone(),
            verifier: self.verifier_name(),
        }
    }

    /// The selection without what is named.
    pub fn settings(&self) -> Selection {
        Selection {
            devices: self.device.clone(),
            dtypes: self.dtype.iter().cloned().map(Some).collect(),
            threads: if self.threads.is_empty() { vec![cpu::all_threads()] } else { self.threads.clone() },
            options: self.options.iter().cloned().collect(),
            mode: self.mode,
            order: self.extent.order,
            extent: self.extent.extent(),
            seed: self.seed,
            prompt: self.prompt.clone(),
            max_new_tokens: self.max_new_tokens,
            rounds: self.iterations,
            warmup: self.warmup,
            temperature: self.temperature,
            ..Selection::default()
        }
    }

    /// The reference engine for output checks: the flag's, else the environment's.
    fn verifier_name(&self) -> Option<String> {
        let variable = || [VERIFIER, OLD_VERIFIER].iter().find_map(|name| std::env::var(name).ok());
        self.verifier.clone().or_else(variable)
    }
}

impl ValueEnum for Mode {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Warm, Self::OneShot]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::Warm => "warm".into(),
            Self::OneShot => "one-shot".into(),
        })
    }
}

fn key_value(text: &str) -> Result<(String, serde_json::Value), String> {
    let (key, value) =
        text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or("expected `key=value`")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| serde_json::Value::String(value.into()));
    Ok((key.to_string(), value))
}

fn temperature(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("expected 0 or more".into()),
    }
}
