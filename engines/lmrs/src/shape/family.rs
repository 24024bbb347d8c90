//! What the name of an architecture says that no field of its configs does.

use model_files::{Architecture, Layout, ModelFolder};
use protocol::{Failed, FailureKind};

use super::Activation;

pub struct Family {
    pub name: &'static str,
    /// LayerNorm with biases in place of RMSNorm.
    pub norms_centre: bool,
    /// What a config.json without the field means. A GGUF always has it.
    pub norm_epsilon_unsaid: f64,
    pub learned_positions: bool,
    /// The embedding is multiplied by the root of the hidden size.
    pub scales_embedding: bool,
    pub activation: Activation,
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

const LLAMA: Family = Family {
    name: "llama",
    norms_centre: false,
    norm_epsilon_unsaid: 1e-6,
    learned_positions: false,
    scales_embedding: false,
    activation: Activation::Silu,
    inner_unsaid: None,
    windows: Windows::None,
};

const QWEN: Windows = Windows::SomeLayers { unsaid: Some(4096), first_unsaid: 28 };

pub static FAMILIES: [Family; 7] = [
    LLAMA,
    // The first release has a window, and its configs need not say it.
    Family { name: "mistral", windows: Windows::All { unsaid: Some(4096) }, ..LLAMA },
    Family { name: "qwen2", windows: QWEN, ..LLAMA },
    Family { name: "qwen3", windows: QWEN, ..LLAMA },
    Family { name: "phi3", norm_epsilon_unsaid: 1e-5, windows: Windows::All { unsaid: None }, ..LLAMA },
    Family {
        name: "gpt2",
        norms_centre: true,
        norm_epsilon_unsaid: 1e-5,
        learned_positions: true,
        activation: Activation::GeluTanh,
        inner_unsaid: Some(4),
        ..LLAMA
    },
    Family { name: "gemma", scales_embedding: true, activation: Activation::GeluTanh, ..LLAMA },
];

impl Family {
    pub fn of(folder: &ModelFolder) -> Result<&'static Self, Failed> {
        let named = &folder.config.architecture;
        // GGUF has one name for several, and its metadata the difference.
        let name = match folder.config.layout() {
            Layout::HuggingFace => named.as_str(),
            Layout::Gguf => Architecture::of_gguf(named).map_or(named.as_str(), |known| known.name),
        };
        FAMILIES.iter().find(|family| family.name == name).ok_or_else(|| {
            let known: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
            let (model, named) = (&folder.name, named.escape_debug());
            let what = format!("`{model}`: architecture `{named}` is not one of `{}`", known.join("`, `"));
            Failed::new(FailureKind::Unsupported, what)
        })
    }
}
