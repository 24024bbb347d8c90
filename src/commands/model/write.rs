//! `orchestrate model synth` and `orchestrate model convert`: the subcommands that write a model.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use model_files::{Dtype, Format, Goal, ModelFolder, OnProgress, SHAPES, Shape, Written, size, synthesise};

use crate::cli::exit_code::INTERRUPTED;
use crate::cli::{Verbosity, verbosity};
use crate::commands::interrupts::Interrupts;
use crate::commands::output;
use crate::shell::{Usage, this_command_with_value, unknown_name, unknown_name_or, usage, whole_number};

#[derive(Debug, Args)]
pub struct SynthArgs {
    /// A shape by name (see `orchestrate model list`)
    #[arg(value_name = "SHAPE", required_unless_present = "config")]
    pub name: Option<String>,
    /// A shape from a Hugging Face `config.json`
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    pub config: Option<PathBuf>,
    /// Output folder; for GGUF a file that ends in `.gguf`, or its folder
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Dtype of the matrices: `f32`, `bf16` or `f16`; in gguf also `q8_0`, `q4_0`, `q4_k` or `q6_k`
    #[arg(long, default_value = "bf16")]
    pub dtype: String,
    /// `safetensors` or `gguf`
    #[arg(long, default_value = "safetensors")]
    pub format: String,
    /// Seed of the random weights
    #[arg(long, default_value_t = 0, value_parser = whole_number(0, u64::MAX))]
    pub seed: u64,
}

pub fn synth(arguments: &SynthArgs) -> Result<u8> {
    let shape = match (&arguments.config, &arguments.name) {
        (Some(path), _) => {
            ensure!(path.exists(), Usage(format!("no file `{}`", path.display())));
            Shape::of_config(path)?
        }
        (None, name) => shape(name.as_deref().unwrap_or_default())?,
    };
    let (format, dtype) = (format(&arguments.format)?, dtype(&arguments.dtype)?);
    check_writable(format, dtype, "--format")?;
    let goal = Goal { format, dtype, out: arguments.out.clone() };
    write(&shape.name, |progress| synthesise(&shape, arguments.seed, &goal, progress))
}

#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// A model folder, a `.gguf` file, a repository that was pulled, or `embedded`
    #[arg(value_name = "IN")]
    pub model: String,
    /// `safetensors` or `gguf`
    #[arg(long, value_name = "FORMAT")]
    pub to: String,
    /// Dtype of the matrices; default: the model's own
    #[arg(long)]
    pub dtype: Option<String>,
    /// Output path; default: beside the model if it is given by its path, else in the current folder
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,
}

pub fn convert(arguments: &ConvertArgs) -> Result<u8> {
    let to = format(&arguments.to)?;
    let requested = arguments.dtype.as_deref().map(dtype).transpose()?;
    let path = model_files::resolve(Some(&arguments.model)).map_err(usage)?;
    let model = ModelFolder::open(&path)?;
    let dtype = match requested {
        Some(dtype) => check_writable(to, dtype, "--to").map(|()| dtype)?,
        None => default_dtype(&model, to)?,
    };
    let out = arguments.out.clone().unwrap_or_else(|| default_path(&arguments.model, &model, to, dtype));
    let goal = Goal { format: to, dtype, out };
    write(&model.name, |progress| model_files::convert(&model, &goal, progress))
}

/// The dtype of a conversion without `--dtype`: the model's own. The format must change, and the new format must support the
/// dtype.
fn default_dtype(model: &ModelFolder, to: Format) -> Result<Dtype> {
    let own_dtype = model_files::own_dtype(model)?;
    let other = match to {
        Format::Safetensors if own_dtype == Dtype::BF16 => "f32",
        Format::Safetensors => "bf16",
        Format::Gguf if own_dtype == Dtype::Q8_0 => "q4_k",
        Format::Gguf => "q8_0",
    };
    let hint = format!("hint: {}", this_command_with_value("--dtype", None, other));
    let (name, format) = (&model.name, to.as_str());
    ensure!(to != model.format, Usage(format!("`{name}` is {format} already\n{hint}")));
    model_files::check_writable(to, own_dtype).map_err(|error| Usage(format!("{error:#}\n{hint}")))?;
    Ok(own_dtype)
}

