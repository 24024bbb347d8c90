//! The table of the architectures. Most have the tensors of Llama, and differ in biases, norms and GGUF's row order.

use anyhow::{Context, Result, ensure};

use super::metadata::{Key, integer, real};
use super::{Architecture, Component, GgufLayout, TensorSpec, TensorSpecs};
use crate::{Config, Format};

/// If several architectures share a name in GGUF, a GGUF of that name is read as the first of them.
pub static ARCHITECTURES: &[&Architecture] = &[
    &LLAMA,
    // Llama with a sliding window. The configs of its first release may omit the window.
    &Architecture {
        name: "mistral",
        class: "MistralForCausalLM",
        may_have: &[],
        gguf_has_attention_bias: false,
        constants: r#"{"hidden_act":"silu"}"#,
        default_window: Some(4096),
        specs: |config| decoder(config, &Variant { in_pairs: true, ..Variant::default() }),
        ..LLAMA
    },
    // Llama with biases; GGUF does not reorder its heads.
    &Architecture {
        name: "qwen2",
        gguf: "qwen2",
        class: "Qwen2ForCausalLM",
        pre: "qwen2",
        marks: &[Q_PROJ, Q_BIAS],
        may_have: &[],
        gguf_has_attention_bias: false,
        constants: r#"{"hidden_act":"silu","use_sliding_window":false}"#,
        specs: |config| decoder(config, &Variant { qkv_bias: true, ..Variant::default() }),
        ..LLAMA
    },
    // Llama with norms for each head of queries and keys; GGUF does not reorder its heads.
    &Architecture {
        name: "qwen3",
        gguf: "qwen3",
        class: "Qwen3ForCausalLM",
        head_dim: Some(128),
        pre: "qwen2",
        marks: &[Q_PROJ, "self_attn.q_norm.weight"],
        gguf_has_attention_bias: false,
        constants: r#"{"hidden_act":"silu","attention_bias":false,"use_sliding_window":false}"#,
        specs: |config| decoder(config, &Variant { qk_norms: true, ..Variant::of_attention_bias(config) }),
        ..LLAMA
    },
    // Llama with queries, keys and values in one matrix, and gate and up in another.
    &Architecture {
        name: "phi3",
        gguf: "phi3",
        class: "Phi3ForCausalLM",
        norm_epsilon: 1e-5,
        marks: &["self_attn.qkv_proj.weight"],
        may_have: &[],
        gguf_has_attention_bias: false,
        keys: PHI3_KEYS,
        constants: r#"{"hidden_act":"silu","attention_bias":false}"#,
        specs: |config| decoder(config, &Variant { fused: true, ..Variant::default() }),
        ..LLAMA
    },
    // Learned positions, LayerNorm with biases, matrices stored as inputs by outputs.
    &Architecture {
        name: "gpt2",
        gguf: "gpt2",
        class: "GPT2LMHeadModel",
        tied: true,
        norm_epsilon: 1e-5,
        inner_multiple: Some(GPT2_INNER_MULTIPLE),
        marks: &["attn.c_attn.weight"],
        may_have: &[],
        buffers: &[".attn.bias", ".attn.masked_bias"],
        prefix: Some(("transformer.", &["wte.", "wpe.", "h.", "ln_f."])),
        gguf_has_attention_bias: false,
        keys: GPT2_KEYS,
        constants: r#"{"activation_function":"gelu_new"}"#,
        neutral: r#"{"scale_attn_weights":true,"scale_attn_by_inverse_layer_idx":false,"add_cross_attention":false}"#,
        specs: gpt2,
        ..LLAMA
    },
    // Llama with a scaled embedding, another activation, and norms that store their factor minus one.
    &Architecture {
        name: "gemma",
        gguf: "gemma",
        class: "GemmaForCausalLM",
        tied: true,
        head_dim: Some(256),
        gguf_has_attention_bias: false,
        constants: r#"{"hidden_act":"gelu_pytorch_tanh","hidden_activation":"gelu_pytorch_tanh","attention_bias":false}"#,
        neutral: r#"{"use_bidirectional_attention":false}"#,
        // Early Gemma configs write `gelu` and mean its tanh approximation.
        gelu_means_tanh: true,
        specs: gemma,
        ..LLAMA
    },
];

