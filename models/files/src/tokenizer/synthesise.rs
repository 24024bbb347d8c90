//! A working tokenizer of any size, for a model with random weights.
//!
//! Real vocabularies have 32,000 to 256,000 ids. Each synthesised id has a text that encodes to this id alone, except the 128
//! bytes beyond ASCII, which are parts of characters. So the output of an engine that gives text can be checked, and encoding
//! costs as much as with a real tokenizer. The first tokens are learned from a text of this project; the others are composed
//! from them. The same text gives the same tokens on every machine: no result depends on the order of a hash table, and
//! among equally frequent pairs the lowest ids win.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use anyhow::{Result, anyhow, bail, ensure};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper};

use super::write_json::pre_tokenizer_json;
use super::{PreTokenizer, Special, TokenType, TokenizerKind, TokenizerTables};
use crate::embedded;

/// The largest vocabulary; a config with a larger one is broken.
const MAX_VOCABULARY: u32 = 1 << 20;

/// The length limit of composed words; a space in front counts as a character.
const MAX_WORD_CHARACTERS: usize = 16;

/// Makes the tables of a byte-level tokenizer with `vocabulary` ids, which include those of the special tokens. The caller sets
/// `bos`, `eos` and `add_bos`.
pub fn synthesise(
    vocabulary: u32,
    pre: &'static PreTokenizer,
    specials: &[Special],
) -> Result<TokenizerTables> {
    let ordinary = count_ordinary(vocabulary, specials)?;
    let excluded: HashSet<&str> = specials.iter().map(|special| special.content.as_str()).collect();
    let mut learned = learn(&embedded::heldout_text()?, pre, ordinary, &excluded)?;
    compose(&mut learned, ordinary, &excluded)?;

    let mut tokens: Vec<Option<String>> = vec![None; vocabulary as usize];
    let mut types = vec![TokenType::Normal; vocabulary as usize];
    for special in specials {
        tokens[special.id as usize] = Some(special.content.clone());
        types[special.id as usize] = TokenType::Control;
    }
    // Ordinary tokens take the remaining ids in order.
    let mut ids = Vec::with_capacity(ordinary);
    let mut texts = learned.texts.into_iter();
    for (id, slot) in (0_u32..).zip(&mut tokens) {
        if slot.is_none() {
            *slot = texts.next();
            ids.push(id);
        }
    }
    let merges = learned.merges.iter().map(|&(left, right)| (ids[left as usize], ids[right as usize]));
    Ok(TokenizerTables {
        kind: TokenizerKind::ByteLevel { pre, nfc: pre.nfc },
        merges: merges.collect(),
        tokens: tokens.into_iter().flatten().collect(),
        types,
        bos: None,
        eos: None,
        unknown: None,
        padding: None,
        add_bos: None,
        add_eos: None,
        chat_template: None,
    })
}

/// Checks the vocabulary and returns the number of ordinary tokens.
fn count_ordinary(vocabulary: u32, specials: &[Special]) -> Result<usize> {
    ensure!(vocabulary <= MAX_VOCABULARY, "a vocabulary of {vocabulary} is more than {MAX_VOCABULARY}");
    let (mut ids, mut contents) = (HashSet::new(), HashSet::new());
    for Special { id, content } in specials {
        ensure!(*id < vocabulary, "special token `{content}` has id {id} in a vocabulary of {vocabulary}");
        ensure!(ids.insert(id), "two special tokens have id {id}");
        ensure!(contents.insert(content), "two special tokens are `{content}`");
        ensure!(
            content.chars().count() > 1,
            "special token {id} is `{content}`, which ordinary text contains"
        );
    }
    let min_size = specials.len() + 256;
    ensure!(
        vocabulary as usize >= min_size,
        "a vocabulary of {vocabulary} is too small: 256 bytes and {} special tokens need {min_size}",
        specials.len()
    );
    Ok(vocabulary as usize - specials.len())
}

