//! Which tensors a model of a given shape must have, and whether its files have them.
//!
//! candle's llama panics on a tensor that is not there, and no message of candle's says which file it looked in. So the
//! headers are checked first.

use std::collections::HashMap;

use model_files::{ModelFolder, Tensor};
use protocol::Failed;

use crate::failure::model;
use crate::shape::{Shape, config_path};

/// The number of parameters in the tensors that candle loads for `shape`, if they are all there with their shapes.
pub fn check(folder: &ModelFolder, shape: &Shape) -> Result<u64, Failed> {
    let there = There::of(folder);
    let config = &folder.config;
    let [hidden, heads, kv_heads, vocabulary] =
        [config.hidden_size, config.heads, config.kv_heads, config.vocabulary_size].map(u64::from);
    let kv_width = hidden / heads * kv_heads;
    let (inner, biased, with_lm_head) = match shape {
        Shape::Llama(llama) => (llama.intermediate_size as u64, false, !llama.tie_word_embeddings),
        // candle's qwen2 goes by what the file holds, and would tie silently where an untied head is lost.
        Shape::Qwen2(qwen2) => {
            (qwen2.intermediate_size as u64, true, !qwen2.tie_word_embeddings || there.has(LM_HEAD))
        }
    };

    let mut parameters = there.elements("model.embed_tokens.weight", &[vocabulary, hidden])?;
    parameters += there.elements("model.norm.weight", &[hidden])?;
    if with_lm_head {
        parameters += there.elements(LM_HEAD, &[vocabulary, hidden])?;
    }
    for layer in 0..config.layers {
        let mut need = |name: &str, shape: &[u64]| -> Result<(), Failed> {
            parameters += there.elements(&format!("model.layers.{layer}.{name}"), shape)?;
            Ok(())
        };
        need("input_layernorm.weight", &[hidden])?;
        need("post_attention_layernorm.weight", &[hidden])?;
        for (name, width) in [("q_proj", hidden), ("k_proj", kv_width), ("v_proj", kv_width)] {
            need(&format!("self_attn.{name}.weight"), &[width, hidden])?;
            if biased {
                need(&format!("self_attn.{name}.bias"), &[width])?;
            }
        }
        need("self_attn.o_proj.weight", &[hidden, hidden])?;
        need("mlp.gate_proj.weight", &[inner, hidden])?;
        need("mlp.up_proj.weight", &[inner, hidden])?;
        need("mlp.down_proj.weight", &[hidden, inner])?;
    }
    Ok(parameters)
}

const LM_HEAD: &str = "lm_head.weight";

/// The tensors of a folder by their names.
struct There<'a> {
    folder: &'a ModelFolder,
    tensors: HashMap<&'a str, &'a Tensor>,
}

impl<'a> There<'a> {
    fn of(folder: &'a ModelFolder) -> Self {
        let tensors = folder.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        Self { folder, tensors }
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// How many elements the tensor has, if it is there with this shape, outermost dimension first.
    fn elements(&self, name: &str, expected: &[u64]) -> Result<u64, Failed> {
        let folder = self.folder;
        let Some(tensor) = self.tensors.get(name) else {
            let file = if let [only] = folder.weights.as_slice() { only } else { &folder.path };
            return Err(model(file, format!("no tensor `{name}`")));
        };
        if tensor.shape != expected {
            let config = config_path(folder);
            let (found, config) = (&tensor.shape, config.display());
            let what = format!("tensor `{name}` has shape {found:?}, expected {expected:?} from `{config}`");
            return Err(model(folder.weights.get(tensor.file).unwrap_or(&folder.path), what));
        }
        Ok(tensor.elements())
    }
}
