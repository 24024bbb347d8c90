//! A model's config in candle's own config types.
//!
//! candle reads the fields that it knows and ignores the rest, so a model with a feature that candle does not compute
//! would run and answer something else. Every such feature is refused here, by its name.

use candle_transformers::models::{llama, qwen2};
use model_files::{Config, ModelFolder};
use protocol::{Failed, FailureKind};
use serde_json::Value;

use crate::failure::{model, unsupported};

/// A config that candle computes as it is meant.
#[derive(Debug, Clone)]
pub enum Shape {
    Llama(llama::Config),
    Qwen2(qwen2::Config),
}

impl Shape {
    /// Of a folder with a config.json. `context_tokens` is what position tables are made for.
    pub fn of(folder: &ModelFolder, context_tokens: usize) -> Result<Self, Failed> {
        check_sizes(folder)?;
        let fields = Fields { folder };
        fields.expect("hidden_act", &["silu"])?;
        match folder.config.architecture.as_str() {
            "llama" => llama_config(&fields, context_tokens).map(Self::Llama),
            "qwen2" => qwen2_config(&fields, context_tokens).map(Self::Qwen2),
            other => Err(unknown_architecture(folder, other)),
        }
    }
}

/// A config that claims more is not believed: candle makes position tables for all of it.
const MAX_CONTEXT_TOKENS: u32 = 1 << 24;

/// The context in effect: what was asked for, else all that the model and candle have.
pub fn context_tokens(folder: &ModelFolder, asked: Option<u32>, longest: u32) -> Result<u32, Failed> {
    match asked {
        None if longest > MAX_CONTEXT_TOKENS => {
            Err(model(&config_path(folder), format!("a context of {longest} tokens is not believed"))
                .hint("ask for less with `context_tokens`"))
        }
        Some(0) => {
            Err(Failed::new(FailureKind::BadRequest, "`context_tokens`: expected at least 1, found 0"))
        }
        Some(asked) if asked > longest => Err(Failed::new(
            FailureKind::Context,
            format!("a context of {asked} tokens: `{}` has {longest} here", folder.name),
        )),
        asked => Ok(asked.unwrap_or(longest)),
    }
}

/// All that the model was made for.
pub fn longest_context(folder: &ModelFolder) -> Result<u32, Failed> {
    let longest = folder.config.context_tokens.filter(|&tokens| tokens > 0);
    longest.ok_or_else(|| model(&config_path(folder), "`max_position_embeddings` is missing"))
}

pub fn unknown_architecture(folder: &ModelFolder, found: &str) -> Failed {
    let known = crate::about::ARCHITECTURES.join("`, `");
    let what =
        format!("architecture `{}` of `{}` is not one of `{known}`", found.escape_debug(), folder.name);
    Failed::new(FailureKind::Model, what)
}

/// What candle divides by without looking.
pub fn check_sizes(folder: &ModelFolder) -> Result<(), Failed> {
    let Config { hidden_size, layers, heads, kv_heads, head_dim, vocabulary_size, .. } = folder.config;
    let numbers = [hidden_size, layers, heads, kv_heads, head_dim, vocabulary_size];
    let fault = if numbers.contains(&0) {
        format!(
            "a size is zero: hidden {hidden_size}, layers {layers}, heads {heads}, key-value heads {kv_heads}"
        )
    } else if !heads.is_multiple_of(kv_heads) {
        format!("{heads} heads do not divide into {kv_heads} key-value heads")
    } else if head_dim.checked_mul(heads) != Some(hidden_size) {
        return Err(unsupported(format!(
            "`{}` has {heads} heads of {head_dim} in a hidden size of {hidden_size}: candle takes them to fill it",
            folder.name
        )));
    } else if !head_dim.is_multiple_of(2) {
        format!("heads of {head_dim}: rotation needs pairs")
    } else {
        return Ok(());
    };
    Err(model(&config_path(folder), fault))
}

/// Where the numbers came from, for messages.
pub fn config_path(folder: &ModelFolder) -> std::path::PathBuf {
    match folder.format {
        model_files::Format::Safetensors => folder.folder().join("config.json"),
        model_files::Format::Gguf => folder.weights.first().cloned().unwrap_or_else(|| folder.path.clone()),
    }
}

