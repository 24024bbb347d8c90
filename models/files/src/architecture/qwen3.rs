//! Qwen 3: Qwen 2 with norms per head.

use anyhow::Result;

use super::decoder::{self, Flavour, KEYS};
use super::{Architecture, FREQUENCIES, Part, Q_BIAS, Q_PROJ};
use crate::Config;

pub const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3",
    gguf: "qwen3",
    class: "Qwen3ForCausalLM",
    tied: false,
    head_dim: Some(128),
    norm_epsilon: 1e-6,
    inner_times: None,
    pre: "qwen2",
    marks: &[Q_PROJ, "self_attn.q_norm.weight"],
    may_have: &[Q_BIAS],
    buffers: &[FREQUENCIES],
    prefix: None,
    gguf_has_attention_bias: false,
    keys: KEYS,
    constants: r#"{"hidden_act":"silu","attention_bias":false,"use_sliding_window":false}"#,
    overriding: &[],
    parts,
};

fn parts(config: &Config) -> Result<Vec<Part>> {
    let bias = config.attention_bias;
    decoder::parts(
        config,
        &Flavour { qk_norms: true, qkv_bias: bias, output_bias: bias, ..Flavour::default() },
    )
}
