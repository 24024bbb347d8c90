//! The command line: types only.

pub mod exit_code;
pub mod judge;
pub mod machine;
pub mod model;

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::machine::{CPU, Device};
use crate::plan::Mode;
use crate::plan::asked::Selection;
use crate::plan::scenario;
use crate::report::{self, Format};
use crate::shell::Usage;
pub use judge::{BaselineArgs, BaselineCommand, CompareArgs, ExtentArgs, JudgeArgs};

/// Measures LLM inference engines: each is a program that reads JSON on stdin and writes timing JSON on stdout.
#[derive(Debug, Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true,
    after_help = exit_code::EXIT_CODES,
    max_term_width = 100
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure engines (the same as giving its options without `run`)
    Run(Box<RunArgs>),
    /// List the engines that are known here, and whether they can run
    Engines,
    /// List scenarios and suites
    Scenarios,
    /// Say what each figure means
    Metrics,
    /// Build an engine and create its environment
    Setup(SetupArgs),
    /// Make, convert, fetch and describe models
    #[command(subcommand)]
    Model(model::ModelCommand),
    /// Print the exact JSON lines of a scenario, to pipe into any engine by hand
    Request(RequestArgs),
    /// Say what of the protocol an engine keeps, what is absent and what is wrong
    Check(CheckArgs),
    /// Make a report of a run record again
    Report(ReportArgs),
    /// Say what changed from one run record or baseline to another, and how sure that is
    Compare(CompareArgs),
    /// Look after the runs that --save-baseline keeps
    #[command(subcommand)]
    Baseline(BaselineCommand),
    /// Find out how small a change can be seen on this machine, by measuring engines against themselves
    Calibrate(Box<RunArgs>),
    /// Measure what this program itself costs: a request, a streamed token, waiting
    Overhead(OverheadArgs),
    /// Say what this machine is, what it can do at most, and what speaks against measuring on it now
    Machine(machine::MachineArgs),
    /// Print the JSON Schema of the protocol
    Schema,
    /// An engine that computes nothing; `overhead` measures with it
    #[command(hide = true)]
    NullEngine,
    /// What GPUs can do at most, as JSON; a run asks it, so that no context of its own stays on a GPU
    #[command(hide = true)]
    ProbeGpu {
        /// By CUDA's index; all unless given
        devices: Vec<u32>,
    },
    /// Ends what a run leaves behind; started by the run itself
    #[command(hide = true)]
    Keeper { run: String },
}

