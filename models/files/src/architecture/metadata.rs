//! Conversion of a config between config.json and GGUF metadata. Each family of architectures has a table of `Key`s. Fields
//! outside the tables are dropped, so every field that changes the computation must be in a table or be refused. The tests
//! check this for every field that the library transformers reads (`config-fields.json`).

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use super::{Architecture, rope};
use crate::gguf::{self, ValueToWrite};
use crate::text::json_text;
use crate::{Config, Format};

/// A field with its names in both formats.
#[derive(Debug)]
pub struct Key {
    config: &'static str,
    gguf: &'static str,
    /// Whether the number may have a fraction; GGUF then stores it in f32.
    is_real: bool,
}

pub const fn integer(config: &'static str, gguf: &'static str) -> Key {
    Key { config, gguf, is_real: false }
}

pub const fn real(config: &'static str, gguf: &'static str) -> Key {
    Key { config, gguf, is_real: true }
}

impl Architecture {
    /// The GGUF metadata of a config.json, without the keys of the tokenizer.
    pub(crate) fn to_gguf(&self, config: &Config) -> Result<Vec<(String, ValueToWrite)>> {
        let raw = config.fields().context("expected an object")?;
        self.check_expressible(config, raw)?;
        let mut metadata: Vec<(String, ValueToWrite)> =
            vec![("general.architecture".into(), ValueToWrite::Text(self.gguf.into()))];
        for key in self.keys {
            let Some(value) = self.field(config, raw, key.config)? else { continue };
            let value = if key.is_real {
                ValueToWrite::F32(value as f32)
            } else {
                // Sizes were read as 32 bits. Other numbers beyond 32 bits become the nearest one of 32 bits.
                ValueToWrite::U32(value as u32)
            };
            metadata.push((format!("{}.{}", self.gguf, key.gguf), value));
        }
        // GPT-2 has learned positions and no RoPE.
        if self.keys.iter().any(|key| key.config == "rope_theta") {
            metadata.extend(rope::to_gguf(self.gguf, config)?);
        }
        Ok(metadata)
    }

    /// The config.json equivalent to GGUF's metadata.
    pub(crate) fn to_config_json(
        &self,
        config: &Config,
        header: &gguf::Header,
        scaling: Option<Value>,
    ) -> Result<Value> {
        let mut fields = Map::new();
        fields.insert("architectures".into(), json!([self.class]));
        fields.insert("model_type".into(), self.name.into());
        for key in self.keys {
            let value = match header.metadata.get(&format!("{}.{}", self.gguf, key.gguf)) {
                Some(gguf::Value::Float(value)) => Some(json!(shortest_decimal(*value as f32))),
                Some(value) => value.as_u64().map(Value::from),
                None => None,
            };
            fields.extend(value.map(|value| (key.config.to_string(), value)));
        }
        let computed = [
            ("vocab_size", Some(config.vocabulary_size)),
            ("head_dim", Some(config.head_dim)),
            ("num_key_value_heads", Some(config.kv_heads)),
            ("bos_token_id", config.bos_id),
            ("eos_token_id", config.eos_ids.first().copied()),
        ];
        for (name, value) in computed {
            let has_field = self.keys.iter().any(|key| key.config == name) || name.ends_with("_id");
            if let Some(value) = value.filter(|_| has_field && !fields.contains_key(name)) {
                fields.insert(name.into(), value.into());
            }
        }
        let constants: Map<String, Value> = serde_json::from_str(self.constants)?;
        fields.extend(constants);
        if config.attention_bias && fields.contains_key("attention_bias") {
            fields.insert("attention_bias".into(), true.into());
        }
        if config.mlp_bias && fields.contains_key("mlp_bias") {
            fields.insert("mlp_bias".into(), true.into());
        }
        fields.extend(scaling.map(|scaling| ("rope_scaling".to_string(), scaling)));
        fields.insert("tie_word_embeddings".into(), config.tie_word_embeddings.into());
        Ok(Value::Object(fields))
    }

    fn check_expressible(&self, config: &Config, raw: &Map<String, Value>) -> Result<()> {
        for fields in [self.constants, self.neutral, NEUTRAL] {
            let expressible: Map<String, Value> = serde_json::from_str(fields)?;
            for (name, expressible) in &expressible {
                // Biases are tensors, so GGUF needs no key for them.
                if name.ends_with("_bias") {
                    continue;
                }
                let given = raw.get(name).unwrap_or(&Value::Null);
                ensure!(
                    given.is_null() || given == expressible || self.is_alias(name, given, expressible),
                    "`{name}` is {}, which GGUF's `{}` cannot express",
                    json_text(given),
                    self.gguf
                );
            }
        }
        let has_other_layers = raw
            .get("layer_types")
            .and_then(Value::as_array)
            .is_some_and(|kinds| kinds.iter().any(|kind| kind.as_str() != Some("full_attention")));
        ensure!(
            !has_other_layers,
            "`layer_types` has layers other than `full_attention`, which GGUF's `{}` cannot express",
            self.gguf
        );
        ensure!(
            !config.attention_bias || self.gguf_has_attention_bias,
            "`attention_bias` is `true`, which GGUF's `{}` cannot express",
            self.gguf
        );
        let factor = [rope::settings(raw), Some(raw)].into_iter().flatten();
        let factor =
            factor.filter_map(|fields| fields.get("partial_rotary_factor")).find(|factor| !factor.is_null());
        if let Some(factor) = factor.filter(|factor| factor.as_f64() != Some(1.0)) {
            bail!("`partial_rotary_factor` {factor}: GGUF requires the rotation of all dimensions");
        }
        let (heads, head_dim, hidden) = (config.heads, config.head_dim, config.hidden_size);
        ensure!(
            self.keys.iter().any(|key| key.gguf == "attention.key_length")
                || u64::from(heads) * u64::from(head_dim) == u64::from(hidden),
            "`head_dim` is {head_dim}, and GGUF's `{}` requires {hidden} / {heads}, the hidden size divided by the number of heads",
            self.gguf
        );
        self.check_window(config, raw)
    }

