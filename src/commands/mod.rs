//! The subcommands. To add one, write its arguments and a function that only calls lower modules, and give it an entry
//! in `commands!`.

mod baseline;
mod calibrate;
mod check;
mod explain;
mod generated;
mod internal;
mod listings;
mod machine;
mod model;
mod overhead;
mod recommend;
mod records;
mod request;
mod run;
mod setup;
mod version;

// Parts of the subcommands.
mod core_lock;
mod download;
mod dry_run;
mod earlier_times;
mod estimate;
mod experiment;
mod interrupts;
mod noise_floors;
pub mod output;
mod progress;
mod record_list;
mod refused_command_line;

use std::ffi::OsString;

use anyhow::Result;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::cli::exit_code::{EXIT_CODES, USAGE};
use crate::cli::run_file::{FileRunArgs, with_file};
use crate::cli::{RunArgs, VerbosityArgs, formats_where};

/// Each entry is a variant of `Command`, with its help, its arguments and its call. `matches` is the parsed command line of the
/// subcommand.
macro_rules! commands {
    ($matches:ident: $($(#[$help:meta])* $variant:ident $(($arguments:ident: $type:ty))? => $call:expr,)+) => {
        #[derive(Debug, Subcommand)]
        enum Command {
            $($(#[$help])* $variant $(($type))?,)+
        }

        impl Command {
            fn dispatch(self, $matches: &ArgMatches) -> Result<u8> {
                match self {
                    $(Self::$variant $(($arguments))? => $call,)+
                }
            }
        }
    };
}

commands! { matches:
    /// Measure engines (the word `run` may be left out, except before a run file)
    Run(arguments: Box<FileRunArgs>) => run::run(arguments.resolve(matches, run::file_of_record)?),
    /// List the known engines, and whether they can run
    Engines => listings::engines(),
    /// List scenarios and suites
    Scenarios => listings::scenarios(),
    /// Explain each metric, or those that are named
    Metrics(arguments: listings::MetricsArgs) => listings::metrics(&arguments),
    /// Build engines and create their environments
    Setup(arguments: setup::SetupArgs) => setup::setup(&arguments),
    /// Make, convert, fetch and describe models
    #[command(subcommand)]
    Model(command: model::ModelCommand) => model::model(&command),
    /// Print the JSON lines of a scenario, to pipe into any engine by hand
    Request(arguments: Box<request::RequestArgs>) => request::request(&arguments),
    /// Check an engine against the protocol
    Check(arguments: check::CheckArgs) => check::check(&arguments),
    /// Make a report of the latest run record, or of another one; `--list` lists the records
    Report(arguments: records::ReportArgs) => records::report(arguments),
    /// Explain the verdicts, the output status and the warnings of an engine or a case
    Explain(arguments: explain::ExplainArgs) => explain::explain(&arguments),
    /// Measure the engines that are set up, and recommend the one with the lowest latency
    ///
    /// No engine is built or set up, even with `--all`. Unless `--budget` sets another time, the time budget is 30 seconds for
    /// each configuration, and at least 3 minutes.
    Recommend(arguments: Box<recommend::RecommendArgs>) => recommend::recommend(*arguments),
    /// Compare two run records or baselines
    Compare(arguments: records::CompareArgs) => records::compare(&arguments),
    /// List, show and remove baselines (saved by --save-baseline)
    #[command(subcommand)]
    Baseline(command: baseline::BaselineCommand) => baseline::baseline(&command),
    /// Measure the noise floor of this machine: each engine is compared with itself
    ///
    /// Without `-e` and `--all`, every engine that is ready is measured, and nothing is built.
    Calibrate(arguments: Box<FileRunArgs>) => calibrate::calibrate(arguments.resolve(matches, run::file_of_record)?),
    /// Measure the time that this program adds to a request, a streamed token and a wait
    Overhead(arguments: overhead::OverheadArgs) => overhead::overhead(&arguments),
    /// Show the machine, its limits, and whatever would disturb a measurement now
    Machine(arguments: machine::MachineArgs) => machine::machine(&arguments),
    /// Print the JSON Schema of the protocol
    Schema => listings::schema(),
    /// Print a script for a shell, which then completes commands, options and names
    Completions(arguments: generated::CompletionsArgs) => generated::completions(&arguments, Cli::command()),
    /// Print or write the man pages
    Man(arguments: generated::ManArgs) => generated::man(&arguments, Cli::command()),
    /// An engine that computes nothing; `overhead` measures with it
    #[command(hide = true)]
    NullEngine => internal::null_engine(),
    /// Probe the limits of GPUs, as JSON; a separate process, so that a run keeps no CUDA context on a GPU
    #[command(hide = true)]
    ProbeGpu(arguments: internal::ProbeGpuArgs) => internal::probe_gpu(arguments),
    /// End remaining processes of a run; started by the run itself
    #[command(hide = true)]
    Keeper(arguments: internal::KeeperArgs) => internal::keeper(&arguments),
}

/// The options of a run that `-h` shows. `--help` shows all.
const COMMON_OPTIONS: [&str; 16] = [
    "all",
    "quantize",
    "engines",
    "models",
    "scenarios",
    "device",
    "threads",
    "format",
    "full",
    "blocks",
    "quick",
    "budget",
    "dry_run",
    "record",
    "quiet",
    "verbose",
];

/// The commands that take the options of a run.
const RUN_COMMANDS: [&str; 3] = ["run", "recommend", "calibrate"];

/// Takes a negative number after an option as its value, so that the error says which values the option has.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let is_option = !arg.is_positional() && arg.get_action().takes_values();
        if is_option { arg.allow_negative_numbers(true) } else { arg }
    });
    command.mut_subcommands(with_negative_numbers)
}

/// Leaves rare options out of the short help.
fn with_short_help(command: clap::Command) -> clap::Command {
    let hide_rare = |command: clap::Command| {
        command.mut_args(|arg| {
            let is_common = arg.is_positional() || COMMON_OPTIONS.iter().any(|id| arg.get_id() == id);
            arg.hide_short_help(!is_common)
        })
    };
    RUN_COMMANDS.into_iter().fold(hide_rare(command), |command, name| command.mut_subcommand(name, hide_rare))
}

/// Gives the commands that share the options of a run their own defaults, and hides the options that they refuse.
fn with_own_options(command: clap::Command) -> clap::Command {
    let hidden = |command: clap::Command, options: &[&str]| {
        command.mut_args(|arg| {
            let is_refused = options.iter().any(|id| arg.get_id() == id);
            if is_refused { arg.hide(true) } else { arg }
        })
    };
    let recommend = |command: clap::Command| {
        let budget = "Time budget of the run, as in `90s` or `5m`; default: 30 seconds for each configuration, at least 3m";
        let presets = "Also measure the presets that keep the precision; default: those that change it";
        let all = "Measure all engines that are set up; default, if no engine is named";
        let command = command
            .mut_arg("all", |arg| arg.help(all))
            .mut_arg("budget", |arg| arg.help(budget))
            .mut_arg("presets", |arg| arg.help(presets))
            // A recommendation is not a list of values.
            .mut_arg("format", |arg| arg.value_parser(formats_where(|it| !it.has_lines())));
        hidden(command, recommend::REFUSED)
    };
    let calibrate = |command: clap::Command| {
        let blocks = "Number of blocks, each with one launch of every engine and its twin; default: 20";
        let budget = "Time budget of the run, as in `90s` or `5m`; default: no limit";
        let all = "Measure all engines that can run here; missing ones are built; default: ready ones";
        let command = command
            .mut_arg("all", |arg| arg.help(all))
            .mut_arg("blocks", |arg| arg.help(blocks))
            .mut_arg("budget", |arg| arg.help(budget));
        hidden(command, calibrate::REFUSED)
    };
    command.mut_subcommand("recommend", recommend).mut_subcommand("calibrate", calibrate)
}

/// The answer to a command line without arguments.
const FIRST_STEPS: &str = "\
Measures LLM inference engines: all get the same requests, their output is checked,
and each difference between them gets a verdict.

  orchestrate engines             the known engines, and whether they can run
  orchestrate -e NAME --quick     measure one engine, in seconds
  orchestrate --all               measure every engine that can run here
  orchestrate -e ./my-engine      measure any program that speaks the protocol
  orchestrate report              show the latest results again
  orchestrate explain NAME        why an engine has its verdict or a warning
  orchestrate recommend           the engine to use on this machine

All commands and options: orchestrate -h
One command, in detail:   orchestrate COMMAND --help
";

/// Measures LLM inference engines: programs that read JSON requests on stdin and write JSON answers with times on stdout.
#[derive(Debug, Parser)]
#[command(
    version = version::short(),
    long_version = version::long(),
    args_conflicts_with_subcommands = true,
    after_help = "All options and the exit codes: orchestrate --help",
    after_long_help = EXIT_CODES,
    max_term_width = 100
)]
pub struct Cli {
    /// Colours in reports and messages
    #[arg(long, value_name = "WHEN", value_enum, default_value_t, global = true)]
    color: output::ColorChoice,
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    verbosity: VerbosityArgs,
    /// The parsed command line, which says which options the user gave.
    #[arg(skip)]
    matches: ArgMatches,
}

