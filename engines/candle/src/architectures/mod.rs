//! The supported models of candle, one file for each `model_type`.
//!
//! A new architecture is a file here and a line in `ARCHITECTURES`. The file lists the config features that candle
//! computes, and builds the model; `model_files` knows the tensors.

mod gemma;
mod llama;
mod mistral;
mod phi3;
mod qwen2;
mod qwen3;

use model_files::ModelFolder;
use protocol::{Failed, FailureKind};

use crate::config::Fields;
use crate::gguf::Metadata;
use crate::{gguf, safetensors};

pub const ARCHITECTURES: [&Architecture; 6] = [
    &llama::ARCHITECTURE,
    &qwen2::ARCHITECTURE,
    &qwen3::ARCHITECTURE,
    &mistral::ARCHITECTURE,
    &phi3::ARCHITECTURE,
    &gemma::ARCHITECTURE,
];

/// A kind of model that candle computes, with its loaders for both formats.
pub struct Architecture {
    /// `model_type` in config.json, `general.architecture` in GGUF.
    pub name: &'static str,
    pub safetensors: FromSafetensors,
    /// `None` if candle has no quantised model for it, or one that computes something else.
    pub gguf: Option<FromGguf>,
}

type FromSafetensors = fn(&Fields) -> Result<safetensors::Recipe, Failed>;
type FromGguf = fn(&Metadata) -> Result<gguf::Recipe, Failed>;

impl Architecture {
    pub fn of(folder: &ModelFolder) -> Result<&'static Self, Failed> {
        let name = folder.config.architecture.as_str();
        let found = ARCHITECTURES.into_iter().find(|architecture| architecture.name == name);
        found.ok_or_else(|| {
            let known = ARCHITECTURES.map(|architecture| architecture.name).join("`, `");
            let what = format!(
                "architecture `{}` of `{}` is not one of `{known}`",
                name.escape_debug(),
                folder.name
            );
            Failed::new(FailureKind::Model, what)
        })
    }
}
