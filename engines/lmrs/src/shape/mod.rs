//! The sizes and options of a model: the network's view of a config. One description serves every architecture, so the forward
//! pass does not depend on the architecture's name.
//!
//! A config that requires a computation that lmrs lacks is refused, with the name of the field.

pub mod architectures;
mod fields;
mod positions;

use engine_kit::OrFail;
use model_files::{Config, Format, ModelFolder};
use protocol::{Failed, FailureKind};

use crate::network::Rotation;
use architectures::{Architecture, Windows};
use fields::Fields;

/// A model without its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    pub vocabulary: usize,
    pub hidden: usize,
    /// The inner width of the feed-forward.
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// The longest context that the model was made for.
    pub context: usize,
    /// Norms subtract the mean and add a bias: LayerNorm instead of RMSNorm.
    pub layer_norm: bool,
    pub norm_epsilon: f32,
    /// `None` if positions are learned and added to the embedding.
    pub rotation: Option<Rotation>,
    pub activation: Activation,
    /// For each layer, the number of last tokens that attention sees, the token itself included; `None` means all.
    pub windows: Vec<Option<usize>>,
    pub embedding_scale: f32,
    /// Whether the embedding is also the output matrix.
    pub tied: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// The tanh approximation of GELU: `gelu_new` or `gelu_pytorch_tanh` in configs, and `gelu` in those of gemma.
    GeluTanh,
}

/// The longest context that is accepted from a config.
const MAX_CONTEXT: u32 = 1 << 24;

impl Shape {
    pub fn of(folder: &ModelFolder) -> Result<Self, Failed> {
        let fields = Fields { folder };
        let architecture = Architecture::of(folder)?;
        let known = folder.architecture().or_fail(FailureKind::Unsupported)?;
        let Config { hidden_size, layers, heads, kv_heads, head_dim, vocabulary_size, .. } = folder.config;
        fields.refuse_unsupported()?;
        let context = context(&fields, architecture)?;
        let inner = known.inner_size(&folder.config);
        let inner = inner.ok_or_else(|| fields.missing("intermediate_size", "feed_forward_length"))?;
        if inner == 0 {
            let name = fields.first_present(&["intermediate_size", "n_inner"]);
            return Err(fields.zero_size(name, "feed_forward_length"));
        }
        // The memory used from here on depends on layers and dimensions. So the files must have tensors of these sizes.
        let specs = folder.tensor_specs().or_fail(FailureKind::Model)?;
        if let Some(message) = folder.unreadable_tensor_message(&specs) {
            return Err(unreadable(folder, message));
        }
        Ok(Self {
            vocabulary: vocabulary_size as usize,
            hidden: hidden_size as usize,
            inner: inner as usize,
            layers: layers as usize,
            heads: heads as usize,
            kv_heads: kv_heads as usize,
            head_dim: head_dim as usize,
            context: context as usize,
            layer_norm: architecture.layer_norm,
            norm_epsilon: fields.norm_epsilon(architecture, known.norm_epsilon)?,
            rotation: if architecture.learned_positions {
                None
            } else {
                Some(positions::rotation(&fields, architecture)?)
            },
            activation: fields.activation(architecture)?,
            windows: windows(&fields, architecture)?,
            embedding_scale: if architecture.scales_embedding { (hidden_size as f32).sqrt() } else { 1.0 },
            tied: folder.config.tie_word_embeddings,
        })
    }
}

/// The failure for a number type that lmrs cannot read.
fn unreadable(folder: &ModelFolder, message: String) -> Failed {
    let failed = Failed::new(FailureKind::Unsupported, message);
    match (folder.format, folder.weights.first()) {
        (Format::Gguf, Some(path)) => {
            let path = path.display();
            failed.hint(format!("llama-quantize --allow-requantize '{path}' '{path}'.q8_0.gguf q8_0"))
        }
        _ => failed.hint("convert the model to f32, f16 or bf16, or to a GGUF"),
    }
}

fn context(fields: &Fields, architecture: &Architecture) -> Result<u32, Failed> {
    let usual_name = if architecture.learned_positions { "n_positions" } else { "max_position_embeddings" };
    let (name, gguf) = (fields.first_present(&[usual_name, "n_positions", "n_ctx"]), "context_length");
    match fields.folder.config.context_tokens {
        None => Err(fields.missing(name, gguf)),
        Some(0) => Err(fields.zero_size(name, gguf)),
        Some(tokens @ ..=MAX_CONTEXT) => Ok(tokens),
        Some(tokens) => {
            let name = fields.name(name, gguf);
            Err(fields.invalid(format!("`{name}`: a context of {tokens} tokens is more than {MAX_CONTEXT}")))
        }
    }
}

/// The window of each layer, by the rules of transformers.
fn windows(fields: &Fields, architecture: &Architecture) -> Result<Vec<Option<usize>>, Failed> {
    let layers = fields.folder.config.layers as usize;
    let (window, first_layer) = match architecture.windows {
        Windows::None => (None, 0),
        Windows::All { default } => (fields.window(default)?, 0),
        Windows::SomeLayers { default, default_first_layer } => {
            let first_layer = fields.layer("max_window_layers")?.unwrap_or(default_first_layer);
            let window = if fields.flag("use_sliding_window")? { fields.window(default)? } else { None };
            (window, first_layer)
        }
    };
    let default_windows = (0..layers).map(|layer| window.filter(|_| layer >= first_layer)).collect();
    let Some(listed) = fields.layer_types()? else { return Ok(default_windows) };
    if listed.len() != layers {
        return Err(fields.invalid(format!("`layer_types` has {} entries for {layers} layers", listed.len())));
    }
    let is_list_used = matches!(architecture.windows, Windows::SomeLayers { .. }) && window.is_some();
    // A list that is not used must agree with the windows that are used.
    match listed.iter().find(|uses_window| !is_list_used && **uses_window != window.is_some()) {
        Some(true) => Err(fields.unsupported("layer_types", &"sliding_attention".into())),
        Some(false) => Err(fields.unsupported("layer_types", &"full_attention".into())),
        None => Ok(listed.into_iter().map(|uses_window| window.filter(|_| uses_window)).collect()),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn tiny() -> Shape {
        Shape {
            vocabulary: 97,
            hidden: 64,
            inner: 96,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            context: 512,
            layer_norm: false,
            norm_epsilon: 1e-5,
            rotation: Some(Rotation::new(10_000.0, 16)),
            activation: Activation::Silu,
            windows: vec![None; 2],
            embedding_scale: 1.0,
            tied: true,
        }
    }
}
