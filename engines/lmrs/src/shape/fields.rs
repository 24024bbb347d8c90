//! The fields of a config.json or of GGUF metadata that affect the computation.

use std::path::PathBuf;

use model_files::{Format, ModelFolder, json_text};
use protocol::{Failed, FailureKind};
use serde_json::Value;

use super::Activation;
use super::architectures::Architecture;

pub struct Fields<'a> {
    pub folder: &'a ModelFolder,
}

/// Fields of config.json for features that lmrs lacks, with the values that turn these features off.
const OFF_IN_CONFIG: [(&str, Value); 8] = [
    ("use_bidirectional_attention", Value::Bool(false)),
    ("scale_attn_weights", Value::Bool(true)),
    ("scale_attn_by_inverse_layer_idx", Value::Bool(false)),
    ("add_cross_attention", Value::Bool(false)),
    ("attn_logit_softcapping", Value::Null),
    ("final_logit_softcapping", Value::Null),
    ("query_pre_attn_scalar", Value::Null),
    ("quantization_config", Value::Null),
];

/// Fields of GGUF metadata for features that lmrs lacks, with the values that turn these features off.
const OFF_IN_GGUF: [(&str, f64); 6] = [
    ("expert_count", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 1.0),
    ("attention.scale", 0.0),
    ("attention.max_alibi_bias", 0.0),
];

