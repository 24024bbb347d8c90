//! GPT-2: learned positions, LayerNorm with biases, matrices stored as inputs by outputs, output tied to the embedding.
//! llama.cpp's converter writes the output again, so most GGUFs have it as a separate matrix.

use anyhow::{Context, Result, ensure};

use super::metadata::{real, whole};
use super::{Architecture, Key, Layout, Order, Part, Parts, Place, names};
use crate::Config;

pub const ARCHITECTURE: Architecture = Architecture {
    name: "gpt2",
    gguf: "gpt2",
    class: "GPT2LMHeadModel",
    tied: true,
    head_dim: None,
    norm_epsilon: 1e-5,
    inner_times: Some(4),
    pre: "gpt-2",
    marks: &["attn.c_attn.weight"],
    may_have: &[],
    buffers: &[".attn.bias", ".attn.masked_bias"],
    prefix: Some(("transformer.", &["wte.", "wpe.", "h.", "ln_f."])),
    gguf_has_attention_bias: false,
    keys: KEYS,
    constants: r#"{"activation_function":"gelu_new"}"#,
    overriding: &[],
    parts,
};

const KEYS: &[Key] = &[
    whole("n_embd", "embedding_length"),
    whole("n_inner", "feed_forward_length"),
    whole("n_layer", "block_count"),
    whole("n_head", "attention.head_count"),
    whole("vocab_size", "vocab_size"),
    whole("n_positions", "context_length"),
    real("layer_norm_epsilon", "attention.layer_norm_epsilon"),
];

fn parts(config: &Config) -> Result<Vec<Part>> {
    let Config { hidden_size: hidden, vocabulary_size: vocabulary, .. } = *config;
    expect_heads_to_fill(config)?;
    let context = config.context_tokens.context("`n_positions` is missing")?;
    let inner = ARCHITECTURE.inner_size(config).context("`n_inner` is missing")?;
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

/// Queries, keys and values are equal thirds of one matrix. Each third holds all heads.
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