    /// Refuses a sliding window below the context, if GGUF has no key for it. The library transformers limits the cache of every
    /// architecture to a window in the config, unless the architecture has a switch for it.
    fn check_window(&self, config: &Config, raw: &Map<String, Value>) -> Result<()> {
        let name = "sliding_window";
        if self.keys.iter().any(|key| key.config == name) || self.constants.contains("use_sliding_window") {
            return Ok(());
        }
        let window = match raw.get(name) {
            None => self.default_window.map(u64::from),
            Some(Value::Null) => None,
            Some(value) => {
                let window = value.as_u64();
                Some(window.with_context(|| {
                    format!("`{name}`: expected a number of tokens, found {}", json_text(value))
                })?)
            }
        };
        let Some(window) = window else { return Ok(()) };
        let origin = if raw.contains_key(name) { "" } else { ", the default of this architecture," };
        let context = config.context_tokens;
        ensure!(
            context.is_some_and(|context| window >= u64::from(context)),
            "`{name}` {window}{origin} is narrower than the context{}, which GGUF's `{}` cannot express",
            context.map_or_else(String::new, |context| format!(" of {context}")),
            self.gguf
        );
        Ok(())
    }

    /// Whether two values of a field mean the same.
    fn is_alias(&self, name: &str, given: &Value, constant: &Value) -> bool {
        let same_function = |group: &&[&str]| {
            let is_member = |value: &Value| value.as_str().is_some_and(|value| group.contains(&value));
            is_member(given) && is_member(constant)
        };
        let is_activation = ["hidden_act", "hidden_activation", "activation_function"].contains(&name);
        is_activation
            && (ACTIVATION_ALIASES.iter().any(|group| same_function(&group.as_ref()))
                || self.gelu_means_tanh && given == "gelu")
    }

    /// A number of config.json, else its default if it has one. `Config` has already read the sizes, which may have other names
    /// or places in the file.
    fn field(&self, config: &Config, raw: &Map<String, Value>, name: &str) -> Result<Option<f64>> {
        let size = match name {
            "hidden_size" | "n_embd" => Some(config.hidden_size),
            "num_hidden_layers" | "n_layer" => Some(config.layers),
            "num_attention_heads" | "n_head" => Some(config.heads),
            "num_key_value_heads" => Some(config.kv_heads),
            "head_dim" => Some(config.head_dim),
            "intermediate_size" | "n_inner" => self.inner_size(config),
            "max_position_embeddings" | "n_positions" => config.context_tokens,
            "vocab_size" => Some(config.vocabulary_size),
            _ => None,
        };
        if let Some(size) = size {
            return Ok(Some(f64::from(size)));
        }
        if name == "rope_theta" {
            return Ok(config.rope_theta.or(Some(10_000.0)));
        }
        let default = ["rms_norm_eps", "layer_norm_epsilon"].contains(&name).then_some(self.norm_epsilon);
        let Some(value) = raw.get(name).filter(|value| !value.is_null()) else { return Ok(default) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(Some).with_context(|| format!("`{name}`: expected a number, found `{value}`"))
    }
}

/// Fields of config.json that GGUF lacks, each with the value that changes nothing. `null` means the same as an absent field.
const NEUTRAL: &str = r#"{
    "is_causal": true, "is_encoder_decoder": false, "attention_chunk_size": null, "kv_sharing_modes": null,
    "per_layer_config": null, "quantization_config": null
}"#;

/// The names of each activation function that has several.
const ACTIVATION_ALIASES: [[&str; 2]; 2] = [["silu", "swish"], ["gelu_new", "gelu_pytorch_tanh"]];

/// The shortest decimal with this f32 value, so that 1e-5 stays 1e-5.
pub(crate) fn shortest_decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

impl Config {
    /// The format of the names in `raw` and `architecture`.
    pub(crate) fn format(&self) -> Format {
        if self.raw.get("general.architecture").is_some() { Format::Gguf } else { Format::Safetensors }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_for(field: &str, value: Value) -> Option<String> {
        let mut config = json!({
            "model_type": "phi3", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
            "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 16
        });
        config[field] = value;
        let config = Config::from_json(config, &Value::Null).unwrap();
        let architecture = Architecture::named("phi3").unwrap();
        architecture.to_gguf(&config).err().map(|error| format!("{error:#}"))
    }

    #[test]
    fn the_error_names_a_field_that_gguf_cannot_express() {
        assert_eq!(error_for("head_dim", json!(16)), None);
        assert!(error_for("head_dim", json!(32)).unwrap().starts_with("`head_dim` is 32, and GGUF's `phi3`"));
        for (field, value) in [
            ("partial_rotary_factor", json!(0.5)),
            ("partial_rotary_factor", json!("all")),
            ("rope_parameters", json!({"rope_type": "default", "partial_rotary_factor": 0.5})),
        ] {
            assert!(error_for(field, value).unwrap().starts_with("`partial_rotary_factor` "));
        }
    }
}
