//! The architectures whose every tensor is known here: by them models are synthesised, converted, checked and named.
//!
//! A new one is a file in this folder and its line in `ARCHITECTURES`.

mod decoder;
mod gpt2;
pub(crate) mod metadata;
mod part;
mod phi3;
pub(crate) mod rope;

use anyhow::{Context, Result, ensure};

use crate::Config;
use crate::shown::shown;
pub(crate) use gpt2::longer_name;
pub use metadata::Key;
pub use part::{Kind, Layout, Order, Part, Place};

pub struct Architecture {
    /// `model_type` in config.json.
    pub name: &'static str,
    /// `general.architecture` in GGUF; some share one.
    pub gguf: &'static str,
    /// What transformers calls the class, for config.json.
    pub class: &'static str,
    /// The output is the embedding, unless config.json says otherwise.
    pub(crate) tied: bool,
    /// The size of a head where config.json does not say it and it is not the hidden size over the heads.
    pub(crate) head_dim: Option<u32>,
    parts: fn(&Config) -> Result<Vec<Part>>,
    /// How fields of config.json and metadata of GGUF correspond.
    pub(crate) keys: &'static [Key],
    /// What config.json says besides, the same for every model of this architecture.
    pub(crate) constants: &'static str,
}

/// Where GGUF has one name for several, the first of them is what it is read as.
pub static ARCHITECTURES: [Architecture; 7] = [
    Architecture {
        name: "llama",
        gguf: "llama",
        class: "LlamaForCausalLM",
        tied: false,
        head_dim: None,
        parts: decoder::llama,
        keys: metadata::DECODER,
        constants: r#"{"hidden_act":"silu","attention_bias":false,"mlp_bias":false}"#,
    },
    Architecture {
        name: "mistral",
        gguf: "llama",
        class: "MistralForCausalLM",
        tied: false,
        head_dim: None,
        parts: decoder::mistral,
        keys: metadata::DECODER,
        constants: r#"{"hidden_act":"silu"}"#,
    },
    Architecture {
        name: "qwen2",
        gguf: "qwen2",
        class: "Qwen2ForCausalLM",
        tied: false,
        head_dim: None,
        parts: decoder::qwen2,
        keys: metadata::DECODER,
        constants: r#"{"hidden_act":"silu","use_sliding_window":false}"#,
    },
    Architecture {
        name: "qwen3",
        gguf: "qwen3",
        class: "Qwen3ForCausalLM",
        tied: false,
        head_dim: Some(128),
        parts: decoder::qwen3,
        keys: metadata::DECODER,
        constants: r#"{"hidden_act":"silu","attention_bias":false,"use_sliding_window":false}"#,
    },
    Architecture {
        name: "phi3",
        gguf: "phi3",
        class: "Phi3ForCausalLM",
        tied: false,
        head_dim: None,
        parts: phi3::parts,
        keys: metadata::PHI3,
        constants: r#"{"hidden_act":"silu","attention_bias":false}"#,
    },
    Architecture {
        name: "gpt2",
        gguf: "gpt2",
        class: "GPT2LMHeadModel",
        tied: true,
        head_dim: None,
        parts: gpt2::parts,
        keys: metadata::GPT2,
        constants: r#"{"activation_function":"gelu_new"}"#,
    },
    Architecture {
        name: "gemma",
        gguf: "gemma",
        class: "GemmaForCausalLM",
        tied: true,
        head_dim: Some(256),
        parts: decoder::gemma,
        keys: metadata::DECODER,
        constants: r#"{"hidden_act":"gelu_pytorch_tanh","hidden_activation":"gelu_pytorch_tanh","attention_bias":false}"#,
    },
];