#[derive(Debug, Default, Args)]
pub struct RunArgs {
    /// Measure every engine that this machine can run; build and set up what is missing
    #[arg(long)]
    pub all: bool,
    /// Every preset of the engines that are named (or of `--all`), not the default one alone
    #[arg(long)]
    pub presets: bool,
    /// An engine by name (`NAME`, or `NAME:PRESET`), or the path of any program that speaks the protocol
    #[arg(short, long = "engine", value_name = "NAME|PATH")]
    pub engines: Vec<String>,
    /// A model folder or file; the default is the embedded one
    #[arg(short, long = "model", value_name = "PATH", value_delimiter = ',')]
    pub models: Vec<String>,
    /// What the models are expected to be: `llama`, `gpt2`; another architecture is an error
    #[arg(long, value_name = "ARCHITECTURE")]
    pub model_type: Option<String>,
    /// A scenario or a suite (see `orchestrate scenarios`)
    #[arg(short, long = "scenario", value_name = "NAME", value_delimiter = ',', default_value = scenario::SUITES[0].name)]
    pub scenarios: Vec<String>,
    /// Devices to run on; a comma list makes the cross product
    #[arg(long, value_delimiter = ',', default_value = CPU, value_parser = Device::from_str)]
    pub device: Vec<Device>,
    /// Dtypes to load in; each engine's own default unless given
    #[arg(long, value_delimiter = ',')]
    pub dtype: Vec<String>,
    /// Threads for every engine; as many as there are cores unless given
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Vec<u32>,
    /// An option of the engines' own; the value is JSON or a word
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub options: Vec<(String, serde_json::Value)>,
    /// A prompt in place of the scenario's
    #[arg(long)]
    pub prompt: Option<String>,
    /// Tokens to generate for each request, in place of the scenario's number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_new_tokens: Option<u32>,
    /// Measured requests for each case in each block: its rounds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: Option<u32>,
    /// Unmeasured requests before them; unless given, until they take equally long
    #[arg(long, value_name = "N")]
    pub warmup: Option<u32>,
    /// Chooses the windows of text that prompts are cut from, and seeds sampling
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// 0 is greedy
    #[arg(long, value_name = "T", value_parser = temperature, allow_negative_numbers = true)]
    pub temperature: Option<f64>,
    /// `warm`: one process answers all requests of a launch; `one-shot`: one process for each request, the cold way
    #[arg(long, value_enum, default_value_t = Mode::Warm)]
    pub mode: Mode,
    /// What ratios are taken against; unless given, the engine whose manifest says that it is the reference
    #[arg(long, value_name = "ENGINE")]
    pub reference: Option<String>,
    /// Whose word on a model's output is taken, in f32; unless given, the reference engine of the tree where it is set up.
    /// `none` proves nothing. ORCHESTRATE_WITNESS in the environment says the same
    #[arg(long, value_name = "ENGINE")]
    pub witness: Option<String>,
    /// Build nothing and set up nothing: measure what is ready
    #[arg(long)]
    pub no_setup: bool,
    /// Seconds that one answer or one load may take
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: Option<u64>,
    #[command(flatten)]
    pub view: ViewArgs,
    /// Write the report as JSON to a file; `-` prints it in place of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where the run record goes
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Show every line in both directions and the engines' stderr
    #[arg(long)]
    pub debug: bool,
    #[command(flatten)]
    pub extent: ExtentArgs,
    #[command(flatten)]
    pub baseline: BaselineArgs,
    #[command(flatten)]
    pub judge: JudgeArgs,
}

#[derive(Debug, Args)]
pub struct SetupArgs {
    #[arg(required_unless_present = "list")]
    pub engine: Option<String>,
    /// Say what is set up, where, and how large it is
    #[arg(long)]
    pub list: bool,
    /// Remove an engine's environment
    #[arg(long, conflicts_with = "list")]
    pub remove: bool,
    /// Devices to make it ready for, as a comma list: an engine may be another program on each
    #[arg(long, value_delimiter = ',', default_value = CPU, value_parser = Device::from_str, conflicts_with_all = ["list", "remove"])]
    pub device: Vec<Device>,
}

#[derive(Debug, Args)]
pub struct RequestArgs {
    /// An engine by name or path; it is not started
    pub engine: String,
    pub scenario: String,
    /// The form for an engine that knows `generate` alone: prompts as text, nothing before and after
    #[arg(long)]
    pub text: bool,
    #[arg(short, long)]
    pub model: Option<String>,
    /// The device that `load` names
    #[arg(long, default_value = CPU, value_parser = Device::from_str)]
    pub device: Device,
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// An engine by name, or the path of any program
    #[arg(value_name = "NAME|PATH")]
    pub engine: String,
    /// A model folder or file; the default is the embedded one
    #[arg(short, long, value_name = "PATH")]
    pub model: Option<String>,
    /// The device to check it on; the CPU, or the first of those that it says it has
    #[arg(long, value_parser = Device::from_str)]
    pub device: Option<Device>,
    /// Seconds that one answer or one load may take
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: Option<u64>,
    /// Show every line in both directions and the engine's stderr
    #[arg(long)]
    pub debug: bool,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    pub record: PathBuf,
    #[command(flatten)]
    pub view: ViewArgs,
}

#[derive(Debug, Args)]
pub struct OverheadArgs {
    /// How the table is printed
    #[arg(long, value_name = "FORMAT", default_value = report::FORMATS[0].name, value_parser = formats())]
    pub format: &'static Format,
}

/// How a report is printed, and what of it.
#[derive(Debug, Default, Args)]
pub struct ViewArgs {
    /// How the table is printed
    #[arg(long, value_name = "FORMAT", default_value = report::FORMATS[0].name, value_parser = formats())]
    pub format: &'static Format,
    /// Verdicts on every pair of engines, not on each against the reference alone
    #[arg(long)]
    pub pairs: bool,
    /// Where the wall time went: start, imports, weights, compiling, first token, steady state, and what nobody accounts for
    #[arg(long)]
    pub wall_time: bool,
    /// What each case needed beside time: memory in its parts, cores, energy, a GPU
    #[arg(long)]
    pub resources: bool,
}

