//! GPT-2: learned positions, LayerNorm with biases, matrices stored as inputs by outputs, output tied to the embedding.
//! llama.cpp's converter writes that output down a second time, so most GGUFs have it as a matrix of its own.

use anyhow::{Context, Result, ensure};

use super::{Layout, Order, Part, Parts, Place, names};
use crate::Config;

/// The name that some checkpoints have for a tensor of GPT-2. The names of no other architecture begin so.
pub(crate) fn longer_name(name: &str) -> Option<String> {
    let own = ["wte.", "wpe.", "h.", "ln_f."].iter().any(|start| name.starts_with(start));
    own.then(|| format!("transformer.{name}"))
}

pub(super) fn parts(config: &Config) -> Result<Vec<Part>> {
    let Config { hidden_size: hidden, vocabulary_size: vocabulary, .. } = *config;
    expect_heads_to_fill(config)?;
    let context = config.context_tokens.context("`n_positions` is missing")?;
    let inner = config.intermediate_size.unwrap_or(hidden.saturating_mul(4));
    let mut parts = Parts::new();
    parts.matrix(Place::Embedding, names("wte.weight", "token_embd.weight"), vocabulary, hidden);
    parts.matrix(Place::Positions, names("wpe.weight", "position_embd.weight"), context, hidden);
    for layer in 0..config.layers {
        let named = |theirs: &str, gguf: &str, end: &str| {
            (format!("h.{layer}.{theirs}.{end}"), format!("blk.{layer}.{gguf}.{end}"))
        };
        let mut linear = |place, theirs: &str, gguf: &str, outputs: u32, inputs: u32| {
            let matrix = parts.matrix(place, named(theirs, gguf, "weight"), inputs, outputs);
            (matrix.order, matrix.fan_in) = (Order::Transposed, u64::from(inputs));
            parts.bias(place, named(theirs, gguf, "bias"), outputs, inputs);
        };
        linear(Place::Attention, "attn.c_attn", "attn_qkv", hidden.saturating_mul(3), hidden);
        linear(Place::Attention, "attn.c_proj", "attn_output", hidden, hidden);
        linear(Place::FeedForward, "mlp.c_fc", "ffn_up", inner, hidden);
        linear(Place::FeedForward, "mlp.c_proj", "ffn_down", hidden, inner);
        for (theirs, gguf) in [("ln_1", "attn_norm"), ("ln_2", "ffn_norm")] {
            parts.norm(named(theirs, gguf, "weight"), hidden);
            parts.norm_bias(named(theirs, gguf, "bias"), hidden);
        }
    }
    parts.norm(names("ln_f.weight", "output_norm.weight"), hidden);
    parts.norm_bias(names("ln_f.bias", "output_norm.bias"), hidden);
    if !config.tie_word_embeddings {
        parts.matrix(Place::Output, names("lm_head.weight", "output.weight"), vocabulary, hidden);
    }
    Ok(parts.into_list())
}

/// Queries, keys and values are three equal thirds of one matrix, each of them all heads side by side.
fn expect_heads_to_fill(config: &Config) -> Result<()> {
    let Config { hidden_size, heads, kv_heads, head_dim, .. } = *config;
    let (size, count) = match config.layout() {
        Layout::HuggingFace => ("n_embd", "n_head"),
        Layout::Gguf => ("embedding_length", "attention.head_count"),
    };
    ensure!(
        u64::from(heads) * u64::from(head_dim) == u64::from(hidden_size),
        "`{count}` is {heads}: so many heads of {head_dim} do not make up `{size}`, {hidden_size}"
    );
    ensure!(
        kv_heads == heads,
        "{kv_heads} heads of keys and values: GPT-2 has as many as `{count}`, {heads}"
    );
    Ok(())
}
