//! Which tensors a model of a given shape must have, and whether its files have them.
//!
//! candle's llama panics on a tensor that is not there, and no message of candle's says which file it looked in. So the
//! headers are checked first.

use std::collections::HashMap;

use model_files::{ModelFolder, Tensor};
use protocol::Failed;

use crate::failure::model;
use crate::shape::{Shape, config_path};

/// A tensor's name and shape, outermost dimension first.
type Needed = (String, Vec<u64>);

/// The number of parameters in the tensors that candle loads for `shape`, if they are all there with their shapes.
pub fn check(folder: &ModelFolder, shape: &Shape) -> Result<u64, Failed> {
    let there: HashMap<&str, &Tensor> =
        folder.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let mut parameters = 0;
    for (name, expected) in needed(folder, shape, there.contains_key(LM_HEAD)) {
        let Some(tensor) = there.get(name.as_str()) else {
            let file = if folder.weights.len() == 1 { &folder.weights[0] } else { &folder.path };
            return Err(model(file, format!("no tensor `{name}`")));
        };
        if tensor.shape != expected {
            let what = format!(
                "tensor `{name}` has shape {:?}, expected {expected:?} from `{}`",
                tensor.shape,
                config_path(folder).display()
            );
            return Err(model(folder.weights.get(tensor.file).unwrap_or(&folder.path), what));
        }
        parameters += tensor.elements();
    }
    Ok(parameters)
}

const LM_HEAD: &str = "lm_head.weight";

fn needed(folder: &ModelFolder, shape: &Shape, has_lm_head: bool) -> Vec<Needed> {
    let config = &folder.config;
    let [hidden, heads, kv_heads, vocabulary] =
        [config.hidden_size, config.heads, config.kv_heads, config.vocabulary_size].map(u64::from);
    let (inner, biased, with_lm_head) = match shape {
        Shape::Llama(llama) => (llama.intermediate_size as u64, false, !llama.tie_word_embeddings),
        // candle's qwen2 goes by what the file holds, and would tie silently where an untied head is lost.
        Shape::Qwen2(qwen2) => {
            (qwen2.intermediate_size as u64, true, !qwen2.tie_word_embeddings || has_lm_head)
        }
    };
    let kv_width = hidden / heads * kv_heads;
    let mut needed: Vec<Needed> = vec![
        ("model.embed_tokens.weight".into(), vec![vocabulary, hidden]),
        ("model.norm.weight".into(), vec![hidden]),
    ];
    if with_lm_head {
        needed.push((LM_HEAD.into(), vec![vocabulary, hidden]));
    }
    for layer in 0..config.layers {
        let mut push = |name: &str, shape: &[u64]| {
            needed.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        };
        push("input_layernorm.weight", &[hidden]);
        push("post_attention_layernorm.weight", &[hidden]);
        for (name, width) in [("q_proj", hidden), ("k_proj", kv_width), ("v_proj", kv_width)] {
            push(&format!("self_attn.{name}.weight"), &[width, hidden]);
            if biased {
                push(&format!("self_attn.{name}.bias"), &[width]);
            }
        }
        push("self_attn.o_proj.weight", &[hidden, hidden]);
        push("mlp.gate_proj.weight", &[inner, hidden]);
        push("mlp.up_proj.weight", &[inner, hidden]);
        push("mlp.down_proj.weight", &[hidden, inner]);
    }
    needed
}
