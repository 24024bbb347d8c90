//! Checks that candle computes every feature of a config.json, and limits the context to what candle computes.
//!
//! candle ignores unknown fields, so a model with an unsupported feature would run and give wrong answers. This file
//! refuses every `Feature` unless the architecture lists it. If a list lacks a feature that candle computes, a model is
//! refused without need, but no wrong answer is measured.

use std::path::PathBuf;

use candle_transformers::models::llama::{Llama3RopeConfig, Llama3RopeType};
use model_files::{Config, Format, ModelFolder};
use protocol::{Failed, FailureKind};
use serde_json::Value;

use crate::failure::{model_failure, unsupported};

/// A config feature that only some of candle's models compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Biases in the attention projections.
    AttentionBias,
    /// Heads that together are wider or narrower than the hidden size.
    SeparateHeadDim,
    /// RoPE on a part of each head.
    PartialRotation,
    /// The RoPE frequencies of Llama 3.1 and later.
    Llama3Frequencies,
    /// An activation other than silu. The architecture checks which one.
    OtherActivation,
}

/// The numbers that candle's own configs need. `model_files` has refused impossible numbers.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub vocabulary: usize,
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    /// The attention projections have biases.
    pub biased: bool,
    /// The embedding is also the output matrix.
    pub tied: bool,
}

/// The fields of a folder's config.json, with checks that candle computes them.
pub struct Fields<'a> {
    pub folder: &'a ModelFolder,
}

