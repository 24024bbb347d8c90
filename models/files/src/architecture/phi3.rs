//! Phi-3: Llama with queries, keys and values in one matrix, and gate and up in another.

use anyhow::{Context, Result};

use super::decoder::width;
use super::metadata::{real, whole};
use super::{Architecture, FREQUENCIES, Key, Part, Parts, Place, names};
use crate::Config;

pub const ARCHITECTURE: Architecture = Architecture {
    name: "phi3",
    gguf: "phi3",
    class: "Phi3ForCausalLM",
    tied: false,
    head_dim: None,
    norm_epsilon: 1e-5,
    inner_times: None,
    pre: "gpt-2",
    marks: &["self_attn.qkv_proj.weight"],
    may_have: &[],
    buffers: &[FREQUENCIES],
    prefix: None,
    gguf_has_attention_bias: false,
    keys: KEYS,
    constants: r#"{"hidden_act":"silu","attention_bias":false}"#,
    overriding: &[],
    parts,
};

const KEYS: &[Key] = &[
    whole("hidden_size", "embedding_length"),
    whole("intermediate_size", "feed_forward_length"),
    whole("num_hidden_layers", "block_count"),
    whole("num_attention_heads", "attention.head_count"),
    whole("num_key_value_heads", "attention.head_count_kv"),
    whole("head_dim", "rope.dimension_count"),
    whole("vocab_size", "vocab_size"),
    whole("max_position_embeddings", "context_length"),
    whole("original_max_position_embeddings", "rope.scaling.original_context_length"),
    whole("sliding_window", "attention.sliding_window"),
    real("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    real("rope_theta", "rope.freq_base"),
];

fn parts(config: &Config) -> Result<Vec<Part>> {
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
        // GGUF has no name for the pair: its `ffn_up` holds gate and up, as in the checkpoint.
        parts.matrix(Place::FeedForward, named("mlp.gate_up_proj", "ffn_up"), both, hidden);
        parts.matrix(Place::FeedForward, named("mlp.down_proj", "ffn_down"), hidden, inner);
    }
    parts.norm(names("model.norm.weight", "output_norm.weight"), hidden);
    if !config.tie_word_embeddings {
        parts.matrix(Place::Output, names("lm_head.weight", "output.weight"), vocabulary, hidden);
    }
    Ok(parts.into_list())
}
