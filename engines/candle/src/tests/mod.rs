//! Tests the engine on small models with random weights, in a folder of safetensors or a GGUF file, and on the embedded model.

mod batches;
mod loading;
mod refusals;
mod running;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Value as Metadata};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use engine_kit::sampling::Rng;
use engine_kit::{Engine, Job, Model, OrFail, Phases, Tokens};
use model_files::{Architecture, Config, Format, GgufLayout, ModelFolder, TensorSpec};
use protocol::{Failed, FailureKind, Load, Padding, Sampling, Speculation};
use serde_json::{Value, json};

use crate::engine::CandleEngine;
use crate::model::LoadedModel;

fn load_with(path: &Path, load: &Load) -> Result<LoadedModel, Failed> {
    let folder = ModelFolder::open(path).or_fail(FailureKind::Model)?;
    CandleEngine.load(&folder, load, &mut Phases::new(None))
}

fn load(path: &Path) -> LoadedModel {
    load_with(path, &Load::default()).unwrap()
}

/// A loaded folder of safetensors; the files are deleted, because a loaded model does not need them.
fn load_safetensors(tiny: Tiny) -> LoadedModel {
    let folder = tempfile::tempdir().unwrap();
    tiny.write_folder(folder.path());
    load(folder.path())
}

fn job(prompt: &[u32], max_new_tokens: u32) -> Job {
    Job {
        prompts: vec![prompt.to_vec()],
        max_new_tokens,
        sampling: None,
        ignore_eos: true,
        use_cache: true,
        prefix_cache: false,
        padding: Padding::Left,
        speculation: Speculation::Off,
    }
}

fn run(model: &mut LoadedModel, job: &Job) -> Vec<u32> {
    run_batch(model, job, &[]).remove(0)
}

/// The new ids of each sequence, which end after one of `eos_ids`.
fn run_batch(model: &mut LoadedModel, job: &Job, eos_ids: &[u32]) -> Vec<Vec<u32>> {
    let mut tokens = Tokens::collecting(&job.prompts, job.max_new_tokens, eos_ids);
    model.generate(job, &mut tokens).unwrap();
    (0..job.prompts.len()).map(|index| tokens.ids(index).to_vec()).collect()
}

fn greedy(model: &mut LoadedModel, prompt: &[u32], max_new_tokens: u32) -> Vec<u32> {
    run(model, &job(prompt, max_new_tokens))
}

fn sampled(model: &mut LoadedModel, sampling: Sampling) -> Vec<u32> {
    run(model, &Job { sampling: Some(sampling), ..job(&[0, 5, 9], 16) })
}

