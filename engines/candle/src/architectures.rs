//! The supported models of candle: an entry in `ARCHITECTURES` for each `model_type`.
//!
//! An entry lists the config features that candle computes, and builds the model; `model_files` lists the tensors.

use candle_core::quantized::gguf_file::Value as MetadataValue;
use candle_core::{Device, Tensor};
use candle_nn::Activation;
use candle_transformers::models::{gemma, llama, mistral, phi3, qwen2, qwen3};
use candle_transformers::models::{quantized_llama, quantized_phi3, quantized_qwen2, quantized_qwen3};
use model_files::ModelFolder;
use protocol::{Failed, FailureKind};
use serde_json::Value;

use crate::config::{Feature, Fields, LongestContext, config_path};
use crate::failure::{model_failure, unsupported};
use crate::gguf::{self, Metadata, Source};
use crate::model::Decoder;
use crate::safetensors;

pub const ARCHITECTURES: [&Architecture; 6] = [
    &Architecture { name: "llama", safetensors: llama, gguf: Some(llama_gguf) },
    &Architecture { name: "qwen2", safetensors: qwen2, gguf: Some(qwen2_gguf) },
    &Architecture { name: "qwen3", safetensors: qwen3, gguf: Some(qwen3_gguf) },
    &Architecture { name: "mistral", safetensors: mistral, gguf: None },
    &Architecture { name: "phi3", safetensors: phi3, gguf: Some(phi3_gguf) },
    // candle's quantized Gemma models are Gemma 3 and RecurrentGemma.
    &Architecture { name: "gemma", safetensors: gemma, gguf: None },
];

/// README.md says why candle runs without flash-attention.
const FLASH_ATTN: bool = false;

/// A kind of model that candle computes, and the functions that give its loaders for both formats.
pub struct Architecture {
    /// `model_type` in config.json, `general.architecture` in GGUF.
    pub name: &'static str,
    pub safetensors: FromSafetensors,
    /// `None` if candle has no model for GGUF files of this name. Mistral's GGUF files have the name `llama`.
    pub gguf: Option<FromGguf>,
}

type FromSafetensors = fn(&Fields) -> Result<safetensors::Loader, Failed>;
type FromGguf = fn(&Metadata) -> Result<gguf::Loader, Failed>;

impl Architecture {
    pub fn of(folder: &ModelFolder) -> Result<&'static Self, Failed> {
        let name = folder.config.architecture.as_str();
        let architecture = ARCHITECTURES.into_iter().find(|architecture| architecture.name == name);
        architecture.ok_or_else(|| {
            let known = ARCHITECTURES.map(|architecture| architecture.name).join("`, `");
            let (name, folder) = (name.escape_debug(), &folder.name);
            let message = format!("architecture `{name}` of `{folder}` is not one of `{known}`");
            Failed::new(FailureKind::Model, message)
        })
    }
}

/// The config of a module of candle: the shared fields, then its own. A missing field is a compile error.
macro_rules! config {
    ($module:ident, $shape:expr, $context_tokens:expr, { $($own:tt)* }) => {
        $module::Config {
            vocab_size: $shape.vocabulary,
            hidden_size: $shape.hidden,
            intermediate_size: $shape.intermediate,
            num_hidden_layers: $shape.layers,
            num_attention_heads: $shape.heads,
            num_key_value_heads: $shape.kv_heads,
            rms_norm_eps: $shape.rms_norm_eps,
            max_position_embeddings: $context_tokens,
            $($own)*
        }
    };
}

/// Implements `Decoder` for the models of candle that have the methods `forward` and `clear_kv_cache`.
macro_rules! decoders {
    ($($decoder:ty, keeps_masks: $keeps_masks:literal;)*) => {
        $(impl Decoder for $decoder {
            fn forward(&mut self, input: &Tensor, position: usize) -> candle_core::Result<Tensor> {
                Self::forward(self, input, position)
            }

            fn reset(&mut self) {
                self.clear_kv_cache();
            }

            fn keeps_masks(&self) -> bool {
                $keeps_masks
            }
        })*
    };
}