impl Cli {
    /// Reads the command line. clap refuses `-q`, `-v` and `--color` before a subcommand, so they are moved behind it. The error
    /// is an exit code, after a message.
    pub fn of_command_line() -> Result<Self, u8> {
        let mut words: Vec<OsString> = std::env::args_os().collect();
        let is_verbosity = |word: &OsString| ["-q", "--quiet", "-v", "--verbose"].iter().any(|it| word == it);
        let mut flags = 0;
        while let Some(word) = words.get(flags + 1) {
            flags += match () {
                () if word == "--color" => 2,
                () if is_verbosity(word) || word.as_encoded_bytes().starts_with(b"--color=") => 1,
                () => break,
            };
        }
        if words.get(flags + 1).is_some_and(|word| !word.as_encoded_bytes().starts_with(b"-")) {
            words[1..flags + 2].rotate_right(1);
        }
        let mut command = with_short_help(with_own_options(with_negative_numbers(Self::command())));
        let parsed = command.clone().try_get_matches_from(&words).and_then(|matches| {
            let parsed = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
            Ok(Self { matches, ..parsed })
        });
        parsed.map_err(|error| refused_command_line::print(&error, &command, &words))
    }

    pub fn dispatch(self) -> Result<u8> {
        output::set_color(self.color);
        self.verbosity.choose();
        match self.command {
            None if std::env::args_os().len() < 2 => {
                output::print_notice(FIRST_STEPS);
                Ok(USAGE)
            }
            None => run::run(with_file(self.run, &self.matches)),
            Some(command) => {
                let of_subcommand = self.matches.subcommand().map(|(_, matches)| matches);
                command.dispatch(of_subcommand.unwrap_or(&self.matches))
            }
        }
    }
}
