//! `orchestrate model`: models without an engine. The crate `model-files` does the work.

mod bar;
mod cache;
mod convert;
mod info;
mod list;
mod pull;
mod synth;
mod witness;

use anyhow::Result;
use clap::Subcommand;
use model_files::{Dtype, Format, Written, size};

use crate::cli::exit_code::{DONE, INTERRUPTED};
use crate::commands::output;
use crate::shell::Usage;

use bar::Bar;

#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Make a model of a real shape with random weights: same speed, no download, the same bytes on every machine
    Synth(synth::SynthArgs),
    /// Write a model in another format or another dtype
    Convert(convert::ConvertArgs),
    /// Fetch a model from the Hugging Face hub
    Pull(pull::PullArgs),
    /// List the models that are here, and those that can be synthesised
    List,
    /// Say what a model is: architecture, sizes, bytes moved for each token, memory for each context length
    Info(info::InfoArgs),
    /// Ask an engine in f32 what it says of held-out text, and keep that beside the model: runs then need not ask it
    Witness(witness::WitnessArgs),
    /// The conversions that runs made for engines that need another format
    Cache(cache::CacheArgs),
}

pub fn model(command: &ModelCommand) -> Result<u8> {
    match command {
        ModelCommand::Synth(arguments) => synth::synth(arguments),
        ModelCommand::Convert(arguments) => convert::convert(arguments),
        ModelCommand::Pull(arguments) => pull::pull(arguments),
        ModelCommand::List => list::list(),
        ModelCommand::Info(arguments) => info::info(arguments),
        ModelCommand::Witness(arguments) => witness::witness(arguments),
        ModelCommand::Cache(arguments) => cache::cache(arguments),
    }
}

fn format(name: &str) -> Result<Format> {
    let unknown = || Usage(format!("no format `{name}`\nhint: there are `safetensors` and `gguf`"));
    Ok(Format::named(name).ok_or_else(unknown)?)
}

fn dtype(name: &str) -> Result<Dtype> {
    let unknown = || Usage(format!("no dtype `{name}`\nhint: there are {WRITTEN}"));
    Ok(Dtype::named(name).ok_or_else(unknown)?)
}

const WRITTEN: &str = "`f32`, `bf16` and `f16`; in gguf also `q8_0`, `q4_0`, `q4_k` and `q6_k`";

/// Refuses a dtype that this format cannot have. `option` is the format's option on the command line.
fn check_writable(format: Format, dtype: Dtype, option: &str) -> Result<()> {
    let name = dtype.as_str().to_ascii_lowercase();
    let elsewhere = model_files::check_writable(Format::Gguf, dtype).is_ok();
    let hint =
        if elsewhere { format!("{option} gguf --dtype {name}") } else { format!("there are {WRITTEN}") };
    let refused = |error: anyhow::Error| Usage(format!("{error:#}\nhint: {hint}"));
    Ok(model_files::check_writable(format, dtype).map_err(refused)?)
}

/// The path on stdout, for a pipe; the progress on stderr.
#[expect(clippy::print_stderr, reason = "what was made, for a person; the path alone goes to stdout")]
fn written(bar: Bar, made: Result<Written>) -> Result<u8> {
    let interrupted = bar.was_interrupted();
    let took = bar.end();
    let made = match made {
        Err(error) if interrupted => {
            output::complain(&error);
            return Ok(INTERRUPTED);
        }
        made => made?,
    };
    made.notes.iter().for_each(|note| eprintln!("note: {note}"));
    eprintln!("{} in {:.1} s", size(made.bytes), took.as_secs_f64());
    output::print(format!("{}\n", made.path.display()).as_bytes())?;
    Ok(DONE)
}
