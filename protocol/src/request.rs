//! The requests that the orchestrator sends to an engine.

use std::fmt;

use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::MAX_INTEGER;

/// A line on an engine's stdin. A line without `type` is a `generate`. A line that is no JSON object, such as an empty line,
/// gets `failed` of kind `bad_request`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Request {
    Hello(Hello),
    Load(Load),
    Generate(Generate),
    Score(Score),
    Facts {},
    Cancel(Cancel),
    Shutdown {},
}

/// Pairs an answer or `cancel` with its request; needed only if requests overlap or are cancelled. A number is at most 2^53 - 1.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Id {
    Number(#[cfg_attr(test, schemars(range(max = crate::MAX_INTEGER)))] u64),
    Text(String),
}

/// Written by hand: serde's error for an untagged enum names only the Rust type, and not the types that are allowed.
impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IdVisitor)
    }
}

struct IdVisitor;

impl Visitor<'_> for IdVisitor {
    type Value = Id;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a number or a string")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Id, E> {
        exact(number).map(Id::Number)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Id, E> {
        Err(E::invalid_value(Unexpected::Signed(number), &"u64"))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Id, E> {
        Ok(Id::Text(text.into()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Hello {
    /// The version that the orchestrator speaks.
    pub protocol: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Load {
    /// A model folder or file.
    #[cfg_attr(test, schemars(length(min = 1)))]
    pub model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    #[cfg_attr(test, schemars(range(min = 1)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    #[cfg_attr(test, schemars(range(min = 1)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u32>,
    /// The engine's own options. An unknown option gets `failed` of kind `bad_request`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub options: Map<String, Value>,
}

/// Exactly one of the four prompt fields is present; `parse_request` checks that.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Generate {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    #[cfg_attr(test, schemars(length(min = 1)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_ids: Option<Vec<u32>>,
    #[cfg_attr(test, schemars(length(min = 1)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<Vec<String>>,
    #[cfg_attr(test, schemars(length(min = 1), inner(length(min = 1))))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts_ids: Option<Vec<Vec<u32>>>,
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub max_new_tokens: u32,
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub iterations: u32,
    #[cfg_attr(test, schemars(range(max = 1_000_000)))]
    pub warmup: u32,
    pub ignore_eos: bool,
    /// Absent: greedy, ties broken by the lowest id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    pub use_cache: bool,
    /// Whether the engine may use keys and values of earlier requests that begin with the same ids, and may keep those of this one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prefix_cache: bool,
    pub padding: Padding,
    #[serde(skip_serializing_if = "Speculation::is_off")]
    pub speculation: Speculation,
    pub stream: bool,
}

impl Default for Generate {
    fn default() -> Self {
        Self {
            id: None,
            prompt: None,
            prompt_ids: None,
            prompts: None,
            prompts_ids: None,
            max_new_tokens: 32,
            iterations: 1,
            warmup: 0,
            ignore_eos: false,
            sampling: None,
            use_cache: true,
            prefix_cache: false,
            padding: Padding::Left,
            speculation: Speculation::Off,
            stream: false,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, expecting = "a map")]
pub struct Sampling {
    /// 0 is greedy.
    #[cfg_attr(test, schemars(range(min = 0)))]
    pub temperature: f64,
    /// 0 keeps every token.
    pub top_k: u32,
    /// Absent keeps every token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(extend("exclusiveMinimum" = 0, "maximum" = 1)))]
    pub top_p: Option<f64>,
    #[cfg_attr(test, schemars(range(max = crate::MAX_INTEGER)))]
    #[serde(deserialize_with = "exact_seed")]
    pub seed: u64,
}

fn exact_seed<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    deserializer.deserialize_u64(ExactIntegerVisitor)
}

/// Checks the number while it is read, because only then does serde know its column.
struct ExactIntegerVisitor;

impl Visitor<'_> for ExactIntegerVisitor {
    type Value = u64;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("u64")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<u64, E> {
        exact(number)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<u64, E> {
        Err(E::invalid_value(Unexpected::Signed(number), &"u64"))
    }
}

/// Refuses a number that JavaScript may round.
fn exact<E: serde::de::Error>(number: u64) -> Result<u64, E> {
    match number <= MAX_INTEGER {
        true => Ok(number),
        false => Err(E::invalid_value(Unexpected::Unsigned(number), &"at most 9007199254740991")),
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    #[default]
    Left,
    Right,
    Packed,
}

/// How an engine drafts tokens, which the model then checks together. The output is the same as without drafts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Speculation {
    /// Every token is computed in a step of its own.
    #[default]
    Off,
    /// The draft is copied from the sequence: the tokens that followed when its last few tokens occurred before.
    PromptLookup,
}

impl Speculation {
    pub fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Score {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
    /// Token ids, verbatim: nothing is added. Each sequence needs at least two.
    #[cfg_attr(test, schemars(inner(length(min = 2))))]
    pub sequences: Vec<Vec<u32>>,
    /// Whether the answer also has the most likely id at each position. An engine may ignore this field.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub most_likely: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Cancel {
    pub id: Id,
}
