//! The arguments of all commands that measure engines, and the thresholds of a comparison.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser};

use super::view::ViewArgs;
use crate::machine::{CPU, Device, cpu};
use crate::plan::axes::AxisValues;
use crate::plan::latency_limits::LatencyLimits;
use crate::plan::scenario::{self, Scenario};
use crate::plan::selection::Names;
use crate::plan::targets::Target;
use crate::plan::texts::TextFile;
use crate::plan::{Extent, Mode, Order, Selection};
use crate::run::process::PassedVariables;
use crate::shell::{Usage, choice_parser, parse_duration, parse_timeout, whole_number};
use stats::{Rule, Severity, SeverityThresholds};

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Measure all engines that can run here; `run` builds missing ones
    #[arg(long)]
    pub all: bool,
    /// Measure all presets of the engines, except those of suites; default: the default preset
    #[arg(long)]
    pub presets: bool,
    /// Precision of every engine, such as `int8`, `nf4` or `float16`; default: that of the default preset
    #[arg(long, value_name = "PRECISION", conflicts_with_all = ["presets", "dtype"])]
    pub quantize: Option<String>,
    /// Engines, comma-separated: `NAME`, `NAME:PRESET` or the path of a program
    ///
    /// A path with a comma needs an `-e` of its own, and the file must exist.
    #[arg(short, long = "engine", value_name = "NAME|PATH")]
    pub engines: Vec<String>,
    /// Model folders or files, or `OWNER/NAME` of the Hugging Face hub, separated by commas; default: the embedded model
    #[arg(short, long = "model", value_name = "PATH", value_delimiter = ',')]
    pub models: Vec<String>,
    /// Fetch a missing model `OWNER/NAME` first; default: a missing model is an error
    #[arg(long, requires = "models")]
    pub download: bool,
    /// Required architecture of the models, as in `llama` or `gpt2`; default: any
    #[arg(long, value_name = "ARCHITECTURE")]
    pub model_type: Option<String>,
    /// Scenarios and suites, separated by commas (see `orchestrate scenarios`)
    #[arg(short, long = "scenario", value_name = "SCENARIO", value_delimiter = ',', default_value = scenario::SUITES[0].name)]
    pub scenarios: Vec<String>,
    /// Devices to run on, separated by commas
    #[arg(long, value_delimiter = ',', default_value = CPU, value_parser = Device::from_str)]
    pub device: Vec<Device>,
    /// Dtypes in which engines load a model, separated by commas; default: the engine's own
    #[arg(long, value_delimiter = ',')]
    pub dtype: Vec<String>,
    /// Numbers of threads, comma-separated; default: all usable processors
    #[arg(long, value_delimiter = ',', value_parser = whole_number(1, 4096_u32))]
    pub threads: Vec<u32>,
    /// Load option of the engines; the value is JSON or text; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_key_value)]
    pub options: Vec<(String, serde_json::Value)>,
    /// Prompt text; default: the scenario's prompts
    #[arg(long, conflicts_with_all = ["prompt_tokens", "depth", "padding", "prompts"])]
    pub prompt: Option<String>,
    /// Text to score in `perplexity` (UTF-8); default: held-out text of this project
    #[arg(long, value_name = "FILE")]
    pub text: Option<TextFile>,
    #[command(flatten)]
    pub axes: AxisValues,
    /// Latency limits of a request, as in `ttft=500ms,itl=50ms`; they add `goodput`; only in `serve` and `offline`; default: none. Names:
    /// `ttft`, `total`, `itl` (each time between two tokens), `tpot` (their mean)
    #[arg(long, value_name = "LIMITS")]
    pub slo: Option<LatencyLimits>,
    /// Measured requests (rounds) of each case in each block; default: the scenario's number
    #[arg(long, value_name = "N", value_parser = whole_number(1, u32::MAX))]
    pub iterations: Option<u32>,
    /// Warm-up requests before the measured ones; default: until their times are steady
    #[arg(long, value_name = "N", value_parser = whole_number(0, u32::MAX))]
    pub warmup: Option<u32>,
    /// Seed of prompts and of sampling
    #[arg(long, default_value_t = 0, value_parser = whole_number(0, u64::MAX))]
    pub seed: u64,
    /// Nonce of an earlier run, to repeat its prompts; default: a random number for each run
    #[arg(long, value_name = "N", value_parser = whole_number(0, protocol::MAX_INTEGER))]
    pub nonce: Option<u64>,
    /// Sampling temperature, from 0 to 100; default: 0, which is greedy decoding
    #[arg(long, value_name = "T", value_parser = parse_temperature, allow_negative_numbers = true)]
    pub temperature: Option<f64>,
    /// Use one process for all requests of a launch (`warm`), or one for each request (`one-shot`)
    #[arg(long, default_value = "warm", value_parser = choice_parser(MODES))]
    pub mode: Mode,
    /// Engine that the others are compared with; default: the reference of `orchestrate engines`, else the first engine
    #[arg(long, value_name = "NAME|PATH")]
    pub reference: Option<String>,
    /// Engine that verifies the others' outputs, or `none`; default: ORCHESTRATE_VERIFIER, else the reference of `orchestrate engines`
    #[arg(long, value_name = "NAME|PATH", alias = "witness")]
    pub verifier: Option<String>,
    /// Device of the verifier; default: cpu
    #[arg(long, value_name = "DEVICE", value_parser = Device::from_str)]
    pub verifier_device: Option<Device>,
    /// Measure only engines that are ready: build and set up nothing
    #[arg(long)]
    pub no_setup: bool,
    /// Wait until no other run uses the same cores; default: another run is an error
    #[arg(long)]
    pub wait: bool,
    /// Measure beside another run on the same cores, with a warning; default: another run is an error
    #[arg(long, conflicts_with = "wait")]
    pub anyway: bool,
    /// Longest time of one answer or load, as in `10m`; default: 2m for an answer (of the verifier 10m), 10m for a load
    #[arg(long, value_name = "TIME", value_parser = parse_timeout)]
    pub timeout: Option<Duration>,
    #[command(flatten)]
    pub view: ViewArgs,
    /// Write the report as JSON to a file; `-` prints it instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Folder for records; default: ORCHESTRATE_RESULTS, else `results` of the current folder
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Print all protocol lines and the engines' stderr
    #[arg(long)]
    pub debug: bool,
    #[command(flatten)]
    pub pass_env: PassEnvArgs,
    #[command(flatten)]
    pub extent: ExtentArgs,
    #[command(flatten)]
    pub baseline: BaselineArgs,
    #[command(flatten)]
    pub judge: JudgeArgs,
    /// The run as a file, with the parts that only a file can state.
    #[arg(skip)]
    pub file: RunFile,
}

