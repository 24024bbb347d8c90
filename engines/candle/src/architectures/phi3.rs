//! Phi-3: one matrix for queries, keys and values, and one for gate and up.

use candle_core::Tensor;
use candle_nn::Activation;
use candle_transformers::models::{phi3, quantized_phi3};
use protocol::Failed;

use super::Architecture;
use crate::config::{Feature, Fields};
use crate::failure::{model, unsupported};
use crate::gguf::{self, Metadata, Source};
use crate::network::Decoder;
use crate::safetensors;
use crate::sizes::{Longest, config_path};

pub const ARCHITECTURE: Architecture =
    Architecture { name: "phi3", safetensors: from_safetensors, gguf: Some(from_gguf) };

fn from_safetensors(fields: &Fields) -> Result<safetensors::Recipe, Failed> {
    if let Some(scaling @ ("longrope" | "su" | "yarn")) = fields.rope_scaling().as_deref() {
        // candle multiplies frequencies by these factors, which should divide them, and does not change the scale of
        // attention.
        let what = format!("`{}` has `rope_scaling` `{scaling}`", fields.folder.name);
        return Err(unsupported(format!("{what}, which candle computes otherwise")));
    }
    let sizes = fields.expect_only(&[Feature::PartialRotation])?;
    let tied = fields.folder.config.tie_word_embeddings;
    let rotated_part = fields.rotated_part()?;
    // Rounded as in candle.
    let rotated = (rotated_part * sizes.head_dim as f64) as usize;
    if rotated == 0 || !rotated.is_multiple_of(2) {
        return Err(fields.fault(format!("`partial_rotary_factor`: {rotated} of {} turn", sizes.head_dim)));
    }
    let (rope_theta, rms_norm_eps) = (fields.rope_theta(), fields.number("rms_norm_eps")?);
    Ok(safetensors::Recipe {
        longest_context: Longest::of(fields.folder)?.within_window(fields.sliding_window(None)?),
        rounds_positions: true,
        build: Box::new(move |tensors, context_tokens| {
            let config = phi3::Config {
                vocab_size: sizes.vocabulary,
                hidden_act: Activation::Silu,
                hidden_size: sizes.hidden,
                intermediate_size: sizes.inner,
                num_hidden_layers: sizes.layers,
                num_attention_heads: sizes.heads,
                num_key_value_heads: sizes.kv_heads,
                rms_norm_eps,
                rope_theta,
                bos_token_id: None,
                eos_token_id: None,
                rope_scaling: None,
                max_position_embeddings: context_tokens,
                original_max_position_embeddings: None,
                partial_rotary_factor: (rotated_part != 1.0).then_some(rotated_part),
                tie_word_embeddings: tied,
            };
            Ok(Box::new(phi3::Model::new(&config, tensors)?))
        }),
    })
}

fn from_gguf(metadata: &Metadata) -> Result<gguf::Recipe, Failed> {
    metadata.expect_only(&[])?;
    metadata.expect("rope.freq_base", 10_000.0)?; // candle takes this one, whatever the file says
    if metadata.folder.config.tie_word_embeddings {
        let what = "no tensor `output.weight`, and candle makes no head of the embedding here";
        return Err(model(&config_path(metadata.folder), what));
    }
    Ok(gguf::Recipe {
        longest_context: metadata.longest_context()?,
        read_over: None,
        build: |source| {
            let Source { content, mut reader, device, .. } = source.with_tables_for_its_context("phi3");
            Ok(Box::new(quantized_phi3::ModelWeights::from_gguf(false, content, &mut reader, device)?))
        },
    })
}

impl Decoder for phi3::Model {
    fn forward(&mut self, input: &Tensor, position: usize) -> candle_core::Result<Tensor> {
        Self::forward(self, input, position)
    }

    fn forget(&mut self) {
        self.clear_kv_cache();
    }
}

impl Decoder for quantized_phi3::ModelWeights {
    fn forward(&mut self, input: &Tensor, position: usize) -> candle_core::Result<Tensor> {
        Self::forward(self, input, position)
    }

    /// candle resets its cache at position 0; it has no other way.
    fn forget(&mut self) {}

    fn keeps_masks(&self) -> bool {
        true
    }
}
