//! Reads tables from `tokenizer.json`, for the two families of BPE that GGUF supports.
//!
//! Every other setting is refused by name: a GGUF without that step would silently give other ids.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::steps::{UNUSABLE, around, composes, id_of, pre, space_prefix};
use super::tables::{ids_by_token, padding_name};
use super::{TokenType, TokenizerKind, TokenizerTables, facts_of_json};
use crate::text::shown;

/// Reads `tokenizer.json`, and the files beside it for the names of special tokens and the chat template.
pub fn from_json(path: &Path) -> Result<TokenizerTables> {
    let kind = facts_of_json(path)?.kind;
    let mut tables = read(path, &kind).with_context(|| format!("`{}`", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let config = folder.join("tokenizer_config.json");
    if config.is_file() {
        add_config(&mut tables, &config).with_context(|| format!("`{}`", config.display()))?;
    }
    let template = folder.join("chat_template.jinja");
    if template.is_file() {
        let read = std::fs::read_to_string(&template).with_context(|| format!("`{}`", template.display()))?;
        tables.chat_template = Some(read);
    }
    Ok(tables)
}

/// The most unused ids between tokens; no real vocabulary has more.
const MAX_HOLES: usize = 1 << 16;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    /// The form of files before 2024: no token holds a space.
    Text(String),
}

fn read(path: &Path, kind: &str) -> Result<TokenizerTables> {
    ensure!(kind.ends_with("BPE"), "the tokenizer is {kind}; {UNUSABLE}");
    let file: File = serde_json::from_slice(&std::fs::read(path)?)?;
    let affixes = [&file.model.continuing_subword_prefix, &file.model.end_of_word_suffix];
    let affix = affixes.into_iter().flatten().find(|affix| !affix.is_empty());
    ensure!(affix.is_none(), "tokens are marked with `{}`; {UNUSABLE}", affix.map_or("", String::as_str));
    let (tokens, mut types) = tokens(&file)?;
    let ids = ids_by_token(&tokens)?;
    let merges = merges(&file.model.merges, &ids)?;
    let unknown = file.model.unk_token.as_deref().map(|token| id_of(&ids, "unk_token", token)).transpose()?;
    let (add_bos, add_eos) = around(file.post_processor.as_ref(), &ids)?;
    let (normalizer, pre_tokenizer) = (file.normalizer.as_ref(), file.pre_tokenizer.as_ref());
    let kind = if file.model.byte_fallback {
        for (token, kind) in tokens.iter().zip(&mut types) {
            if *kind == TokenType::Normal && is_byte(token) {
                *kind = TokenType::Byte;
            }
        }
        let space_prefix = space_prefix(normalizer, pre_tokenizer)?;
        TokenizerKind::SentencePiece { space_prefix, scores: scores(tokens.len(), &merges, &tokens, &ids) }
    } else {
        let pre = pre(pre_tokenizer, file.model.ignore_merges)?;
        TokenizerKind::ByteLevel { pre, nfc: composes(normalizer)? }
    };
    if let Some(id) = unknown {
        types[id as usize] = TokenType::Unknown;
    }
    Ok(TokenizerTables {
        kind,
        types,
        merges,
        bos: add_bos,
        eos: add_eos,
        unknown,
        padding: None,
        add_bos,
        add_eos,
        chat_template: None,
        tokens,
    })
}

/// Tokens by id, with names for the unused ids between them.
fn tokens(file: &File) -> Result<(Vec<String>, Vec<TokenType>)> {
    let vocabulary = file.model.vocab.iter().map(|(token, &id)| (id, token, TokenType::Normal));
    let added = file.added_tokens.iter().map(|added| {
        let kind = if added.special { TokenType::Control } else { TokenType::UserDefined };
        (added.id, &added.content, kind)
    });
    let entries: Vec<_> = vocabulary.chain(added).collect();
    let length = entries.iter().map(|&(id, ..)| id as usize + 1).max().context("`vocab` is empty")?;
    ensure!(length <= entries.len() + MAX_HOLES, "id {} among {} tokens", length - 1, entries.len());
    let mut tokens: Vec<Option<&String>> = vec![None; length];
    let mut types = vec![TokenType::Unused; length];
    for (id, token, kind) in entries {
        let other = tokens[id as usize].replace(token).filter(|other| *other != token);
        let shown = |text: &String| shown(text);
        ensure!(
            other.is_none(),
            "id {id} is both `{}` and `{}`",
            other.map_or_else(String::new, shown),
            shown(token)
        );
        types[id as usize] = kind;
    }
    let named =
        tokens.into_iter().zip(0..).map(|(token, id)| token.cloned().unwrap_or_else(|| padding_name(id)));
    Ok((named.collect(), types))
}

fn merges(merges: &[Merge], ids: &HashMap<&str, u32>) -> Result<Vec<(u32, u32)>> {
    let mut found = Vec::with_capacity(merges.len());
    for (index, merge) in merges.iter().enumerate() {
        let (left, right) = match merge {
            Merge::Pair(left, right) => (left.as_str(), right.as_str()),
            Merge::Text(text) => text.split_once(' ').with_context(|| format!("merge {index}: one text"))?,
        };
        let what = format!("merge {index}");
        id_of(ids, &what, &format!("{left}{right}"))?;
        found.push((id_of(ids, &what, left)?, id_of(ids, &what, right)?));
    }
    Ok(found)
}

/// The score of a token: the negative rank of the first merge that makes it, because llama.cpp merges the best score first.
/// A token without a merge scores below all others. llama.cpp would still make it; `tokenizers` never does.
fn scores(length: usize, merges: &[(u32, u32)], tokens: &[String], ids: &HashMap<&str, u32>) -> Vec<f32> {
    let mut scores: Vec<Option<f32>> = vec![None; length];
    for (rank, &(left, right)) in merges.iter().enumerate() {
        let whole = format!("{}{}", tokens[left as usize], tokens[right as usize]);
        if let Some(&id) = ids.get(whole.as_str()) {
            scores[id as usize].get_or_insert(-(rank as f32));
        }
    }
    scores.into_iter().map(|score| score.unwrap_or(-(merges.len() as f32))).collect()
}

fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// Sets the tokens that begin, end and pad a text, from `tokenizer_config.json`.
fn add_config(tables: &mut TokenizerTables, path: &Path) -> Result<()> {
    let config: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let named = |key: &str| {
        let value = config.get(key)?;
        let content = value.as_str().or_else(|| value.get("content")?.as_str())?;
        tables.tokens.iter().position(|token| token == content).and_then(|id| u32::try_from(id).ok())
    };
    let (bos, eos, padding) = (named("bos_token"), named("eos_token"), named("pad_token"));
    let unknown = named("unk_token");
    tables.bos = bos.or(tables.bos);
    tables.eos = eos.or(tables.eos);
    tables.padding = padding;
    // gpt2 names its end of text here, but byte-level tokens never leave a text unknown.
    if matches!(tables.kind, TokenizerKind::SentencePiece { .. }) {
        tables.unknown = tables.unknown.or(unknown);
    }
    tables.chat_template = config.get("chat_template").and_then(template);
    Ok(())
}

/// The only template, or the default one of several.
fn template(value: &Value) -> Option<String> {
    let several = value.as_array().and_then(|all| all.iter().find(|each| each["name"] == "default"));
    let text = several.map_or(value, |default| &default["template"]);
    text.as_str().map(str::to_string)
}
