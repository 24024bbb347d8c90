//! The sizes and settings of a model, from `config.json` or GGUF metadata, under this project's names.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use crate::architecture::{Architecture, rope};
use crate::text::{json_text, printable};
use crate::{Format, architecture, gguf};

/// The fields of a config that several modules use; `raw` has all fields.
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
    /// The longest context of the model.
    pub context_tokens: Option<u32>,
    pub rope_theta: Option<f64>,
    pub bos_id: Option<u32>,
    /// Empty if the model names none.
    pub eos_ids: Vec<u32>,
    pub tie_word_embeddings: bool,
    /// `attention_bias` of config.json (Qwen 2 and GPT-2 have biases without it); for GGUF, whether queries have a bias.
    pub attention_bias: bool,
    pub mlp_bias: bool,
    /// config.json unchanged; for GGUF its metadata, with the length of each array in place of the array.
    pub raw: Value,
}

impl Config {
    /// Reads `config.json`, and `generation_config.json` for the BOS id and the EOS ids. `detect` finds the
    /// architecture, and its source: a field or the names of tensors. The source is also returned.
    pub(crate) fn open(
        folder: &Path,
        detect: impl Fn(&Value) -> Option<(String, &'static str)>,
    ) -> Result<(Self, &'static str)> {
        let path = folder.join("config.json");
        let raw = read_json(&path)?;
        let (architecture, source) = detect(&raw).with_context(|| {
            format!(
                "`{}`: `model_type` is missing, and tensor names do not identify the architecture",
                path.display()
            )
        })?;
        let generation = folder.join("generation_config.json");
        let generation = if generation.is_file() { read_json(&generation)? } else { Value::Null };
        let config = Self::read(architecture, raw, &generation);
        Ok((config.with_context(|| format!("`{}`", path.display()))?, source))
    }

    /// Reads a config that names its own architecture.
    pub(crate) fn from_json(raw: Value, generation: &Value) -> Result<Self> {
        let detected = architecture::detect(&raw, std::iter::empty(), "").map(|(name, _)| name);
        Self::read(detected.context("`model_type` is missing")?, raw, generation)
    }

    /// Reads a config from the contents of config.json and generation_config.json.
    pub fn parse(config: &[u8], generation: Option<&[u8]>) -> Result<Self> {
        let raw = parse_json(config).context("`config.json`")?;
        let generation = generation.map(parse_json).transpose();
        let generation = generation.context("`generation_config.json`")?.unwrap_or(Value::Null);
        Self::from_json(raw, &generation).context("`config.json`")
    }

    fn read(architecture: String, raw: Value, generation: &Value) -> Result<Self> {
        let Value::Object(top) = &raw else { bail!("expected an object") };
        let fields = language_model_fields(top);
        let number = |names: &[&str]| find_u32(fields, names);
        let required = |names: &[&str]| {
            check_positive(names[0], number(names)?.with_context(|| format!("`{}` is missing", names[0]))?)
        };
        let (hidden_size, heads) =
            (required(&["hidden_size", "n_embd"])?, required(&["num_attention_heads", "n_head"])?);
        let (bos_id, eos_ids) = ids_of_json(fields, generation)?;
        let flag = |name: &str| find_flag(fields, name);
        let defaults = Architecture::named(&architecture);
        let tied = defaults.is_some_and(|architecture| architecture.tied);
        let head_size = number(&["head_dim"])?.or(defaults.and_then(|architecture| architecture.head_dim));
        Ok(Self {
            architecture,
            hidden_size,
            layers: required(&["num_hidden_layers", "n_layer"])?,
            heads,
            kv_heads: check_kv_heads("num_key_value_heads", number(&["num_key_value_heads"])?, heads)?,
            head_dim: check_head_dim("head_dim", head_size, hidden_size, heads)?,
            intermediate_size: number(&["intermediate_size", "n_inner"])?,
            vocabulary_size: required(&["vocab_size"])?,
            context_tokens: number(&["max_position_embeddings", "n_positions", "n_ctx"])?,
            rope_theta: check_theta("rope_theta", find_theta(fields)?)?,
            bos_id,
            eos_ids,
            tie_word_embeddings: flag("tie_word_embeddings")?.unwrap_or(tied),
            attention_bias: flag("attention_bias")?.unwrap_or(false),
            mlp_bias: flag("mlp_bias")?.unwrap_or(false),
            raw,
        })
    }

    /// The fields of config.json that describe the language model.
    pub(crate) fn fields(&self) -> Option<&Map<String, Value>> {
        self.raw.as_object().map(language_model_fields)
    }

    pub(crate) fn from_gguf(header: &gguf::Header) -> Result<Self> {
        let metadata = &header.metadata;
        let architecture = match metadata.get("general.architecture") {
            Some(gguf::Value::Text(architecture)) => architecture,
            Some(other) => bail!("metadata `general.architecture`: expected a text, found {other}"),
            None => bail!("metadata `general.architecture` is missing"),
        };
        let printable_name = printable(architecture);
        expect_finite(metadata, architecture)?;
        let number = |key: &str| find_metadata_u32(metadata, &format!("{architecture}.{key}"));
        let required = |key: &str| {
            check_positive(
                key,
                number(key)?.with_context(|| format!("metadata `{printable_name}.{key}` is missing"))?,
            )
        };
        let (hidden_size, heads) = (required("embedding_length")?, required("attention.head_count")?);
        let (bos_id, eos_ids) = ids_of_gguf(metadata)?;
        let has = |name: &str| header.tensors.iter().any(|tensor| tensor.name == name);
        let tokens = match metadata.get("tokenizer.ggml.tokens") {
            Some(gguf::Value::Array { length, .. }) => Some(
                u32::try_from(*length)
                    .with_context(|| format!("metadata `tokenizer.ggml.tokens` has {length} entries"))?,
            ),
            _ => None,
        };
        let rope_theta = match metadata.get(&format!("{architecture}.rope.freq_base")) {
            Some(gguf::Value::Float(given)) => Some(*given),
            Some(other) => {
                bail!(
                    "metadata `{printable_name}.rope.freq_base`: expected a number with a fraction, found {other}"
                )
            }
            None => None,
        };
        Ok(Self {
            architecture: architecture.clone(),
            hidden_size,
            layers: required("block_count")?,
            heads,
            kv_heads: check_kv_heads("attention.head_count_kv", number("attention.head_count_kv")?, heads)?,
            head_dim: check_head_dim(
                "attention.key_length",
                number("attention.key_length")?,
                hidden_size,
                heads,
            )?,
            intermediate_size: number("feed_forward_length")?,
            vocabulary_size: check_positive(
                "vocab_size",
                number("vocab_size")?
                    .or(tokens)
                    .context("the metadata has neither a vocabulary nor its size")?,
            )?,
            context_tokens: number("context_length")?,
            rope_theta: check_theta("rope.freq_base", rope_theta)?,
            bos_id,
            eos_ids,
            tie_word_embeddings: !has("output.weight"),
            attention_bias: has("blk.0.attn_q.bias"),
            mlp_bias: has("blk.0.ffn_up.bias"),
            raw: Value::Object(
                metadata.iter().map(|(key, value)| (key.clone(), metadata_to_json(value))).collect(),
            ),
        })
    }
}

/// The fields of the language model. Multimodal models have them one level down.
fn language_model_fields(top: &Map<String, Value>) -> &Map<String, Value> {
    top.get("text_config").and_then(Value::as_object).unwrap_or(top)
}

pub(crate) fn read_json(path: &Path) -> Result<Value> {
    // Reading a pipe would never end.
    ensure!(!path.exists() || path.is_file(), "`{}` is not a file", path.display());
    let bytes = std::fs::read(path).with_context(|| format!("`{}`", path.display()))?;
    parse_json(&bytes).with_context(|| format!("`{}`", path.display()))
}

/// Parses JSON. The error for an invalid value, such as `NaN` or a number beyond f64, names its field.
fn parse_json(bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|error| match field_before(bytes, &error) {
        Some(name) => anyhow::Error::new(error).context(format!("`{}`", printable(&name))),
        None => error.into(),
    })
}