/// The parts of a run that only a file can state, and the whole run as a file.
#[derive(Debug, Clone, Default)]
pub struct RunFile {
    /// The text that the record embeds.
    pub text: String,
    pub scenarios: Vec<Scenario>,
    pub targets: Vec<Target>,
    /// The command line replaced the engines, models or scenarios of the file, so a target may name no case.
    pub is_overridden: bool,
    /// The record of `--like`, whose run is repeated.
    pub like: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct PassEnvArgs {
    /// Environment variables that engines get beside the usual ones: `NAME` or `PREFIX*`; default: ORCHESTRATE_PASS_ENV
    ///
    /// Engines get the variables of paths, languages, devices, threads and caches, such as PATH, LD_LIBRARY_PATH, CUDA_* and
    /// HF_HOME. An access token or a key is passed only by its whole name, and its value is removed from the engine's lines. A value of
    /// fewer than 6 bytes is not removed.
    #[arg(long = "pass-env", value_name = "NAME", value_delimiter = ',', value_parser = parse_variable_name)]
    names: Vec<String>,
}

/// The environment variable that names more variables, for all runs of a shell or of a test.
const PASS_ENV: &str = "ORCHESTRATE_PASS_ENV";

impl PassEnvArgs {
    /// The flag's names, else those of the environment.
    pub fn variables(&self) -> PassedVariables {
        let variable = || std::env::var(PASS_ENV).unwrap_or_default();
        let patterns = match self.names.is_empty() {
            true => variable().split(',').filter(|name| !name.is_empty()).map(String::from).collect(),
            false => self.names.clone(),
        };
        PassedVariables { patterns }
    }
}

/// Refuses `NAME=VALUE`: the record has the command line, so it would have the value too.
fn parse_variable_name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && !text.contains(['=', ' ']) && !text.trim_end_matches('*').contains('*');
    if is_name {
        Ok(text.into())
    } else {
        Err("expected a name without a value, as in `VLLM_MODE` or `VLLM_*`".into())
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Length and order")]
pub struct ExtentArgs {
    /// Number of blocks, each with one launch of every engine; default: 5 to 20, until `--interval` or `--budget` is reached
    #[arg(long, value_name = "N", value_parser = whole_number(1, 10_000_u32))]
    pub blocks: Option<u32>,
    /// Run one block, without a time limit: values without verdicts
    #[arg(long, conflicts_with_all = ["blocks", "target"])]
    pub quick: bool,
    /// End the run when every interval is within this percentage of its ratio
    // A target is a bound of a run file; the alias is the name in earlier versions.
    #[arg(
        long = "interval",
        alias = "target",
        value_name = "PERCENT",
        default_value = "2%",
        value_parser = parse_target,
        conflicts_with = "blocks"
    )]
    pub target: Share,
    /// Time budget of the run, as in `90s` or `5m`; default: 3m, and at least one block; with `--blocks` or `--quick`: no limit
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub budget: Option<Duration>,
    /// Longest time of one request; a slower case is reported as `too slow`
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub max_request_time: Duration,
    /// Order of requests: `interleaved` (engines in turn), or `sequential` (engine after engine, without verdicts)
    #[arg(long, default_value = "interleaved", value_parser = choice_parser(ORDERS))]
    pub order: Order,
    /// Print the plan and its estimated time, and measure nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Baselines")]
pub struct BaselineArgs {
    /// Store this run, and the programs that it measured, under a name
    #[arg(long, value_name = "NAME")]
    pub save_baseline: Option<String>,
    /// Compare with this baseline, with the exit codes of `compare`; with --rerun-baseline, PATH may be a program
    #[arg(long, value_name = "BASELINE|PATH")]
    pub baseline: Option<String>,
    /// Measure the baseline's programs again, interleaved with the new ones; default: use its stored values
    #[arg(long, requires = "baseline")]
    pub rerun_baseline: bool,
}

/// The thresholds of a comparison, and the changes that fail it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Judging changes")]
pub struct JudgeArgs {
    /// Give exit code 1 if a headline metric is worse by at least this severity
    #[arg(long, value_name = "SEVERITY", default_value = "critical", value_parser = choice_parser(FAILING_SEVERITIES))]
    pub fail_on: Severity,
    /// Smallest worsening that is a warning; a loss of 10 % of the speed is a factor of 1.11
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = parse_share)]
    pub warning: Share,
    /// Worsening above which a change is critical; a loss of 20 % of the speed is a factor of 1.25
    #[arg(long, value_name = "PERCENT", default_value = "20%", value_parser = parse_share)]
    pub critical: Share,
    /// Compare records that are not comparable, with a warning
    #[arg(long)]
    pub force: bool,
}