impl Fields<'_> {
    pub fn refuse_unsupported(&self) -> Result<(), Failed> {
        match self.folder.format {
            Format::Safetensors => {
                let found = OFF_IN_CONFIG.iter().find_map(|(name, off)| {
                    self.get(name).filter(|value| *value != off).map(|value| (*name, value))
                });
                found.map_or(Ok(()), |(name, value)| Err(self.unsupported(name, value)))
            }
            Format::Gguf => {
                for (name, off) in OFF_IN_GGUF {
                    if let Some(value) = self.metadata(name).filter(|value| value.as_f64() != Some(off)) {
                        return Err(self.unsupported(name, value));
                    }
                }
                let head_dim = u64::from(self.folder.config.head_dim);
                match self.metadata("attention.value_length") {
                    Some(value) if value.as_u64() != Some(head_dim) => {
                        Err(self.unsupported("attention.value_length", value))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// The epsilon of norms. `default` is the value if a config.json lacks the field; a GGUF must have it.
    pub fn norm_epsilon(&self, architecture: &Architecture, default: f64) -> Result<f32, Failed> {
        let (name, gguf) = match architecture.layer_norm {
            true => ("layer_norm_epsilon", "attention.layer_norm_epsilon"),
            false => ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
        };
        let value = match self.folder.format {
            Format::Safetensors => self.number(name)?.unwrap_or(default),
            Format::Gguf => {
                let value = self.metadata(gguf).ok_or_else(|| self.missing(name, gguf))?;
                value.as_f64().ok_or_else(|| self.expected("a number", gguf, value))?
            }
        };
        let epsilon = value as f32;
        if epsilon.is_finite() && epsilon >= 0.0 {
            return Ok(epsilon);
        }
        let name = self.name(name, gguf);
        Err(self.invalid(format!(
            "`{name}`: expected a number not below 0 in the range of f32, found `{value:?}`"
        )))
    }

    pub fn activation(&self, architecture: &Architecture) -> Result<Activation, Failed> {
        // `hidden_activation` has priority, because it is newer and unambiguous.
        for name in ["hidden_activation", "hidden_act", "activation_function"] {
            let Some(value) = self.get(name) else { continue };
            return match value.as_str() {
                Some("silu" | "swish") => Ok(Activation::Silu),
                Some("gelu_new" | "gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
                Some("gelu") => architecture.gelu.ok_or_else(|| self.unsupported(name, value)),
                _ => Err(self.unsupported(name, value)),
            };
        }
        Ok(architecture.activation)
    }

    /// The window in tokens; `default` is the value if a config.json lacks the field.
    pub fn window(&self, default: Option<usize>) -> Result<Option<usize>, Failed> {
        let value = match self.folder.format {
            Format::Safetensors => self.field_or_null("sliding_window"),
            Format::Gguf => self.metadata("attention.sliding_window"),
        };
        match value {
            None if self.folder.format == Format::Gguf => Ok(None),
            None => Ok(default),
            Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64() {
                // llama.cpp's converters write 0 for no window.
                Some(0) if self.folder.format == Format::Gguf => Ok(None),
                Some(tokens @ 1..) => Ok(Some(usize::try_from(tokens).unwrap_or(usize::MAX))),
                _ => {
                    let name = self.name("sliding_window", "attention.sliding_window");
                    Err(self.expected("a number of tokens", name, value))
                }
            },
        }
    }

    /// Whether each layer uses the window, if a config lists the layers.
    pub fn layer_types(&self) -> Result<Option<Vec<bool>>, Failed> {
        let kinds = match self.get("layer_types") {
            None => return Ok(None),
            Some(Value::Array(kinds)) => kinds,
            Some(value) => return Err(self.expected("a list", "layer_types", value)),
        };
        let uses_window = |kind: &Value| match kind.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(self.unsupported("layer_types", kind)),
        };
        kinds.iter().map(uses_window).collect::<Result<_, _>>().map(Some)
    }

    pub fn flag(&self, name: &str) -> Result<bool, Failed> {
        let failure = |value| self.expected("true or false", name, value);
        self.get(name).map_or(Ok(false), |value| value.as_bool().ok_or_else(|| failure(value)))
    }

    /// Reads the index of a layer. The index may be beyond the last layer, and then means no layer.
    pub fn layer(&self, name: &str) -> Result<Option<usize>, Failed> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let layer = value.as_u64().ok_or_else(|| self.expected("a number of layers", name, value))?;
        Ok(Some(usize::try_from(layer).unwrap_or(usize::MAX)))
    }

    pub fn number(&self, name: &str) -> Result<Option<f64>, Failed> {
        let failure = |value| self.expected("a number", name, value);
        self.get(name).map(|value| value.as_f64().ok_or_else(|| failure(value))).transpose()
    }

    /// A field of config.json that is present and not null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.field_or_null(name).filter(|value| !value.is_null())
    }

    /// A value of GGUF metadata, under the prefix of its architecture.
    pub fn metadata(&self, name: &str) -> Option<&Value> {
        self.folder.config.raw.get(format!("{}.{name}", self.folder.config.architecture))
    }

    pub fn unsupported(&self, name: &str, value: &Value) -> Failed {
        let value = match value {
            Value::String(text) => text.escape_debug().to_string(),
            Value::Object(_) => "an object".into(),
            Value::Array(_) => "a list".into(),
            other => other.to_string(),
        };
        let message = format!("`{}` has `{name}` `{value}`, which lmrs does not compute", self.folder.name);
        Failed::new(FailureKind::Unsupported, message)
    }

    pub fn expected(&self, kind: &str, name: &str, value: &Value) -> Failed {
        self.invalid(format!("`{name}`: expected {kind}, found {}", json_text(value)))
    }

    pub fn invalid(&self, problem: impl std::fmt::Display) -> Failed {
        Failed::new(FailureKind::Model, format!("`{}`: {problem}", config_path(self.folder).display()))
    }

    pub fn missing(&self, name: &str, gguf: &str) -> Failed {
        match self.folder.format {
            Format::Safetensors => self.invalid(format!("`{name}` is missing")),
            Format::Gguf => {
                self.invalid(format!("metadata `{}.{gguf}` is missing", self.folder.config.architecture))
            }
        }
    }

    pub fn zero_size(&self, name: &str, gguf: &str) -> Failed {
        self.invalid(format!("`{}` is 0", self.name(name, gguf)))
    }

    /// The first of these synonyms that the config uses, or else the first synonym.
    pub fn first_present<'a>(&self, names: &[&'a str]) -> &'a str {
        names.iter().copied().find(|name| self.get(name).is_some()).unwrap_or(names[0])
    }

    /// The field's name in the format of the model's files.
    pub fn name<'a>(&self, name: &'a str, gguf: &'a str) -> &'a str {
        match self.folder.format {
            Format::Safetensors => name,
            Format::Gguf => gguf,
        }
    }

    fn field_or_null(&self, name: &str) -> Option<&Value> {
        let raw = &self.folder.config.raw;
        // Multimodal models keep the fields of their language model one level down.
        raw.get("text_config").and_then(|inner| inner.get(name)).or_else(|| raw.get(name))
    }
}

/// The path of the config, for messages.
fn config_path(folder: &ModelFolder) -> PathBuf {
    match folder.format {
        Format::Safetensors => folder.folder().join("config.json"),
        Format::Gguf => folder.weights.first().cloned().unwrap_or_else(|| folder.path.clone()),
    }
}
