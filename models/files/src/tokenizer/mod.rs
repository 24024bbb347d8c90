//! Text to ids and back, as the model's own tokenizer does it; and tokenizers as tables, for models that are made or
//! converted.
//!
//! There is one encoder, that of the crate `tokenizers`. Tables from GGUF reach it as a `tokenizer.json`.

mod facts;
mod gguf;
mod json;
mod pre;
mod read_json;
mod steps;
mod synthesise;
mod tables;
mod train;

use crate::shown::shown;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};

pub use facts::TokenizerFacts;
pub(crate) use facts::{facts_of_gguf, facts_of_json};
pub use gguf::from_gguf;
pub use pre::Pre;
pub use read_json::from_json;
pub use synthesise::synthesise;
pub use tables::{Special, TokenType, TokenizerKind, TokenizerTables};

/// A model's tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// Truncation and padding that the file may ask for are switched off: a prompt is measured at the length it has.
    pub fn open(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(anyhow::Error::from);
        text.and_then(|json| Self::of_json(&json)).with_context(|| format!("`{}`", path.display()))
    }

    pub fn from_tables(tables: &TokenizerTables) -> Result<Self> {
        Self::of_json(&tables.to_json()?)
    }

    /// By the one way of reading that is compiled in `tokenizers` itself: `from_file` and `from_bytes` are generic, and each
    /// had all of it compiled here once more, ten seconds of a build.
    fn of_json(json: &str) -> Result<Self> {
        let mut inner: tokenizers::Tokenizer = json.parse().map_err(|error| anyhow!("{error}"))?;
        inner.with_truncation(None).map_err(|error| anyhow!("{error}"))?;
        inner.with_padding(None);
        let tokenizer = Self { inner };
        // Its tables are built by the first text that needs them; that belongs to opening, not to the first prompt.
        tokenizer.encode("It's one text, with 2 numbers (42) and a line's end:\n")?;
        give_back();
        Ok(tokenizer)
    }

    /// With special tokens as the tokenizer adds them by default, and never a chat template.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding =
            self.inner.encode_fast(text, true).map_err(|error| anyhow!("cannot tokenise: {error}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text for people: special tokens are left out, ids that mean nothing are skipped.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.inner.decode(ids, true).unwrap_or_default()
    }

    /// Added tokens included. The model's own vocabulary may be padded to more.
    pub fn vocabulary_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Refuses a tokenizer of another model: an id that the model has no embedding for.
    pub fn check_fits(&self, vocabulary: u32) -> Result<()> {
        let beyond = self.inner.get_vocab(true).into_iter().filter(|&(_, id)| id >= vocabulary);
        let highest = beyond.max_by_key(|&(_, id)| id);
        ensure!(
            highest.is_none(),
            "the tokenizer is of another vocabulary: {}, and the model's vocabulary has {vocabulary}",
            highest.map_or_else(String::new, |(token, id)| format!(
                "id {id} is `{}` among its {} tokens",
                shown(&token),
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

/// What reading has freed, and the allocator keeps for later, goes back to the system: 46 MB after 128,000 tokens.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "a function of the C library")]
fn give_back() {
    // SAFETY: it touches nothing that is in use, and locks what it looks at: any thread may call it at any time.
    unsafe { nix::libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_back() {}