/// The reaction to another run on the same cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherRuns {
    Refuse,
    Wait,
    Ignore,
}

/// A share: 0.02 is 2 %.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share(pub f64);

const ORDERS: [(&str, Order); 2] = [("interleaved", Order::Interleaved), ("sequential", Order::Sequential)];
const MODES: [(&str, Mode); 2] = [("warm", Mode::Warm), ("one-shot", Mode::OneShot)];
/// The severities that `--fail-on` accepts.
const FAILING_SEVERITIES: [(&str, Severity); 2] =
    [("critical", Severity::Critical), ("warning", Severity::Warning)];

impl Default for RunArgs {
    /// The arguments of an empty command line.
    fn default() -> Self {
        #[derive(Parser)]
        struct Empty {
            #[command(flatten)]
            run: RunArgs,
        }
        Empty::parse_from([""]).run
    }
}

/// The environment variable that names the verifier, for all runs of a shell or of a test.
const VERIFIER: &str = "ORCHESTRATE_VERIFIER";
/// The name of the same variable in earlier versions.
const OLD_VERIFIER: &str = "ORCHESTRATE_WITNESS";

impl RunArgs {
    pub fn names(&self) -> Names {
        Names {
            all: self.all,
            presets: self.presets,
            quantize: self.quantize.clone(),
            engines: self.engines.iter().flat_map(|value| engine_names(value)).collect(),
            scenarios: self.scenarios.clone(),
            own_scenarios: self.file.scenarios.clone(),
            models: self.models.clone(),
            model_type: self.model_type.clone(),
            reference: self.reference.clone(),
            verifier: self.verifier_name(),
        }
    }

