//! Facts: timestamps, token ids, byte counts, names. No rate, no ratio, no average.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The name, version and capabilities of an engine, answered before any heavy import.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HelloFacts {
    pub protocol: u32,
    pub engine: String,
    pub version: String,
    #[serde(default)]
    pub output: Output,
    #[serde(default)]
    pub stamp: Stamp,
    /// The same greedy request in the same launch gives the same ids.
    #[serde(default)]
    pub deterministic: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<Build>,
    #[serde(default)]
    pub capabilities: Capabilities,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Output {
    #[default]
    Ids,
    Text,
}

/// The precision of a token's time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stamp {
    #[default]
    Token,
    Chunk,
    End,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Build {
    pub features: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_cpu: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Capabilities {
    pub devices: Vec<String>,
    /// The engine's usual default comes first. A `load` without a dtype may choose by device and model.
    pub dtypes: Vec<String>,
    /// The names of the options that `load` accepts. Absent: unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<Vec<String>>,
    pub formats: Vec<String>,
    pub architectures: Vec<String>,
    pub stream: bool,
    /// Whether the engine takes text: `prompt` and `prompts`. An engine without a tokenizer says `false`, and text gets `failed`
    /// of kind `unsupported`.
    pub prompt: bool,
    /// Whether the engine takes ids: `prompt_ids` and `prompts_ids`.
    pub prompt_ids: bool,
    /// The largest batch.
    pub batch: u32,
    /// The most requests that may overlap.
    pub concurrency: u32,
    pub use_cache_toggle: bool,
    /// Whether the engine obeys `prefix_cache`: it keeps keys and values across requests, but only where they allow it.
    pub prefix_cache_toggle: bool,
    pub padding_sides: Vec<crate::Padding>,
    /// The kinds of speculation that a request may name. Kinds of a later version are left out.
    #[serde(deserialize_with = "known_kinds")]
    pub speculation: Vec<crate::Speculation>,
    pub ignore_eos: IgnoreEos,
    pub sampling: bool,
    pub score: bool,
    /// Whether the engine answers the request `facts`.
    pub facts: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            devices: vec!["cpu".into()],
            dtypes: Vec::new(),
            options: None,
            formats: Vec::new(),
            architectures: Vec::new(),
            stream: false,
            prompt: true,
            prompt_ids: false,
            batch: 1,
            concurrency: 1,
            use_cache_toggle: false,
            prefix_cache_toggle: false,
            padding_sides: Vec::new(),
            speculation: Vec::new(),
            ignore_eos: IgnoreEos::No,
            sampling: false,
            score: false,
            facts: false,
        }
    }
}

fn known_kinds<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<crate::Speculation>, D::Error> {
    let words = Vec::<String>::deserialize(deserializer)?;
    let known = |word: String| serde_json::from_value(word.into()).ok();
    Ok(words.into_iter().filter_map(known).collect())
}

/// Whether an engine can continue past the end-of-sequence token. On the wire: `"exact"`, `"masked"` or `false`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IgnoreEos {
    /// EOS is an ordinary token: neither masked nor acted on.
    Exact,
    /// EOS is made unreachable.
    Masked,
    #[default]
    No,
}

/// The configuration **in effect** after a load, and how long its phases took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Loaded {
    pub load_ns: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// Processes that work for the engine and are not its children.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pids: Vec<u32>,
    #[serde(flatten)]
    pub facts: Facts,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Phase {
    pub name: String,
    pub ns: u64,
}

/// The facts that an engine knows about itself. An absent field is unknown, never zero.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Facts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights_dtype: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_dtype: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_dtype: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_cache: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<u32>,
    /// The attention heads of a layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<u32>,
    /// The heads of keys and values, which several attention heads may share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_heads: Option<u32>,
    /// The dimensions of a head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<u32>,
    /// The inner width of the feed-forward.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intermediate_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eos_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bos_id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_cache: Option<bool>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub libraries: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<DeviceMemory>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceMemory {
    pub in_use_bytes: u64,
    pub peak_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
}

/// One generation for all prompts. Every `*_ns` counts from the moment when the engine had read the whole request line.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Iteration {
    /// The time just before tokenising, after any load.
    pub start_ns: u64,
    pub end_ns: u64,
    pub sequences: Vec<Sequence>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Sequence {
    /// The number of prompt tokens, with BOS and without padding.
    pub prompt_tokens: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_ids: Option<Vec<u32>>,
    /// The time when the host could first use each id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ns: Option<Vec<u64>>,
    /// The output of text engines, in place of `output_ids` and `token_ns`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<Vec<Chunk>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u32>,
    /// The source of `output_tokens`: `usage`, `retokenised`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count_source: Option<String>,
    pub finish: Finish,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_prompt_tokens: Option<u32>,
    /// The tokens that the engine drafted and the model checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drafted_tokens: Option<u32>,
    /// The drafted tokens that are part of the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_tokens: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Chunk {
    pub ns: u64,
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    #[default]
    Length,
    Eos,
    Cancelled,
}

/// `IgnoreEos` on the wire: a word, or false.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
enum WordOrFalse {
    Word(IgnoreEosWord),
    No(bool),
}

#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
enum IgnoreEosWord {
    Exact,
    Masked,
}

impl Serialize for IgnoreEos {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Exact => serializer.serialize_str("exact"),
            Self::Masked => serializer.serialize_str("masked"),
            Self::No => serializer.serialize_bool(false),
        }
    }
}

impl<'de> Deserialize<'de> for IgnoreEos {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match WordOrFalse::deserialize(deserializer) {
            Ok(WordOrFalse::Word(IgnoreEosWord::Exact)) => Ok(Self::Exact),
            Ok(WordOrFalse::Word(IgnoreEosWord::Masked)) => Ok(Self::Masked),
            Ok(WordOrFalse::No(false)) => Ok(Self::No),
            _ => Err(serde::de::Error::custom("expected `\"exact\"`, `\"masked\"` or `false`")),
        }
    }
}

#[cfg(test)]
impl schemars::JsonSchema for IgnoreEos {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "IgnoreEos".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "enum": ["exact", "masked", false] })
    }
}
