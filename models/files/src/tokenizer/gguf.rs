//! Converts tokenizer tables to GGUF metadata and back, with llama.cpp's meaning of each key.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::tables::{ids_by_token, merge_ids, unused_id_name};
use super::{PreTokenizer, TokenType, TokenizerKind, TokenizerTables};
use crate::gguf::{
    BOS_KEY as BOS, EOS_KEY as EOS, Header, Value, ValueToWrite, read_f32s, read_i32s, read_texts,
};
use crate::text::printable;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const PADDING: &str = "tokenizer.ggml.padding_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";
const TEMPLATE: &str = "tokenizer.chat_template";

impl TokenizerTables {
    /// The metadata that llama.cpp reads. llama.cpp needs a token for each of the model's `vocabulary` ids, so ids without a
    /// token get a name.
    pub fn to_gguf(&self, vocabulary: u32) -> Result<Vec<(String, ValueToWrite)>> {
        self.check()?;
        let length = vocabulary as usize;
        ensure!(
            self.tokens.len() <= length,
            "the tokenizer has {} tokens, the model {vocabulary}",
            self.tokens.len()
        );
        // llama.cpp has one BOS and one EOS, and for each a flag whether it is added to a text.
        let (bos, eos) = (self.add_bos.or(self.bos), self.add_eos.or(self.eos));
        let mut tokens = self.tokens.clone();
        tokens.extend((self.tokens.len() as u32..vocabulary).map(unused_id_name));
        let mut types: Vec<i32> = self.types.iter().map(|&kind| kind as i32).collect();
        types.resize(length, TokenType::Unused as i32);
        let mut entries = Vec::new();
        let mut add = |key: &str, value| entries.push((key.to_string(), value));
        match &self.kind {
            TokenizerKind::ByteLevel { pre, .. } => {
                add(MODEL, ValueToWrite::Text("gpt2".into()));
                add(PRE, ValueToWrite::Text(pre.name().into()));
                add(MERGES, ValueToWrite::Texts(self.merge_texts()?));
            }
            TokenizerKind::SentencePiece { space_prefix, scores } => {
                let lowest = scores.iter().copied().fold(0.0, f32::min);
                let mut scores = scores.clone();
                scores.resize(length, lowest);
                add(MODEL, ValueToWrite::Text("llama".into()));
                add(PRE, ValueToWrite::Text("default".into()));
                add(SCORES, ValueToWrite::F32s(scores));
                add(ADD_SPACE, ValueToWrite::Bool(*space_prefix));
            }
        }
        add(TOKENS, ValueToWrite::Texts(tokens));
        add(TYPES, ValueToWrite::I32s(types));
        for (key, id) in [(BOS, bos), (EOS, eos), (UNKNOWN, self.unknown), (PADDING, self.padding)] {
            if let Some(id) = id {
                add(key, ValueToWrite::U32(id));
            }
        }
        // Both flags are always written: their defaults differ between values of `pre`.
        add(ADD_BOS, ValueToWrite::Bool(self.add_bos.is_some()));
        add(ADD_EOS, ValueToWrite::Bool(self.add_eos.is_some()));
        if let Some(template) = &self.chat_template {
            add(TEMPLATE, ValueToWrite::Text(template.clone()));
        }
        Ok(entries)
    }

    fn merge_texts(&self) -> Result<Vec<String>> {
        let text = |(index, &(left, right)): (usize, &(u32, u32))| {
            let (left, right) = (self.token("merge", left)?, self.token("merge", right)?);
            ensure!(!left.contains(' ') && !right.contains(' '), "merge {index} contains a space");
            Ok(format!("{left} {right}"))
        };
        self.merges.iter().enumerate().map(text).collect()
    }
}

/// The tables of a GGUF file with this header.
pub fn from_gguf(path: &Path, header: &Header) -> Result<TokenizerTables> {
    let tables = TablesReader { path, header }.read();
    tables.with_context(|| format!("`{}`", path.display()))
}

