//! Converts tables to the files of Hugging Face's libraries: `tokenizer.json` and `tokenizer_config.json`.

use anyhow::Result;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::tables::{GPT2_SPLIT, unused_id_name};
use super::{PreTokenizer, TokenType, TokenizerKind, TokenizerTables};

/// SentencePiece's character for a space.
pub(super) const SPACE: &str = "\u{2581}";

impl TokenizerTables {
    /// The text of `tokenizer.json`.
    pub fn to_json(&self) -> Result<String> {
        self.check()?;
        let (normalizer, pre_tokenizer, decoder) = match &self.kind {
            TokenizerKind::ByteLevel { pre, nfc } => (
                if *nfc { json!({"type": "NFC"}) } else { Value::Null },
                pre_tokenizer_json(pre),
                byte_level(USE_REGEX),
            ),
            TokenizerKind::SentencePiece { space_prefix, .. } => {
                (space_normalizer(*space_prefix), Value::Null, space_decoder(*space_prefix))
            }
        };
        let is_sentence_piece = matches!(self.kind, TokenizerKind::SentencePiece { .. });
        let file = File {
            version: "1.0",
            truncation: (),
            padding: (),
            added_tokens: self.added_tokens(),
            normalizer,
            pre_tokenizer,
            post_processor: self.post_processor()?,
            decoder,
            model: Model {
                kind: "BPE",
                dropout: (),
                unk_token: self.unknown.map(|id| self.token("unknown", id)).transpose()?,
                continuing_subword_prefix: (),
                end_of_word_suffix: (),
                fuse_unk: is_sentence_piece,
                byte_fallback: is_sentence_piece,
                ignore_merges: matches!(self.kind, TokenizerKind::ByteLevel { pre, .. } if pre.ignore_merges),
                vocab: Vocabulary(self),
                merges: Merges(self),
            },
        };
        Ok(serde_json::to_string(&file)?)
    }

    /// The text of `tokenizer_config.json`. `context_tokens` becomes `model_max_length`.
    pub fn to_config_json(&self, context_tokens: Option<u32>) -> Result<String> {
        let name = |field: &str, id: Option<u32>| id.map(|id| self.token(field, id)).transpose();
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": name("bos", self.bos)?,
            "eos_token": name("eos", self.eos)?,
            "unk_token": name("unknown", self.unknown)?,
            "pad_token": name("padding", self.padding)?,
            "add_bos_token": self.add_bos.is_some(),
            "add_eos_token": self.add_eos.is_some(),
            "clean_up_tokenization_spaces": false,
        });
        if let Some(tokens) = context_tokens {
            config["model_max_length"] = tokens.into();
        }
        if let Some(template) = &self.chat_template {
            config["chat_template"] = template.as_str().into();
        }
        Ok(serde_json::to_string_pretty(&config)? + "\n")
    }

    fn added_tokens(&self) -> Vec<Value> {
        let added =
            (0_u32..).zip(self.tokens.iter().zip(&self.types)).filter(|(_, (_, kind))| kind.is_added());
        let entry = |(id, (content, kind)): (u32, (&String, &TokenType))| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind != TokenType::UserDefined,
            })
        };
        added.map(entry).collect()
    }

    /// The tokens to add around every text.
    fn post_processor(&self) -> Result<Value> {
        let mut special_tokens = serde_json::Map::new();
        let mut special = |field: &str, id: Option<u32>, type_id: u32| -> Result<Option<Value>> {
            let Some(id) = id else { return Ok(None) };
            let token = self.token(field, id)?;
            special_tokens.insert(token.into(), json!({"id": token, "ids": [id], "tokens": [token]}));
            Ok(Some(json!({"SpecialToken": {"id": token, "type_id": type_id}})))
        };
        let mut with_added_tokens = |name: &str, type_id: u32| -> Result<Vec<Value>> {
            let text = json!({"Sequence": {"id": name, "type_id": type_id}});
            let before = special("add_bos", self.add_bos, type_id)?;
            let after = special("add_eos", self.add_eos, type_id)?;
            Ok([before, Some(text), after].into_iter().flatten().collect())
        };
        let (single, second) = (with_added_tokens("A", 0)?, with_added_tokens("B", 1)?);
        if single.len() == 1 {
            return Ok(Value::Null);
        }
        let pair = [single.clone(), second].concat();
        Ok(json!({
            "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special_tokens,
        }))
    }

    /// Whether an id exists only to fill the model's vocabulary; `tokenizer.json` omits it.
    fn is_unused_id(&self, id: u32) -> bool {
        let index = id as usize;
        self.types.get(index) == Some(&TokenType::Unused)
            && self.tokens.get(index).is_some_and(|token| *token == unused_id_name(id))
    }
}

const USE_REGEX: bool = true;
fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

pub(super) fn pre_tokenizer_json(pre: &PreTokenizer) -> Value {
    if pre.splits == [GPT2_SPLIT] {
        return byte_level(USE_REGEX);
    }
    let split = |regex: &&str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let mut steps: Vec<Value> = pre.splits.iter().map(split).collect();
    steps.push(byte_level(!USE_REGEX));
    json!({"type": "Sequence", "pretokenizers": steps})
}

fn space_normalizer(space_prefix: bool) -> Value {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    if !space_prefix {
        return replace;
    }
    json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]})
}

fn space_decoder(space_prefix: bool) -> Value {
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if space_prefix {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}

#[derive(Serialize)]
struct File<'a> {
    version: &'static str,
    truncation: (),
    padding: (),
    added_tokens: Vec<Value>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Model<'a>,
}

#[derive(Serialize)]
struct Model<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    dropout: (),
    unk_token: Option<&'a str>,
    continuing_subword_prefix: (),
    end_of_word_suffix: (),
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: Vocabulary<'a>,
    merges: Merges<'a>,
}

/// Token to id, in the order of ids.
struct Vocabulary<'a>(&'a TokenizerTables);

impl Serialize for Vocabulary<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ids = (0_u32..).zip(&self.0.tokens).filter(|(id, _)| !self.0.is_unused_id(*id));
        serializer.collect_map(ids.map(|(id, token)| (token, id)))
    }
}

/// Merges as pairs of texts. `check` has checked that every id has a text.
struct Merges<'a>(&'a TokenizerTables);

impl Serialize for Merges<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = |id: u32| self.0.tokens.get(id as usize);
        serializer.collect_seq(self.0.merges.iter().map(|&(left, right)| (text(left), text(right))))
    }
}
