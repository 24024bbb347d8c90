//! The architectures: the properties that follow from a name and that no config field states.
//!
//! A new architecture is a file in this folder and its line in `ARCHITECTURES`, which also names the file. `model-files` knows
//! its tensors, and the defaults of sizes and norms.

use model_files::ModelFolder;
use protocol::{Failed, FailureKind};

use super::Activation;

mod gemma;
mod gpt2;
mod llama;
mod mistral;
mod phi3;
mod qwen2;
mod qwen3;

pub static ARCHITECTURES: &[&Architecture] = &[
    &llama::ARCHITECTURE,
    &mistral::ARCHITECTURE,
    &qwen2::ARCHITECTURE,
    &qwen3::ARCHITECTURE,
    &phi3::ARCHITECTURE,
    &gpt2::ARCHITECTURE,
    &gemma::ARCHITECTURE,
];

pub struct Architecture {
    /// `model_type` in config.json.
    pub name: &'static str,
    /// LayerNorm with biases instead of RMSNorm.
    pub norms_centre: bool,
    pub learned_positions: bool,
    /// Whether the embedding is multiplied by the root of the hidden size.
    pub scales_embedding: bool,
    pub activation: Activation,
    /// The meaning of `gelu` in a config, if lmrs can compute it.
    pub gelu: Option<Activation>,
    pub windows: Windows,
}

/// The layers that use a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    None,
    /// Every layer, if a config gives a window; `unsaid` is the window if a config lacks the field.
    All {
        unsaid: Option<usize>,
    },
    /// The layers from `max_window_layers` on, if `use_sliding_window` is on; `first_unsaid` is the default of the former.
    SomeLayers {
        unsaid: Option<usize>,
        first_unsaid: usize,
    },
}

impl Architecture {
    pub fn of(folder: &ModelFolder) -> Result<&'static Self, Failed> {
        // GGUF uses one name for several architectures, and its metadata tells them apart.
        let named = folder.config.architecture.as_str();
        let name = folder.architecture().map_or(named, |known| known.name);
        ARCHITECTURES.iter().find(|architecture| architecture.name == name).copied().ok_or_else(|| {
            let known: Vec<_> = ARCHITECTURES.iter().map(|architecture| architecture.name).collect();
            let (model, named) = (&folder.name, named.escape_debug());
            let what = format!("`{model}`: architecture `{named}` is not one of `{}`", known.join("`, `"));
            Failed::new(FailureKind::Unsupported, what)
        })
    }
}
