//! Text to ids and back, with the model's own tokenizer; and tokenizers as tables, for synthesised and converted models.
//!
//! Only the crate `tokenizers` encodes texts; tables from GGUF reach it as a `tokenizer.json`. (`synthesise` has an encoder for
//! single words.)

mod facts;
mod gguf;
mod read_json;
mod synthesise;
mod tables;
mod write_json;

use crate::text::printable;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};

pub use facts::TokenizerFacts;
pub(crate) use facts::{facts_of_gguf, facts_of_json};
pub use gguf::from_gguf;
pub use read_json::from_json;
pub use synthesise::synthesise;
pub use tables::{PreTokenizer, Special, TokenType, TokenizerKind, TokenizerTables};

/// A model's tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// Opens a tokenizer. Truncation and padding in the file are switched off: a prompt keeps its length.
    pub fn open(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(anyhow::Error::from);
        text.and_then(|json| Self::of_json(&json)).with_context(|| format!("`{}`", path.display()))
    }

    pub fn from_tables(tables: &TokenizerTables) -> Result<Self> {
        Self::of_json(&tables.to_json()?)
    }

    /// Parses by `FromStr`, which the crate `tokenizers` compiles. `from_file` and `from_bytes` are generic: each would add
    /// ten seconds to the build of this crate.
    fn of_json(json: &str) -> Result<Self> {
        let mut inner: tokenizers::Tokenizer = json.parse().map_err(|error| anyhow!("{error}"))?;
        inner.with_truncation(None).map_err(|error| anyhow!("{error}"))?;
        inner.with_padding(None);
        let tokenizer = Self { inner };
        // The first text builds the internal tables; that cost belongs to opening, not to the first prompt.
        tokenizer.encode("It's one text, with 2 numbers (42) and a line's end:\n")?;
        return_free_memory();
        Ok(tokenizer)
    }

    /// Converts text to ids with the tokenizer's default special tokens, never with a chat template.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding =
            self.inner.encode_fast(text, true).map_err(|error| anyhow!("cannot tokenise: {error}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Converts ids to text for people: special tokens and unknown ids are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.inner.decode(ids, true).unwrap_or_default()
    }

    /// The ids of the tokens that are no text, such as BOS and EOS, in their order.
    pub fn special_ids(&self) -> Vec<u32> {
        let added = self.inner.get_added_tokens_decoder();
        let mut ids: Vec<u32> = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// The number of tokens, added ones included. The model's embedding may have more rows.
    pub fn vocabulary_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Refuses a tokenizer with an id that is not below `vocabulary`: it belongs to another model.
    pub fn check_fits(&self, vocabulary: u32) -> Result<()> {
        let invalid = self.inner.get_vocab(true).into_iter().filter(|&(_, id)| id >= vocabulary);
        let highest = invalid.max_by_key(|&(_, id)| id);
        ensure!(
            highest.is_none(),
            "the tokenizer has another vocabulary than the model: {}, but the model has {vocabulary} tokens",
            highest.map_or_else(String::new, |(token, id)| format!(
                "`{}`, one of its {} tokens, has id {id}",
                printable(&token),
                self.vocabulary_size()
            ))
        );
        Ok(())
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.debug_struct("Tokenizer").field("vocabulary_size", &self.vocabulary_size()).finish()
    }
}

/// Returns the allocator's free memory to the system: 46 MB after a tokenizer of 128,000 tokens was read.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "a function of the C library")]
fn return_free_memory() {
    // SAFETY: `malloc_trim` touches no memory in use and takes its own locks, so any thread may call it at any time.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn return_free_memory() {}
