//! Text to ids and back, as the model's own `tokenizer.json` does it.

use std::path::Path;

use anyhow::{Result, anyhow};

/// A model's tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// Truncation and padding that the file may ask for are switched off: a prompt is measured at the length it has.
    pub fn open(path: &Path) -> Result<Self> {
        let mut inner = tokenizers::Tokenizer::from_file(path)
            .map_err(|error| anyhow!("`{}`: {error}", path.display()))?;
        inner.with_truncation(None).map_err(|error| anyhow!("`{}`: {error}", path.display()))?;
        inner.with_padding(None);
        let tokenizer = Self { inner };
        // Its tables are built by the first text that needs them; that belongs to opening, not to the first prompt.
        tokenizer.encode("It's one text, with 2 numbers (42) and a line's end:\n")?;
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
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.debug_struct("Tokenizer").field("vocabulary_size", &self.vocabulary_size()).finish()
    }
}