impl Architecture {
    /// By `model_type`.
    pub fn named(name: &str) -> Option<&'static Self> {
        ARCHITECTURES.iter().find(|architecture| architecture.name == name)
    }

    /// By `general.architecture`.
    pub fn of_gguf(name: &str) -> Option<&'static Self> {
        ARCHITECTURES.iter().find(|architecture| architecture.gguf == name)
    }

    pub fn of(config: &Config, layout: Layout) -> Result<&'static Self> {
        let found = match layout {
            Layout::HuggingFace => Self::named(&config.architecture),
            Layout::Gguf => Self::of_gguf(&config.architecture),
        };
        found.with_context(|| {
            let known: Vec<_> = ARCHITECTURES.iter().map(|architecture| architecture.name).collect();
            format!("architecture `{}` is not one of `{}`", shown(&config.architecture), known.join("`, `"))
        })
    }

    /// Every tensor that a model of this config consists of, in the order of the network.
    pub fn parts(&self, config: &Config) -> Result<Vec<Part>> {
        let sizes = [
            ("hidden size", config.hidden_size),
            ("layers", config.layers),
            ("heads", config.heads),
            ("key-value heads", config.kv_heads),
            ("head size", config.head_dim),
            ("vocabulary", config.vocabulary_size),
            ("intermediate size", config.intermediate_size.unwrap_or(1)),
        ];
        for (name, size) in sizes {
            ensure!((1..=MAX_SIZE).contains(&size), "{name}: {size} is not a size");
        }
        ensure!(config.layers <= MAX_LAYERS, "{} layers are not believed", config.layers);
        let (heads, kv_heads) = (config.heads, config.kv_heads);
        ensure!(
            heads.is_multiple_of(kv_heads),
            "{heads} heads do not divide into {kv_heads} key-value heads"
        );
        let parts = (self.parts)(config)?;
        ensure!(config.head_dim.is_multiple_of(2), "heads of {}: rotation needs pairs", config.head_dim);
        let empty = parts.iter().find(|part| part.shape.contains(&0));
        ensure!(empty.is_none(), "`{}` would have no numbers", empty.map_or("", |part| &part.name));
        Ok(parts)
    }
}

/// So that no product of two sizes comes near an overflow, and no list of parts is long.
const MAX_SIZE: u32 = 1 << 24;
const MAX_LAYERS: u32 = 4096;

/// Parts as they are collected, with the names of the layer that is being described.
pub(crate) struct Parts(Vec<Part>);

impl Parts {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn into_list(self) -> Vec<Part> {
        self.0
    }

    /// Outputs by inputs.
    pub(crate) fn matrix(
        &mut self,
        place: Place,
        names: (String, String),
        outputs: u32,
        inputs: u32,
    ) -> &mut Part {
        let shape = vec![u64::from(outputs), u64::from(inputs)];
        self.add(place, Kind::Matrix, names, shape, inputs)
    }

    pub(crate) fn bias(
        &mut self,
        place: Place,
        names: (String, String),
        outputs: u32,
        inputs: u32,
    ) -> &mut Part {
        self.add(place, Kind::Bias, names, vec![u64::from(outputs)], inputs)
    }

    pub(crate) fn norm(&mut self, names: (String, String), size: u32) -> &mut Part {
        self.add(Place::Norms, Kind::Norm, names, vec![u64::from(size)], size)
    }

    pub(crate) fn norm_bias(&mut self, names: (String, String), size: u32) -> &mut Part {
        self.add(Place::Norms, Kind::NormBias, names, vec![u64::from(size)], size)
    }

    fn add(
        &mut self,
        place: Place,
        kind: Kind,
        (name, gguf): (String, String),
        shape: Vec<u64>,
        fan_in: u32,
    ) -> &mut Part {
        let at = self.0.len();
        let fan_in = u64::from(fan_in);
        self.0.push(Part { name, gguf, shape, kind, place, order: Order::Same, fan_in });
        &mut self.0[at]
    }
}

/// Both names of a part that stands outside of all layers.
pub(crate) fn names(theirs: &str, gguf: &str) -> (String, String) {
    (theirs.into(), gguf.into())
}
