//! Qwen3: an independent head size, with norms for queries and for keys.

use candle_core::Tensor;
use candle_core::quantized::gguf_file::Value;
use candle_nn::Activation;
use candle_transformers::models::{quantized_qwen3, qwen3};
use protocol::Failed;

use super::Architecture;
use crate::config::{Feature, Fields};
use crate::gguf::{self, Metadata, Source};
use crate::network::Decoder;
use crate::safetensors;
use crate::sizes::Longest;

pub const ARCHITECTURE: Architecture =
    Architecture { name: "qwen3", safetensors: from_safetensors, gguf: Some(from_gguf) };

fn from_safetensors(fields: &Fields) -> Result<safetensors::Recipe, Failed> {
    let sizes = fields.expect_only(&[Feature::OwnHeadDim, Feature::AttentionBias])?;
    let tied = fields.folder.config.tie_word_embeddings;
    let biased = fields.folder.config.attention_bias;
    let (rope_theta, rms_norm_eps) = (fields.rope_theta(), fields.number("rms_norm_eps")?);
    Ok(safetensors::Recipe {
        longest_context: Longest::of(fields.folder)?,
        rounds_positions: false,
        build: Box::new(move |tensors, context_tokens| {
            let config = qwen3::Config {
                vocab_size: sizes.vocabulary,
                hidden_size: sizes.hidden,
                intermediate_size: sizes.inner,
                num_hidden_layers: sizes.layers,
                num_attention_heads: sizes.heads,
                head_dim: sizes.head_dim,
                attention_bias: biased,
                num_key_value_heads: sizes.kv_heads,
                max_position_embeddings: context_tokens,
                sliding_window: None,
                max_window_layers: sizes.layers,
                tie_word_embeddings: tied,
                rope_theta,
                rms_norm_eps,
                use_sliding_window: false,
                hidden_act: Activation::Silu,
            };
            Ok(Box::new(qwen3::ModelForCausalLM::new(&config, tensors)?))
        }),
    })
}

fn from_gguf(metadata: &Metadata) -> Result<gguf::Recipe, Failed> {
    metadata.expect_only(&[Feature::OwnHeadDim])?;
    Ok(gguf::Recipe {
        longest_context: metadata.longest_context()?,
        read_over: None,
        build: |source| {
            let mut source = source.with_tables_for_its_context("qwen3");
            // candle makes its position tables in f16 unless the file names f32, which no converter writes. Position 2049
            // is not an f16, and the angle of position 1000 is off by a quarter. All else is f32 in both cases.
            source.content.metadata.insert("general.dtype".into(), Value::U32(0));
            let Source { content, mut reader, device, .. } = source;
            Ok(Box::new(quantized_qwen3::ModelWeights::from_gguf(content, &mut reader, device)?))
        },
    })
}

impl Decoder for qwen3::ModelForCausalLM {
    fn forward(&mut self, input: &Tensor, position: usize) -> candle_core::Result<Tensor> {
        Self::forward(self, input, position)
    }

    fn forget(&mut self) {
        self.clear_kv_cache();
    }
}

impl Decoder for quantized_qwen3::ModelWeights {
    fn forward(&mut self, input: &Tensor, position: usize) -> candle_core::Result<Tensor> {
        Self::forward(self, input, position)
    }

    fn forget(&mut self) {
        self.clear_kv_cache();
    }
}