/// Names the reference engine for output checks in every run of a shell or of a test.
const WITNESS: &str = "ORCHESTRATE_WITNESS";

impl RunArgs {
    pub fn selection(&self) -> Selection {
        Selection {
            all: self.all,
            presets: self.presets,
            engines: self.engines.clone(),
            scenarios: self.scenarios.clone(),
            models: self.models.clone(),
            model_type: self.model_type.clone(),
            devices: self.device.clone(),
            dtypes: self.dtype.clone(),
            threads: self.threads.clone(),
            options: self.options.clone(),
            reference: self.reference.clone(),
            verifier: self.verifier_name(),
            mode: self.mode,
            order: self.extent.order,
            extent: self.extent.extent(),
            seed: self.seed,
            prompt: self.prompt.clone(),
            max_new_tokens: self.max_new_tokens,
            rounds: self.iterations,
            warmup: self.warmup,
            temperature: self.temperature,
        }
    }

    /// The reference engine for output checks: the flag's, else the environment's.
    fn verifier_name(&self) -> Option<String> {
        self.witness.clone().or_else(|| std::env::var(WITNESS).ok())
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

impl ViewArgs {
    /// Refuses what its format could not show, before anything is measured.
    pub fn check(&self) -> Result<(), Usage> {
        if self.pairs && self.format.has_lines() {
            let why =
                format!("a line of {} has no place for a comparison with several engines", self.format.name);
            let others = report::FORMATS.iter().filter(|it| !it.has_lines()).map(|it| it.name);
            let others = any_of(&others.collect::<Vec<_>>());
            return Err(Usage(format!("--pairs: {why}\nhint: --format {others} has it")));
        }
        Ok(())
    }
}

pub fn formats() -> impl TypedValueParser<Value = &'static Format> {
    formats_where(|_| true)
}

/// Those that a command can give.
pub fn formats_where(given: fn(&Format) -> bool) -> impl TypedValueParser<Value = &'static Format> {
    let given = report::FORMATS.iter().filter(|format| given(format));
    let values = given.map(|format| PossibleValue::new(format.name).help(format.about));
    PossibleValuesParser::from(values.collect::<Vec<_>>())
        .try_map(|name| report::named(&name).ok_or("no such format"))
}

/// `a, b or c`.
fn any_of(names: &[&str]) -> String {
    match names {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        names => names.concat(),
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

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::report::{FORMATS, Shape};

    #[test]
    fn pairs_are_refused_by_every_format_that_has_lines_whatever_its_name() {
        static OF_LINES: Format = Format { name: "records", about: "", shape: Shape::Lines(|_| Vec::new()) };
        let view = |format| ViewArgs { pairs: true, format, ..ViewArgs::default() };
        let refused = view(&OF_LINES).check().unwrap_err().to_string();
        assert!(refused.contains("a line of records") && refused.ends_with(" has it"), "{refused}");
        for format in FORMATS {
            assert_eq!(view(format).check().is_err(), format.has_lines(), "{}", format.name);
            assert_eq!(refused.contains(&format!(" {}", format.name)), !format.has_lines(), "{refused}");
        }
    }

    #[test]
    fn a_command_takes_the_formats_that_it_can_give_and_no_others() {
        let (command, parser) = (clap::Command::new("x"), formats_where(|it| !it.has_lines()));
        for format in FORMATS {
            let taken = parser.parse_ref(&command, None, OsStr::new(format.name)).ok();
            assert_eq!(taken.map(|it| it.name), (!format.has_lines()).then_some(format.name));
        }
    }

    #[test]
    fn names_are_joined_as_a_sentence_has_them() {
        let joined = [any_of(&["a"]), any_of(&["a", "b"]), any_of(&["a", "b", "c"])];
        assert_eq!(joined, ["a", "a or b", "a, b or c"]);
    }
}