/// Adds words of a stem and an ending until there are `limit` tokens: every stem with the first ending, then with the
/// second. When the endings are used up, the new words become the stems.
///
/// A new merge ranks last, so it changes no earlier token. A word is added only if the earlier merges turn its bytes into exactly
/// its stem and its ending: then the new merge makes the word. So each token's text encodes to its id.
fn compose(learned: &mut Learned, limit: usize, excluded: &HashSet<&str>) -> Result<()> {
    if learned.texts.len() >= limit {
        return Ok(());
    }
    let mut known: HashSet<String> = learned.texts.iter().cloned().collect();
    known.extend(excluded.iter().map(|text| text.to_string()));
    let mut encoder = Encoder::new(learned);
    let indexes = 0..learned.texts.len();
    let is_word = |index: &usize| is_stem(&learned.texts[*index]);
    let mut stems: Vec<usize> = indexes.clone().filter(is_word).collect();
    let mut endings: Vec<usize> = indexes.filter(|&index| is_ending(&learned.texts[index])).collect();
    // Single letters come last.
    endings.sort_by_key(|&index| learned.texts[index].len() == 1);
    while !stems.is_empty() {
        let first_new = learned.texts.len();
        for &ending in &endings {
            for &stem in &stems {
                let (left, right) = (&learned.texts[stem], &learned.texts[ending]);
                if left.chars().count() + right.len() > MAX_WORD_CHARACTERS || !is_pronounceable(left, right)
                {
                    continue;
                }
                let (word, pair) = (format!("{left}{right}"), (stem as u32, ending as u32));
                if known.contains(&word) || encoder.encode(&word) != [pair.0, pair.1] {
                    continue;
                }
                encoder.add(pair, learned.texts.len() as u32);
                known.insert(word.clone());
                learned.merges.push(pair);
                learned.texts.push(word);
                if learned.texts.len() == limit {
                    return Ok(());
                }
            }
        }
        stems = (first_new..learned.texts.len()).collect();
    }
    bail!("only {} distinct tokens can be made, and {limit} are required", learned.texts.len())
}

/// Whether a text is a word of at least two letters. It may have a space in front (`Ġ`) and a capital first letter.
fn is_stem(text: &str) -> bool {
    let letters = text.strip_prefix('Ġ').unwrap_or(text);
    let mut characters = letters.chars();
    letters.len() > 1
        && characters.next().is_some_and(|first| first.is_ascii_alphabetic())
        && characters.all(|next| next.is_ascii_lowercase())
}

fn is_ending(text: &str) -> bool {
    text.len() <= 6 && text.chars().all(|character| character.is_ascii_lowercase())
}

/// Whether a vowel meets a consonant where the two join: `north` and `er`, not `north` and `nd`.
fn is_pronounceable(stem: &str, ending: &str) -> bool {
    let is_vowel = |letter: Option<u8>| letter.is_some_and(|letter| b"aeiouyAEIOUY".contains(&letter));
    is_vowel(stem.bytes().next_back()) != is_vowel(ending.bytes().next())
}

/// Merges a word's bytes like every BPE: the pair of lowest rank first, and the leftmost pair among equals.
struct Encoder {
    /// The token of each character of the alphabet: its index in `Learned::texts`.
    byte_tokens: HashMap<char, u32>,
    /// The token that a pair merges into. Tokens have the order of their merges, so a lower index is a lower rank.
    merged: HashMap<(u32, u32), u32>,
    symbols: Vec<u32>,
}

impl Encoder {
    fn new(learned: &Learned) -> Self {
        let merged = learned.merges.iter().copied().zip(256..).collect();
        Self { byte_tokens: alphabet().into_iter().zip(0..).collect(), merged, symbols: Vec::new() }
    }

    fn add(&mut self, pair: (u32, u32), merged: u32) {
        self.merged.insert(pair, merged);
    }

    fn encode(&mut self, word: &str) -> &[u32] {
        self.symbols.clear();
        self.symbols.extend(word.chars().filter_map(|character| self.byte_tokens.get(&character)));
        loop {
            let pairs = self.symbols.windows(2).enumerate();
            let merges =
                pairs.filter_map(|(index, pair)| Some((*self.merged.get(&(pair[0], pair[1]))?, index)));
            let Some((merged, index)) = merges.min() else { return &self.symbols };
            self.symbols[index] = merged;
            self.symbols.remove(index + 1);
        }
    }
}

/// Tokens in the order of their creation, and the merges that make them from the 256 bytes that come first. In `merges`
/// a token is its index in `texts`.
#[derive(Debug)]
struct Learned {
    texts: Vec<String>,
    merges: Vec<(u32, u32)>,
}

/// One character for each byte, in the order of code points, as in GPT-2's vocabulary.
fn alphabet() -> Vec<char> {
    let mut characters: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    characters.sort_unstable();
    characters
}

/// Merges the most frequent pair until there are `limit` tokens or no pair occurs twice. Never makes a text in `excluded`.
fn learn(text: &str, pre: &PreTokenizer, limit: usize, excluded: &HashSet<&str>) -> Result<Learned> {
    let alphabet = alphabet();
    let mut texts: Vec<String> = alphabet.iter().map(char::to_string).collect();
    let mut merges = Vec::new();
    let byte_tokens: HashMap<char, u32> = alphabet.into_iter().zip(0_u32..).collect();
    let mut words = Words::default();
    for (word, count) in count_words(text, pre)? {
        let symbols = word.chars().map(|byte| byte_tokens.get(&byte).copied()).collect::<Option<_>>();
        words.add(symbols.ok_or_else(|| anyhow!("`{word}` has a character that stands for no byte"))?, count);
    }
    while texts.len() < limit {
        let join = |&(left, right): &(u32, u32)| format!("{}{}", texts[left as usize], texts[right as usize]);
        let Some(pair) = words.most_frequent(|pair| excluded.contains(join(pair).as_str())) else { break };
        let (text, merged) = (join(&pair), texts.len() as u32);
        texts.push(text);
        merges.push(pair);
        words.merge(pair, merged);
    }
    Ok(Learned { texts, merges })
}

