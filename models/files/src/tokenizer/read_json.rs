//! Reads tables from `tokenizer.json`, for the two families of BPE that GGUF supports.
//!
//! A step before or after the merging is accepted if GGUF can express it. NFC in a byte-level tokenizer is accepted too, although
//! llama.cpp omits NFC. Every other step is refused by name: a GGUF without that step would silently give other ids.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::tables::{GPT2_SPLIT, SINGLE_DIGITS, id_of, ids_by_token, merge_ids, unused_id_name};
use super::write_json::SPACE;
use super::{PreTokenizer, TokenType, TokenizerKind, TokenizerTables, facts_of_json};
use crate::text::printable;

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
        let text = std::fs::read_to_string(&template).with_context(|| format!("`{}`", template.display()))?;
        tables.chat_template = Some(text);
    }
    Ok(tables)
}

/// The most unused ids of a vocabulary, all together; no real vocabulary has more.
const MAX_UNUSED_IDS: usize = 1 << 16;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    model: Model,
}

#[derive(Deserialize)]
struct AddedToken {
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
    /// The form before version 0.20 of `tokenizers`: both texts with a space between. No token of such a file contains a space.
    Text(String),
}

impl Merge {
    fn pair(&self) -> Option<(&str, &str)> {
        match self {
            Self::Pair(left, right) => Some((left, right)),
            Self::Text(text) => text.split_once(' '),
        }
    }
}

fn read(path: &Path, kind: &str) -> Result<TokenizerTables> {
    ensure!(kind.ends_with("BPE"), "the tokenizer is {kind}; {UNUSABLE}");
    let file: File = serde_json::from_slice(&std::fs::read(path)?)?;
    let affixes = [&file.model.continuing_subword_prefix, &file.model.end_of_word_suffix];
    let affix = affixes.into_iter().flatten().find(|affix| !affix.is_empty());
    ensure!(
        affix.is_none(),
        "the tokenizer adds `{}` to parts of words; {UNUSABLE}",
        affix.map_or("", String::as_str)
    );
    let (tokens, mut types) = tokens(&file)?;
    let ids = ids_by_token(&tokens)?;
    let merges = merge_ids(file.model.merges.iter().map(Merge::pair), &ids)?;
    let unknown = file.model.unk_token.as_deref().map(|token| id_of(&ids, "unk_token", token)).transpose()?;
    let (add_bos, add_eos) = added_ids(file.post_processor.as_ref(), &ids)?;
    let (normalizer, pre_tokenizer) = (file.normalizer.as_ref(), file.pre_tokenizer.as_ref());
    let kind = if file.model.byte_fallback {
        for (token, token_type) in tokens.iter().zip(&mut types) {
            if *token_type == TokenType::Normal && is_byte(token) {
                *token_type = TokenType::Byte;
            }
        }
        let space_prefix = space_prefix(normalizer, pre_tokenizer)?;
        TokenizerKind::SentencePiece { space_prefix, scores: scores(tokens.len(), &merges, &tokens, &ids) }
    } else {
        let pre = pre(pre_tokenizer, file.model.ignore_merges)?;
        TokenizerKind::ByteLevel { pre, nfc: uses_nfc(normalizer)? }
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
        let token_type = if added.special { TokenType::Control } else { TokenType::UserDefined };
        (added.id, &added.content, token_type)
    });
    let entries: Vec<_> = vocabulary.chain(added).collect();
    let length = entries.iter().map(|&(id, ..)| id as usize + 1).max().context("`vocab` is empty")?;
    ensure!(
        length <= entries.len() + MAX_UNUSED_IDS,
        "an id is {}, too high for {} tokens: at most {MAX_UNUSED_IDS} unused ids are accepted",
        length - 1,
        entries.len()
    );
    let mut tokens: Vec<Option<&String>> = vec![None; length];
    let mut types = vec![TokenType::Unused; length];
    for (id, token, token_type) in entries {
        let other = tokens[id as usize].replace(token).filter(|other| *other != token);
        let printable = |text: &String| printable(text);
        ensure!(
            other.is_none(),
            "id {id} is both `{}` and `{}`",
            other.map_or_else(String::new, printable),
            printable(token)
        );
        types[id as usize] = token_type;
    }
    let names =
        tokens.into_iter().zip(0..).map(|(token, id)| token.cloned().unwrap_or_else(|| unused_id_name(id)));
    Ok((names.collect(), types))
}

