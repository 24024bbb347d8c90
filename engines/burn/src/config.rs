//! Checks that the network computes every feature of a config.json. A field that would be ignored is refused by its name,
//! because the answers would be wrong.

use std::path::PathBuf;

use engine_kit::OrFail;
use model_files::{Config, ModelFolder};
use protocol::{Failed, FailureKind};
use serde_json::Value;

/// The supported architectures, by `model_type`. One network computes them all.
pub const ARCHITECTURES: [&str; 4] = ["llama", "mistral", "qwen2", "qwen3"];

/// The longest context of a load without `context_tokens`, so that the position table fits into memory.
const MAX_CONTEXT_TOKENS: u32 = 1 << 24;

/// The numbers of the network. `model_files` has refused impossible sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub norm_epsilon: f64,
    pub rope_theta: f64,
    pub llama3: Option<Llama3>,
    /// The embedding is also the output matrix.
    pub tied: bool,
    /// The longest sequence that the network computes as the model means it.
    pub longest_context: u32,
}

/// The rule that scales the rotary frequencies of Llama 3.1 and later.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Llama3 {
    factor: f64,
    low: f64,
    high: f64,
    original_context: f64,
}

impl Llama3 {
    /// The factor of each frequency: high frequencies stay, low ones are divided, those between are interpolated.
    pub fn factors(&self, theta: f64, head_dim: usize) -> Vec<f32> {
        let of_pair = |pair: usize| {
            let wavelength = std::f64::consts::TAU * theta.powf(2.0 * pair as f64 / head_dim as f64);
            let rotations = self.original_context / wavelength;
            let unscaled = ((rotations - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
            ((1.0 - unscaled) / self.factor + unscaled) as f32
        };
        (0..head_dim / 2).map(of_pair).collect()
    }
}

impl Shape {
    pub fn of(folder: &ModelFolder) -> Result<Self, Failed> {
        let fields = Fields { folder };
        if fields.get("quantization_config").is_some() {
            return Err(fields.ignored("quantization_config", "a quantization"));
        }
        if let Some(value) = fields.get("hidden_act").filter(|value| value.as_str() != Some("silu")) {
            return Err(fields.ignored("hidden_act", &unquoted(value)));
        }
        for name in ["use_sliding_window", "use_bidirectional_attention"] {
            if let Some(value) = fields.get(name).filter(|value| **value != Value::Bool(false)) {
                return Err(fields.ignored(name, &unquoted(value)));
            }
        }
        fields.expect_full_attention()?;
        fields.expect_whole_rotation()?;
        let architecture = folder.architecture().or_fail(FailureKind::Model)?;
        let Config { layers, heads, kv_heads, head_dim, rope_theta, .. } = folder.config;
        Ok(Self {
            layers: layers as usize,
            heads: heads as usize,
            kv_heads: kv_heads as usize,
            head_dim: head_dim as usize,
            norm_epsilon: fields.number("rms_norm_eps")?.unwrap_or(architecture.norm_epsilon),
            rope_theta: rope_theta.unwrap_or(10_000.0),
            llama3: fields.llama3()?,
            tied: folder.config.tie_word_embeddings,
            longest_context: fields.longest_context()?,
        })
    }

    /// The context in effect: the requested one, else the longest.
    pub fn context_tokens(&self, folder: &ModelFolder, requested: Option<u32>) -> Result<u32, Failed> {
        let longest = self.longest_context;
        match requested {
            Some(0) => {
                Err(Failed::new(FailureKind::BadRequest, "`context_tokens`: expected at least 1, found 0"))
            }
            Some(requested) if requested > longest => {
                let message =
                    format!("a context of {requested} tokens: `{}` has at most {longest}", folder.name);
                Err(Failed::new(FailureKind::Context, message))
            }
            None if longest > MAX_CONTEXT_TOKENS => {
                let message = format!("a context of {longest} tokens is more than {MAX_CONTEXT_TOKENS}");
                Err(Failed::new(FailureKind::Model, message)
                    .hint("set a smaller `context_tokens` in the request `load`"))
            }
            requested => Ok(requested.unwrap_or(longest)),
        }
    }
}

struct Fields<'a> {
    folder: &'a ModelFolder,
}

impl Fields<'_> {
    fn get_or_null(&self, name: &str) -> Option<&Value> {
        let raw = &self.folder.config.raw;
        // Multimodal models keep the fields of their language model in `text_config`.
        raw.get("text_config").and_then(|fields| fields.get(name)).or_else(|| raw.get(name))
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.get_or_null(name).filter(|value| !value.is_null())
    }