fn llama_config(fields: &Fields, context_tokens: usize) -> Result<llama::Config, Failed> {
    fields.expect_off("attention_bias")?;
    fields.expect_off("mlp_bias")?;
    let config = &fields.folder.config;
    Ok(llama::Config {
        hidden_size: config.hidden_size as usize,
        intermediate_size: fields.intermediate_size()?,
        vocab_size: config.vocabulary_size as usize,
        num_hidden_layers: config.layers as usize,
        num_attention_heads: config.heads as usize,
        num_key_value_heads: config.kv_heads as usize,
        use_flash_attn: false,
        rms_norm_eps: fields.number("rms_norm_eps")?,
        rope_theta: config.rope_theta.unwrap_or(10_000.0) as f32,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: fields.llama3_scaling()?,
        max_position_embeddings: context_tokens,
        tie_word_embeddings: config.tie_word_embeddings,
    })
}

fn qwen2_config(fields: &Fields, context_tokens: usize) -> Result<qwen2::Config, Failed> {
    fields.expect_off("use_sliding_window")?;
    if fields.llama3_scaling()?.is_some() {
        return Err(fields.ignored("rope_scaling", "llama3"));
    }
    let config = &fields.folder.config;
    Ok(qwen2::Config {
        vocab_size: config.vocabulary_size as usize,
        hidden_size: config.hidden_size as usize,
        intermediate_size: fields.intermediate_size()?,
        num_hidden_layers: config.layers as usize,
        num_attention_heads: config.heads as usize,
        num_key_value_heads: config.kv_heads as usize,
        max_position_embeddings: context_tokens,
        // candle masks by this number whatever `use_sliding_window` says; at the context's length it masks nothing.
        sliding_window: context_tokens,
        max_window_layers: config.layers as usize,
        tie_word_embeddings: config.tie_word_embeddings,
        rope_theta: config.rope_theta.unwrap_or(10_000.0),
        rms_norm_eps: fields.number("rms_norm_eps")?,
        use_sliding_window: false,
        hidden_act: candle_nn::Activation::Silu,
    })
}

/// The fields of config.json that `model_files` leaves to us.
struct Fields<'a> {
    folder: &'a ModelFolder,
}

impl Fields<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.folder.config.raw.get(name).filter(|value| !value.is_null())
    }

    fn number(&self, name: &str) -> Result<f64, Failed> {
        let value = self.get(name).ok_or_else(|| self.missing(name))?;
        value.as_f64().ok_or_else(|| self.fault(format!("`{name}`: expected a number, found `{value}`")))
    }

    fn intermediate_size(&self) -> Result<usize, Failed> {
        let size = self.folder.config.intermediate_size.ok_or_else(|| self.missing("intermediate_size"))?;
        Ok(size as usize)
    }

    fn expect(&self, name: &str, computed: &[&str]) -> Result<(), Failed> {
        match self.get(name).and_then(Value::as_str) {
            Some(found) if !computed.contains(&found) => Err(self.ignored(name, found)),
            _ => Ok(()),
        }
    }

    fn expect_off(&self, name: &str) -> Result<(), Failed> {
        match self.get(name) {
            Some(Value::Bool(true)) => Err(self.ignored(name, "true")),
            _ => Ok(()),
        }
    }

    /// Llama 3's scaling is the only one that candle computes; newer configs keep it in `rope_parameters`.
    fn llama3_scaling(&self) -> Result<Option<llama::Llama3RopeConfig>, Failed> {
        let Some(scaling) = self.get("rope_scaling").or_else(|| self.get("rope_parameters")) else {
            return Ok(None);
        };
        let kind = scaling.get("rope_type").or_else(|| scaling.get("type"));
        match kind.and_then(Value::as_str) {
            None | Some("default") => Ok(None),
            Some("llama3") => {
                let number = |name: &str| {
                    let value = scaling.get(name).and_then(Value::as_f64);
                    value.ok_or_else(|| self.missing(&format!("rope_scaling.{name}")))
                };
                Ok(Some(llama::Llama3RopeConfig {
                    factor: number("factor")? as f32,
                    low_freq_factor: number("low_freq_factor")? as f32,
                    high_freq_factor: number("high_freq_factor")? as f32,
                    original_max_position_embeddings: number("original_max_position_embeddings")? as usize,
                    rope_type: llama::Llama3RopeType::Llama3,
                }))
            }
            Some(other) => Err(self.ignored("rope_scaling", other)),
        }
    }

    fn ignored(&self, name: &str, found: &str) -> Failed {
        let found = found.escape_debug();
        unsupported(format!("`{}` has `{name}` `{found}`, which candle would ignore", self.folder.name))
    }

    fn missing(&self, name: &str) -> Failed {
        self.fault(format!("`{name}` is missing"))
    }

    fn fault(&self, what: String) -> Failed {
        model(&config_path(self.folder), what)
    }
}