/// The path of the result: the model's name with its dtype, beside the model if it is given by its path. Other
/// models lie in a cache, so their conversion goes to the current folder.
fn default_path(argument: &str, model: &ModelFolder, to: Format, dtype: Dtype) -> PathBuf {
    let path = model.path.canonicalize().unwrap_or_else(|_| model.path.clone());
    let is_embedded = argument == model_files::embedded::NAME;
    // The folder of the unpacked embedded model is named by its digest.
    let name = if is_embedded { argument } else { model.short_name() };
    let name = format!("{name}-{}", dtype.as_str().to_ascii_lowercase());
    let name = match to {
        Format::Safetensors => name,
        Format::Gguf => format!("{name}.gguf"),
    };
    let is_path =
        !is_embedded && Path::new(argument).exists() && model_files::hub::name_of(&model.path).is_none();
    path.parent().filter(|_| is_path).unwrap_or(Path::new("")).join(name)
}

fn shape(name: &str) -> Result<Shape> {
    let known: Vec<&str> = SHAPES.iter().map(|(name, _)| *name).collect();
    if known.contains(&name) { Shape::named(name) } else { Err(unknown_name("shape", name, &known).into()) }
}

fn format(name: &str) -> Result<Format> {
    Ok(Format::named(name).ok_or_else(|| unknown_name("format", name, &["safetensors", "gguf"]))?)
}

fn dtype(name: &str) -> Result<Dtype> {
    let unknown = || unknown_name_or("dtype", name, &DTYPES, || format!("use {DTYPE_NAMES}"));
    Ok(Dtype::named(name).ok_or_else(unknown)?)
}

/// The dtypes that can be written.
pub const DTYPES: [&str; 7] = ["f32", "bf16", "f16", "q8_0", "q4_0", "q4_k", "q6_k"];

const DTYPE_NAMES: &str = "`f32`, `bf16` or `f16`; in gguf also `q8_0`, `q4_0`, `q4_k` or `q6_k`";

/// Refuses a dtype that this format cannot have. `option` is the format's option on the command line.
fn check_writable(format: Format, dtype: Dtype, option: &str) -> Result<()> {
    let name = dtype.as_str().to_ascii_lowercase();
    let works_in_gguf = model_files::check_writable(Format::Gguf, dtype).is_ok();
    let hint =
        if works_in_gguf { format!("{option} gguf --dtype {name}") } else { format!("use {DTYPE_NAMES}") };
    let writable = model_files::check_writable(format, dtype);
    Ok(writable.map_err(|error| Usage(format!("{error:#}\nhint: {hint}")))?)
}

/// Writes a model with a progress bar on stderr, and prints the model's path on stdout, for a pipe. Ctrl-C ends the work
/// with an error, after which the incomplete files are removed.
#[expect(clippy::print_stderr, reason = "a summary for the user; only the path goes to stdout")]
fn write(name: &str, work: impl FnOnce(OnProgress) -> Result<Written>) -> Result<u8> {
    let interrupts = Interrupts::listen("interrupted")?;
    interrupts.count_instead_of_exiting();
    let (started, bar) = (Instant::now(), bar(name)?);
    let on_progress = |done, total| {
        if interrupts.is_interrupted() {
            bail!("interrupted: the incomplete files were removed");
        }
        bar.set_length(total);
        bar.set_position(done);
        Ok(())
    };
    let written = work(&on_progress);
    bar.finish_and_clear();
    let written = match written {
        Err(error) if interrupts.is_interrupted() => {
            output::print_error(&error);
            return Ok(INTERRUPTED);
        }
        written => written?,
    };
    written.notes.iter().for_each(|note| eprintln!("note: {note}"));
    if verbosity() != Verbosity::Quiet {
        eprintln!("{} in {:.1} s", size(written.bytes), started.elapsed().as_secs_f64());
    }
    output::succeed(format!("{}\n", written.path.display()))
}

fn bar(name: &str) -> Result<ProgressBar> {
    let style =
        "{msg} {bar:24} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
    let target = match verbosity() {
        Verbosity::Quiet => ProgressDrawTarget::hidden(),
        _ => ProgressDrawTarget::stderr_with_hz(10),
    };
    let bar = ProgressBar::with_draw_target(None, target);
    bar.set_style(ProgressStyle::with_template(style)?);
    bar.set_message(name.to_string());
    Ok(bar)
}