    fn number(&self, name: &str) -> Result<Option<f64>, Failed> {
        let number = |value: &Value| value.as_f64().ok_or_else(|| self.invalid(name, "a number", value));
        self.get(name).map(number).transpose()
    }

    /// A field of `rope_scaling`, or of `rope_parameters` in newer configs.
    fn rope_field(&self, name: &str) -> Result<Option<&Value>, Failed> {
        let Some((field, rope)) = ["rope_scaling", "rope_parameters"]
            .into_iter()
            .find_map(|field| self.get(field).map(|value| (field, value)))
        else {
            return Ok(None);
        };
        let rule = rope.as_object().ok_or_else(|| self.invalid(field, "an object", rope))?;
        // Some models have a rule for each kind of layer.
        match rule.values().find(|value| value.is_object()) {
            Some(_) => Err(self.ignored(field, "several rules")),
            None => Ok(rule.get(name).filter(|value| !value.is_null())),
        }
    }

    fn llama3(&self) -> Result<Option<Llama3>, Failed> {
        let kind = match self.rope_field("rope_type")? {
            Some(kind) => Some(kind),
            None => self.rope_field("type")?,
        };
        match kind.map(unquoted).as_deref() {
            None | Some("default") => Ok(None),
            Some("llama3") => {
                let number = |name: &str| {
                    let value = self.rope_field(name)?;
                    let number = value.and_then(Value::as_f64).filter(|number| *number > 0.0);
                    number.ok_or_else(|| {
                        let name = format!("rope_scaling.{name}");
                        self.invalid(&name, "a number above 0", value.unwrap_or(&Value::Null))
                    })
                };
                Ok(Some(Llama3 {
                    factor: number("factor")?,
                    low: number("low_freq_factor")?,
                    high: number("high_freq_factor")?,
                    original_context: number("original_max_position_embeddings")?,
                }))
            }
            Some(other) => Err(self.ignored("rope_scaling", other)),
        }
    }

    fn expect_full_attention(&self) -> Result<(), Failed> {
        let Some(kinds) = self.get("layer_types") else { return Ok(()) };
        let kinds = kinds.as_array().map_or(std::slice::from_ref(kinds), Vec::as_slice);
        match kinds.iter().find(|kind| kind.as_str() != Some("full_attention")) {
            Some(other) => Err(self.ignored("layer_types", &unquoted(other))),
            None => Ok(()),
        }
    }

    fn expect_whole_rotation(&self) -> Result<(), Failed> {
        let name = "partial_rotary_factor";
        let value = match self.get(name) {
            Some(value) => Some(value),
            None => self.rope_field(name)?,
        };
        match value.filter(|value| value.as_f64() != Some(1.0)) {
            Some(value) => Err(self.ignored(name, &unquoted(value))),
            None => Ok(()),
        }
    }

    /// The context of the model, or Mistral's sliding window if it is shorter: up to its length the window hides no token.
    fn longest_context(&self) -> Result<u32, Failed> {
        let config = &self.folder.config;
        let context = config.context_tokens.filter(|&tokens| tokens > 0);
        let context = context
            .ok_or_else(|| self.invalid("max_position_embeddings", "a number of tokens", &Value::Null))?;
        if config.architecture != "mistral" {
            return Ok(context);
        }
        // Without the field, transformers has the window of Mistral's first version.
        let Some(value) = self.get_or_null("sliding_window") else { return Ok(context.min(4096)) };
        if value.is_null() {
            return Ok(context);
        }
        let window = value.as_u64().filter(|&window| window > 0);
        let window = window.ok_or_else(|| self.invalid("sliding_window", "a number of tokens", value))?;
        Ok(context.min(u32::try_from(window).unwrap_or(u32::MAX)))
    }

    fn ignored(&self, name: &str, value: &str) -> Failed {
        let message = format!(
            "`{}` has `{name}` `{}`, which this engine does not compute",
            self.folder.name,
            value.escape_debug()
        );
        Failed::new(FailureKind::Unsupported, message)
    }

    fn invalid(&self, name: &str, expected: &str, found: &Value) -> Failed {
        let path: PathBuf = self.folder.folder().join("config.json");
        let message = format!("`{}`: `{name}`: expected {expected}, found `{found}`", path.display());
        Failed::new(FailureKind::Model, message)
    }
}

/// The value for a message. A string has no quotes.
fn unquoted(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}
