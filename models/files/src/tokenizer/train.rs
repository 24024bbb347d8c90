//! Learns a byte-level BPE from a text. The same text gives the same tokens on every machine: no code here iterates over a
//! hash table, and among equally common pairs the lowest ids win.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use anyhow::{Result, anyhow, ensure};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper};

use super::Pre;
use super::json::cutting;

/// Tokens in the order of their creation, and the merges that make them from the 256 bytes that come first. Numbers are
/// indexes into `texts`.
#[derive(Debug)]
pub(super) struct Learnt {
    pub texts: Vec<String>,
    pub merges: Vec<(u32, u32)>,
}

/// One character for each byte, in the order of code points, as in GPT-2's vocabulary.
pub(super) fn alphabet() -> Vec<char> {
    let mut characters: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    characters.sort_unstable();
    characters
}

/// Merges the commonest pair until there are `limit` tokens or no pair occurs twice. Never makes a text in `taken`.
pub(super) fn learn(text: &str, pre: &Pre, limit: usize, taken: &HashSet<&str>) -> Result<Learnt> {
    let alphabet = alphabet();
    let mut texts: Vec<String> = alphabet.iter().map(char::to_string).collect();
    let mut merges = Vec::new();
    let numbers: HashMap<char, u32> = alphabet.into_iter().zip(0_u32..).collect();
    let mut words = Words::default();
    for (word, count) in count_words(text, pre)? {
        let symbols = word.chars().map(|character| numbers.get(&character).copied()).collect::<Option<_>>();
        words.add(symbols.ok_or_else(|| anyhow!("`{word}` is not made of bytes"))?, count);
    }
    while texts.len() < limit {
        let joined =
            |&(left, right): &(u32, u32)| format!("{}{}", texts[left as usize], texts[right as usize]);
        let Some(pair) = words.commonest(|pair| taken.contains(joined(pair).as_str())) else { break };
        let (text, made) = (joined(&pair), texts.len() as u32);
        texts.push(text);
        merges.push(pair);
        words.merge(pair, made);
    }
    Ok(Learnt { texts, merges })
}

/// The words of a text as `tokenizers` cuts them, with a character for each byte.
fn count_words(text: &str, pre: &Pre) -> Result<BTreeMap<String, u64>> {
    let mut cut = PreTokenizedString::from(text);
    let cutter: PreTokenizerWrapper = serde_json::from_value(cutting(pre))?;
    cutter.pre_tokenize(&mut cut).map_err(|error| anyhow!("{error}"))?;
    let mut counts = BTreeMap::new();
    for (word, ..) in cut.get_splits(OffsetReferential::Original, OffsetType::Byte) {
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
        self.count(index);
    }

    /// The commonest pair that occurs at least twice; the lowest ids among equals.
    fn commonest(&self, refused: impl Fn(&(u32, u32)) -> bool) -> Option<(u32, u32)> {
        let mut best: Option<(u64, (u32, u32))> = None;
        for (pair, Pair { count, .. }) in &self.pairs {
            if *count >= 2 && best.is_none_or(|(most, _)| *count > most) && !refused(pair) {
                best = Some((*count, *pair));
            }
        }
        best.map(|(_, pair)| pair)
    }

    fn merge(&mut self, pair: (u32, u32), made: u32) {
        let places = self.pairs.get(&pair).map(|found| found.words.clone()).unwrap_or_default();
        for index in places {
            self.forget(index);
            merge_all(&mut self.words[index].0, pair, made);
            self.count(index);
        }
    }

    fn count(&mut self, index: usize) {
        let (symbols, count) = &self.words[index];
        for neighbours in symbols.windows(2) {
            let pair = self.pairs.entry((neighbours[0], neighbours[1])).or_default();
            pair.count += count;
            pair.words.insert(index);
        }
    }

    fn forget(&mut self, index: usize) {
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
fn merge_all(symbols: &mut Vec<u32>, pair: (u32, u32), made: u32) {
    let (mut from, mut to) = (0, 0);
    while from < symbols.len() {
        let is_pair = symbols.get(from..from + 2).is_some_and(|next| (next[0], next[1]) == pair);
        symbols[to] = if is_pair { made } else { symbols[from] };
        from += if is_pair { 2 } else { 1 };
        to += 1;
    }
    symbols.truncate(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpt2() -> &'static Pre {
        Pre::named("gpt-2").unwrap()
    }

    #[test]
    fn the_commonest_pair_is_merged_first_and_of_equals_the_lowest() {
        let learnt = learn("ab ab ab cd cd cd ef", gpt2(), 1000, &HashSet::new()).unwrap();
        // ` a` and `ab` occur 2 and 3 times; `ab` and `cd` equally often.
        assert_eq!(learnt.texts[256..], ["ab", "cd", "Ġcd", "Ġab"]);
        let learnt = learn("ab ab ab", gpt2(), 1000, &HashSet::from(["ab"])).unwrap();
        assert_eq!(learnt.texts[256..], ["Ġa", "Ġab"], "what is taken is gone around");
    }

    #[test]
    fn merging_goes_from_left_to_right() {
        let mut symbols = vec![1, 1, 1, 2, 1, 1];
        merge_all(&mut symbols, (1, 1), 9);
        assert_eq!(symbols, [9, 1, 2, 9]);
    }
}
