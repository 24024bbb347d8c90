//! Qwen 2: Llama with biases; GGUF does not reorder its heads.

use anyhow::Result;

use super::decoder::{self, Flavour, KEYS};
use super::{Architecture, FREQUENCIES, Part, Q_BIAS, Q_PROJ};
use crate::Config;

pub const ARCHITECTURE: Architecture = Architecture {
    name: "qwen2",
    gguf: "qwen2",
    class: "Qwen2ForCausalLM",
    tied: false,
    head_dim: None,
    norm_epsilon: 1e-6,
    inner_times: None,
    pre: "qwen2",
    marks: &[Q_PROJ, Q_BIAS],
    may_have: &[],
    buffers: &[FREQUENCIES],
    prefix: None,
    gguf_has_attention_bias: false,
    keys: KEYS,
    constants: r#"{"hidden_act":"silu","use_sliding_window":false}"#,
    overriding: &[],
    parts,
};

fn parts(config: &Config) -> Result<Vec<Part>> {
    decoder::parts(config, &Flavour { qkv_bias: true, ..Flavour::default() })
}
