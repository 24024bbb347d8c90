//! Mistral: Llama with a sliding window. GGUF calls it `llama`.

use anyhow::Result;

use super::decoder::{self, Flavour, KEYS};
use super::{Architecture, FREQUENCIES, Part, Q_PROJ};
use crate::Config;

pub const ARCHITECTURE: Architecture = Architecture {
    name: "mistral",
    gguf: "llama",
    class: "MistralForCausalLM",
    tied: false,
    head_dim: None,
    norm_epsilon: 1e-6,
    inner_times: None,
    pre: "gpt-2",
    marks: &[Q_PROJ],
    may_have: &[],
    buffers: &[FREQUENCIES],
    prefix: None,
    gguf_has_attention_bias: false,
    keys: KEYS,
    constants: r#"{"hidden_act":"silu"}"#,
    overriding: &[],
    parts,
};

fn parts(config: &Config) -> Result<Vec<Part>> {
    decoder::parts(config, &Flavour { in_pairs: true, ..Flavour::default() })
}