struct TablesReader<'a> {
    path: &'a Path,
    header: &'a Header,
}

/// The values for missing fields: llama.cpp's, except for BOS and EOS of byte-level tokenizers.
struct Defaults {
    adds_bos: bool,
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
}

impl TablesReader<'_> {
    fn read(&self) -> Result<TokenizerTables> {
        let mut tokens = read_texts(self.path, self.header, TOKENS)?;
        for (id, token) in tokens.iter_mut().enumerate().filter(|(_, token)| token.is_empty()) {
            *token = format!("[EMPTY_{id}]"); // The name in llama.cpp. No text has this token.
        }
        self.check_vocabulary(tokens.len())?;
        ids_by_token(&tokens).with_context(|| format!("metadata `{TOKENS}`"))?;
        let types = self.types(tokens.len())?;
        let tables = match self.text(MODEL)?.with_context(|| format!("metadata `{MODEL}` is missing"))? {
            "gpt2" => self.byte_level(tokens, types)?,
            "llama" => self.sentence_piece(tokens, types)?,
            other => {
                bail!("metadata `{MODEL}` is `{}`; this program reads `gpt2` and `llama`", printable(other))
            }
        };
        tables.check()?;
        Ok(tables)
    }

    fn byte_level(&self, tokens: Vec<String>, types: Vec<TokenType>) -> Result<TokenizerTables> {
        let name = self.text(PRE)?.unwrap_or("default");
        let pre = PreTokenizer::named(name);
        let pre =
            pre.with_context(|| format!("metadata `{PRE}`: unknown pre-tokenizer `{}`", printable(name)))?;
        // A merge is `left right`. Byte-level tokens contain no space.
        let merges = read_texts(self.path, self.header, MERGES)?;
        let merges = merge_ids(merges.iter().map(|merge| merge.split_once(' ')), &ids_by_token(&tokens)?)
            .with_context(|| format!("metadata `{MERGES}`"))?;
        // llama.cpp defaults BOS and EOS to Falcon's id 11; here the file must name them.
        let defaults = Defaults { adds_bos: pre.adds_bos, bos: None, eos: None, unknown: None };
        self.finish(TokenizerKind::ByteLevel { pre, nfc: pre.nfc }, tokens, types, merges, defaults)
    }

    fn sentence_piece(&self, tokens: Vec<String>, types: Vec<TokenType>) -> Result<TokenizerTables> {
        let scores = read_f32s(self.path, self.header, SCORES)?;
        ensure!(
            scores.len() == tokens.len(),
            "metadata `{SCORES}` has {} entries, `{TOKENS}` {}",
            scores.len(),
            tokens.len()
        );
        let merges = merges_by_score(&tokens, &types, &scores)?;
        let space_prefix = self.bool(ADD_SPACE)?.unwrap_or(true);
        let defaults = Defaults { adds_bos: true, bos: Some(1), eos: Some(2), unknown: Some(0) };
        self.finish(TokenizerKind::SentencePiece { space_prefix, scores }, tokens, types, merges, defaults)
    }

    fn finish(
        &self,
        kind: TokenizerKind,
        tokens: Vec<String>,
        types: Vec<TokenType>,
        merges: Vec<(u32, u32)>,
        defaults: Defaults,
    ) -> Result<TokenizerTables> {
        let length = tokens.len();
        let (bos, eos) = (self.id(BOS, defaults.bos, length)?, self.id(EOS, defaults.eos, length)?);
        let added_id = |flag_key: &str, default: bool, key: &str, id: Option<u32>| -> Result<Option<u32>> {
            if !self.bool(flag_key)?.unwrap_or(default) {
                return Ok(None);
            }
            id.with_context(|| format!("`{flag_key}` is true, and metadata `{key}` is missing")).map(Some)
        };
        Ok(TokenizerTables {
            kind,
            types,
            merges,
            bos,
            eos,
            unknown: self.id(UNKNOWN, defaults.unknown, length)?,
            padding: self.id(PADDING, None, length)?,
            add_bos: added_id(ADD_BOS, defaults.adds_bos, BOS, bos)?,
            add_eos: added_id(ADD_EOS, false, EOS, eos)?,
            chat_template: self.text(TEMPLATE)?.map(str::to_string),
            tokens,
        })
    }

    fn id(&self, key: &str, default: Option<u32>, tokens: usize) -> Result<Option<u32>> {
        let is_token = |id: &u32| (*id as usize) < tokens;
        let Some(value) = self.header.metadata.get(key) else { return Ok(default.filter(is_token)) };
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(is_token);
        id.map(Some).with_context(|| {
            format!("metadata `{key}`: expected the id of one of {tokens} tokens, found {value}")
        })
    }

    /// Checks that the file's embedding matrix has a row for each token.
    fn check_vocabulary(&self, tokens: usize) -> Result<()> {
        let embedding = self.header.tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
        let rows = embedding.and_then(|tensor| tensor.shape.first());
        ensure!(
            rows.is_none_or(|&rows| rows == tokens as u64),
            "metadata `{TOKENS}` has {tokens} entries, tensor `token_embd.weight` {} rows",
            rows.copied().unwrap_or_default()
        );
        Ok(())
    }

    fn types(&self, tokens: usize) -> Result<Vec<TokenType>> {
        if !self.header.metadata.contains_key(TYPES) {
            return Ok(vec![TokenType::Normal; tokens]);
        }
        let numbers = read_i32s(self.path, self.header, TYPES)?;
        ensure!(
            numbers.len() == tokens,
            "metadata `{TYPES}` has {} entries, `{TOKENS}` {tokens}",
            numbers.len()
        );
        // A token with an undefined type is an ordinary one, as in llama.cpp.
        let type_of = |number: i32| TokenType::ALL.into_iter().find(|&kind| kind as i32 == number);
        Ok(numbers.into_iter().map(|number| type_of(number).unwrap_or(TokenType::Normal)).collect())
    }

    fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.header.metadata.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => bail!("metadata `{key}`: expected a text, found {other}"),
        }
    }

    fn bool(&self, key: &str) -> Result<Option<bool>> {
        match self.header.metadata.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => bail!("metadata `{key}`: expected true or false, found {other}"),
        }
    }
}

