//! Prompts as token ids: the user's text, windows of real text, or dependent prompts. Random numbers choose the window of each
//! request, and every engine gets the same windows.

mod conversations;
pub mod dependent;
pub mod held_out;
pub mod windows;

use std::borrow::Cow;
use std::sync::OnceLock;

use anyhow::{Result, bail, ensure};
use model_files::{ModelFolder, Tokenizer, embedded};
use protocol::{Capabilities, Generate, Id};

use crate::plan::axes::Value;
use crate::plan::scenario::Kind;
use crate::plan::texts::{OwnText, Source, TextKind};
use crate::plan::{Plan, Prompt, RequestKind, Workload, context};

/// The number of random ids at the start of a prompt, so that a prefix cache has no part of it.
const SALT_TOKENS: usize = 4;
/// The index of the prefix that all prompts of a window share, in place of that of a prompt.
const SHARED_PREFIX: u32 = u32::MAX;
/// A text with fewer ids than this gets a longer salt, because a few of its ids are soon drawn again.
const MANY_IDS: usize = 64;
/// The number of warm-up requests with the same prompt at the start of each case of a launch. An engine that reports
/// `deterministic` must answer them with equal ids.
pub const IDENTICAL_WARM_UPS: u32 = 2;

/// The tokenizer and the text from which prompts for one model are made.
pub struct Prompts {
    tokenizer: Tokenizer,
    /// The ids that the tokenizer puts before every text.
    bos: Vec<u32>,
    text_ids: Vec<u32>,
    text_bytes: usize,
    /// The longest context of the model. `None` if unknown.
    context_tokens: Option<u32>,
    /// The ids of the other texts, by kind, which are made when a prompt needs them.
    ids_of_texts: [OnceLock<Vec<u32>>; TextKind::ALL.len()],
    /// The text of each id, which is made when an output in text is read.
    texts_of_ids: OnceLock<Vec<String>>,
}

/// The request that a prompt is for. The key does not depend on the engine, so every engine gets the same prompt.
#[derive(Debug, Clone, Copy)]
pub struct PromptKey {
    pub seed: u64,
    /// The nonce of the run. Without it, the key gives the prompt of the recipe: the same in every run with the same text,
    /// lengths and seed.
    pub nonce: Option<u64>,
    pub block: u32,
    pub kind: RequestKind,
    pub index: u32,
    /// The index of the prompt in its batch.
    pub sequence: u32,
}

impl Prompts {
    /// Reads a model's tokenizer and makes the ids of the text.
    pub fn open(path: &str) -> Result<Self> {
        let folder = ModelFolder::open(path)?;
        let tokenizer = folder.tokenizer()?;
        let bos = tokenizer.encode("")?;
        let text = embedded::heldout_text()?;
        let text_ids = tokenizer.encode(&text)?.split_off(bos.len());
        if text_ids.is_empty() {
            bail!("the tokenizer of `{path}` makes no tokens of English text");
        }
        Ok(Self {
            tokenizer,
            bos,
            text_ids,
            text_bytes: text.len(),
            context_tokens: folder.config.context_tokens,
            ids_of_texts: Default::default(),
            texts_of_ids: OnceLock::new(),
        })
    }

    /// The ids of the prompts for one request of a workload: one prompt for each sequence. A later turn of a conversation has only its
    /// new text here (see `conversations`).
    pub fn batch(&self, workload: &Workload, key: PromptKey) -> Result<Vec<Vec<u32>>> {
        match workload.prompt {
            Prompt::Tokens(tokens) if Self::is_dependent(workload, key) => {
                let salt = self.salt(workload, key, SALT_TOKENS)?;
                Ok(vec![self.dependent_ids(workload, key, tokens as usize, &salt)])
            }
            _ => self.text_windows(workload, key),
        }
    }

    /// The ids that the recipe gives for a request: without the nonce, and without dependent prompts.
    pub fn recipe_batch(&self, workload: &Workload, key: PromptKey) -> Result<Vec<Vec<u32>>> {
        self.text_windows(workload, key.without_nonce())
    }

    /// The random ids at the start of a prompt. The random numbers depend on the label, so that a short prompt is not the
    /// beginning of a longer one.
    fn salt(&self, workload: &Workload, key: PromptKey, tokens: usize) -> Result<Vec<u32>> {
        let ids = self.ids_of(workload.shape.text)?;
        let id = |position| ids[random(&series(workload), key, position) as usize % ids.len()];
        Ok((1..=tokens as u64).map(id).collect())
    }

    /// The ids of a text, without BOS: never empty. Random ids are chosen from all ordinary tokens.
    fn ids_of(&self, kind: TextKind) -> Result<&[u32]> {
        let special = || self.tokenizer.special_ids();
        let ordinary = || {
            let (special, all) = (special(), 0..self.tokenizer.vocabulary_size() as u32);
            let is_text = |id: &u32| !special.contains(id) && !self.tokenizer.decode(&[*id]).is_empty();
            all.filter(is_text).collect()
        };
        let made = || match kind.source() {
            Source::HeldOut => self.text_ids.clone(),
            Source::Text(text) => {
                self.tokenizer.encode(text).map(|ids| ids[self.bos.len()..].to_vec()).unwrap_or_default()
            }
            Source::RandomTokens => ordinary(),
            Source::SpecialTokens => special(),
        };
        let ids = match kind.source() {
            Source::HeldOut => &self.text_ids,
            _ => self.ids_of_texts[kind as usize].get_or_init(made),
        };
        ensure!(!ids.is_empty(), "the tokenizer has no tokens for prompts of `{}`", kind.word());
        Ok(ids)
    }

