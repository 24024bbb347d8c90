//! The tensors of Llama and its successors: Mistral, Qwen 2 and 3, Gemma. They differ in biases, norms and GGUF's row
//! order.

use anyhow::{Context, Result};

use super::metadata::{real, whole};
use super::{Key, Order, Part, Parts, Place, names};
use crate::Config;

pub(super) const KEYS: &[Key] = &[
    whole("hidden_size", "embedding_length"),
    whole("intermediate_size", "feed_forward_length"),
    whole("num_hidden_layers", "block_count"),
    whole("num_attention_heads", "attention.head_count"),
    whole("num_key_value_heads", "attention.head_count_kv"),
    whole("head_dim", "attention.key_length"),
    whole("head_dim", "attention.value_length"),
    whole("head_dim", "rope.dimension_count"),
    whole("vocab_size", "vocab_size"),
    whole("max_position_embeddings", "context_length"),
    real("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    real("rope_theta", "rope.freq_base"),
];

#[derive(Default)]
pub(super) struct Flavour {
    /// GGUF stores the rows of queries and keys as pairs.
    pub in_pairs: bool,
    pub qkv_bias: bool,
    pub output_bias: bool,
    pub mlp_bias: bool,
    /// Each head of the queries and keys is normalised.
    pub qk_norms: bool,
}

pub(super) fn parts(config: &Config, flavour: &Flavour) -> Result<Vec<Part>> {
    let Config { hidden_size: hidden, vocabulary_size: vocabulary, head_dim, heads, kv_heads, .. } = *config;
    let inner = config.intermediate_size.context("`intermediate_size` is missing")?;
    let (queries, keys) = (width(heads, head_dim)?, width(kv_heads, head_dim)?);
    let mut parts = Parts::new();
    parts.matrix(
        Place::Embedding,
        names("model.embed_tokens.weight", "token_embd.weight"),
        vocabulary,
        hidden,
    );
    for layer in 0..config.layers {
        let named = |theirs: &str, gguf: &str, end: &str| {
            (format!("model.layers.{layer}.{theirs}.{end}"), format!("blk.{layer}.{gguf}.{end}"))
        };
        parts.norm(named("input_layernorm", "attn_norm", "weight"), hidden);
        let projections =
            [("q", queries, heads, true), ("k", keys, kv_heads, true), ("v", keys, kv_heads, false)];
        for (letter, outputs, heads, rotated) in projections {
            let (theirs, gguf) = (format!("self_attn.{letter}_proj"), format!("attn_{letter}"));
            let order = match flavour.in_pairs && rotated {
                true => Order::Pairs { heads: u64::from(heads) },
                false => Order::Same,
            };
            parts.matrix(Place::Attention, named(&theirs, &gguf, "weight"), outputs, hidden).order = order;
            if flavour.qkv_bias {
                parts.bias(Place::Attention, named(&theirs, &gguf, "bias"), outputs, hidden).order = order;
            }
        }
        if flavour.qk_norms {
            parts.norm(named("self_attn.q_norm", "attn_q_norm", "weight"), head_dim);
            parts.norm(named("self_attn.k_norm", "attn_k_norm", "weight"), head_dim);
        }
        parts.matrix(Place::Attention, named("self_attn.o_proj", "attn_output", "weight"), hidden, queries);
        if flavour.output_bias {
            parts.bias(Place::Attention, named("self_attn.o_proj", "attn_output", "bias"), hidden, queries);
        }
        parts.norm(named("post_attention_layernorm", "ffn_norm", "weight"), hidden);
        let feed_forward = [("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)];
        for (word, outputs, inputs) in feed_forward {
            let (theirs, gguf) = (format!("mlp.{word}_proj"), format!("ffn_{word}"));
            parts.matrix(Place::FeedForward, named(&theirs, &gguf, "weight"), outputs, inputs);
            if flavour.mlp_bias {
                parts.bias(Place::FeedForward, named(&theirs, &gguf, "bias"), outputs, inputs);
            }
        }
    }
    parts.norm(names("model.norm.weight", "output_norm.weight"), hidden);
    if !config.tie_word_embeddings {
        parts.matrix(Place::Output, names("lm_head.weight", "output.weight"), vocabulary, hidden);
    }
    Ok(parts.into_list())
}

/// The width of `heads` heads together.
pub(super) fn width(heads: u32, head_dim: u32) -> Result<u32> {
    heads.checked_mul(head_dim).with_context(|| format!("{heads} heads of {head_dim} are too wide"))
}
