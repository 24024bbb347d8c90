//! The facts of a tokenizer, found without building it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::Value;

use crate::Config;

#[derive(serde::Serialize, Debug, Clone, PartialEq, Eq)]
pub struct TokenizerFacts {
    /// `byte-level BPE`, `SentencePiece-like BPE`, or the model's name in its file: `Unigram`.
    pub kind: String,
    /// The number of ids with a token.
    pub entries: u64,
    /// `None` without entries.
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
    let Seen { added, pre_tokenizer, decoder, model, .. } =
        skim(&bytes).with_context(|| format!("`{}`", path.display()))?;
    let mut vocabulary = model.vocab.with_context(|| format!("`{}`: no `model.vocab`", path.display()))?.ids;
    vocabulary.sort_unstable();
    let added = added.unwrap_or_default();
    let more = added.iter().filter(|added| vocabulary.binary_search(&added.id).is_err()).count();
    let byte_level = mentions_byte_level(&pre_tokenizer) || mentions_byte_level(&decoder);
    let kind = match model.kind.as_deref() {
        Some("BPE") | None if model.byte_fallback => SENTENCE_PIECE.into(),
        Some("BPE") | None if byte_level => BYTE_LEVEL.into(),
        named => named.unwrap_or("BPE").to_string(),
    };
    let entries = (vocabulary.len() + more) as u64;
    let highest_id = vocabulary.last().copied().max(added.iter().map(|added| added.id).max());
    let chat_template = has_template(path.parent().unwrap_or(Path::new("")))?;
    Ok(TokenizerFacts { kind, entries, highest_id, chat_template, source: path.into() })
}

/// The facts of a GGUF file; the config holds its metadata.
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

/// The fields of a `tokenizer.json` read so far.
#[derive(Default)]
struct Seen {
    added: Option<Vec<Added>>,
    pre_tokenizer: Value,
    decoder: Value,
    model: Model,
    /// Whether the facts are complete, so that the merges, the largest and last part of the file, need not be read.
    enough: bool,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
}

#[derive(Default)]
struct Model {
    kind: Option<String>,
    byte_fallback: bool,
    vocab: Option<Vocabulary>,
}

/// Reads until everything is known, then stops by an error: the reader cannot end early in another way.
fn skim(bytes: &[u8]) -> Result<Seen> {
    let mut seen = Seen::default();
    let read = Top(&mut seen).deserialize(&mut serde_json::Deserializer::from_slice(bytes));
    match read {
        Err(error) if !seen.enough => Err(error.into()),
        _ => Ok(seen),
    }
}

struct Top<'a>(&'a mut Seen);

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str("a tokenizer")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut decoder_seen = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "added_tokens" => self.0.added = Some(map.next_value()?),
                "pre_tokenizer" => self.0.pre_tokenizer = map.next_value()?,
                "decoder" => {
                    self.0.decoder = map.next_value()?;
                    decoder_seen = true;
                }
                "model" => {
                    let may_stop = self.0.added.is_some() && decoder_seen;
                    map.next_value_seed(ModelOf { seen: self.0, may_stop })?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

struct ModelOf<'a> {
    seen: &'a mut Seen,
    /// The fields beside the model have been read, so reading may stop.
    may_stop: bool,
}

impl<'de> DeserializeSeed<'de> for ModelOf<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ModelOf<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str("a model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut fallback_seen = false;
        while let Some(key) = map.next_key::<String>()? {
            let model = &mut self.seen.model;
            match key.as_str() {
                "type" => model.kind = Some(map.next_value()?),
                "byte_fallback" => {
                    model.byte_fallback = map.next_value::<Option<bool>>()?.unwrap_or_default();
                    fallback_seen = true;
                }
                "vocab" => model.vocab = Some(map.next_value()?),
                "merges"
                    if self.may_stop && fallback_seen && model.kind.is_some() && model.vocab.is_some() =>
                {
                    self.seen.enough = true;
                    return Err(de::Error::custom("no more is needed"));
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// The ids of a vocabulary, without their texts. Unigram has a list, and the index is the id.
struct Vocabulary {
    ids: Vec<u32>,
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VocabularyVisitor)
    }
}

struct VocabularyVisitor;

impl<'de> Visitor<'de> for VocabularyVisitor {
    type Value = Vocabulary;

    fn expecting(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str("a vocabulary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
        let mut ids = Vec::new();
        while map.next_key::<IgnoredAny>()?.is_some() {
            ids.push(map.next_value()?);
        }
        Ok(Vocabulary { ids })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vocabulary, A::Error> {
        let mut count = 0_u32;
        while sequence.next_element::<IgnoredAny>()?.is_some() {
            count = count.checked_add(1).ok_or_else(|| de::Error::custom("too many tokens"))?;
        }
        Ok(Vocabulary { ids: (0..count).collect() })
    }
}