    /// The selection without the parts that `names` has.
    pub fn settings(&self) -> Selection {
        Selection {
            devices: self.device.clone(),
            verifier_device: self.verifier_device.clone(),
            dtypes: self.dtype.iter().cloned().map(Some).collect(),
            threads: if self.threads.is_empty() { vec![cpu::all_threads()] } else { self.threads.clone() },
            options: self.options.iter().cloned().collect(),
            mode: self.mode,
            order: self.extent.order,
            extent: self.extent.extent(),
            seed: self.seed,
            nonce: self.nonce,
            prompt: self.prompt.clone(),
            scored_text: self.text.clone(),
            axes: self.axes.clone(),
            rounds: self.iterations,
            warmup: self.warmup,
            temperature: self.temperature,
            latency_limits: self.slo.unwrap_or_default(),
            targets: self.file.targets.clone(),
            ..Selection::default()
        }
    }

    pub fn other_runs(&self) -> OtherRuns {
        match (self.wait, self.anyway) {
            (true, _) => OtherRuns::Wait,
            (false, true) => OtherRuns::Ignore,
            (false, false) => OtherRuns::Refuse,
        }
    }

    /// The verifier: the flag's, else the environment's.
    fn verifier_name(&self) -> Option<String> {
        self.verifier.clone().or_else(verifier_of_environment)
    }
}

pub fn verifier_of_environment() -> Option<String> {
    [VERIFIER, OLD_VERIFIER].iter().find_map(|name| std::env::var(name).ok())
}

impl ExtentArgs {
    pub fn extent(&self) -> Extent {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Extent {
            blocks: if self.quick { Some(1) } else { self.blocks },
            target: self.target.0,
            budget_ns: self.budget.map(ns),
            max_request_ns: ns(self.max_request_time),
            ..Extent::default()
        }
    }
}

impl JudgeArgs {
    /// The first option with another value than its default, for a command that judges no changes.
    pub fn first_given(&self) -> Option<&'static str> {
        let default = RunArgs::default().judge;
        let given = [
            ("--fail-on SEVERITY", self.fail_on != default.fail_on),
            ("--warning PERCENT", self.warning != default.warning),
            ("--critical PERCENT", self.critical != default.critical),
            ("--force", self.force),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

    pub fn thresholds(&self) -> Result<SeverityThresholds, Usage> {
        let Self { warning, critical, .. } = self;
        let thresholds = SeverityThresholds::new(warning.0, critical.0);
        let percent = |share: f64| {
            format!("{:.3}", 100.0 * share).trim_end_matches('0').trim_end_matches('.').to_string()
        };
        thresholds.ok_or_else(|| {
            let (warning, critical) = (percent(warning.0), percent(critical.0));
            Usage(format!("--warning {warning}% is above --critical {critical}%"))
        })
    }
}

/// The names in a value of `-e`. A value that is the path of an existing file is one name, because a path may have commas.
fn engine_names(value: &str) -> Vec<String> {
    let is_one_name = !value.contains(',') || value.contains('/') && Path::new(value).exists();
    let names = value.split(',').filter(|name| !name.is_empty()).map(String::from);
    Some(names.collect::<Vec<_>>())
        .filter(|names| !is_one_name && !names.is_empty())
        .unwrap_or(vec![value.into()])
}

pub fn parse_key_value(text: &str) -> Result<(String, serde_json::Value), String> {
    let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
        match text.trim_matches('=') {
            "" => "expected a key and a value, as in `key=true`".to_string(),
            key => format!("expected a key and a value, as in `{key}=true`"),
        }
    })?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| serde_json::Value::String(value.into()));
    Ok((key.to_string(), value))
}