decoders! {
    gemma::Model, keeps_masks: false;
    mistral::Model, keeps_masks: false;
    phi3::Model, keeps_masks: false;
    qwen2::ModelForCausalLM, keeps_masks: false;
    qwen3::ModelForCausalLM, keeps_masks: false;
    quantized_llama::ModelWeights, keeps_masks: true;
    quantized_qwen2::ModelWeights, keeps_masks: true;
}

fn llama(fields: &Fields) -> Result<safetensors::Loader, Failed> {
    let shape = fields.expect_only(&[Feature::Llama3Frequencies])?;
    let frequencies = fields.llama3_frequencies()?;
    Ok(safetensors::Loader {
        longest_context: LongestContext::of(fields.folder)?,
        rounds_positions: false,
        build: Box::new(move |tensors, context_tokens| {
            let config = |context_tokens| {
                config!(llama, shape, context_tokens, {
                    rope_theta: shape.rope_theta as f32,
                    rope_scaling: frequencies.clone(),
                    tie_word_embeddings: shape.tied,
                    use_flash_attn: FLASH_ATTN,
                    bos_token_id: None,
                    eos_token_id: None,
                })
            };
            let cache = llama::Cache::new(true, tensors.dtype(), &config(context_tokens), tensors.device())?;
            // candle truncates keys if the model has more key-value heads than this config has positions.
            let untruncated = config(context_tokens.max(shape.kv_heads));
            let weights = llama::Llama::load(tensors, &untruncated)?;
            Ok(Box::new(Llama { weights, empty: cache.clone(), cache }))
        }),
    })
}

/// `empty` is the cache of an empty sequence; it shares its position tables with its copies.
struct Llama {
    weights: llama::Llama,
    empty: llama::Cache,
    cache: llama::Cache,
}

impl Decoder for Llama {
    fn forward(&mut self, input: &Tensor, position: usize) -> candle_core::Result<Tensor> {
        self.weights.forward(input, position, &mut self.cache)
    }

    /// Replaces the cache, to drop its masks too: a request without KV cache makes a mask for each length of the sequence.
    fn reset(&mut self) {
        self.cache = self.empty.clone();
    }
}

/// All GGUF models of the name `llama`, including Mistral.
fn llama_gguf(metadata: &Metadata) -> Result<gguf::Loader, Failed> {
    metadata.expect_only(&[])?;
    // candle makes position tables of this length, and ignores the length in the file.
    let table_length = quantized_llama::MAX_SEQ_LEN as u32;
    Ok(gguf::Loader {
        longest_context: metadata.longest_context()?.limit_to(table_length, "candle's position tables"),
        // Llama 3.1 and later scale their frequencies by this tensor. Without it the output differs, but the amount of work is
        // the same, so the model is loaded with a note.
        ignored_tensor: Some("rope_freqs.weight"),
        build: |Source { content, mut reader, device, .. }| {
            Ok(Box::new(quantized_llama::ModelWeights::from_gguf(content, &mut reader, device)?))
        },
    })
}

/// The config of `qwen2` or `qwen3`: they differ in the type of the sliding window, and in Qwen3's own fields.
macro_rules! qwen_config {
    ($module:ident, $shape:expr, $context_tokens:expr, { $($own:tt)* }) => {
        config!($module, $shape, $context_tokens, {
            max_window_layers: $shape.layers,
            use_sliding_window: false,
            tie_word_embeddings: $shape.tied,
            rope_theta: $shape.rope_theta,
            hidden_act: Activation::Silu,
            $($own)*
        })
    };
}

/// Qwen2 and Qwen2.5: llama with biases on queries, keys and values.
fn qwen2(fields: &Fields) -> Result<safetensors::Loader, Failed> {
    // Qwen2 always has the three biases, with or without a field for them.
    let shape = fields.expect_only(&[Feature::AttentionBias])?;
    Ok(safetensors::Loader {
        longest_context: LongestContext::of(fields.folder)?,
        rounds_positions: true,
        build: Box::new(move |tensors, context_tokens| {
            let config = qwen_config!(qwen2, shape, context_tokens, {
                // candle masks by this number even without `use_sliding_window`; at the context's length it masks nothing.
                sliding_window: context_tokens,
            });
            // candle uses an output matrix in the files even if the config ties it to the embedding. So the matrix is hidden
            // from candle in this case.
            let tensors = match shape.tied {
                true => tensors.rename_f(|name| name.replace("lm_head", "hidden from candle")),
                false => tensors,
            };
            Ok(Box::new(qwen2::ModelForCausalLM::new(&config, tensors)?))
        }),
    })
}