    /// The seed of the arrivals of a window: the same for each engine, and in each run of the same plan.
    pub fn arrival_seed(workload: &Workload, key: PromptKey) -> u64 {
        random(&series(workload), key.without_nonce(), u64::from(u32::MAX))
    }

    /// A window of the text for each sequence, or the user's texts.
    fn text_windows(&self, workload: &Workload, key: PromptKey) -> Result<Vec<Vec<u32>>> {
        let prefix_tokens = workload.shape.shared_prefix as usize;
        let of_prefix = PromptKey { sequence: SHARED_PREFIX, ..key };
        let prefix = match prefix_tokens {
            0 => Vec::new(),
            tokens => self.text_window(workload, of_prefix, tokens, &self.bos)?,
        };
        // A later turn of a conversation has the prefix and BOS in the turns that it repeats. BOS stands before the prefix.
        let is_first = |sequence: u32| workload.shape.turn_before(sequence).is_none();
        let prefix_of = |sequence| if is_first(sequence) { &prefix[..] } else { &[] };
        let has_bos = |sequence| is_first(sequence) && prefix.is_empty();
        let longest = match &workload.prompt {
            Prompt::Text(own) => {
                let texts = own_texts(own.texts(), workload, key)?.into_iter().zip(0..);
                let own = |(text, sequence): (&String, u32)| -> Result<Vec<u32>> {
                    let ids = self.tokenizer.encode(text)?;
                    let left_out = if has_bos(sequence) { 0 } else { self.bos.len() };
                    Ok([prefix_of(sequence), &ids[left_out..]].concat())
                };
                return texts.map(own).collect();
            }
            Prompt::Tokens(tokens) => *tokens,
        };
        let lengths = workload.shape.prompt_lengths(longest).into_iter().zip(0..);
        let window = |(tokens, sequence): (u32, u32)| -> Result<Vec<u32>> {
            let prefix = prefix_of(sequence);
            let bos = if has_bos(sequence) { &self.bos[..] } else { &[] };
            let own = (tokens as usize).saturating_sub(prefix.len());
            let own = self.text_window(workload, PromptKey { sequence, ..key }, own, bos)?;
            Ok([prefix, &own].concat())
        };
        lengths.map(window).collect()
    }

    /// A window of the text after `bos`, with so many tokens together.
    fn text_window(
        &self,
        workload: &Workload,
        key: PromptKey,
        tokens: usize,
        bos: &[u32],
    ) -> Result<Vec<u32>> {
        // A prompt without room for BOS and text is text alone.
        let bos = if tokens > bos.len() { bos } else { &[] };
        let body = tokens - bos.len();
        let ids = self.ids_of(workload.shape.text)?;
        let salt_tokens = match workload.shape.text.needs_ids() {
            true => body,
            false if key.is_identical_warm_up() => 0,
            false if ids.len() < MANY_IDS => (4 * SALT_TOKENS).min(body / 2),
            false => SALT_TOKENS.min(body / 2),
        };
        let salt = self.salt(workload, key, salt_tokens)?;
        let start = random(&series(workload), key, 0) as usize % ids.len();
        let text = ids.iter().cycle().skip(start).take(body - salt.len());
        Ok(bos.iter().chain(&salt).chain(text).copied().collect())
    }

    /// The reason why the requests of a workload do not fit the model's context.
    pub fn excess(&self, workload: &Workload) -> Option<String> {
        let tokens = |text: &String| Some(self.tokenizer.encode(text).ok()?.len());
        let longest = workload.longest_prompt(|texts| texts.iter().filter_map(tokens).max())?;
        context::excess(self.context_tokens, longest, workload)
    }

    /// The request for these prompts, one for each sequence: as ids where the engine takes them, else as text. Without
    /// capabilities: text and no request id.
    pub fn request(
        &self,
        workload: &Workload,
        batch: &[Vec<u32>],
        capabilities: Option<&Capabilities>,
        id: u64,
    ) -> Generate {
        let takes_ids = capabilities.is_some_and(|capabilities| capabilities.prompt_ids);
        let text = |ids: &Vec<u32>| self.text(workload, ids);
        let single = if let [ids] = batch { Some(ids) } else { None };
        let is_batch = single.is_none();
        Generate {
            // An engine without capabilities has no request ids: it gets one request at a time.
            id: capabilities.map(|_| Id::Number(id)),
            prompt: single.filter(|_| !takes_ids).map(text),
            prompt_ids: single.filter(|_| takes_ids).cloned(),
            prompts: (is_batch && !takes_ids).then(|| batch.iter().map(text).collect()),
            prompts_ids: (is_batch && takes_ids).then(|| batch.to_vec()),
            use_cache: workload.shape.use_cache,
            prefix_cache: workload.shape.prefix_cache
                && capabilities.is_some_and(|capabilities| capabilities.prefix_cache_toggle),
            padding: workload.shape.padding.unwrap_or_default(),
            speculation: workload.shape.speculation,
            max_new_tokens: workload.max_new_tokens,
            ignore_eos: workload.ignore_eos,
            sampling: workload.sampling,
            ..Generate::default()
        }
    }
}