/// The logits after a prompt that is fed in one call.
fn logits(model: &mut LoadedModel, prompt: &[u32]) -> Vec<f32> {
    model.network.start(true).feed(&[prompt]).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The largest difference, relative to the expected logit of the largest magnitude.
fn relative_difference(logits: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(logits.len(), expected.len());
    let magnitude = expected.iter().fold(0_f32, |largest, logit| largest.max(logit.abs()));
    let pairs = logits.iter().zip(expected);
    pairs.fold(0_f32, |largest, (logit, expected)| largest.max((logit - expected).abs())) / magnitude
}

/// The kind and the message of a failed result.
fn message<T>(result: Result<T, Failed>) -> String {
    let failed = result.err().unwrap();
    format!("{}: {}", failed.kind.as_str(), failed.message)
}

/// A small model: its architecture and its sizes.
#[derive(Debug, Clone, Copy)]
struct Tiny {
    architecture: &'static str,
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocabulary: usize,
    context: usize,
    tied: bool,
}

const LLAMA: Tiny = Tiny {
    architecture: "llama",
    hidden: 64,
    intermediate: 96,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    vocabulary: 97,
    context: 48,
    tied: false,
};

const QWEN2: Tiny = Tiny { architecture: "qwen2", tied: true, ..LLAMA };
const QWEN3: Tiny = Tiny { architecture: "qwen3", tied: true, head_dim: 32, ..LLAMA };
const MISTRAL: Tiny = Tiny { architecture: "mistral", head_dim: 32, ..LLAMA };
const PHI3: Tiny = Tiny { architecture: "phi3", ..LLAMA };
const GEMMA: Tiny = Tiny { architecture: "gemma", tied: true, kv_heads: 1, head_dim: 32, ..LLAMA };

/// A model of each architecture. A test checks that the engine has no other architecture.
const ALL: [Tiny; 6] = [LLAMA, QWEN2, QWEN3, MISTRAL, PHI3, GEMMA];

/// The models that candle computes from GGUF.
const IN_GGUF: [Tiny; 4] = [LLAMA, QWEN2, QWEN3, PHI3];

/// A model that is wide enough for candle's repacked kernels: rows of 256, outputs in multiples of 16.
const WIDE: Tiny =
    Tiny { hidden: 256, intermediate: 256, layers: 1, vocabulary: 112, tied: true, head_dim: 64, ..LLAMA };

impl Tiny {
    fn config(&self) -> Value {
        json!({
            "model_type": self.architecture,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": if self.is("gemma") { "gelu" } else { "silu" },
            "tie_word_embeddings": self.tied,
            "bos_token_id": 0,
            "eos_token_id": 1,
        })
    }

    /// The same weights at every call, under Hugging Face's names. Names and shapes are written by hand: with a
    /// list from `model_files`, no test would fail if `model_files` required a tensor that real models lack.
    fn tensors(&self) -> HashMap<String, Tensor> {
        let mut rng = Rng::new(7);
        let mut tensors = HashMap::new();
        let mut add = |name: String, shape: &[usize], center: f64, spread: f64| {
            let count = shape.iter().product();
            let values: Vec<f32> =
                (0..count).map(|_| (center + spread * (rng.next_f64() - 0.5)) as f32).collect();
            tensors.insert(name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap());
        };
        let Tiny { hidden, intermediate, vocabulary, head_dim, .. } = *self;
        let (q_width, kv_width) = (self.heads * head_dim, self.kv_heads * head_dim);
        // This spread keeps the magnitude of activations, so that attention and MLP both matter.
        let spread = |width: usize| 4.0 / (width as f64).sqrt();
        // Gemma adds one to the weights of a norm. It multiplies the embedding by the square root of the width. The
        // embedding is also the output matrix: with a wider spread, the model would repeat the last id forever.
        let (norm_center, embedding_spread) = if self.is("gemma") { (0.0, 0.1) } else { (1.0, 2.0) };
        add("model.embed_tokens.weight".into(), &[vocabulary, hidden], 0.0, embedding_spread);
        add("model.norm.weight".into(), &[hidden], norm_center, 0.5);
        if !self.tied {
            add("lm_head.weight".into(), &[vocabulary, hidden], 0.0, spread(hidden));
        }
        for layer in 0..self.layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            for part in ["input_layernorm.weight", "post_attention_layernorm.weight"] {
                add(name(part), &[hidden], norm_center, 0.5);
            }
            if self.is("phi3") {
                let width = q_width + 2 * kv_width;
                add(name("self_attn.qkv_proj.weight"), &[width, hidden], 0.0, spread(hidden));
                add(name("mlp.gate_up_proj.weight"), &[2 * intermediate, hidden], 0.0, spread(hidden));
            } else {
                for (part, width) in [("q", q_width), ("k", kv_width), ("v", kv_width)] {
                    add(
                        name(&format!("self_attn.{part}_proj.weight")),
                        &[width, hidden],
                        0.0,
                        spread(hidden),
                    );
                    if self.is("qwen2") {
                        add(name(&format!("self_attn.{part}_proj.bias")), &[width], 0.0, 1.0);
                    }
                }
                add(name("mlp.gate_proj.weight"), &[intermediate, hidden], 0.0, spread(hidden));
                add(name("mlp.up_proj.weight"), &[intermediate, hidden], 0.0, spread(hidden));
            }
            if self.is("qwen3") {
                add(name("self_attn.q_norm.weight"), &[head_dim], 1.0, 0.5);
                add(name("self_attn.k_norm.weight"), &[head_dim], 1.0, 0.5);
            }
            add(name("self_attn.o_proj.weight"), &[hidden, q_width], 0.0, spread(q_width));
            add(name("mlp.down_proj.weight"), &[hidden, intermediate], 0.0, spread(intermediate));
        }
        tensors
    }

    fn write_folder(&self, folder: &Path) {
        write_config(folder, &self.config());
        write_tensors(folder, &self.tensors());
    }

    /// Writes a GGUF file. Its matrices have this dtype, the other tensors are f32.
    fn write_gguf(&self, folder: &Path, dtype: GgmlDType) -> PathBuf {
        let path = folder.join(format!("{}-{dtype:?}.gguf", self.architecture));
        write_gguf(&path, &self.metadata(), &self.quantized(dtype));
        path
    }

    /// The same weights as GGUF stores them. Their names and the order of rows come from `model_files`. candle expects the names
    /// and the order of real GGUF files, so its answers test `model_files`.
    fn quantized(&self, dtype: GgmlDType) -> Vec<(String, QTensor)> {
        let tensors = self.tensors();
        let config = Config::parse(self.config().to_string().as_bytes(), None).unwrap();
        let specs = Architecture::named(self.architecture).unwrap().tensor_specs(&config).unwrap();
        let quantize = |spec: TensorSpec| {
            let tensor = in_gguf_order(&spec, &tensors[&spec.name]);
            let dtype = if tensor.rank() == 1 { GgmlDType::F32 } else { dtype };
            (spec.gguf, QTensor::quantize(&tensor, dtype).unwrap())
        };
        specs.into_iter().map(quantize).collect()
    }

    /// The keys are written by hand, and candle writes the file: the writer of `model_files` cannot test its own reader.
    fn metadata(&self) -> Vec<(String, Metadata)> {
        let of_architecture = |name: &str, value| (format!("{}.{name}", self.architecture), value);
        let count = |value: usize| Metadata::U32(value as u32);
        vec![
            ("general.architecture".into(), Metadata::String(self.architecture.into())),
            of_architecture("attention.head_count", count(self.heads)),
            of_architecture("attention.head_count_kv", count(self.kv_heads)),
            of_architecture("attention.key_length", count(self.head_dim)),
            of_architecture("attention.value_length", count(self.head_dim)),
            of_architecture("attention.layer_norm_rms_epsilon", Metadata::F32(1e-5)),
            of_architecture("block_count", count(self.layers)),
            of_architecture("context_length", count(self.context)),
            of_architecture("embedding_length", count(self.hidden)),
            of_architecture("feed_forward_length", count(self.intermediate)),
            of_architecture("rope.dimension_count", count(self.head_dim)),
            of_architecture("rope.freq_base", Metadata::F32(10000.0)),
            of_architecture("vocab_size", count(self.vocabulary)),
        ]
    }

    fn is(&self, architecture: &str) -> bool {
        self.architecture == architecture
    }
}