/// The score of a token: the negative rank of the first merge that makes it, because llama.cpp merges the best score first.
/// A token without a merge scores below all others: `tokenizers` never makes it by merging; llama.cpp can, and does so last.
fn scores(length: usize, merges: &[(u32, u32)], tokens: &[String], ids: &HashMap<&str, u32>) -> Vec<f32> {
    let mut scores: Vec<Option<f32>> = vec![None; length];
    for (rank, &(left, right)) in merges.iter().enumerate() {
        let joined = format!("{}{}", tokens[left as usize], tokens[right as usize]);
        if let Some(&id) = ids.get(joined.as_str()) {
            scores[id as usize].get_or_insert(-(rank as f32));
        }
    }
    scores.into_iter().map(|score| score.unwrap_or(-(merges.len() as f32))).collect()
}

fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// Sets the special tokens and the chat template, from `tokenizer_config.json`.
fn add_config(tables: &mut TokenizerTables, path: &Path) -> Result<()> {
    let config: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let id_of_field = |key: &str| {
        let value = config.get(key)?;
        let content = value.as_str().or_else(|| value.get("content")?.as_str())?;
        tables.tokens.iter().position(|token| token == content).and_then(|id| u32::try_from(id).ok())
    };
    let (bos, eos, padding) = (id_of_field("bos_token"), id_of_field("eos_token"), id_of_field("pad_token"));
    let unknown = id_of_field("unk_token");
    tables.bos = bos.or(tables.bos);
    tables.eos = eos.or(tables.eos);
    tables.padding = padding;
    // gpt2 names its EOS token as the unknown token, but a byte-level tokenizer needs no unknown token.
    if matches!(tables.kind, TokenizerKind::SentencePiece { .. }) {
        tables.unknown = tables.unknown.or(unknown);
    }
    tables.chat_template = config.get("chat_template").and_then(template);
    Ok(())
}

/// The only template, or the default template of several.
fn template(value: &Value) -> Option<String> {
    let default_template =
        value.as_array().and_then(|all| all.iter().find(|template| template["name"] == "default"));
    let text = default_template.map_or(value, |default| &default["template"]);
    text.as_str().map(str::to_string)
}

const UNUSABLE: &str = "the GGUF would have no tokenizer that llama.cpp could use";

/// Finds the pre-tokenizer that splits like `step`.
fn pre(step: Option<&Value>, ignore_merges: bool) -> Result<&'static PreTokenizer> {
    let Some(step) = step.filter(|step| !step.is_null()) else {
        bail!("there is neither `pre_tokenizer` nor byte fallback; {UNUSABLE}");
    };
    let mut splits = Vec::new();
    collect_splits(step, &mut splits)?;
    PreTokenizer::with_splits(&splits, ignore_merges).with_context(|| {
        let suffix = if ignore_merges { ", `ignore_merges` set" } else { "" };
        format!("unknown pre-tokenizer: words are split by {splits:?}{suffix}; {UNUSABLE}")
    })
}

fn collect_splits(step: &Value, splits: &mut Vec<String>) -> Result<()> {
    let kind = step["type"].as_str().unwrap_or_default();
    match kind {
        "Sequence" => {
            let steps =
                step["pretokenizers"].as_array().context("`pre_tokenizer`: a sequence without steps")?;
            // No real file nests sequences; refusing them bounds the recursion.
            let nested = steps.iter().find(|step| step["type"] == "Sequence");
            ensure!(nested.is_none(), "`pre_tokenizer`: a sequence in a sequence; {UNUSABLE}");
            steps.iter().try_for_each(|step| collect_splits(step, splits))
        }
        "ByteLevel" if step["add_prefix_space"] != true => {
            if step["use_regex"] != false {
                splits.push(GPT2_SPLIT.into());
            }
            Ok(())
        }
        "Digits" if step["individual_digits"] == true => {
            splits.push(SINGLE_DIGITS.into());
            Ok(())
        }
        "Split" => {
            let regex = step["pattern"]["Regex"].as_str();
            // `Removed` with `invert` keeps only the matches: the same words if the expression matches every character.
            let isolated = step["behavior"] == "Isolated" && step["invert"] != true;
            let removed = step["behavior"] == "Removed" && step["invert"] == true;
            let regex = regex.filter(|_| isolated || removed);
            splits.push(regex.with_context(|| format!("`pre_tokenizer` is {step}; {UNUSABLE}"))?.into());
            Ok(())
        }
        _ => bail!("`pre_tokenizer` is {step}; {UNUSABLE}"),
    }
}

