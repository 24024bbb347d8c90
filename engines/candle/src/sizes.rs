//! A model's sizes in candle's form, and the context of its load.

use std::path::PathBuf;

use model_files::{Config, Format, ModelFolder};
use protocol::{Failed, FailureKind};

use crate::failure::{model, unsupported};

/// The numbers for candle's own configs. `model_files` refuses impossible ones.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub vocabulary: usize,
    pub hidden: usize,
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl Sizes {
    pub fn of(folder: &ModelFolder) -> Result<Self, Failed> {
        let Config { hidden_size, layers, heads, kv_heads, head_dim, vocabulary_size, .. } = folder.config;
        let inner = folder.config.intermediate_size.ok_or_else(|| missing_intermediate_size(folder))?;
        Ok(Self {
            vocabulary: vocabulary_size as usize,
            hidden: hidden_size as usize,
            inner: inner as usize,
            layers: layers as usize,
            heads: heads as usize,
            kv_heads: kv_heads as usize,
            head_dim: head_dim as usize,
        })
    }

    /// The check for candle's models that divide the hidden size by the number of heads, whatever the config says.
    pub fn expect_heads_to_fill_hidden(&self, folder: &ModelFolder) -> Result<(), Failed> {
        let Self { hidden, heads, head_dim, .. } = self;
        if *heads as u64 * *head_dim as u64 == *hidden as u64 {
            return Ok(());
        }
        let what = format!("{heads} heads of {head_dim} in a hidden size of {hidden}");
        Err(unsupported(format!("`{}` has {what}: candle takes them to fill it", folder.name)))
    }
}

/// The longest context that candle computes correctly, and the reason if it is shorter than the model's.
#[derive(Debug, Clone, Copy)]
pub struct Longest {
    pub tokens: u32,
    why: Option<&'static str>,
}

impl Longest {
    /// The whole context of the model.
    pub fn of(folder: &ModelFolder) -> Result<Self, Failed> {
        let tokens = folder.config.context_tokens.filter(|&tokens| tokens > 0);
        let missing = match folder.format {
            Format::Safetensors => "`max_position_embeddings` is missing".into(),
            Format::Gguf => format!("metadata `{}.context_length` is missing", folder.config.architecture),
        };
        let tokens = tokens.ok_or_else(|| model(&config_path(folder), missing))?;
        Ok(Self { tokens, why: None })
    }

    pub fn at_most(self, tokens: u32, why: &'static str) -> Self {
        if tokens < self.tokens { Self { tokens, why: Some(why) } } else { self }
    }

    /// Limits the context to the sliding window. Within its length the window hides nothing. Beyond it candle is wrong: its
    /// masks are missing or one token too wide, and with the cache nothing is hidden.
    pub fn within_window(self, window: Option<u32>) -> Self {
        window
            .map_or(self, |tokens| self.at_most(tokens, "its sliding window, which candle does not compute"))
    }

    /// The context in effect: the requested one, else the longest.
    pub fn context(self, folder: &ModelFolder, asked: Option<u32>) -> Result<u32, Failed> {
        let Self { tokens: longest, why } = self;
        match asked {
            None if longest > MAX_CONTEXT_TOKENS => {
                Err(model(&config_path(folder), format!("a context of {longest} tokens is not believed"))
                    .hint("ask for less with `context_tokens`"))
            }
            Some(0) => {
                Err(Failed::new(FailureKind::BadRequest, "`context_tokens`: expected at least 1, found 0"))
            }
            Some(asked) if asked > longest => {
                let why = why.map(|why| format!(", by {why}")).unwrap_or_default();
                let what = format!("a context of {asked} tokens: `{}` has {longest} here{why}", folder.name);
                Err(Failed::new(FailureKind::Context, what))
            }
            asked => Ok(asked.unwrap_or(longest)),
        }
    }
}

/// The longest accepted context: candle makes position tables for all of it.
const MAX_CONTEXT_TOKENS: u32 = 1 << 24;

/// The source of the numbers, for messages.
pub fn config_path(folder: &ModelFolder) -> PathBuf {
    match folder.format {
        Format::Safetensors => folder.folder().join("config.json"),
        Format::Gguf => folder.weights.first().cloned().unwrap_or_else(|| folder.path.clone()),
    }
}

fn missing_intermediate_size(folder: &ModelFolder) -> Failed {
    let what = match folder.format {
        Format::Safetensors => "`intermediate_size` is missing".into(),
        Format::Gguf => format!("metadata `{}.feed_forward_length` is missing", folder.config.architecture),
    };
    model(&config_path(folder), what)
}
