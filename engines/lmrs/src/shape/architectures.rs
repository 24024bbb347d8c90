//! The architectures: the properties that follow from an architecture's name alone, and the defaults of some config fields.
//!
//! A new architecture is one entry in `ARCHITECTURES`. `model-files` knows its tensors, and the defaults of sizes and norms.

use model_files::ModelFolder;
use protocol::{Failed, FailureKind};

use super::Activation;

pub static ARCHITECTURES: &[Architecture] = &[
    LLAMA,
    Architecture {
        name: "mistral",
        // The first release has a sliding window, and its configs may omit `sliding_window`.
        windows: Windows::All { default: Some(4096) },
        ..LLAMA
    },
    QWEN2,
    // lmrs recognizes the norms of heads by their tensors.
    Architecture { name: "qwen3", ..QWEN2 },
    // lmrs recognizes the fused matrices by their tensors.
    Architecture { name: "phi3", windows: Windows::All { default: None }, may_rotate_partly: true, ..LLAMA },
    Architecture {
        name: "gpt2",
        layer_norm: true,
        learned_positions: true,
        activation: Activation::GeluTanh,
        ..LLAMA
    },
    Architecture {
        name: "gemma",
        scales_embedding: true,
        activation: Activation::GeluTanh,
        // The first gemma configs call the tanh approximation `gelu`; transformers reads them in the same way.
        gelu: Some(Activation::GeluTanh),
        ..LLAMA
    },
];

/// The other architectures change some of these properties.
const LLAMA: Architecture = Architecture {
    name: "llama",
    layer_norm: false,
    learned_positions: false,
    scales_embedding: false,
    activation: Activation::Silu,
    gelu: None,
    windows: Windows::None,
    may_rotate_partly: false,
};

/// lmrs recognizes the biases of qwen2 by their tensors.
const QWEN2: Architecture = Architecture {
    name: "qwen2",
    windows: Windows::SomeLayers { default: Some(4096), default_first_layer: 28 },
    ..LLAMA
};

pub struct Architecture {
    /// `model_type` in config.json.
    pub name: &'static str,
    /// LayerNorm with biases instead of RMSNorm.
    pub layer_norm: bool,
    pub learned_positions: bool,
    /// Whether the embedding is multiplied by the root of the hidden size.
    pub scales_embedding: bool,
    pub activation: Activation,
    /// The meaning of `gelu` in a config, if lmrs can compute it.
    pub gelu: Option<Activation>,
    pub windows: Windows,
    /// Whether a config may limit the rotation to a part of each head (`partial_rotary_factor`).
    pub may_rotate_partly: bool,
}

/// The layers whose attention sees only a window: the last tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    None,
    /// Every layer, if there is a window. `default` is its length in tokens if a config.json does not give it.
    All {
        default: Option<usize>,
    },
    /// The layers from `max_window_layers` on, if `use_sliding_window` is on; `default_first_layer` is the
    /// default of `max_window_layers`.
    SomeLayers {
        default: Option<usize>,
        default_first_layer: usize,
    },
}

impl Architecture {
    pub fn of(folder: &ModelFolder) -> Result<&'static Self, Failed> {
        // In GGUF some architectures share a name; `model-files` then gives the first of them.
        let config_name = folder.config.architecture.as_str();
        let name = folder.architecture().map_or(config_name, |known| known.name);
        ARCHITECTURES.iter().find(|architecture| architecture.name == name).ok_or_else(|| {
            let known: Vec<_> = ARCHITECTURES.iter().map(|architecture| architecture.name).collect();
            let (model, config_name) = (&folder.name, config_name.escape_debug());
            let message =
                format!("`{model}`: architecture `{config_name}` is not one of `{}`", known.join("`, `"));
            Failed::new(FailureKind::Unsupported, message)
        })
    }
}