impl Prompts {
    /// The text of a prompt, for an engine that takes text.
    fn text(&self, workload: &Workload, ids: &[u32]) -> String {
        match &workload.prompt {
            Prompt::Text(OwnText::One(text)) if !workload.shape.prefix_cache => text.clone(),
            Prompt::Text(_) | Prompt::Tokens(_) => self.tokenizer.decode(ids),
        }
    }

    /// The ids that an engine must make of a prompt that it gets as text. They may differ from the ids of the prompt, because a
    /// text can be divided into tokens in several ways.
    pub fn ids_of_text(&self, workload: &Workload, ids: &[u32]) -> Result<Vec<u32>> {
        self.tokenizer.encode(&self.text(workload, ids))
    }

    /// The ids of a text without BOS.
    pub fn encode_output(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text).map(|ids| ids[self.bos.len()..].to_vec()).unwrap_or_default()
    }

    /// The text of each id of the vocabulary alone. Empty for a special token.
    pub fn texts_of_ids(&self) -> &[String] {
        let ids = 0..self.tokenizer.vocabulary_size() as u32;
        self.texts_of_ids.get_or_init(|| ids.map(|id| self.tokenizer.decode(&[id])).collect())
    }

    /// The text of generated ids, without special tokens.
    pub fn decode_output(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids)
    }
}

/// The user's texts for a request: one text for all requests, or the next ones of a file. Warm-ups take them from the end.
fn own_texts<'a>(texts: &'a [String], workload: &Workload, key: PromptKey) -> Result<Vec<&'a String>> {
    let batch = u64::from(workload.shape.sequences());
    let (rounds, count) = (u64::from(workload.rounds), texts.len() as u64);
    ensure!(count > 0, "the prompts of the file are not in the record");
    let text = |sequence: u64| {
        let number = match key.kind {
            RequestKind::Warmup if key.is_identical_warm_up() => sequence,
            RequestKind::Warmup | RequestKind::Discarded => u64::from(key.index) * batch + sequence,
            RequestKind::Measured => {
                let request = u64::from(key.block) * rounds + u64::from(key.index);
                return &texts[((request * batch + sequence) % count) as usize];
            }
        };
        &texts[(count - 1 - number % count) as usize]
    };
    Ok((0..batch).map(text).collect())
}

pub fn hash(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    paths::digest(&bytes)
}

/// The digest of all prompts of a request.
pub fn hash_of_batch(batch: &[Vec<u32>]) -> String {
    match batch {
        [ids] => hash(ids),
        _ => paths::digest(batch.iter().map(|ids| hash(ids)).collect::<String>().as_bytes()),
    }
}

impl Plan {
    /// The key of the prompt of a request in this run.
    pub fn prompt_key(&self, block: u32, kind: RequestKind, index: u32) -> PromptKey {
        PromptKey { seed: self.seed, nonce: self.nonce, block, kind, index, sequence: 0 }
    }
}

impl PromptKey {
    /// The key of the same request in the recipe.
    fn without_nonce(self) -> Self {
        Self { nonce: None, ..self }
    }

    fn is_identical_warm_up(self) -> bool {
        self.kind == RequestKind::Warmup && self.index < IDENTICAL_WARM_UPS
    }
}

/// The label without the speculation: requests with drafts have the prompts of those without.
fn series(workload: &Workload) -> Cow<'_, str> {
    match workload.kind {
        Kind::Speculative => {
            let words = format!(" {}", workload.shape.speculation.shown());
            Cow::Owned(workload.label.replacen(&words, "", 1))
        }
        _ => Cow::Borrowed(&workload.label),
    }
}

/// A pseudo-random number, by splitmix64's finaliser. Position 0 is for the window of a request, the next ones are for its salt.
/// The identical warm-ups of a launch get the same numbers.
fn random(label: &str, key: PromptKey, position: u64) -> u64 {
    let index = match key.kind {
        RequestKind::Warmup if key.is_identical_warm_up() => 0,
        RequestKind::Warmup => u64::from(key.index) << 2,
        RequestKind::Discarded => u64::from(key.index) << 2 | 1,
        RequestKind::Measured => u64::from(key.index) << 2 | 2,
    };
    let label = label.bytes().map(u64::from);
    let position = position | u64::from(key.sequence) << 32;
    let parts = label.chain(key.nonce).chain([u64::from(key.block), index, position]);
    parts.fold(key.seed, |state, part| {
        let mut state = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^ (state >> 31)
    })
}

#[cfg(test)]
mod tests;
