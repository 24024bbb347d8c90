//! A model's architecture in numbers, from `config.json` or from GGUF metadata, with the names of this project.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

use crate::gguf;

/// The part of a config that more than one reader needs; `raw` has the rest.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `llama`, `qwen2`: `model_type` in config.json, `general.architecture` in GGUF.
    pub architecture: String,
    pub hidden_size: u32,
    pub layers: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub intermediate_size: Option<u32>,
    pub vocabulary_size: u32,
    /// The longest context that the model was made for.
    pub context_tokens: Option<u32>,
    pub rope_theta: Option<f64>,
    pub bos_id: Option<u32>,
    /// Empty where the model names none.
    pub eos_ids: Vec<u32>,
    pub tie_word_embeddings: bool,
    /// What the weights say they are: `bfloat16`. The headers know better.
    pub torch_dtype: Option<String>,
    /// config.json as it is; for GGUF its metadata, arrays as their lengths.
    pub raw: Value,
}

impl Config {
    /// `config.json`, and `generation_config.json` beside it for the ids that end a text.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let raw = read_json(&path)?;
        let generation = folder.join("generation_config.json");
        let generation = if generation.is_file() { read_json(&generation)? } else { Value::Null };
        Self::from_json(raw, &generation).with_context(|| format!("`{}`", path.display()))
    }

    fn from_json(raw: Value, generation: &Value) -> Result<Self> {
        let Value::Object(top) = &raw else { bail!("expected an object") };
        // Models of several modalities keep their language model's numbers one level down.
        let fields = top.get("text_config").and_then(Value::as_object).unwrap_or(top);
        let number = |names: &[&str]| find_u32(fields, names);
        let need = |names: &[&str]| number(names)?.with_context(|| format!("`{}` is missing", names[0]));
        let (hidden_size, heads) =
            (need(&["hidden_size", "n_embd"])?, need(&["num_attention_heads", "n_head"])?);
        let given_ids =
            |name| generation.get(name).filter(|value| !value.is_null()).or_else(|| fields.get(name));
        let rope = fields.get("rope_parameters").and_then(|rope| rope.get("rope_theta"));
        Ok(Self {
            architecture: text(fields, "model_type").context("`model_type` is missing")?,
            hidden_size,
            layers: need(&["num_hidden_layers", "n_layer"])?,
            heads,
            kv_heads: number(&["num_key_value_heads"])?.unwrap_or(heads),
            head_dim: head_dim(number(&["head_dim"])?, hidden_size, heads)?,
            intermediate_size: number(&["intermediate_size", "n_inner"])?,
            vocabulary_size: need(&["vocab_size"])?,
            context_tokens: number(&["max_position_embeddings", "n_positions"])?,
            rope_theta: fields.get("rope_theta").or(rope).and_then(Value::as_f64),
            bos_id: given_ids("bos_token_id")
                .map(|value| ids("bos_token_id", value))
                .transpose()?
                .and_then(first),
            eos_ids: given_ids("eos_token_id")
                .map(|value| ids("eos_token_id", value))
                .transpose()?
                .unwrap_or_default(),
            tie_word_embeddings: fields.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false),
            torch_dtype: text(fields, "torch_dtype").or_else(|| text(fields, "dtype")),
            raw,
        })
    }

    pub(crate) fn from_gguf(header: &gguf::Header) -> Result<Self> {
        let metadata = &header.metadata;
        let Some(gguf::Value::Text(architecture)) = metadata.get("general.architecture") else {
            bail!("metadata `general.architecture` is missing");
        };
        let number = |key: &str| find_metadata(metadata, &format!("{architecture}.{key}"));
        let need =
            |key: &str| number(key)?.with_context(|| format!("metadata `{architecture}.{key}` is missing"));
        let id = |key: &str| find_metadata(metadata, &format!("tokenizer.ggml.{key}_token_id"));
        let (hidden_size, heads) = (need("embedding_length")?, need("attention.head_count")?);
        let tokens = match metadata.get("tokenizer.ggml.tokens") {
            Some(gguf::Value::Array { length }) => Some(u32::try_from(*length)?),
            _ => None,
        };
        let theta = match metadata.get(&format!("{architecture}.rope.freq_base")) {
            Some(gguf::Value::Float(theta)) => Some(*theta),
            _ => None,
        };
        Ok(Self {
            architecture: architecture.clone(),
            hidden_size,
            layers: need("block_count")?,
            heads,
            kv_heads: number("attention.head_count_kv")?.unwrap_or(heads),
            head_dim: head_dim(number("attention.key_length")?, hidden_size, heads)?,
            intermediate_size: number("feed_forward_length")?,
            vocabulary_size: number("vocab_size")?
                .or(tokens)
                .context("neither a vocabulary nor its size is there")?,
            context_tokens: number("context_length")?,
            rope_theta: theta,
            bos_id: id("bos")?,
            eos_ids: id("eos")?.into_iter().collect(),
            tie_word_embeddings: !header.tensors.iter().any(|tensor| tensor.name == "output.weight"),
            torch_dtype: None,
            raw: Value::Object(metadata.iter().map(|(key, value)| (key.clone(), json(value))).collect()),
        })
    }
}

fn read_json(path: &Path) -> Result<Value> {
    let bytes = std::fs::read(path).with_context(|| format!("`{}`", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("`{}`", path.display()))
}

fn head_dim(given: Option<u32>, hidden_size: u32, heads: u32) -> Result<u32> {
    given.or_else(|| hidden_size.checked_div(heads)).context("zero attention heads")
}

fn find_u32(fields: &Map<String, Value>, names: &[&str]) -> Result<Option<u32>> {
    let Some((name, value)) = names.iter().find_map(|name| Some((name, fields.get(*name)?))) else {
        return Ok(None);
    };
    if value.is_null() { Ok(None) } else { as_u32(name, value).map(Some) }
}

fn as_u32(name: &str, value: &Value) -> Result<u32> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.with_context(|| format!("`{name}`: expected a whole number of 32 bits, found `{value}`"))
}

/// One id or a list of them.
fn ids(name: &str, value: &Value) -> Result<Vec<u32>> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(values) => values.iter().map(|value| as_u32(name, value)).collect(),
        one => Ok(vec![as_u32(name, one)?]),
    }
}

fn first(ids: Vec<u32>) -> Option<u32> {
    ids.first().copied()
}

fn text(fields: &Map<String, Value>, name: &str) -> Option<String> {
    fields.get(name).and_then(Value::as_str).map(str::to_string)
}

fn find_metadata(metadata: &BTreeMap<String, gguf::Value>, key: &str) -> Result<Option<u32>> {
    let Some(value) = metadata.get(key) else { return Ok(None) };
    // Models whose layers differ give a list here; no single number is true for them.
    if matches!(value, gguf::Value::Array { .. }) {
        return Ok(None);
    }
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number
        .map(Some)
        .with_context(|| format!("metadata `{key}`: expected a whole number of 32 bits, found {value:?}"))
}

fn json(value: &gguf::Value) -> Value {
    match value {
        gguf::Value::Unsigned(value) => (*value).into(),
        gguf::Value::Signed(value) => (*value).into(),
        gguf::Value::Float(value) => (*value).into(),
        gguf::Value::Bool(value) => (*value).into(),
        gguf::Value::Text(value) => value.as_str().into(),
        gguf::Value::Array { length } => serde_json::json!({ "array": length }),
    }
}
