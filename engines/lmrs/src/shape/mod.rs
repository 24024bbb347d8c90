//! A model in numbers: all that the network asks of a config. One description serves every architecture, so that the
//! forward pass knows none of their names.
//!
//! What a config asks for and nothing here computes is refused by the name of its field: to forget one refuses a model,
//! and never computes a wrong one.

mod family;
mod fields;
mod positions;

use engine_kit::OrFail;
use model_files::{Config, ModelFolder};
use protocol::{Failed, FailureKind};

use crate::rope::Rotation;
use family::{Family, Windows};
use fields::Fields;

/// A model without its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    pub vocabulary: usize,
    pub hidden: usize,
    /// The width of the feed-forward between its matrices.
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// The longest context that the model was made for.
    pub context: usize,
    /// Norms take the mean away and add a bias: LayerNorm in place of RMSNorm.
    pub norms_centre: bool,
    pub norm_epsilon: f32,
    /// `None` where positions are learned, and added to the embedding.
    pub rotation: Option<Rotation>,
    pub activation: Activation,
    /// For each layer, how many tokens it looks back, itself among them.
    pub windows: Vec<Option<usize>>,
    pub embedding_scale: f32,
    /// The output is the embedding.
    pub tied: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// The approximation by a hyperbolic tangent, which all models here mean by `gelu`.
    GeluTanh,
}

/// A config that claims a longer context is not believed.
const MAX_CONTEXT: u32 = 1 << 24;

impl Shape {
    pub fn of(folder: &ModelFolder) -> Result<Self, Failed> {
        let fields = Fields { folder };
        let family = Family::of(folder)?;
        let Config { hidden_size, layers, heads, kv_heads, head_dim, vocabulary_size, .. } = folder.config;
        fields.refuse_what_nobody_computes()?;
        let context = folder.config.context_tokens.filter(|&tokens| tokens > 0);
        let context = context.ok_or_else(|| fields.missing("max_position_embeddings", "context_length"))?;
        if context > MAX_CONTEXT {
            return Err(fields.fault(format!("a context of {context} tokens is not believed")));
        }
        let inner = match (folder.config.intermediate_size, family.inner_unsaid) {
            (Some(inner), _) => inner,
            (None, Some(times)) => hidden_size.saturating_mul(times),
            (None, None) => return Err(fields.missing("intermediate_size", "feed_forward_length")),
        };
        if inner == 0 {
            return Err(fields.nothing("intermediate_size", "n_inner", "feed_forward_length"));
        }
        // From here on memory is taken for layers and dimensions, so files must have tensors for so many.
        folder.parts().or_fail(FailureKind::Model)?;
        Ok(Self {
            vocabulary: vocabulary_size as usize,
            hidden: hidden_size as usize,
            inner: inner as usize,
            layers: layers as usize,
            heads: heads as usize,
            kv_heads: kv_heads as usize,
            head_dim: head_dim as usize,
            context: context as usize,
            norms_centre: family.norms_centre,
            norm_epsilon: fields.norm_epsilon(family.norms_centre)?,
            rotation: if family.learned_positions { None } else { Some(positions::rotation(&fields)?) },
            activation: fields.activation(family)?,
            windows: windows(&fields, family)?,
            embedding_scale: if family.scales_embedding { (hidden_size as f32).sqrt() } else { 1.0 },
            tied: folder.config.tie_word_embeddings,
        })
    }
}

/// Layer by layer, as transformers reads the fields.
fn windows(fields: &Fields, family: &Family) -> Result<Vec<Option<usize>>, Failed> {
    let layers = fields.folder.config.layers as usize;
    let window = match family.windows {
        Windows::None => None,
        Windows::All { unsaid } => fields.window(unsaid)?,
        Windows::SomeLayers if fields.flag("use_sliding_window")? => fields.window(None)?,
        Windows::SomeLayers => None,
    };
    let first = match family.windows {
        Windows::SomeLayers => fields.number("max_window_layers")?.map_or(0, |layer| layer as usize),
        _ => 0,
    };
    match fields.layer_types()? {
        Some(slide) if slide.len() == layers => {
            Ok(slide.into_iter().map(|slides| window.filter(|_| slides)).collect())
        }
        Some(slide) => Err(fields.fault(format!("`layer_types` names {} layers of {layers}", slide.len()))),
        None => Ok((0..layers).map(|layer| window.filter(|_| layer >= first)).collect()),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// For tests of what needs a shape and no model.
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
            norms_centre: false,
            norm_epsilon: 1e-5,
            rotation: Some(Rotation::new(10_000.0, 16)),
            activation: Activation::Silu,
            windows: vec![None; 2],
            embedding_scale: 1.0,
            tied: true,
        }
    }
}
