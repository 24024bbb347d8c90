//! A tokenizer as tables: the common content of `tokenizer.json` and GGUF metadata; and the pre-tokenizers of model families,
//! by GGUF's names.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};

use crate::text::printable;

/// A token that was added to a model, not learned from text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Special {
    pub id: u32,
    pub content: String,
}

/// The purpose of a token, numbered as in GGUF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    Normal = 1,
    Unknown = 2,
    /// A control token such as BOS, which is left out of text for people.
    Control = 3,
    /// Recognised in a text before merging, and part of text for people.
    UserDefined = 4,
    /// A token that no text is encoded to.
    Unused = 5,
    /// A byte of a character that has no token: `<0x0A>`.
    Byte = 6,
}

impl TokenType {
    pub const ALL: [Self; 6] =
        [Self::Normal, Self::Unknown, Self::Control, Self::UserDefined, Self::Unused, Self::Byte];

    /// Whether the token is recognised in a text before any other step.
    pub fn is_added(self) -> bool {
        matches!(self, Self::Unknown | Self::Control | Self::UserDefined)
    }
}

/// The two families of BPE that llama.cpp and `tokenizers` both support.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenizerKind {
    /// Text is cut into words, and words into bytes; each character of a token is a byte.
    ByteLevel {
        pre: &'static PreTokenizer,
        /// Whether the characters of a text are first composed (Unicode's NFC). llama.cpp never does this.
        nfc: bool,
    },
    /// Spaces become U+2581 and the whole text is merged; characters without a token become bytes.
    SentencePiece {
        /// Whether a text gets a space in front.
        space_prefix: bool,
        /// A score for each token: the pair that makes the best-scored token is merged first.
        scores: Vec<f32>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct TokenizerTables {
    pub kind: TokenizerKind,
    /// The text of each token, by id.
    pub tokens: Vec<String>,
    /// The type of each token, by id.
    pub types: Vec<TokenType>,
    /// Pairs of ids in the order of application. The joined texts of a pair are the text of a token.
    pub merges: Vec<(u32, u32)>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unknown: Option<u32>,
    pub padding: Option<u32>,
    /// The id to add before every text.
    pub add_bos: Option<u32>,
    /// The id to add after every text.
    pub add_eos: Option<u32>,
    pub chat_template: Option<String>,
}

impl TokenizerTables {
    /// The text of the token with this id. `field` names the id in an error.
    pub(super) fn token(&self, field: &str, id: u32) -> Result<&str> {
        let token = self.tokens.get(id as usize);
        let token =
            token.with_context(|| format!("{field} is id {id}, and there are {} tokens", self.tokens.len()));
        token.map(String::as_str)
    }

    /// Checks that every table has the right length, that every id in the tables has a token, and that no two tokens are equal.
    pub fn check(&self) -> Result<()> {
        let length = self.tokens.len();
        ensure!(self.types.len() == length, "{length} tokens and {} types", self.types.len());
        if let TokenizerKind::SentencePiece { scores, .. } = &self.kind {
            ensure!(scores.len() == length, "{length} tokens and {} scores", scores.len());
        }
        let special_ids = [
            ("bos", self.bos),
            ("eos", self.eos),
            ("unknown", self.unknown),
            ("padding", self.padding),
            ("add_bos", self.add_bos),
            ("add_eos", self.add_eos),
        ];
        for (field, id) in special_ids {
            id.map_or(Ok(""), |id| self.token(field, id))?;
        }
        for (index, &(left, right)) in self.merges.iter().enumerate() {
            self.token(&format!("merge {index}"), left.max(right))?;
        }
        ids_by_token(&self.tokens).map(|_| ())
    }
}

/// The id of each token. Two ids with one text are an error, because the text would be ambiguous.
pub(super) fn ids_by_token(tokens: &[String]) -> Result<HashMap<&str, u32>> {
    let mut ids = HashMap::with_capacity(tokens.len());
    for (id, token) in (0_u32..).zip(tokens) {
        let other = ids.insert(token.as_str(), id);
        ensure!(
            other.is_none(),
            "token `{}` has the ids {} and {id}",
            printable(token),
            other.unwrap_or_default()
        );
    }
    Ok(ids)
}

/// The text in the tables for an id without a token.
pub(super) fn unused_id_name(id: u32) -> String {
    format!("[PAD{id}]")
}

/// Finds the ids of merged pairs. `None` is a merge that is not a pair.
pub(super) fn merge_ids<'a>(
    merges: impl Iterator<Item = Option<(&'a str, &'a str)>>,
    ids: &HashMap<&str, u32>,
) -> Result<Vec<(u32, u32)>> {
    let pair = |(index, merge): (usize, Option<(&str, &str)>)| {
        let (left, right) = merge.with_context(|| format!("merge {index}: expected a pair of texts"))?;
        let merge = format!("merge {index}");
        id_of(ids, &merge, &format!("{left}{right}"))?;
        Ok((id_of(ids, &merge, left)?, id_of(ids, &merge, right)?))
    };
    merges.enumerate().map(pair).collect()
}

