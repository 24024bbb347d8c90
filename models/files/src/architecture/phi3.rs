//! Phi-3: Llama with queries, keys and values in one matrix, and gate and up in another.

use anyhow::{Context, Result};

use super::decoder::width;
use super::{Part, Parts, Place, names};
use crate::Config;

pub(super) fn parts(config: &Config) -> Result<Vec<Part>> {
    let Config { hidden_size: hidden, vocabulary_size: vocabulary, head_dim, heads, kv_heads, .. } = *config;
    let inner = config.intermediate_size.context("`intermediate_size` is missing")?;
    let queries = width(heads, head_dim)?;
    let fused = width(heads.saturating_add(kv_heads.saturating_mul(2)), head_dim)?;
    let both = inner.checked_mul(2).with_context(|| format!("`intermediate_size` {inner} is too wide"))?;
    let mut parts = Parts::new();
    parts.matrix(
        Place::Embedding,
        names("model.embed_tokens.weight", "token_embd.weight"),
        vocabulary,
        hidden,
    );
    for layer in 0..config.layers {
        let named = |theirs: &str, gguf: &str| {
            (format!("model.layers.{layer}.{theirs}.weight"), format!("blk.{layer}.{gguf}.weight"))
        };
        parts.norm(named("input_layernorm", "attn_norm"), hidden);
        parts.matrix(Place::Attention, named("self_attn.qkv_proj", "attn_qkv"), fused, hidden);
        parts.matrix(Place::Attention, named("self_attn.o_proj", "attn_output"), hidden, queries);
        parts.norm(named("post_attention_layernorm", "ffn_norm"), hidden);
        // GGUF has no name for the pair: its `ffn_up` holds gate and up, as the checkpoint does.
        parts.matrix(Place::FeedForward, named("mlp.gate_up_proj", "ffn_up"), both, hidden);
        parts.matrix(Place::FeedForward, named("mlp.down_proj", "ffn_down"), hidden, inner);
    }
    parts.norm(names("model.norm.weight", "output_norm.weight"), hidden);
    if !config.tie_word_embeddings {
        parts.matrix(Place::Output, names("lm_head.weight", "output.weight"), vocabulary, hidden);
    }
    Ok(parts.into_list())
}
