//! Llama.

use anyhow::Result;

use super::decoder::{self, Flavour, KEYS};
use super::{Architecture, FREQUENCIES, Part, Q_BIAS, Q_PROJ};
use crate::Config;

pub const ARCHITECTURE: Architecture = Architecture {
    name: "llama",
    gguf: "llama",
    class: "LlamaForCausalLM",
    tied: false,
    head_dim: None,
    norm_epsilon: 1e-6,
    inner_times: None,
    pre: "gpt-2",
    marks: &[Q_PROJ],
    may_have: &[Q_BIAS],
    buffers: &[FREQUENCIES],
    prefix: None,
    gguf_has_attention_bias: true,
    keys: KEYS,
    constants: r#"{"hidden_act":"silu","attention_bias":false,"mlp_bias":false}"#,
    overriding: &[],
    parts,
};

fn parts(config: &Config) -> Result<Vec<Part>> {
    let bias = config.attention_bias;
    let biases =
        Flavour { qkv_bias: bias, output_bias: bias, mlp_bias: config.mlp_bias, ..Flavour::default() };
    decoder::parts(config, &Flavour { in_pairs: true, ..biases })
}