fn qwen2_gguf(metadata: &Metadata) -> Result<gguf::Loader, Failed> {
    metadata.expect_only(&[Feature::AttentionBias])?;
    Ok(gguf::Loader {
        longest_context: metadata.longest_context()?,
        ignored_tensor: None,
        build: |source| {
            let Source { content, mut reader, device, .. } = source.with_context_length("qwen2");
            Ok(Box::new(quantized_qwen2::ModelWeights::from_gguf(content, &mut reader, device)?))
        },
    })
}

/// Qwen3: an independent head size, with norms for queries and for keys.
fn qwen3(fields: &Fields) -> Result<safetensors::Loader, Failed> {
    let shape = fields.expect_only(&[Feature::SeparateHeadDim, Feature::AttentionBias])?;
    Ok(safetensors::Loader {
        longest_context: LongestContext::of(fields.folder)?,
        rounds_positions: false,
        build: Box::new(move |tensors, context_tokens| {
            let config = qwen_config!(qwen3, shape, context_tokens, {
                head_dim: shape.head_dim,
                attention_bias: shape.biased,
                sliding_window: None,
            });
            Ok(Box::new(qwen3::ModelForCausalLM::new(&config, tensors)?))
        }),
    })
}

fn qwen3_gguf(metadata: &Metadata) -> Result<gguf::Loader, Failed> {
    metadata.expect_only(&[Feature::SeparateHeadDim])?;
    Ok(gguf::Loader {
        longest_context: metadata.longest_context()?,
        ignored_tensor: None,
        build: |source| {
            let mut source = source.with_context_length("qwen3");
            // candle makes its position tables in f16 unless the file names f32, which no converter writes. f16 cannot hold
            // 2049, and the angle of position 1000 is off by up to 0.25 rad. All other values are f32 in both cases.
            source.content.metadata.insert("general.dtype".into(), MetadataValue::U32(0));
            let Source { content, mut reader, device, .. } = source;
            Ok(Box::new(quantized_qwen3::ModelWeights::from_gguf(content, &mut reader, device)?))
        },
    })
}

impl Decoder for quantized_qwen3::ModelWeights {
    fn forward(&mut self, input: &Tensor, position: usize) -> candle_core::Result<Tensor> {
        Self::forward(self, input, position)
    }

    fn reset(&mut self) {
        self.clear_kv_cache();
    }

    /// On a CPU, candle's caches and its attention without a mask tensor are for one sequence.
    fn computes_batches(&self, device: &Device) -> bool {
        !device.is_cpu()
    }
}

/// Mistral: llama with an independent head size, and a sliding window in its first release. GGUF calls it llama.
fn mistral(fields: &Fields) -> Result<safetensors::Loader, Failed> {
    let shape = fields.expect_only(&[Feature::SeparateHeadDim])?;
    fields.expect_absent_or_false("tie_word_embeddings")?; // candle always makes a separate output matrix
    let window = fields.sliding_window(Some(4096))?; // Configs of the first release may omit the window.
    Ok(safetensors::Loader {
        longest_context: LongestContext::of(fields.folder)?.limit_to_window(window),
        rounds_positions: false,
        build: Box::new(move |tensors, context_tokens| {
            let config = config!(mistral, shape, context_tokens, {
                head_dim: Some(shape.head_dim),
                rope_theta: shape.rope_theta,
                hidden_act: Activation::Silu,
                sliding_window: None, // the window is not shorter than the context
                use_flash_attn: FLASH_ATTN,
            });
            Ok(Box::new(mistral::Model::new(&config, tensors)?))
        }),
    })
}