impl Fields<'_> {
    /// The model's shape, if all of its features are among `computed`.
    pub fn expect_only(&self, computed: &[Feature]) -> Result<Shape, Failed> {
        if self.get("quantization_config").is_some() {
            let problem = format!("`{}` has a `quantization_config`", self.folder.name);
            return Err(unsupported(format!(
                "{problem}, and candle would read its weights as plain numbers"
            ))
            .hint("load a GGUF of this model: candle computes quantized weights only from GGUF"));
        }
        for name in ["rope_scaling", "rope_parameters"] {
            if let Some(value) = self.get(name).filter(|value| !value.is_object()) {
                return Err(self.invalid(format!("`{name}`: expected an object, found `{value}`")));
            }
        }
        let is_ignored = |feature| !computed.contains(&feature);
        if is_ignored(Feature::OtherActivation) {
            self.expect("hidden_act", &["silu"])?;
        }
        if is_ignored(Feature::AttentionBias) {
            self.expect_absent_or_false("attention_bias")?;
        }
        for name in ["mlp_bias", "use_sliding_window", "use_bidirectional_attention"] {
            self.expect_absent_or_false(name)?;
        }
        self.expect_full_attention()?;
        if is_ignored(Feature::SeparateHeadDim) {
            expect_full_width_heads(self.folder)?;
        }
        let rotated = self.rotated_part()?;
        if is_ignored(Feature::PartialRotation) && rotated != 1.0 {
            return Err(self.ignored_field("partial_rotary_factor", &rotated.to_string()));
        }
        if self.llama3_frequencies()?.is_some() && is_ignored(Feature::Llama3Frequencies) {
            return Err(self.ignored_field("rope_scaling", "llama3"));
        }
        let Config { hidden_size, layers, heads, kv_heads, head_dim, vocabulary_size, .. } =
            self.folder.config;
        Ok(Shape {
            vocabulary: vocabulary_size as usize,
            hidden: hidden_size as usize,
            intermediate: intermediate_size(self.folder)?,
            layers: layers as usize,
            heads: heads as usize,
            kv_heads: kv_heads as usize,
            head_dim: head_dim as usize,
            rms_norm_eps: self.number("rms_norm_eps")?,
            rope_theta: self.folder.config.rope_theta.unwrap_or(10_000.0),
            biased: self.folder.config.attention_bias,
            tied: self.folder.config.tie_word_embeddings,
        })
    }

    /// Refuses the field unless it is absent or one of `computed`.
    pub fn expect(&self, name: &str, computed: &[&str]) -> Result<(), Failed> {
        match self.get(name) {
            Some(Value::String(value)) if computed.contains(&value.as_str()) => Ok(()),
            Some(value) => Err(self.ignored_field(name, &unquoted(value))),
            None => Ok(()),
        }
    }

    /// Refuses the field unless it is absent or false.
    pub fn expect_absent_or_false(&self, name: &str) -> Result<(), Failed> {
        match self.get(name) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(value) => Err(self.ignored_field(name, &unquoted(value))),
        }
    }

    fn number(&self, name: &str) -> Result<f64, Failed> {
        let value = self.get(name).ok_or_else(|| self.missing(name))?;
        value.as_f64().ok_or_else(|| self.invalid(format!("`{name}`: expected a number, found `{value}`")))
    }

    /// The number of tokens that a layer attends to, including the current one; `default` if the config lacks the field.
    pub fn sliding_window(&self, default: Option<u32>) -> Result<Option<u32>, Failed> {
        let Some(value) = self.get_or_null("sliding_window") else { return Ok(default) };
        if value.is_null() {
            return Ok(None);
        }
        let window =
            value.as_u64().and_then(|window| u32::try_from(window).ok()).filter(|&window| window > 0);
        let failure =
            || self.invalid(format!("`sliding_window`: expected a number of tokens, found `{value}`"));
        window.map(Some).ok_or_else(failure)
    }

    /// The part of each head that RoPE rotates; 1 is all of it.
    pub fn rotated_part(&self) -> Result<f64, Failed> {
        let name = "partial_rotary_factor";
        let Some(value) = self.get(name).or_else(|| self.rope_field(name)) else { return Ok(1.0) };
        let part = value.as_f64().filter(|part| (0.0..=1.0).contains(part));
        part.ok_or_else(|| self.invalid(format!("`{name}`: expected a number from 0 to 1, found `{value}`")))
    }

    /// The kind of RoPE scaling, if the config has one.
    pub fn rope_scaling(&self) -> Option<String> {
        let kind = self.rope_field("rope_type").or_else(|| self.rope_field("type")).map(unquoted);
        kind.filter(|kind| kind != "default")
    }

    /// The frequencies of Llama 3.1 and later, the only RoPE scaling that this engine accepts.
    pub fn llama3_frequencies(&self) -> Result<Option<Llama3RopeConfig>, Failed> {
        match self.rope_scaling().as_deref() {
            None => Ok(None),
            Some("llama3") => {
                let number = |name: &str| {
                    let value = self.rope_field(name).and_then(Value::as_f64);
                    value.ok_or_else(|| self.missing(&format!("rope_scaling.{name}")))
                };
                Ok(Some(Llama3RopeConfig {
                    factor: number("factor")? as f32,
                    low_freq_factor: number("low_freq_factor")? as f32,
                    high_freq_factor: number("high_freq_factor")? as f32,
                    original_max_position_embeddings: number("original_max_position_embeddings")? as usize,
                    rope_type: Llama3RopeType::Llama3,
                }))
            }
            Some(other) => Err(self.ignored_field("rope_scaling", other)),
        }
    }

    /// The refusal of a field whose value candle would ignore.
    pub fn ignored_field(&self, name: &str, value: &str) -> Failed {
        let value = value.escape_debug();
        unsupported(format!("`{}` has `{name}` `{value}`, which candle would ignore", self.folder.name))
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.get_or_null(name).filter(|value| !value.is_null())
    }

    pub fn invalid(&self, message: String) -> Failed {
        model_failure(&config_path(self.folder), message)
    }

    fn get_or_null(&self, name: &str) -> Option<&Value> {
        let raw = &self.folder.config.raw;
        // Multimodal models keep the fields of their language model in `text_config`.
        raw.get("text_config").and_then(|fields| fields.get(name)).or_else(|| raw.get(name))
    }

    fn missing(&self, name: &str) -> Failed {
        self.invalid(format!("`{name}` is missing"))
    }

    /// A field of `rope_scaling`, or of `rope_parameters` in newer configs.
    fn rope_field(&self, name: &str) -> Option<&Value> {
        let rope = self.get("rope_scaling").or_else(|| self.get("rope_parameters"))?;
        rope.get(name).filter(|value| !value.is_null())
    }

    fn expect_full_attention(&self) -> Result<(), Failed> {
        let Some(kinds) = self.get("layer_types") else { return Ok(()) };
        let layer_kinds = kinds.as_array().map_or(std::slice::from_ref(kinds), Vec::as_slice);
        match layer_kinds.iter().find(|kind| kind.as_str() != Some("full_attention")) {
            Some(other) => Err(self.ignored_field("layer_types", &unquoted(other))),
            None => Ok(()),
        }
    }
}