/// The last field named before the position of an error.
fn field_before(bytes: &[u8], error: &serde_json::Error) -> Option<String> {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let bytes_before: usize = lines.by_ref().take(error.line().checked_sub(1)?).map(<[u8]>::len).sum();
    let end = (bytes_before + error.column()).min(bytes.len());
    let text = String::from_utf8_lossy(&bytes[end.saturating_sub(MAX_FIELD_BYTES)..end]);
    let (names, _) = text.rsplit_once(':')?;
    names.trim_end().strip_suffix('"')?.rsplit_once('"').map(|(_, name)| name.to_string())
}

/// The most bytes to search before an error: enough for a name and a number.
const MAX_FIELD_BYTES: usize = 512;

/// Engines divide by most of these numbers, so none may be 0.
fn check_positive(name: &str, number: u32) -> Result<u32> {
    ensure!(number > 0, "`{name}` is 0");
    Ok(number)
}

/// Each key-value head serves the same number of query heads.
fn check_kv_heads(name: &str, given: Option<u32>, heads: u32) -> Result<u32> {
    let kv_heads = given.unwrap_or(heads);
    ensure!(
        kv_heads > 0 && heads.is_multiple_of(kv_heads),
        "`{name}` is {kv_heads} and does not divide {heads} attention heads"
    );
    Ok(kv_heads)
}