/// Phi-3: one matrix for queries, keys and values, and one for gate and up.
fn phi3(fields: &Fields) -> Result<safetensors::Loader, Failed> {
    if let Some(scaling @ ("longrope" | "su" | "yarn")) = fields.rope_scaling().as_deref() {
        // candle multiplies frequencies by the factors that should divide them, and does not change the scale of attention.
        let folder = &fields.folder.name;
        let message = format!("`{folder}` has `rope_scaling` `{scaling}`, which candle computes differently");
        return Err(unsupported(message));
    }
    let shape = fields.expect_only(&[Feature::PartialRotation])?;
    let rotated_part = fields.rotated_part()?;
    // The number of rotated dimensions, rounded as in candle.
    let rotated = (rotated_part * shape.head_dim as f64) as usize;
    if rotated == 0 || !rotated.is_multiple_of(2) {
        let dimensions = format!("{rotated} of {}", shape.head_dim);
        let message =
            format!("`partial_rotary_factor`: expected an even number of dimensions, found {dimensions}");
        return Err(fields.invalid(message));
    }
    Ok(safetensors::Loader {
        longest_context: LongestContext::of(fields.folder)?.limit_to_window(fields.sliding_window(None)?),
        rounds_positions: true,
        build: Box::new(move |tensors, context_tokens| {
            let config = config!(phi3, shape, context_tokens, {
                rope_theta: shape.rope_theta,
                rope_scaling: None,
                partial_rotary_factor: (rotated_part != 1.0).then_some(rotated_part),
                original_max_position_embeddings: None,
                tie_word_embeddings: shape.tied,
                hidden_act: Activation::Silu,
                bos_token_id: None,
                eos_token_id: None,
            });
            Ok(Box::new(phi3::Model::new(&config, tensors)?))
        }),
    })
}

fn phi3_gguf(metadata: &Metadata) -> Result<gguf::Loader, Failed> {
    metadata.expect_only(&[])?;
    metadata.expect("rope.freq_base", 10_000.0)?; // candle computes with this constant, not with the file's value
    if metadata.folder.config.tie_word_embeddings {
        let message = "no tensor `output.weight`, and candle does not use the embedding in its place here";
        return Err(model_failure(&config_path(metadata.folder), message));
    }
    Ok(gguf::Loader {
        longest_context: metadata.longest_context()?,
        ignored_tensor: None,
        build: |source| {
            let Source { content, mut reader, device, .. } = source.with_context_length("phi3");
            Ok(Box::new(quantized_phi3::ModelWeights::from_gguf(FLASH_ATTN, content, &mut reader, device)?))
        },
    })
}

impl Decoder for quantized_phi3::ModelWeights {
    fn forward(&mut self, input: &Tensor, position: usize) -> candle_core::Result<Tensor> {
        Self::forward(self, input, position)
    }

    /// Does nothing, because candle resets this cache at position 0.
    fn reset(&mut self) {}

    fn keeps_masks(&self) -> bool {
        true
    }
}

/// Gemma: the embedding is scaled and is also the output matrix, norms add one to their weights, gelu replaces silu.
fn gemma(fields: &Fields) -> Result<safetensors::Loader, Failed> {
    let computed = [Feature::SeparateHeadDim, Feature::AttentionBias, Feature::OtherActivation];
    let shape = fields.expect_only(&computed)?;
    if fields.get("tie_word_embeddings") == Some(&Value::Bool(false)) {
        return Err(fields.ignored_field("tie_word_embeddings", "false"));
    }
    // The first configs have `gelu` but mean its tanh approximation, as in transformers. The later field
    // `hidden_activation` names the approximation.
    fields.expect("hidden_act", &["gelu", "gelu_pytorch_tanh"])?;
    fields.expect("hidden_activation", &["gelu_pytorch_tanh"])?;
    Ok(safetensors::Loader {
        longest_context: LongestContext::of(fields.folder)?,
        rounds_positions: true,
        build: Box::new(move |tensors, context_tokens| {
            let config = config!(gemma, shape, context_tokens, {
                head_dim: shape.head_dim,
                attention_bias: shape.biased,
                rope_theta: shape.rope_theta,
                hidden_act: None, // candle accepts only one of the two fields
                hidden_activation: Some(Activation::GeluPytorchTanh),
            });
            Ok(Box::new(gemma::Model::new(FLASH_ATTN, &config, tensors)?))
        }),
    })
}
