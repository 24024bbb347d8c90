//! `orchestrate model synth`.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use model_files::{Goal, Shape, synthesise};

use super::writing::{Bar, check_writable, dtype, format, written};
use crate::shell::Usage;

#[derive(Debug, Args)]
pub struct SynthArgs {
    /// A shape by name (see `orchestrate model list`)
    #[arg(required_unless_present = "config")]
    pub name: Option<String>,
    /// A shape from a Hugging Face `config.json`
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    pub config: Option<PathBuf>,
    /// Output folder; for GGUF a file that ends in `.gguf`, or its folder
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// safetensors: f32, bf16, f16; gguf: those, and q8_0, q4_0, q4_k
    #[arg(long, default_value = "bf16")]
    pub dtype: String,
    /// `safetensors` or `gguf`
    #[arg(long, default_value = "safetensors")]
    pub format: String,
    /// Seed of the random weights
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

pub fn synth(arguments: &SynthArgs) -> Result<u8> {
    let usage = |error: anyhow::Error| anyhow::Error::new(Usage(format!("{error:#}")));
    let shape = match (&arguments.config, &arguments.name) {
        (Some(path), _) => {
            ensure!(path.exists(), Usage(format!("no file `{}`", path.display())));
            Shape::of_config(path)?
        }
        (None, name) => Shape::named(name.as_deref().unwrap_or_default()).map_err(usage)?,
    };
    let goal = Goal {
        format: format(&arguments.format)?,
        dtype: dtype(&arguments.dtype)?,
        out: arguments.out.clone(),
    };
    check_writable(goal.format, goal.dtype, "--format")?;
    let bar = Bar::begin(&shape.name)?;
    let made = synthesise(&shape, arguments.seed, &goal, &bar.watch());
    written(bar, made)
}
