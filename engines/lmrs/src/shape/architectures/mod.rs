//! The architectures: what the name of one says that no field of its configs does.
//!
//! A new one is a file in this folder and its line in `ARCHITECTURES`, where its tensors are known to `model-files`.

mod gemma;
mod gpt2;
mod llama;
mod mistral;
mod phi3;
mod qwen2;
mod qwen3;

use model_files::{Layout, ModelFolder};
use protocol::{Failed, FailureKind};

use super::Activation;

pub static ARCHITECTURES: [&Architecture; 7] = [
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
    /// What a config.json without the field means. A GGUF always has it.
    pub norm_epsilon_unsaid: f64,
    pub learned_positions: bool,
    /// The embedding is multiplied by the root of the hidden size.
    pub scales_embedding: bool,
    pub activation: Activation,
    /// What a config means by `gelu`, where it is a function that is computed here.
    pub gelu: Option<Activation>,
    /// The inner size in hidden sizes, where a config may leave it out.
    pub inner_unsaid: Option<u32>,
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
        let named = &folder.config.architecture;
        // GGUF has one name for several, and its metadata the difference.
        let name = match folder.config.layout() {
            Layout::HuggingFace => named.as_str(),
            Layout::Gguf => {
                model_files::Architecture::of_gguf(named).map_or(named.as_str(), |known| known.name)
            }
        };
        ARCHITECTURES.into_iter().find(|architecture| architecture.name == name).ok_or_else(|| {
            let known = ARCHITECTURES.map(|architecture| architecture.name);
            let (model, named) = (&folder.name, named.escape_debug());
            let what = format!("`{model}`: architecture `{named}` is not one of `{}`", known.join("`, `"));
            Failed::new(FailureKind::Unsupported, what)
        })
    }
}