/// Above this temperature, the choice of a token is almost uniform, and the logits of an engine in 16 bits have no effect.
const MAX_TEMPERATURE: f64 = 100.0;

fn parse_temperature(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=MAX_TEMPERATURE).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from 0 to {MAX_TEMPERATURE}")),
    }
}

/// A number without `%` that is below this may be meant as a share: 0.02 for 2 %.
const AMBIGUOUS_BELOW: f64 = 0.1;

/// `2%`, `2 %` or `2`.
fn parse_share(text: &str) -> Result<Share, String> {
    let text = text.trim();
    let number = text.trim_end_matches('%').trim_end();
    match number.parse::<f64>() {
        Ok(bare) if number == text && bare > 0.0 && bare < AMBIGUOUS_BELOW => {
            // `0.07` is 7 %, not 7.000000000000001 %.
            let percent = (bare * 1e8).round() / 1e6;
            Err(format!("ambiguous: write `{percent}%` or `{number}%`"))
        }
        Ok(percent) if percent.is_finite() && percent > 0.0 => Ok(Share(percent / 100.0)),
        _ => Err("expected a percentage above zero, as in `2%`".into()),
    }
}

fn parse_target(text: &str) -> Result<Share, String> {
    let share = parse_share(text)?;
    Rule::with_target(share.0).map(|_| share).ok_or_else(|| "expected a percentage below 100".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_the_engine_option_is_a_list_or_an_existing_path() {
        let folder = tempfile::tempdir().unwrap();
        let (with_comma, absent) = (folder.path().join("my,engine"), folder.path().join("a,b"));
        std::fs::write(&with_comma, "").unwrap();
        let [with_comma, absent] = [with_comma, absent].map(|path| path.to_string_lossy().into_owned());
        assert_eq!(engine_names(&with_comma), [with_comma.as_str()]);
        assert_eq!(engine_names(&absent), [absent.strip_suffix(",b").unwrap(), "b"]);
        assert_eq!(engine_names("a:x,b,./c"), ["a:x", "b", "./c"]);
        assert_eq!(engine_names("a,"), ["a"]);
        assert_eq!([engine_names(""), engine_names(",")], [[""], [","]]);
    }

    #[test]
    fn a_temperature_is_a_number_from_0_to_100() {
        assert_eq!(["0", "-0", "0.7", "100"].map(parse_temperature), [0.0, 0.0, 0.7, 100.0].map(Ok));
        for text in ["-1", "100.1", "9e99", "inf", "-inf", "nan", "", "x"] {
            assert_eq!(parse_temperature(text).unwrap_err(), "expected a number from 0 to 100", "{text}");
        }
    }

    #[test]
    fn a_number_without_a_percent_sign_is_refused_if_it_could_be_a_share() {
        for text in ["2%", "2 %", "2", " 2% "] {
            assert_eq!(parse_share(text), Ok(Share(0.02)), "{text}");
        }
        assert_eq!(parse_share("0.02%"), Ok(Share(0.0002)));
        assert_eq!(parse_share("0.5"), Ok(Share(0.005)));
        assert_eq!(parse_share("0.02").unwrap_err(), "ambiguous: write `2%` or `0.02%`");
        assert_eq!(parse_share("0.07").unwrap_err(), "ambiguous: write `7%` or `0.07%`");
        for text in ["", "%", "0", "-1", "nan", "inf%", "x"] {
            assert!(parse_share(text).unwrap_err().starts_with("expected a percentage above zero"), "{text}");
        }
    }
}