/// Finds the id of a token; `field` names the token in an error.
pub(super) fn id_of(ids: &HashMap<&str, u32>, field: &str, token: &str) -> Result<u32> {
    let id = ids.get(token).copied();
    id.with_context(|| format!("{field} names `{}`, which is not a token", printable(token)))
}

/// One pre-tokenizer: regular expressions that cut a text into words before bytes are merged. Each expression cuts the
/// words of the previous expression; matches and gaps both become words. The expressions are those of each model's
/// `tokenizer.json`; llama.cpp rewrites some for its own matcher. The names are those of llama.cpp's loader.
#[derive(Debug, PartialEq, Eq)]
pub struct PreTokenizer {
    /// Values of `tokenizer.ggml.pre`; the first is the one to write.
    pub names: &'static [&'static str],
    pub splits: &'static [&'static str],
    /// Whether a word that is a token skips the merging of bytes.
    pub ignore_merges: bool,
    /// Whether llama.cpp adds BOS where a file has no `tokenizer.ggml.add_bos_token`.
    pub adds_bos: bool,
    /// Whether the models' own tokenizers first compose characters (NFC).
    pub nfc: bool,
}

impl PreTokenizer {
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|pre| pre.names.contains(&name))
    }

    pub(super) fn with_splits(splits: &[String], ignore_merges: bool) -> Option<&'static Self> {
        ALL.iter().find(|pre| pre.splits == splits && pre.ignore_merges == ignore_merges)
    }

    pub fn name(&self) -> &'static str {
        self.names[0]
    }
}

/// The expression of `ByteLevel` with `use_regex`.
pub(super) const GPT2_SPLIT: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The expression of `Digits` with `individual_digits`.
pub(super) const SINGLE_DIGITS: &str = r"\p{N}";

const LLAMA3_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN_SPLIT: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O_SPLIT: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3_SPLIT: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

const fn pre(names: &'static [&'static str], splits: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { names, splits, ignore_merges: false, adds_bos: false, nfc: false }
}

static ALL: [PreTokenizer; 13] = [
    pre(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        &[GPT2_SPLIT],
    ),
    PreTokenizer {
        ignore_merges: true,
        adds_bos: true,
        ..pre(
            &[
                "llama-bpe",
                "llama3",
                "llama-v3",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "midm-2.0",
                "lfm2",
                "jina-v5-nano",
            ],
            &[LLAMA3_SPLIT],
        )
    },
    // These families split words like llama 3, but merge every word from its bytes.
    pre(&["smaug-bpe", "dbrx", "glm4", "chatglm-bpe"], &[LLAMA3_SPLIT]),
    PreTokenizer {
        nfc: true,
        ..pre(&["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"], &[QWEN2_SPLIT])
    },
    pre(&["stablelm2", "hunyuan", "solar-open", "grok-2"], &[QWEN2_SPLIT]),
    PreTokenizer { nfc: true, ..pre(&["qwen35"], &[QWEN35_SPLIT]) },
    pre(
        &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[SINGLE_DIGITS, GPT2_SPLIT],
    ),
    PreTokenizer { ignore_merges: true, adds_bos: true, ..pre(&["tekken"], &[TEKKEN_SPLIT]) },
    pre(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O_SPLIT]),
    pre(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3_SPLIT],
    ),
    pre(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", SINGLE_DIGITS]),
    pre(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2_SPLIT, "[0-9][0-9][0-9]"]),
    // llama.cpp's fallback for a file that names no pre-tokenizer.
    pre(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2_SPLIT, r"\p{N}+", "[0-9][0-9][0-9]"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_belongs_to_one_pre_tokenizer() {
        let mut names: Vec<_> = ALL.iter().flat_map(|pre| pre.names).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(PreTokenizer::named("llama3").map(PreTokenizer::name), Some("llama-bpe"));
        assert_eq!(
            PreTokenizer::with_splits(&[GPT2_SPLIT.to_string()], false).map(PreTokenizer::name),
            Some("gpt-2")
        );
        assert_eq!(PreTokenizer::with_splits(&[GPT2_SPLIT.to_string()], true), None);
    }
}
