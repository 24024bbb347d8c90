//! The facts of a tokenizer, found without building it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::Config;

#[derive(serde::Serialize, Debug, Clone, PartialEq, Eq)]
pub struct TokenizerFacts {
    /// `byte-level BPE`, `SentencePiece-like BPE`, or the name of another algorithm in its file: `Unigram`.
    pub kind: String,
    /// The number of ids with a token; in GGUF every id has one.
    pub entries: u64,
    /// `None` if there are no entries.
    pub highest_id: Option<u32>,
    pub chat_template: bool,
    /// The file with these facts.
    pub source: PathBuf,
}

const BYTE_LEVEL: &str = "byte-level BPE";
const SENTENCE_PIECE: &str = "SentencePiece-like BPE";

/// The facts of a `tokenizer.json` and the files beside it.
pub(crate) fn facts_of_json(path: &Path) -> Result<TokenizerFacts> {
    let bytes = std::fs::read(path).with_context(|| format!("`{}`", path.display()))?;
    let file: File = serde_json::from_slice(&bytes).with_context(|| format!("`{}`", path.display()))?;
    let (model, added) = (file.model.unwrap_or_default(), file.added_tokens);
    let mut vocabulary = model.vocab.with_context(|| format!("`{}`: no `model.vocab`", path.display()))?.0;
    vocabulary.sort_unstable();
    let added_only = added.iter().filter(|added| vocabulary.binary_search(&added.id).is_err()).count();
    let byte_level = mentions_byte_level(&file.pre_tokenizer) || mentions_byte_level(&file.decoder);
    let kind = match model.kind.as_deref() {
        Some("BPE") | None if model.byte_fallback == Some(true) => SENTENCE_PIECE.into(),
        Some("BPE") | None if byte_level => BYTE_LEVEL.into(),
        other => other.unwrap_or("BPE").to_string(),
    };
    let entries = (vocabulary.len() + added_only) as u64;
    let highest_id = vocabulary.last().copied().max(added.iter().map(|added| added.id).max());
    let chat_template = has_template(path.parent().unwrap_or(Path::new("")))?;
    Ok(TokenizerFacts { kind, entries, highest_id, chat_template, source: path.into() })
}

/// The facts of the tokenizer in a GGUF file; the config holds the file's metadata.
pub(crate) fn facts_of_gguf(path: &Path, config: &Config) -> Option<TokenizerFacts> {
    let entries = config.raw.get("tokenizer.ggml.tokens")?.get("array")?.as_u64()?;
    let kind = match config.raw.get("tokenizer.ggml.model")?.as_str()? {
        "gpt2" => BYTE_LEVEL.into(),
        "llama" => SENTENCE_PIECE.into(),
        other => other.to_string(),
    };
    let chat_template = config.raw.get("tokenizer.chat_template").is_some();
    let highest_id = u32::try_from(entries).ok().and_then(|entries| entries.checked_sub(1));
    Some(TokenizerFacts { kind, entries, highest_id, chat_template, source: path.into() })
}

fn has_template(folder: &Path) -> Result<bool> {
    #[derive(Deserialize)]
    struct Config {
        chat_template: Option<IgnoredAny>,
    }
    if folder.join("chat_template.jinja").is_file() {
        return Ok(true);
    }
    let path = folder.join("tokenizer_config.json");
    if !path.is_file() {
        return Ok(false);
    }
    let bytes = std::fs::read(&path).with_context(|| format!("`{}`", path.display()))?;
    let config: Config = serde_json::from_slice(&bytes).with_context(|| format!("`{}`", path.display()))?;
    Ok(config.chat_template.is_some())
}

fn mentions_byte_level(step: &Value) -> bool {
    let is_byte_level = |step: &Value| step["type"] == "ByteLevel";
    let inner = step.get("pretokenizers").or_else(|| step.get("decoders")).and_then(Value::as_array);
    is_byte_level(step) || inner.is_some_and(|steps| steps.iter().any(is_byte_level))
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    model: Option<Model>,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
}

#[derive(Default, Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    byte_fallback: Option<bool>,
    vocab: Option<Ids>,
}

/// The ids of a vocabulary, without their texts. Unigram has a list, and the index is the id.
struct Ids(Vec<u32>);

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IdsVisitor)
    }
}

struct IdsVisitor;

impl<'de> Visitor<'de> for IdsVisitor {
    type Value = Ids;

    fn expecting(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str("a vocabulary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ids, A::Error> {
        let mut ids = Vec::new();
        while map.next_key::<IgnoredAny>()?.is_some() {
            ids.push(map.next_value()?);
        }
        Ok(Ids(ids))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Ids, A::Error> {
        let mut count = 0_u32;
        while sequence.next_element::<IgnoredAny>()?.is_some() {
            count = count.checked_add(1).ok_or_else(|| A::Error::custom("too many tokens"))?;
        }
        Ok(Ids((0..count).collect()))
    }
}
