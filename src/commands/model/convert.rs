//! `orchestrate model convert`.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Args;
use model_files::{Dtype, Format, Goal, ModelFolder};

use super::writing::{Bar, check_writable, dtype, format, written};
use crate::shell::Usage;

#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// A model folder, a `.gguf` file, or `embedded`
    #[arg(value_name = "IN")]
    pub model: String,
    /// `safetensors` or `gguf`
    #[arg(long, value_name = "FORMAT")]
    pub to: String,
    /// Dtype of the matrices; default: the model's own
    #[arg(long)]
    pub dtype: Option<String>,
    /// Output path; default: next to a model given by its path, else in the working directory
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,
}

pub fn convert(arguments: &ConvertArgs) -> Result<u8> {
    let usage = |error: anyhow::Error| anyhow::Error::new(Usage(format!("{error:#}")));
    let to = format(&arguments.to)?;
    let asked = arguments.dtype.as_deref().map(dtype).transpose()?;
    let path = model_files::resolve(Some(&arguments.model)).map_err(usage)?;
    let model = ModelFolder::open(&path)?;
    let dtype = match asked {
        Some(dtype) => {
            check_writable(to, dtype, "--to")?;
            dtype
        }
        None => unasked_dtype(&model, to)?,
    };
    let goal = Goal {
        format: to,
        dtype,
        out: arguments.out.clone().unwrap_or_else(|| place(&arguments.model, &model, to, dtype)),
    };
    let bar = Bar::begin(&model.name)?;
    let made = model_files::convert(&model, &goal, &bar.watch());
    written(bar, made)
}

/// The dtype of a conversion without `--dtype`: the model's own. The format must change, and the new one must support the dtype.
fn unasked_dtype(model: &ModelFolder, to: Format) -> Result<Dtype> {
    let own = model_files::own_dtype(model)?;
    let other = match to {
        Format::Safetensors if own == Dtype::BF16 => "f32",
        Format::Safetensors => "bf16",
        Format::Gguf if own == Dtype::Q8_0 => "q4_k",
        Format::Gguf => "q8_0",
    };
    let hint = format!("hint: name another dtype: `--dtype {other}`");
    let same = || Usage(format!("`{}` is {} already\n{hint}", model.name, to.as_str()));
    ensure!(to != model.format, same());
    let refused = |error: anyhow::Error| Usage(format!("{error:#}\n{hint}"));
    model_files::check_writable(to, own).map_err(refused)?;
    Ok(own)
}

/// The path of the result: the model's name with its dtype, beside a model that was named by its path. Other models lie
/// in a cache, so their conversion goes to the working directory.
fn place(named: &str, model: &ModelFolder, to: Format, dtype: Dtype) -> PathBuf {
    let path = model.path.canonicalize().unwrap_or_else(|_| model.path.clone());
    let is_embedded = named == model_files::embedded::NAME;
    // The folder of the unpacked embedded model is named by its digest.
    let name = if is_embedded { named } else { model.short_name() };
    let name = format!("{name}-{}", dtype.as_str().to_ascii_lowercase());
    let name = match to {
        Format::Safetensors => name,
        Format::Gguf => format!("{name}.gguf"),
    };
    let by_path =
        !is_embedded && Path::new(named).exists() && model_files::hub::name_of(&model.path).is_none();
    let beside = path.parent().filter(|_| by_path);
    beside.map_or_else(|| PathBuf::from(&name), |parent| parent.join(&name))
}