fn check_head_dim(name: &str, given: Option<u32>, hidden_size: u32, heads: u32) -> Result<u32> {
    let Some(given) = given else {
        ensure!(hidden_size >= heads, "{heads} attention heads cannot share a hidden size of {hidden_size}");
        return Ok(hidden_size / heads);
    };
    check_positive(name, given)
}

fn find_flag(fields: &Map<String, Value>, name: &str) -> Result<Option<bool>> {
    let Some(value) = fields.get(name).filter(|value| !value.is_null()) else { return Ok(None) };
    let flag = value.as_bool();
    flag.map(Some).with_context(|| format!("`{name}`: expected true or false, found {}", json_text(value)))
}

/// Finds the theta of RoPE. Newer configs store it among the other RoPE settings; a value there takes precedence.
fn find_theta(fields: &Map<String, Value>) -> Result<Option<f64>> {
    let value = rope::settings(fields).into_iter().chain([fields]).find_map(|fields| {
        let theta = fields.get("rope_theta")?;
        (!theta.is_null()).then_some(theta)
    });
    let Some(value) = value else { return Ok(None) };
    let number = value.as_f64();
    number.map(Some).with_context(|| format!("`rope_theta`: expected a number, found {}", json_text(value)))
}

fn check_theta(name: &str, given: Option<f64>) -> Result<Option<f64>> {
    // Engines compute with theta in f32.
    let is_usable = given.is_none_or(|theta| (theta as f32).is_finite() && theta as f32 > 0.0);
    ensure!(
        is_usable,
        "`{name}`: expected a number above 0 in the range of f32, found `{:?}`",
        given.unwrap_or_default()
    );
    Ok(given)
}

fn find_u32(fields: &Map<String, Value>, names: &[&str]) -> Result<Option<u32>> {
    let Some((name, value)) = names.iter().find_map(|name| Some((name, fields.get(*name)?))) else {
        return Ok(None);
    };
    if value.is_null() { Ok(None) } else { as_u32(name, value).map(Some) }
}

fn as_u32(name: &str, value: &Value) -> Result<u32> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number
        .with_context(|| format!("`{name}`: expected a whole number of 32 bits, found {}", json_text(value)))
}

fn find_metadata_u32(metadata: &BTreeMap<String, gguf::Value>, key: &str) -> Result<Option<u32>> {
    let Some(value) = metadata.get(key) else { return Ok(None) };
    // If the layers of a model differ, the value is a list with a number for each layer.
    if matches!(value, gguf::Value::Array { .. }) {
        return Ok(None);
    }
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.map(Some).with_context(|| {
        format!("metadata `{}`: expected a whole number of 32 bits, found {value}", printable(key))
    })
}

