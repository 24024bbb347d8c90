//! The architectures: what the name of one says that no field of its configs does.
//!
//! A new one is a file in this folder and its line in `ARCHITECTURES`, where the file is named too. Its tensors, and what a config
//! leaves unsaid of sizes and norms, are those that `model-files` knows.

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
    /// LayerNorm with biases in place of RMSNorm.
    pub norms_centre: bool,
    pub learned_positions: bool,
    /// The embedding is multiplied by the root of the hidden size.
    pub scales_embedding: bool,
    pub activation: Activation,
    /// What a config means by `gelu`, where it is a function that is computed here.
    pub gelu: Option<Activation>,
    pub windows: Windows,
}

/// Which layers look back through a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    None,
    /// Each, where a config gives a window; `unsaid` is what one without the field means.
    All {
        unsaid: Option<usize>,
    },
    /// Where `use_sliding_window` is on, those from `max_window_layers` on; `first_unsaid` is what a config without that
    /// field means.
    SomeLayers {
        unsaid: Option<usize>,
        first_unsaid: usize,
    },
}

impl Architecture {
    pub fn of(folder: &ModelFolder) -> Result<&'static Self, Failed> {
        // GGUF has one name for several, and its metadata the difference.
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
