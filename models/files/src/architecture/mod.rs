//! The architectures whose every tensor is known here: by them models are synthesised, converted, checked and named.
//!
//! A new one is a file in this folder and its line in `ARCHITECTURES`, where the file is named too. `decoder` is no architecture:
//! it has the tensors that several share.

mod decoder;
pub(crate) mod metadata;
mod part;
pub(crate) mod rope;

use anyhow::{Context, Result, ensure};

use crate::Config;
use crate::shown::shown;
pub use metadata::Key;
pub use part::{Kind, Layout, Order, Part, Place};

mod gemma;
mod gpt2;
mod llama;
mod mistral;
mod phi3;
mod qwen2;
mod qwen3;

/// Where GGUF has one name for several, the first of them is what it is read as.
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
    /// `general.architecture` in GGUF; some share one.
    pub gguf: &'static str,
    /// The name of its class in transformers, for config.json.
    pub class: &'static str,
    /// The output is the embedding, unless config.json says otherwise.
    pub(crate) tied: bool,
    /// The size of a head where config.json does not say it and it is not the hidden size over the heads.
    pub(crate) head_dim: Option<u32>,
    /// The epsilon of norms where config.json does not say it. A GGUF always does.
    pub norm_epsilon: f64,
    /// The inner size in hidden sizes, where config.json may leave it out.
    inner_times: Option<u32>,
    /// How its tokenizers cut text, by `Pre`'s name, where only its config.json is known.
    pub(crate) pre: &'static str,
    /// Ends of the names of tensors that tell it from other architectures: every model of it has each of them.
    pub(crate) marks: &'static [&'static str],
    /// Marks of other architectures that some of its models have too.
    pub(crate) may_have: &'static [&'static str],
    /// Ends of the names of tensors that follow from the config: checkpoints carry masks and frequencies along.
    pub(crate) buffers: &'static [&'static str],
    /// Some checkpoints put this before the names that begin so.
    prefix: Option<(&'static str, &'static [&'static str])>,
    /// llama.cpp knows the biases of `attention_bias` in a GGUF of it.
    gguf_has_attention_bias: bool,
    /// How fields of config.json and metadata of GGUF correspond.
    pub(crate) keys: &'static [Key],
    /// Further fields of config.json, the same for every model of this architecture.
    pub(crate) constants: &'static str,
    /// Those of `constants` that hold whatever a config says.
    overriding: &'static [&'static str],
    parts: fn(&Config) -> Result<Vec<Part>>,
}

/// Marks and buffers that several have.
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

    /// The width of the feed-forward between its matrices, where a config says it or may leave it out.
    pub fn inner_size(&self, config: &Config) -> Option<u32> {
        let unsaid = || self.inner_times.map(|times| config.hidden_size.saturating_mul(times));
        config.intermediate_size.or_else(unsaid)
    }

    /// The name of a tensor without the prefix that some checkpoints put before it.
    pub fn shorter_name<'a>(&self, name: &'a str) -> &'a str {
        self.prefix.and_then(|(prefix, _)| name.strip_prefix(prefix)).unwrap_or(name)
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

/// The longer name that some checkpoints have in place of this one, where it begins as an architecture with a prefix says.
pub(crate) fn longer_name(name: &str) -> Option<String> {
    let mut prefixes = ARCHITECTURES.iter().filter_map(|architecture| architecture.prefix);
    let found = prefixes.find(|(_, starts)| starts.iter().any(|start| name.starts_with(start)));
    found.map(|(prefix, _)| format!("{prefix}{name}"))
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