/// The value for a message. A string has no quotes.
fn unquoted(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// Refuses heads whose sizes do not add up to the hidden size. Some of candle's models ignore the head size in the config,
/// and divide the hidden size by the number of heads.
pub fn expect_full_width_heads(folder: &ModelFolder) -> Result<(), Failed> {
    let Config { hidden_size, heads, head_dim, .. } = folder.config;
    if u64::from(heads) * u64::from(head_dim) == u64::from(hidden_size) {
        return Ok(());
    }
    let problem = format!("`{}` has {heads} heads of size {head_dim}", folder.name);
    Err(unsupported(format!("{problem}: candle requires that they add up to the hidden size, {hidden_size}")))
}

pub fn intermediate_size(folder: &ModelFolder) -> Result<usize, Failed> {
    let missing = match folder.format {
        Format::Safetensors => "`intermediate_size` is missing".into(),
        Format::Gguf => format!("metadata `{}.feed_forward_length` is missing", folder.config.architecture),
    };
    let size = folder.config.intermediate_size.ok_or_else(|| model_failure(&config_path(folder), missing))?;
    Ok(size as usize)
}

/// The longest context that candle computes correctly, and the reason if it is shorter than the model's.
#[derive(Debug, Clone, Copy)]
pub struct LongestContext {
    pub tokens: u32,
    reason: Option<&'static str>,
}

impl LongestContext {
    /// The whole context of the model.
    pub fn of(folder: &ModelFolder) -> Result<Self, Failed> {
        let tokens = folder.config.context_tokens.filter(|&tokens| tokens > 0);
        let missing = match folder.format {
            Format::Safetensors => "`max_position_embeddings` is missing".into(),
            Format::Gguf => format!("metadata `{}.context_length` is missing", folder.config.architecture),
        };
        let tokens = tokens.ok_or_else(|| model_failure(&config_path(folder), missing))?;
        Ok(Self { tokens, reason: None })
    }

    pub fn limit_to(self, tokens: u32, reason: &'static str) -> Self {
        if tokens < self.tokens { Self { tokens, reason: Some(reason) } } else { self }
    }

    /// Limits the context to the sliding window. Up to its length the window hides no token. Beyond it candle is wrong: its
    /// masks are missing or one token too wide, and with the KV cache no token is hidden.
    pub fn limit_to_window(self, window: Option<u32>) -> Self {
        window
            .map_or(self, |tokens| self.limit_to(tokens, "its sliding window, which candle does not compute"))
    }

    /// The context in effect: the requested context, else the longest.
    pub fn context(self, folder: &ModelFolder, requested: Option<u32>) -> Result<u32, Failed> {
        let Self { tokens: longest, reason } = self;
        match requested {
            None if longest > MAX_CONTEXT_TOKENS => {
                let message = format!(
                    "a context of {longest} tokens is more than the default limit of {MAX_CONTEXT_TOKENS}"
                );
                Err(model_failure(&config_path(folder), message)
                    .hint("set a smaller `context_tokens` in the request `load`"))
            }
            Some(0) => {
                Err(Failed::new(FailureKind::BadRequest, "`context_tokens`: expected at least 1, found 0"))
            }
            Some(requested) if requested > longest => {
                let reason = reason.map(|reason| format!(", because of {reason}")).unwrap_or_default();
                let limit = format!("`{}` has at most {longest}{reason}", folder.name);
                let message = format!("a context of {requested} tokens: {limit}");
                Err(Failed::new(FailureKind::Context, message))
            }
            requested => Ok(requested.unwrap_or(longest)),
        }
    }
}

/// The longest context of a load without `context_tokens`, so that candle's position tables fit into memory.
const MAX_CONTEXT_TOKENS: u32 = 1 << 24;

/// The file that has the config, for messages.
pub fn config_path(folder: &ModelFolder) -> PathBuf {
    match folder.format {
        Format::Safetensors => folder.folder().join("config.json"),
        Format::Gguf => folder.weights.first().cloned().unwrap_or_else(|| folder.path.clone()),
    }
}
