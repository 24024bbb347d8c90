//! Llama, and all GGUF models of that name, including Mistral.

use candle_core::Tensor;
use candle_transformers::models::{llama, quantized_llama};
use protocol::Failed;

use super::Architecture;
use crate::config::{Feature, Fields};
use crate::gguf::{self, Metadata, Source};
use crate::network::Decoder;
use crate::safetensors;
use crate::sizes::Longest;

pub const ARCHITECTURE: Architecture =
    Architecture { name: "llama", safetensors: from_safetensors, gguf: Some(from_gguf) };

fn from_safetensors(fields: &Fields) -> Result<safetensors::Recipe, Failed> {
    let sizes = fields.expect_only(&[Feature::Llama3Frequencies])?;
    let config = llama::Config {
        hidden_size: sizes.hidden,
        intermediate_size: sizes.inner,
        vocab_size: sizes.vocabulary,
        num_hidden_layers: sizes.layers,
        num_attention_heads: sizes.heads,
        num_key_value_heads: sizes.kv_heads,
        use_flash_attn: false,
        rms_norm_eps: fields.number("rms_norm_eps")?,
        rope_theta: fields.rope_theta() as f32,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: fields.llama3_frequencies()?,
        max_position_embeddings: 0, // known when it is built
        tie_word_embeddings: fields.folder.config.tie_word_embeddings,
    };
    Ok(safetensors::Recipe {
        longest_context: Longest::of(fields.folder)?,
        rounds_positions: false,
        build: Box::new(move |tensors, context_tokens| {
            let config = llama::Config { max_position_embeddings: context_tokens, ..config };
            let cache = llama::Cache::new(true, tensors.dtype(), &config, tensors.device())?;
            // candle cuts its keys at this number, but compares it with the number of key-value heads.
            let longest = context_tokens.max(config.num_key_value_heads);
            let uncut = llama::Config { max_position_embeddings: longest, ..config };
            let weights = llama::Llama::load(tensors, &uncut)?;
            Ok(Box::new(Llama { weights, pristine: cache.clone(), cache }))
        }),
    })
}

/// The length of position tables in candle's quantised llama, whatever the file states.
const LONGEST: u32 = quantized_llama::MAX_SEQ_LEN as u32;

fn from_gguf(metadata: &Metadata) -> Result<gguf::Recipe, Failed> {
    metadata.expect_only(&[])?;
    Ok(gguf::Recipe {
        longest_context: metadata.longest_context()?.at_most(LONGEST, "candle's position tables"),
        // Llama 3.1 and later scale their frequencies by this tensor. The amount of work is the same without it.
        read_over: Some("rope_freqs.weight"),
        build: |Source { content, mut reader, device, .. }| {
            Ok(Box::new(quantized_llama::ModelWeights::from_gguf(content, &mut reader, device)?))
        },
    })
}

/// `pristine` is the cache of an empty sequence; it shares its position tables with its copies.
struct Llama {
    weights: llama::Llama,
    pristine: llama::Cache,
    cache: llama::Cache,
}

impl Decoder for Llama {
    fn forward(&mut self, input: &Tensor, position: usize) -> candle_core::Result<Tensor> {
        self.weights.forward(input, position, &mut self.cache)
    }

    /// The cache also holds masks; a sequence without cache would keep one for each of its lengths.
    fn forget(&mut self) {
        self.cache = self.pristine.clone();
    }
}

impl Decoder for quantized_llama::ModelWeights {
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
