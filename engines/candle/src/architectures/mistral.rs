//! Mistral: llama with an independent head size, and a sliding window in its first release. GGUF calls it llama.

use candle_core::Tensor;
use candle_nn::Activation;
use candle_transformers::models::mistral;
use protocol::Failed;

use super::Architecture;
use crate::config::{Feature, Fields};
use crate::network::Decoder;
use crate::safetensors;
use crate::sizes::Longest;

pub const ARCHITECTURE: Architecture =
    Architecture { name: "mistral", safetensors: from_safetensors, gguf: None };

fn from_safetensors(fields: &Fields) -> Result<safetensors::Recipe, Failed> {
    let sizes = fields.expect_only(&[Feature::OwnHeadDim])?;
    fields.expect_off("tie_word_embeddings")?; // candle always makes a head of its own
    let window = fields.sliding_window(Some(4096))?; // of the first release, whose configs need not say it
    let (rope_theta, rms_norm_eps) = (fields.rope_theta(), fields.number("rms_norm_eps")?);
    Ok(safetensors::Recipe {
        longest_context: Longest::of(fields.folder)?.within_window(window),
        rounds_positions: false,
        build: Box::new(move |tensors, context_tokens| {
            let config = mistral::Config {
                vocab_size: sizes.vocabulary,
                hidden_size: sizes.hidden,
                intermediate_size: sizes.inner,
                num_hidden_layers: sizes.layers,
                num_attention_heads: sizes.heads,
                head_dim: Some(sizes.head_dim),
                num_key_value_heads: sizes.kv_heads,
                hidden_act: Activation::Silu,
                max_position_embeddings: context_tokens,
                rms_norm_eps,
                rope_theta,
                sliding_window: None, // it is not shorter than the context
                use_flash_attn: false,
            };
            Ok(Box::new(mistral::Model::new(&config, tensors)?))
        }),
    })
}

impl Decoder for mistral::Model {
    fn forward(&mut self, input: &Tensor, position: usize) -> candle_core::Result<Tensor> {
        Self::forward(self, input, position)
    }

    fn forget(&mut self) {
        self.clear_kv_cache();
    }
}