fn write_config(folder: &Path, config: &Value) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

fn write_gguf(path: &Path, metadata: &[(String, Metadata)], tensors: &[(String, QTensor)]) {
    let metadata: Vec<_> = metadata.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut std::fs::File::create(path).unwrap(), &metadata, &tensors).unwrap();
}

fn write_tensors(folder: &Path, tensors: &HashMap<String, Tensor>) {
    candle_core::safetensors::save(tensors, folder.join("model.safetensors")).unwrap();
}

/// A copy in a narrower dtype, which rounds the values.
fn rounded(tensors: HashMap<String, Tensor>, dtype: DType) -> HashMap<String, Tensor> {
    tensors.into_iter().map(|(name, tensor)| (name, tensor.to_dtype(dtype).unwrap())).collect()
}

fn in_gguf_order(spec: &TensorSpec, tensor: &Tensor) -> Tensor {
    if !matches!(spec.gguf_layout, GgufLayout::Pairs { .. }) {
        return tensor.clone();
    }
    let rows = 0..spec.shape[0];
    let rows: Vec<u32> = rows.map(|row| spec.row_in_other_format(row, Format::Gguf) as u32).collect();
    tensor.index_select(&Tensor::new(rows, &Device::Cpu).unwrap(), 0).unwrap()
}
