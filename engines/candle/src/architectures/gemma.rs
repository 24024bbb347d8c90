//! Gemma: the embedding is scaled and is also the output matrix, norms add one to their weights, gelu replaces silu.
//!
//! candle's only quantised Gemma is Gemma 3, and it uses silu.

use candle_core::Tensor;
use candle_nn::Activation;
use candle_transformers::models::gemma;
use protocol::Failed;
use serde_json::Value;

use super::Architecture;
use crate::config::{Feature, Fields};
use crate::network::Decoder;
use crate::safetensors;
use crate::sizes::Longest;

pub const ARCHITECTURE: Architecture =
    Architecture { name: "gemma", safetensors: from_safetensors, gguf: None };

fn from_safetensors(fields: &Fields) -> Result<safetensors::Recipe, Failed> {
    let computed = [Feature::OwnHeadDim, Feature::AttentionBias, Feature::OwnActivation];
    let sizes = fields.expect_only(&computed)?;
    if fields.get("tie_word_embeddings") == Some(&Value::Bool(false)) {
        return Err(fields.ignored("tie_word_embeddings", "false"));
    }
    // The first configs say `gelu` but mean its approximation, and transformers reads them so. A later field names it
    // exactly.
    fields.expect("hidden_act", &["gelu", "gelu_pytorch_tanh"])?;
    fields.expect("hidden_activation", &["gelu_pytorch_tanh"])?;
    let biased = fields.folder.config.attention_bias;
    let (rope_theta, rms_norm_eps) = (fields.rope_theta(), fields.number("rms_norm_eps")?);
    Ok(safetensors::Recipe {
        longest_context: Longest::of(fields.folder)?,
        rounds_positions: true,
        build: Box::new(move |tensors, context_tokens| {
            let config = gemma::Config {
                attention_bias: biased,
                head_dim: sizes.head_dim,
                hidden_act: None, // candle takes one of the two
                hidden_activation: Some(Activation::GeluPytorchTanh),
                hidden_size: sizes.hidden,
                intermediate_size: sizes.inner,
                num_attention_heads: sizes.heads,
                num_hidden_layers: sizes.layers,
                num_key_value_heads: sizes.kv_heads,
                rms_norm_eps,
                rope_theta,
                vocab_size: sizes.vocabulary,
                max_position_embeddings: context_tokens,
            };
            Ok(Box::new(gemma::Model::new(false, &config, tensors)?))
        }),
    })
}

impl Decoder for gemma::Model {
    fn forward(&mut self, input: &Tensor, position: usize) -> candle_core::Result<Tensor> {
        Self::forward(self, input, position)
    }

    fn forget(&mut self) {
        self.clear_kv_cache();
    }
}
