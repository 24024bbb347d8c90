//! Gemma: Llama with a scaled embedding, another activation, and norm weights stored minus one.

use anyhow::Result;

use super::decoder::{self, Flavour, KEYS};
use super::{Architecture, FREQUENCIES, Order, Part, Place, Q_BIAS, Q_PROJ};
use crate::Config;

pub const ARCHITECTURE: Architecture = Architecture {
    name: "gemma",
    gguf: "gemma",
    class: "GemmaForCausalLM",
    tied: true,
    head_dim: Some(256),
    norm_epsilon: 1e-6,
    inner_times: None,
    pre: "gpt-2",
    marks: &[Q_PROJ],
    may_have: &[Q_BIAS],
    buffers: &[FREQUENCIES],
    prefix: None,
    gguf_has_attention_bias: false,
    keys: KEYS,
    constants: r#"{"hidden_act":"gelu_pytorch_tanh","hidden_activation":"gelu_pytorch_tanh","attention_bias":false}"#,
    // The first configs say `gelu` but mean the approximation.
    overriding: &["hidden_act", "hidden_activation"],
    parts,
};

fn parts(config: &Config) -> Result<Vec<Part>> {
    let bias = config.attention_bias;
    let mut parts =
        decoder::parts(config, &Flavour { qkv_bias: bias, output_bias: bias, ..Flavour::default() })?;
    for norm in parts.iter_mut().filter(|part| part.place == Place::Norms) {
        norm.order = Order::PlusOne;
    }
    // The network multiplies the embedding by the root of the hidden size. With random weights of the usual size, each
    // token would predict itself.
    for embedding in parts.iter_mut().filter(|part| part.place == Place::Embedding) {
        embedding.fan_in *= u64::from(config.hidden_size);
    }
    Ok(parts)
}
