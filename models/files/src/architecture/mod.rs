//! The supported architectures. Their tensors are known here, so that models can be synthesised, converted, checked and
//! named.
//!
//! A new architecture is a file in this folder and a line in `ARCHITECTURES`. `decoder` is none: it has the tensors that
//! several architectures share.

mod decoder;
pub(crate) mod metadata;
mod part;
pub(crate) mod rope;

use anyhow::{Context, Result, ensure};

use crate::Config;
use crate::text::shown;
pub use metadata::Key;
pub use part::{Kind, Layout, Order, Part, Place};

mod gemma;
mod gpt2;
mod llama;
mod mistral;
mod phi3;
mod qwen2;
mod qwen3;

/// If several architectures share a name in GGUF, readers take the first.
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
    /// `general.architecture` in GGUF; some architectures share one.
    pub gguf: &'static str,
    /// The name of its transformers class, for config.json.
    pub class: &'static str,
    /// Whether the output is the embedding, unless config.json states otherwise.
    pub(crate) tied: bool,
    /// The head size when config.json has none and it is not the hidden size divided by the heads.
    pub(crate) head_dim: Option<u32>,
    /// The default epsilon of norms for a config.json without one. A GGUF always has one.
    pub norm_epsilon: f64,
    /// The default inner size in multiples of the hidden size, if config.json may omit it.
    inner_times: Option<u32>,
    /// The `Pre` of its tokenizers by name, for models that consist of a config.json only.
    pub(crate) pre: &'static str,
    /// Ends of tensor names that identify it: every model of it has each of them.
    pub(crate) marks: &'static [&'static str],
    /// Marks of other architectures that some of its models also have.
    pub(crate) may_have: &'static [&'static str],
    /// Ends of the names of tensors that follow from the config: checkpoints also hold masks and frequencies.
    pub(crate) buffers: &'static [&'static str],
    /// The prefix that some checkpoints add, and the beginnings of the names that get it.
    prefix: Option<(&'static str, &'static [&'static str])>,
    /// Whether llama.cpp supports the biases of `attention_bias` in a GGUF of it.
    gguf_has_attention_bias: bool,
    /// The correspondence of config.json's fields and GGUF's metadata.
    pub(crate) keys: &'static [Key],
    /// Other fields of config.json, the same for every model of this architecture.
    pub(crate) constants: &'static str,
    /// Fields in `constants` that override the config.
    overriding: &'static [&'static str],
    parts: fn(&Config) -> Result<Vec<Part>>,
}

/// Marks and buffers that several architectures share.
const Q_PROJ: &str = "self_attn.q_proj.weight";
const Q_BIAS: &str = "self_attn.q_proj.bias";
const FREQUENCIES: &str = ".rotary_emb.inv_freq";

impl Architecture {
    /// By `model_type`.
    pub fn named(name: &str) -> Option<&'static Self> {
        ARCHITECTURES.iter().find(|architecture| architecture.name == name).copied()
    }

    /// By `general.architecture`.
    pub fn of_gguf(name: &str) -> Option<&'static Self> {
        ARCHITECTURES.iter().find(|architecture| architecture.gguf == name).copied()
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

    /// The inner size of the feed-forward network, from the config or by default.
    pub fn inner_size(&self, config: &Config) -> Option<u32> {
        let unsaid = || self.inner_times.map(|times| config.hidden_size.saturating_mul(times));
        config.intermediate_size.or_else(unsaid)
    }

    /// The name of a tensor without the prefix that some checkpoints add.
    pub fn shorter_name<'a>(&self, name: &'a str) -> &'a str {
        self.prefix.and_then(|(prefix, _)| name.strip_prefix(prefix)).unwrap_or(name)
    }

    /// Every tensor of a model with this config, in the order of the network.
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

/// The longer name that some checkpoints use, if an architecture has a prefix for this name.
pub(crate) fn longer_name(name: &str) -> Option<String> {
    let mut prefixes = ARCHITECTURES.iter().filter_map(|architecture| architecture.prefix);
    let found = prefixes.find(|(_, starts)| starts.iter().any(|start| name.starts_with(start)));
    found.map(|(prefix, _)| format!("{prefix}{name}"))
}

/// A bound on sizes: products of two stay far from overflow, and lists of parts stay short.
const MAX_SIZE: u32 = 1 << 24;
const MAX_LAYERS: u32 = 4096;

/// Collects parts, with the names of the layer being described.
pub(crate) struct Parts(Vec<Part>);

impl Parts {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn into_list(self) -> Vec<Part> {
        self.0
    }

    /// Adds a matrix of outputs by inputs.
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

/// Both names of a part outside all layers.
pub(crate) fn names(theirs: &str, gguf: &str) -> (String, String) {
    (theirs.into(), gguf.into())
}
