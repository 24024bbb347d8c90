//! A tokenizer as tables: the common content of `tokenizer.json` and GGUF metadata.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};

use super::Pre;
use crate::text::shown;

/// A token that was added to a model, not learnt from text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Special {
    pub id: u32,
    pub content: String,
}

/// The purpose of a token, with GGUF's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    Normal = 1,
    Unknown = 2,
    /// A control token such as BOS: left out of text for people.
    Control = 3,
    /// Recognised in a text before merging, and shown.
    UserDefined = 4,
    /// An id of the model that no text produces.
    Unused = 5,
    /// `<0x0A>`: a byte of a character without a token.
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
    /// Text is cut into words, and words into bytes; each character of a token stands for a byte.
    ByteLevel {
        pre: &'static Pre,
        /// Texts are first brought into Unicode's composed form. llama.cpp omits that.
        nfc: bool,
    },
    /// Spaces become U+2581 and the whole text is merged; characters without a token become bytes.
    SentencePiece {
        /// A text gets a space in front.
        space_prefix: bool,
        /// A score for each token: the pair that makes the best-scored token is merged first.
        scores: Vec<f32>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct TokenizerTables {
    pub kind: TokenizerKind,
    /// By id.
    pub tokens: Vec<String>,
    /// By id.
    pub types: Vec<TokenType>,
    /// In the order of application; the two texts joined are a token's text.
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
    pub fn specials(&self) -> Vec<Special> {
        let ids = (0_u32..).zip(self.tokens.iter().zip(&self.types));
        ids.filter(|(_, (_, kind))| kind.is_added())
            .map(|(id, (content, _))| Special { id, content: content.clone() })
            .collect()
    }

    /// The token of a required id; `what` names the field for an error.
    pub(super) fn token(&self, what: &str, id: u32) -> Result<&str> {
        let found = self.tokens.get(id as usize);
        let found = found.with_context(|| format!("{what} is id {id}, and there are {}", self.tokens.len()));
        found.map(String::as_str)
    }

    /// Checks that every table has the right length and every id in it has a token.
    pub fn check(&self) -> Result<()> {
        let length = self.tokens.len();
        ensure!(self.types.len() == length, "{length} tokens and {} types", self.types.len());
        if let TokenizerKind::SentencePiece { scores, .. } = &self.kind {
            ensure!(scores.len() == length, "{length} tokens and {} scores", scores.len());
        }
        let named = [
            ("bos", self.bos),
            ("eos", self.eos),
            ("unknown", self.unknown),
            ("padding", self.padding),
            ("add_bos", self.add_bos),
            ("add_eos", self.add_eos),
        ];
        for (what, id) in named {
            id.map_or(Ok(""), |id| self.token(what, id))?;
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
            shown(token),
            other.unwrap_or_default()
        );
    }
    Ok(ids)
}

/// The name of an id that the model has and the tokenizer does not.
pub(super) fn padding_name(id: u32) -> String {
    format!("[PAD{id}]")
}
