//! Small models with random weights, written as a folder of safetensors or as a GGUF file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Value as Metadata};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use engine_kit::sampling::Rng;
use serde_json::{Value, json};

/// Sizes of a model.
#[derive(Debug, Clone, Copy)]
pub struct Tiny {
    pub architecture: &'static str,
    pub hidden: usize,
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub vocabulary: usize,
    pub context: usize,
    pub tied: bool,
}

pub const LLAMA: Tiny = Tiny {
    architecture: "llama",
    hidden: 64,
    inner: 96,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    vocabulary: 97,
    context: 48,
    tied: false,
};

pub const QWEN2: Tiny = Tiny { architecture: "qwen2", tied: true, ..LLAMA };

/// Wide enough for candle's repacked kernels: rows of 256, outputs in sixteens.
pub const WIDE: Tiny = Tiny { hidden: 256, inner: 256, layers: 1, vocabulary: 112, tied: true, ..LLAMA };

impl Tiny {
    pub fn config(&self) -> Value {
        json!({
            "model_type": self.architecture,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
            "bos_token_id": 0,
            "eos_token_id": 1,
        })
    }

    /// The same weights at every call, under the names of Hugging Face.
    pub fn tensors(&self) -> HashMap<String, Tensor> {
        let mut rng = Rng::new(7);
        let mut tensors = HashMap::new();
        let mut add = |name: String, shape: &[usize], center: f64, spread: f64| {
            let count = shape.iter().product();
            let values: Vec<f32> =
                (0..count).map(|_| (center + spread * (rng.next_f64() - 0.5)) as f32).collect();
            tensors.insert(name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap());
        };
        let Tiny { hidden, inner, vocabulary, .. } = *self;
        let kv_width = hidden / self.heads * self.kv_heads;
        // Such a spread keeps the size of what flows through, so that attention and MLP both matter.
        let spread = |width: usize| 4.0 / (width as f64).sqrt();
        add("model.embed_tokens.weight".into(), &[vocabulary, hidden], 0.0, 2.0);
        add("model.norm.weight".into(), &[hidden], 1.0, 0.5);
        if !self.tied {
            add("lm_head.weight".into(), &[vocabulary, hidden], 0.0, spread(hidden));
        }
        for layer in 0..self.layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            for norm in ["input_layernorm.weight", "post_attention_layernorm.weight"] {
                add(name(norm), &[hidden], 1.0, 0.5);
            }
            for (part, width) in [("q", hidden), ("k", kv_width), ("v", kv_width)] {
                add(name(&format!("self_attn.{part}_proj.weight")), &[width, hidden], 0.0, spread(hidden));
                if self.architecture == "qwen2" {
                    add(name(&format!("self_attn.{part}_proj.bias")), &[width], 0.0, 1.0);
                }
            }
            add(name("self_attn.o_proj.weight"), &[hidden, hidden], 0.0, spread(hidden));
            add(name("mlp.gate_proj.weight"), &[inner, hidden], 0.0, spread(hidden));
            add(name("mlp.up_proj.weight"), &[inner, hidden], 0.0, spread(hidden));
            add(name("mlp.down_proj.weight"), &[hidden, inner], 0.0, spread(inner));
        }
        tensors
    }

    /// Writes config.json and model.safetensors.
    pub fn write_folder(&self, folder: &Path) {
        write_config(folder, &self.config());
        write_tensors(folder, &self.tensors());
    }

    /// Writes `NAME.gguf` with the names, the order of q and k, and the types that llama.cpp writes.
    pub fn write_gguf(&self, folder: &Path, dtype: GgmlDType) -> PathBuf {
        let quantized: Vec<(String, QTensor)> = self
            .tensors()
            .iter()
            .map(|(name, tensor)| {
                let tensor = self.in_ggml_order(name, tensor);
                let dtype = if tensor.rank() == 1 { GgmlDType::F32 } else { dtype };
                (ggml_name(name), QTensor::quantize(&tensor, dtype).unwrap())
            })
            .collect();
        let tensors: Vec<_> = quantized.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let metadata = self.metadata();
        let metadata: Vec<_> = metadata.iter().map(|(name, value)| (name.as_str(), value)).collect();
        let path = folder.join(format!("{}-{dtype:?}.gguf", self.architecture));
        let mut file = std::fs::File::create(&path).unwrap();
        gguf_file::write(&mut file, &metadata, &tensors).unwrap();
        path
    }

    pub fn metadata(&self) -> Vec<(String, Metadata)> {
        let own = |name: &str, value| (format!("{}.{name}", self.architecture), value);
        let count = |value: usize| Metadata::U32(value as u32);
        vec![
            ("general.architecture".into(), Metadata::String(self.architecture.into())),
            own("attention.head_count", count(self.heads)),
            own("attention.head_count_kv", count(self.kv_heads)),
            own("attention.layer_norm_rms_epsilon", Metadata::F32(1e-5)),
            own("block_count", count(self.layers)),
            own("context_length", count(self.context)),
            own("embedding_length", count(self.hidden)),
            own("feed_forward_length", count(self.inner)),
            own("rope.dimension_count", count(self.hidden / self.heads)),
            own("rope.freq_base", Metadata::F32(10000.0)),
            own("vocab_size", count(self.vocabulary)),
        ]
    }

    /// llama.cpp rotates neighbours where Hugging Face rotates halves, and stores llama's q and k for it.
    fn in_ggml_order(&self, name: &str, tensor: &Tensor) -> Tensor {
        let heads = match name {
            _ if self.architecture != "llama" => return tensor.clone(),
            name if name.ends_with("q_proj.weight") => self.heads,
            name if name.ends_with("k_proj.weight") => self.kv_heads,
            _ => return tensor.clone(),
        };
        let (rows, columns) = tensor.dims2().unwrap();
        let halves = tensor.reshape((heads, 2, rows / heads / 2, columns)).unwrap();
        halves.transpose(1, 2).unwrap().contiguous().unwrap().reshape((rows, columns)).unwrap()
    }
}

pub fn write_config(folder: &Path, config: &Value) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

pub fn write_tensors(folder: &Path, tensors: &HashMap<String, Tensor>) {
    candle_core::safetensors::save(tensors, folder.join("model.safetensors")).unwrap();
}

/// A copy whose values a narrower dtype can hold.
pub fn rounded(tensors: HashMap<String, Tensor>, dtype: DType) -> HashMap<String, Tensor> {
    tensors.into_iter().map(|(name, tensor)| (name, tensor.to_dtype(dtype).unwrap())).collect()
}

fn ggml_name(name: &str) -> String {
    let pairs = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    // Only whole parts of a name are replaced: `input_layernorm` is no part of another.
    pairs.iter().fold(name.to_string(), |name, (theirs, ours)| match name.find(theirs) {
        Some(at) if at == 0 || name.as_bytes()[at - 1] == b'.' => name.replacen(theirs, ours, 1),
        _ => name,
    })
}