/// llama.cpp has no list of merges for this kind: it merges any two neighbours that form a token, the best score first. So
/// each split of a token into two tokens is a merge. With equal scores llama.cpp takes the leftmost pair and this list the
/// lowest id. In SentencePiece vocabularies the scores of merged tokens all differ.
fn merges_by_score(tokens: &[String], types: &[TokenType], scores: &[f32]) -> Result<Vec<(u32, u32)>> {
    let ids = ids_by_token(tokens)?;
    let is_piece = |id: u32| matches!(types[id as usize], TokenType::Normal | TokenType::UserDefined);
    let piece = |text: &str| ids.get(text).copied().filter(|&id| is_piece(id));
    let mut order: Vec<u32> = (0_u32..).take(tokens.len()).filter(|&id| is_piece(id)).collect();
    order.sort_by(|&left, &right| scores[right as usize].total_cmp(&scores[left as usize]));
    let mut merges = Vec::new();
    for id in order {
        let token = tokens[id as usize].as_str();
        // The limit bounds the time for all cuts of a token, which grows with the square of its length.
        ensure!(
            token.len() <= MAX_TOKEN_BYTES,
            "token {id} is {} bytes long; {MAX_TOKEN_BYTES} is the limit",
            token.len()
        );
        for (cut, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(cut);
            merges.extend(piece(left).zip(piece(right)));
        }
    }
    Ok(merges)
}

/// The longest accepted token. The longest of llama 2 has 48 bytes, of gemma 93.
const MAX_TOKEN_BYTES: usize = 1024;