/// Counts the words into which `tokenizers` cuts a text. A word has a character for each byte.
fn count_words(text: &str, pre: &PreTokenizer) -> Result<BTreeMap<String, u64>> {
    let mut pre_tokenized = PreTokenizedString::from(text);
    let pre_tokenizer: PreTokenizerWrapper = serde_json::from_value(pre_tokenizer_json(pre))?;
    pre_tokenizer.pre_tokenize(&mut pre_tokenized).map_err(|error| anyhow!("{error}"))?;
    let mut counts = BTreeMap::new();
    for (word, ..) in pre_tokenized.get_splits(OffsetReferential::Original, OffsetType::Byte) {
        *counts.entry(word.to_string()).or_default() += 1;
    }
    ensure!(!counts.is_empty(), "there is no text to learn from");
    Ok(counts)
}

/// Distinct words with their counts, and the words that contain each pair of neighbours.
#[derive(Default)]
struct Words {
    words: Vec<(Vec<u32>, u64)>,
    pairs: BTreeMap<(u32, u32), Pair>,
}

#[derive(Default)]
struct Pair {
    count: u64,
    words: BTreeSet<usize>,
}

impl Words {
    fn add(&mut self, symbols: Vec<u32>, count: u64) {
        let index = self.words.len();
        self.words.push((symbols, count));
        self.add_pairs(index);
    }

    /// The most frequent pair that occurs at least twice; the lowest ids among equals.
    fn most_frequent(&self, is_excluded: impl Fn(&(u32, u32)) -> bool) -> Option<(u32, u32)> {
        let mut best: Option<(u64, (u32, u32))> = None;
        for (pair, Pair { count, .. }) in &self.pairs {
            if *count >= 2 && best.is_none_or(|(most, _)| *count > most) && !is_excluded(pair) {
                best = Some((*count, *pair));
            }
        }
        best.map(|(_, pair)| pair)
    }

    fn merge(&mut self, pair: (u32, u32), merged: u32) {
        let words = self.pairs.get(&pair).map(|pair| pair.words.clone()).unwrap_or_default();
        for index in words {
            self.remove_pairs(index);
            merge_all(&mut self.words[index].0, pair, merged);
            self.add_pairs(index);
        }
    }

    fn add_pairs(&mut self, index: usize) {
        let (symbols, count) = &self.words[index];
        for neighbours in symbols.windows(2) {
            let pair = self.pairs.entry((neighbours[0], neighbours[1])).or_default();
            pair.count += count;
            pair.words.insert(index);
        }
    }

    fn remove_pairs(&mut self, index: usize) {
        let (symbols, count) = &self.words[index];
        for neighbours in symbols.windows(2) {
            let key = (neighbours[0], neighbours[1]);
            if let Some(pair) = self.pairs.get_mut(&key) {
                pair.count -= count;
                pair.words.remove(&index);
                if pair.count == 0 {
                    self.pairs.remove(&key);
                }
            }
        }
    }
}

/// Merges from left to right like the encoder: of three equal symbols it merges the first two.
fn merge_all(symbols: &mut Vec<u32>, pair: (u32, u32), merged: u32) {
    let (mut from, mut to) = (0, 0);
    while from < symbols.len() {
        let is_pair = symbols.get(from..from + 2).is_some_and(|next| (next[0], next[1]) == pair);
        symbols[to] = if is_pair { merged } else { symbols[from] };
        from += if is_pair { 2 } else { 1 };
        to += 1;
    }
    symbols.truncate(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpt2() -> &'static PreTokenizer {
        PreTokenizer::named("gpt-2").unwrap()
    }

    #[test]
    fn the_most_frequent_pair_is_merged_first_then_the_lowest_ids() {
        let learned = learn("ab ab ab cd cd cd ef", gpt2(), 1000, &HashSet::new()).unwrap();
        // ` a` and `ab` occur 2 and 3 times; `ab` and `cd` equally often.
        assert_eq!(learned.texts[256..], ["ab", "cd", "Ġcd", "Ġab"]);
        let learned = learn("ab ab ab", gpt2(), 1000, &HashSet::from(["ab"])).unwrap();
        assert_eq!(learned.texts[256..], ["Ġa", "Ġab"], "excluded texts are not created");
    }

    #[test]
    fn pairs_are_merged_from_left_to_right() {
        let mut symbols = vec![1, 1, 1, 2, 1, 1];
        merge_all(&mut symbols, (1, 1), 9);
        assert_eq!(symbols, [9, 1, 2, 9]);
    }
}