/// Whether the normaliser is NFC, which composes characters. Every other one is refused.
fn uses_nfc(normalizer: Option<&Value>) -> Result<bool> {
    match normalizer {
        None | Some(Value::Null) => Ok(false),
        Some(step) if step["type"] == "NFC" => Ok(true),
        Some(step) => bail!("`normalizer` is {step}; {UNUSABLE}"),
    }
}

/// Whether a text gets a space in front before spaces are replaced. If the text begins with a space, `Metaspace` adds none;
/// llama.cpp and the older `Prepend` add one. This difference is accepted.
fn space_prefix(normalizer: Option<&Value>, pre_tokenizer: Option<&Value>) -> Result<bool> {
    let steps = match normalizer {
        None | Some(Value::Null) => Vec::new(),
        Some(step) if step["type"] == "Sequence" => {
            step["normalizers"].as_array().cloned().unwrap_or_default()
        }
        Some(step) => vec![step.clone()],
    };
    let (mut prefix, mut replaced) = (false, false);
    for step in &steps {
        let kind = step["type"].as_str().unwrap_or_default();
        match kind {
            "Prepend" if step["prepend"] == SPACE => prefix = true,
            "Replace" if step["pattern"]["String"] == " " && step["content"] == SPACE => replaced = true,
            _ => bail!("`normalizer` has {step}; {UNUSABLE}"),
        }
    }
    match pre_tokenizer.filter(|step| !step.is_null()) {
        None => {}
        // This step splits at spaces, and the normaliser has replaced all spaces.
        Some(step) if replaced && step["type"] == "Split" && step["pattern"]["String"] == " " => {}
        Some(step)
            if step["type"] == "Metaspace" && step["replacement"] == SPACE && step["split"] == false =>
        {
            replaced = true;
            prefix |= step["prepend_scheme"] != "never";
        }
        Some(step) => bail!("`pre_tokenizer` is {step}; {UNUSABLE}"),
    }
    ensure!(replaced, "spaces are not replaced by `{SPACE}`; {UNUSABLE}");
    Ok(prefix)
}

/// The ids that the post-processor adds before and after a text.
fn added_ids(step: Option<&Value>, ids: &HashMap<&str, u32>) -> Result<(Option<u32>, Option<u32>)> {
    let steps = match step {
        None | Some(Value::Null) => Vec::new(),
        Some(step) if step["type"] == "Sequence" => {
            step["processors"].as_array().cloned().unwrap_or_default()
        }
        Some(step) => vec![step.clone()],
    };
    let (mut before, mut after) = (None, None);
    for step in steps {
        if step["type"] == "ByteLevel" {
            continue; // This step changes offsets, not ids.
        }
        ensure!(step["type"] == "TemplateProcessing", "`post_processor` is {step}; {UNUSABLE}");
        let single = step["single"].as_array().context("`post_processor` has no `single`")?;
        let mut side = &mut before;
        for piece in single {
            if piece.get("Sequence").is_some() {
                side = &mut after;
                continue;
            }
            let token = piece["SpecialToken"]["id"]
                .as_str()
                .context("`post_processor`: expected a sequence or a special token")?;
            let other = side.replace(id_of(ids, "`post_processor`", token)?);
            ensure!(
                other.is_none(),
                "`post_processor` puts several tokens on one side of a text; {UNUSABLE}"
            );
        }
    }
    Ok((before, after))
}