/// Llama, and the default fields of the other architectures.
const LLAMA: Architecture = Architecture {
    name: "llama",
    gguf: "llama",
    class: "LlamaForCausalLM",
    tied: false,
    head_dim: None,
    norm_epsilon: 1e-6,
    inner_multiple: None,
    pre: "gpt-2",
    marks: &[Q_PROJ],
    may_have: &[Q_BIAS],
    buffers: &[".rotary_emb.inv_freq"],
    prefix: None,
    gguf_has_attention_bias: true,
    keys: DECODER_KEYS,
    constants: r#"{"hidden_act":"silu","attention_bias":false,"mlp_bias":false}"#,
    neutral: "{}",
    gelu_means_tanh: false,
    default_window: None,
    specs: |config| {
        let biases = Variant { mlp_bias: config.mlp_bias, ..Variant::of_attention_bias(config) };
        decoder(config, &Variant { in_pairs: true, ..biases })
    },
};

const Q_PROJ: &str = "self_attn.q_proj.weight";
const Q_BIAS: &str = "self_attn.q_proj.bias";

const DECODER_KEYS: &[Key] = &[
    integer("hidden_size", "embedding_length"),
    integer("intermediate_size", "feed_forward_length"),
    integer("num_hidden_layers", "block_count"),
    integer("num_attention_heads", "attention.head_count"),
    integer("num_key_value_heads", "attention.head_count_kv"),
    integer("head_dim", "attention.key_length"),
    integer("head_dim", "attention.value_length"),
    integer("head_dim", "rope.dimension_count"),
    integer("vocab_size", "vocab_size"),
    integer("max_position_embeddings", "context_length"),
    real("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    real("rope_theta", "rope.freq_base"),
];

const PHI3_KEYS: &[Key] = &[
    integer("hidden_size", "embedding_length"),
    integer("intermediate_size", "feed_forward_length"),
    integer("num_hidden_layers", "block_count"),
    integer("num_attention_heads", "attention.head_count"),
    integer("num_key_value_heads", "attention.head_count_kv"),
    integer("head_dim", "rope.dimension_count"),
    integer("vocab_size", "vocab_size"),
    integer("max_position_embeddings", "context_length"),
    integer("original_max_position_embeddings", "rope.scaling.original_context_length"),
    integer("sliding_window", "attention.sliding_window"),
    real("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    real("rope_theta", "rope.freq_base"),
];

const GPT2_KEYS: &[Key] = &[
    integer("n_embd", "embedding_length"),
    integer("n_inner", "feed_forward_length"),
    integer("n_layer", "block_count"),
    integer("n_head", "attention.head_count"),
    integer("vocab_size", "vocab_size"),
    integer("n_positions", "context_length"),
    real("layer_norm_epsilon", "attention.layer_norm_epsilon"),
];

/// The inner size in multiples of the hidden size, for a config.json without it.
const GPT2_INNER_MULTIPLE: u32 = 4;

/// The differences between the decoders that follow Llama.
#[derive(Default)]
struct Variant {
    /// GGUF stores the rows of queries and keys as `GgufLayout::Pairs`.
    in_pairs: bool,
    qkv_bias: bool,
    output_bias: bool,
    mlp_bias: bool,
    /// Each head of the queries and keys is normalised.
    qk_norms: bool,
    /// Queries, keys and values are one matrix; so are gate and up.
    fused: bool,
}

impl Variant {
    /// `attention_bias` covers queries, keys, values and the output of attention.
    fn of_attention_bias(config: &Config) -> Self {
        let bias = config.attention_bias;
        Self { qkv_bias: bias, output_bias: bias, ..Self::default() }
    }
}

fn decoder(config: &Config, variant: &Variant) -> Result<Vec<TensorSpec>> {
    let Config { hidden_size: hidden, vocabulary_size: vocabulary, head_dim, heads, kv_heads, .. } = *config;
    let inner = config.intermediate_size.context("`intermediate_size` is missing")?;
    let (q_width, kv_width) = (width(heads, head_dim)?, width(kv_heads, head_dim)?);
    let projections = match variant.fused {
        true => vec![("qkv", width(heads + 2 * kv_heads, head_dim)?, None)],
        false => vec![("q", q_width, Some(heads)), ("k", kv_width, Some(kv_heads)), ("v", kv_width, None)],
    };
    let feed_forward = match variant.fused {
        // GGUF has no name for gate and up in one matrix: its `ffn_up` holds both.
        true => vec![("gate_up", "up", 2 * inner, hidden), ("down", "down", hidden, inner)],
        false => vec![
            ("gate", "gate", inner, hidden),
            ("up", "up", inner, hidden),
            ("down", "down", hidden, inner),
        ],
    };
    let mut specs = TensorSpecs::default();
    specs.matrix(
        Component::Embedding,
        ("model.embed_tokens.weight", "token_embd.weight"),
        vocabulary,
        hidden,
    );
    for layer in 0..config.layers {
        specs.layer_prefixes = (format!("model.layers.{layer}."), format!("blk.{layer}."));
        specs.norm(("input_layernorm.weight", "attn_norm.weight"), hidden);
        for &(letters, outputs, rotated_heads) in &projections {
            let (name, gguf) = (format!("self_attn.{letters}_proj"), format!("attn_{letters}"));
            let gguf_layout = match rotated_heads.filter(|_| variant.in_pairs) {
                Some(heads) => GgufLayout::Pairs { heads: u64::from(heads) },
                None => GgufLayout::Same,
            };
            linear(
                &mut specs,
                Component::Attention,
                (&name, &gguf),
                (outputs, hidden),
                variant.qkv_bias,
                gguf_layout,
            );
        }
        if variant.qk_norms {
            specs.norm(("self_attn.q_norm.weight", "attn_q_norm.weight"), head_dim);
            specs.norm(("self_attn.k_norm.weight", "attn_k_norm.weight"), head_dim);
        }
        let output = ("self_attn.o_proj", "attn_output");
        linear(
            &mut specs,
            Component::Attention,
            output,
            (hidden, q_width),
            variant.output_bias,
            GgufLayout::Same,
        );
        specs.norm(("post_attention_layernorm.weight", "ffn_norm.weight"), hidden);
        for &(name_part, gguf, outputs, inputs) in &feed_forward {
            let names = (&*format!("mlp.{name_part}_proj"), &*format!("ffn_{gguf}"));
            linear(
                &mut specs,
                Component::FeedForward,
                names,
                (outputs, inputs),
                variant.mlp_bias,
                GgufLayout::Same,
            );
        }
    }
    specs.layer_prefixes = Default::default();
    specs.norm(("model.norm.weight", "output_norm.weight"), hidden);
    if !config.tie_word_embeddings {
        specs.matrix(Component::Output, ("lm_head.weight", "output.weight"), vocabulary, hidden);
    }
    Ok(specs.list)
}

/// Adds a matrix, and its bias if `has_bias`.
fn linear(
    specs: &mut TensorSpecs,
    component: Component,
    (name, gguf): (&str, &str),
    (outputs, inputs): (u32, u32),
    has_bias: bool,
    gguf_layout: GgufLayout,
) {
    let names = (&*format!("{name}.weight"), &*format!("{gguf}.weight"));
    specs.matrix(component, names, outputs, inputs).gguf_layout = gguf_layout;
    if has_bias {
        let names = (&*format!("{name}.bias"), &*format!("{gguf}.bias"));
        specs.bias(component, names, outputs, inputs).gguf_layout = gguf_layout;
    }
}

fn width(heads: u32, head_dim: u32) -> Result<u32> {
    heads.checked_mul(head_dim).with_context(|| format!("{heads} heads of {head_dim} are too wide"))
}

fn gemma(config: &Config) -> Result<Vec<TensorSpec>> {
    let mut specs = decoder(config, &Variant::of_attention_bias(config))?;
    for spec in &mut specs {
        match spec.component {
            Component::Norms => spec.gguf_layout = GgufLayout::PlusOne,
            // The network multiplies the embedding by the root of the hidden size, so random weights are divided by it.
            // Otherwise each token would predict itself.
            Component::Embedding => spec.fan_in *= u64::from(config.hidden_size),
            _ => {}
        }
    }
    Ok(specs)
}

/// GPT-2's output matrix is its embedding. llama.cpp's converter writes the embedding twice, so most GGUFs have a separate
/// output matrix.
fn gpt2(config: &Config) -> Result<Vec<TensorSpec>> {
    let Config { hidden_size: hidden, vocabulary_size: vocabulary, .. } = *config;
    check_heads(config)?;
    let context = config.context_tokens.context("`n_positions` is missing")?;
    let inner = config.intermediate_size.unwrap_or(GPT2_INNER_MULTIPLE * hidden);
    let mut specs = TensorSpecs::default();
    specs.matrix(Component::Embedding, ("wte.weight", "token_embd.weight"), vocabulary, hidden);
    specs.matrix(Component::Positions, ("wpe.weight", "position_embd.weight"), context, hidden);
    for layer in 0..config.layers {
        specs.layer_prefixes = (format!("h.{layer}."), format!("blk.{layer}."));
        for (component, name, gguf, outputs, inputs) in [
            (Component::Attention, "attn.c_attn", "attn_qkv", 3 * hidden, hidden),
            (Component::Attention, "attn.c_proj", "attn_output", hidden, hidden),
            (Component::FeedForward, "mlp.c_fc", "ffn_up", inner, hidden),
            (Component::FeedForward, "mlp.c_proj", "ffn_down", hidden, inner),
        ] {
            let names = (&*format!("{name}.weight"), &*format!("{gguf}.weight"));
            let matrix = specs.matrix(component, names, inputs, outputs);
            (matrix.gguf_layout, matrix.fan_in) = (GgufLayout::Transposed, u64::from(inputs));
            specs.bias(component, (&format!("{name}.bias"), &format!("{gguf}.bias")), outputs, inputs);
        }
        for (name, gguf) in [("ln_1", "attn_norm"), ("ln_2", "ffn_norm")] {
            specs.norm((&format!("{name}.weight"), &format!("{gguf}.weight")), hidden);
            specs.norm_bias((&format!("{name}.bias"), &format!("{gguf}.bias")), hidden);
        }
    }
    specs.layer_prefixes = Default::default();
    specs.norm(("ln_f.weight", "output_norm.weight"), hidden);
    specs.norm_bias(("ln_f.bias", "output_norm.bias"), hidden);
    if !config.tie_word_embeddings {
        specs.matrix(Component::Output, ("lm_head.weight", "output.weight"), vocabulary, hidden);
    }
    Ok(specs.list)
}

/// Checks the number of heads: queries, keys and values are equal thirds of one matrix, and each third holds all heads.
fn check_heads(config: &Config) -> Result<()> {
    let Config { hidden_size, heads, kv_heads, head_dim, .. } = *config;
    let (size_name, count_name) = match config.format() {
        Format::Safetensors => ("n_embd", "n_head"),
        Format::Gguf => ("embedding_length", "attention.head_count"),
    };
    ensure!(
        u64::from(heads) * u64::from(head_dim) == u64::from(hidden_size),
        "`{count_name}` is {heads}: {heads} heads of {head_dim} do not add up to `{size_name}`, {hidden_size}"
    );
    ensure!(
        kv_heads == heads,
        "{kv_heads} heads of keys and values, and `{count_name}` is {heads}: GPT-2 needs equal numbers"
    );
    Ok(())
}
