//! Qwen2 and Qwen2.5: llama with biases on queries, keys and values.

use candle_core::Tensor;
use candle_nn::Activation;
use candle_transformers::models::{quantized_qwen2, qwen2};
use protocol::Failed;

use super::Architecture;
use crate::config::{Feature, Fields};
use crate::gguf::{self, Metadata, Source};
use crate::network::Decoder;
use crate::safetensors;
use crate::sizes::Longest;

pub const ARCHITECTURE: Architecture =
    Architecture { name: "qwen2", safetensors: from_safetensors, gguf: Some(from_gguf) };

fn from_safetensors(fields: &Fields) -> Result<safetensors::Recipe, Failed> {
    // The three biases always exist, so a field for them adds nothing.
    let sizes = fields.expect_only(&[Feature::AttentionBias])?;
    let tied = fields.folder.config.tie_word_embeddings;
    let (rope_theta, rms_norm_eps) = (fields.rope_theta(), fields.number("rms_norm_eps")?);
    Ok(safetensors::Recipe {
        longest_context: Longest::of(fields.folder)?,
        rounds_positions: true,
        build: Box::new(move |tensors, context_tokens| {
            let config = qwen2::Config {
                vocab_size: sizes.vocabulary,
                hidden_size: sizes.hidden,
                intermediate_size: sizes.inner,
                num_hidden_layers: sizes.layers,
                num_attention_heads: sizes.heads,
                num_key_value_heads: sizes.kv_heads,
                max_position_embeddings: context_tokens,
                // candle masks by this number whatever `use_sliding_window` says; at the context's length it masks nothing.
                sliding_window: context_tokens,
                max_window_layers: sizes.layers,
                tie_word_embeddings: tied,
                rope_theta,
                rms_norm_eps,
                use_sliding_window: false,
                hidden_act: Activation::Silu,
            };
            // candle ties the output if the files have no head, whatever the config says. So the head is hidden from candle
            // when the config ties it.
            let tensors = match tied {
                true => tensors.rename_f(|name| name.replace("lm_head", "a head that is tied")),
                false => tensors,
            };
            Ok(Box::new(qwen2::ModelForCausalLM::new(&config, tensors)?))
        }),
    })
}

fn from_gguf(metadata: &Metadata) -> Result<gguf::Recipe, Failed> {
    metadata.expect_only(&[Feature::AttentionBias])?;
    Ok(gguf::Recipe {
        longest_context: metadata.longest_context()?,
        read_over: None,
        build: |source| {
            let Source { content, mut reader, device, .. } = source.with_tables_for_its_context("qwen2");
            Ok(Box::new(quantized_qwen2::ModelWeights::from_gguf(content, &mut reader, device)?))
        },
    })
}

impl Decoder for qwen2::ModelForCausalLM {
    fn forward(&mut self, input: &Tensor, position: usize) -> candle_core::Result<Tensor> {
        Self::forward(self, input, position)
    }

    fn forget(&mut self) {
        self.clear_kv_cache();
    }
}

impl Decoder for quantized_qwen2::ModelWeights {
    fn forward(&mut self, input: &Tensor, position: usize) -> candle_core::Result<Tensor> {
        Self::forward(self, input, position)
    }

    fn forget(&mut self) {
        self.clear_kv_cache();
    }

    fn keeps_masks(&self) -> bool {
        true
    }
}