/// Refuses infinity and NaN in the metadata of the model's architecture.
fn expect_finite(metadata: &BTreeMap<String, gguf::Value>, architecture: &str) -> Result<()> {
    let has_prefix = |key: &str| key.strip_prefix(architecture).is_some_and(|rest| rest.starts_with('.'));
    for (key, value) in metadata.iter().filter(|(key, _)| has_prefix(key)) {
        let is_invalid_number = matches!(value, gguf::Value::Float(number) if !number.is_finite());
        ensure!(!is_invalid_number, "metadata `{}`: expected a number, found {value}", printable(key));
    }
    Ok(())
}

fn metadata_to_json(value: &gguf::Value) -> Value {
    match value {
        gguf::Value::Unsigned(value) => (*value).into(),
        gguf::Value::Signed(value) => (*value).into(),
        gguf::Value::Float(value) => (*value).into(),
        gguf::Value::Bool(value) => (*value).into(),
        gguf::Value::Text(value) => value.as_str().into(),
        gguf::Value::Array { length, .. } => serde_json::json!({ "array": length }),
    }
}

const BOS: &str = "bos_token_id";
const EOS: &str = "eos_token_id";

/// Begins the message for an id of `generation_config.json`, whose ids take precedence over those of config.json.
const IN_GENERATION_CONFIG: &str = "`generation_config.json` in the same folder";

/// The BOS id, and all EOS ids.
type Ids = (Option<u32>, Vec<u32>);

fn ids_of_json(fields: &Map<String, Value>, generation: &Value) -> Result<Ids> {
    let ids = |name| match generation.get(name).filter(|value| !value.is_null()) {
        Some(value) => as_ids(name, value).context(IN_GENERATION_CONFIG),
        None => fields.get(name).map_or(Ok(Vec::new()), |value| as_ids(name, value)),
    };
    Ok((ids(BOS)?.first().copied(), ids(EOS)?))
}

fn ids_of_gguf(metadata: &BTreeMap<String, gguf::Value>) -> Result<Ids> {
    let id = |key: &str| {
        let Some(value) = metadata.get(key) else { return Ok(None) };
        let number = value.as_u64().and_then(|id| u32::try_from(id).ok());
        number
            .map(Some)
            .with_context(|| format!("metadata `{key}`: expected the id of a token, found {value}"))
    };
    let mut eos_ids: Vec<u32> = id(gguf::EOS_KEY)?.into_iter().collect();
    for key in gguf::OTHER_EOS_KEYS {
        eos_ids.extend(id(key)?.filter(|id| !eos_ids.contains(id)));
    }
    Ok((id(gguf::BOS_KEY)?, eos_ids))
}

/// The message for an id outside the vocabulary.
pub(crate) fn invalid_id(config: &Config) -> Option<String> {
    let size = config.vocabulary_size;
    let is_invalid = |id: &&u32| **id >= size;
    let invalid_bos = config.bos_id.iter().find(is_invalid).map(|id| (BOS, gguf::BOS_KEY, *id));
    let invalid_eos = || config.eos_ids.iter().find(is_invalid).map(|id| (EOS, gguf::EOS_KEY, *id));
    let (name, key, id) = invalid_bos.or_else(invalid_eos)?;
    let field = match config.format() {
        Format::Safetensors => {
            let value = config.fields().and_then(|fields| fields.get(name));
            let is_in_config =
                value.is_some_and(|value| as_ids(name, value).is_ok_and(|ids| ids.contains(&id)));
            if is_in_config { format!("`{name}`") } else { format!("{IN_GENERATION_CONFIG}: `{name}`") }
        }
        Format::Gguf => {
            let has_id = |key: &&str| config.raw.get(*key).and_then(Value::as_u64) == Some(id.into());
            format!("`{}`", [key].into_iter().chain(gguf::OTHER_EOS_KEYS).find(has_id).unwrap_or(key))
        }
    };
    Some(format!("{field}: expected the id of one of {size} tokens, found `{id}`"))
}

fn as_ids(name: &str, value: &Value) -> Result<Vec<u32>> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(values) => values.iter().map(|value| as_u32(name, value)).collect(),
        value => Ok(vec![as_u32(name, value)?]),
    }
}
