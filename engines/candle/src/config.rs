//! Checks that candle computes every feature of a config.json.
//!
//! candle ignores unknown fields, so a model with an unsupported feature would run and give wrong answers. This file
//! refuses every feature by name unless the architecture supports it. So a feature missing from a list refuses a model, and
//! never measures a wrong one.

use candle_transformers::models::llama::{Llama3RopeConfig, Llama3RopeType};
use model_files::ModelFolder;
use protocol::Failed;
use serde_json::Value;

use crate::failure::{model, unsupported};
use crate::sizes::{Sizes, config_path};

/// A config feature that only some of candle's models compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Biases in the attention projections.
    AttentionBias,
    /// Heads that together are wider or narrower than the hidden size.
    OwnHeadDim,
    /// RoPE on a part of each head.
    PartialRotation,
    /// The RoPE frequencies of Llama 3.1 and later.
    Llama3Frequencies,
    /// An activation other than silu. The architecture checks which one.
    OwnActivation,
}

/// The fields of a folder's config.json that `model_files` does not read.
pub struct Fields<'a> {
    pub folder: &'a ModelFolder,
}

impl Fields<'_> {
    /// The model's sizes, if all of its features are among `computed`.
    pub fn expect_only(&self, computed: &[Feature]) -> Result<Sizes, Failed> {
        let sizes = Sizes::of(self.folder)?;
        if self.get("quantization_config").is_some() {
            let what = format!("`{}` has a `quantization_config`", self.folder.name);
            return Err(unsupported(format!("{what}, and candle would take its weights for plain numbers"))
                .hint("candle computes quantised weights from a GGUF"));
        }
        for name in ["rope_scaling", "rope_parameters"] {
            if let Some(found) = self.get(name).filter(|found| !found.is_object()) {
                return Err(self.fault(format!("`{name}`: expected an object, found `{found}`")));
            }
        }
        let lacks = |feature| !computed.contains(&feature);
        if lacks(Feature::OwnActivation) {
            self.expect("hidden_act", &["silu"])?;
        }
        if lacks(Feature::AttentionBias) {
            self.expect_off("attention_bias")?;
        }
        for name in ["mlp_bias", "use_sliding_window", "use_bidirectional_attention"] {
            self.expect_off(name)?;
        }
        self.expect_full_attention()?;
        if lacks(Feature::OwnHeadDim) {
            sizes.expect_heads_to_fill_hidden(self.folder)?;
        }
        let rotated = self.rotated_part()?;
        if lacks(Feature::PartialRotation) && rotated != 1.0 {
            return Err(self.ignored("partial_rotary_factor", &rotated.to_string()));
        }
        if self.llama3_frequencies()?.is_some() && lacks(Feature::Llama3Frequencies) {
            return Err(self.ignored("rope_scaling", "llama3"));
        }
        Ok(sizes)
    }

    pub fn expect(&self, name: &str, computed: &[&str]) -> Result<(), Failed> {
        match self.get(name) {
            Some(Value::String(found)) if computed.contains(&found.as_str()) => Ok(()),
            Some(found) => Err(self.ignored(name, &bare(found))),
            None => Ok(()),
        }
    }

    pub fn expect_off(&self, name: &str) -> Result<(), Failed> {
        match self.get(name) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(found) => Err(self.ignored(name, &bare(found))),
        }
    }

    pub fn number(&self, name: &str) -> Result<f64, Failed> {
        let value = self.get(name).ok_or_else(|| self.missing(name))?;
        value.as_f64().ok_or_else(|| self.fault(format!("`{name}`: expected a number, found `{value}`")))
    }

    pub fn rope_theta(&self) -> f64 {
        self.folder.config.rope_theta.unwrap_or(10_000.0)
    }

    /// The number of tokens that a layer sees, including the current one. `unsaid` is the default of the config.
    pub fn sliding_window(&self, unsaid: Option<u32>) -> Result<Option<u32>, Failed> {
        let Some(value) = self.said("sliding_window") else { return Ok(unsaid) };
        if value.is_null() {
            return Ok(None);
        }
        let window =
            value.as_u64().and_then(|window| u32::try_from(window).ok()).filter(|&window| window > 0);
        let fault = || self.fault(format!("`sliding_window`: expected a number of tokens, found `{value}`"));
        window.map(Some).ok_or_else(fault)
    }

    /// The part of each head that RoPE rotates; 1 is all of it.
    pub fn rotated_part(&self) -> Result<f64, Failed> {
        let name = "partial_rotary_factor";
        let Some(value) = self.get(name).or_else(|| self.rope(name)) else { return Ok(1.0) };
        let part = value.as_f64().filter(|part| (0.0..=1.0).contains(part));
        part.ok_or_else(|| self.fault(format!("`{name}`: expected a part of 1, found `{value}`")))
    }

    /// The kind of RoPE scaling, if there is one.
    pub fn rope_scaling(&self) -> Option<String> {
        let kind = self.rope("rope_type").or_else(|| self.rope("type")).map(bare);
        kind.filter(|kind| kind != "default")
    }

    /// Llama 3's scaling, the only one that candle computes.
    pub fn llama3_frequencies(&self) -> Result<Option<Llama3RopeConfig>, Failed> {
        match self.rope_scaling().as_deref() {
            None => Ok(None),
            Some("llama3") => {
                let number = |name: &str| {
                    let value = self.rope(name).and_then(Value::as_f64);
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
            Some(other) => Err(self.ignored("rope_scaling", other)),
        }
    }

    /// The refusal of a field that candle ignores or computes differently.
    pub fn ignored(&self, name: &str, found: &str) -> Failed {
        let found = found.escape_debug();
        unsupported(format!("`{}` has `{name}` `{found}`, which candle would ignore", self.folder.name))
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.said(name).filter(|value| !value.is_null())
    }

    pub fn fault(&self, what: String) -> Failed {
        model(&config_path(self.folder), what)
    }

    /// The field, even if it is null.
    fn said(&self, name: &str) -> Option<&Value> {
        let raw = &self.folder.config.raw;
        // Multimodal models keep their language model's fields one level down.
        raw.get("text_config").and_then(|inner| inner.get(name)).or_else(|| raw.get(name))
    }

    fn missing(&self, name: &str) -> Failed {
        self.fault(format!("`{name}` is missing"))
    }

    /// Newer configs keep all RoPE fields in `rope_parameters`.
    fn rope(&self, name: &str) -> Option<&Value> {
        let rope = self.get("rope_scaling").or_else(|| self.get("rope_parameters"))?;
        rope.get(name).filter(|value| !value.is_null())
    }

    fn expect_full_attention(&self) -> Result<(), Failed> {
        let Some(kinds) = self.get("layer_types") else { return Ok(()) };
        let of_layers = kinds.as_array().map_or(std::slice::from_ref(kinds), Vec::as_slice);
        match of_layers.iter().find(|kind| kind.as_str() != Some("full_attention")) {
            Some(other) => Err(self.ignored("layer_types", &bare(other))),
            None => Ok(()),
        }
    }
}

/// A value for messages: a text without its quotes.
fn bare(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}
