//! The windows of a text to score, for the perplexity of a model. The rule is the same for every engine:
//!
//! - The tokens of the whole text are cut from its beginning into windows that do not overlap.
//! - Each window begins with the ids that the tokenizer puts before every text (BOS), if there are any. They count towards the
//!   length of the window.
//! - Every token of the text is scored, given the tokens before it in its window. Without BOS, the first token of a window is
//!   not scored, because nothing is before it.
//! - The last window may be shorter. The text after the last window is not scored.

use std::ops::Range;

use anyhow::{Result, ensure};

use super::Prompts;
use crate::plan::{Prompt, Workload};
use crate::shell::this_command_with_value;
use crate::text::plural;

/// A text with fewer tokens has no perplexity: chance would decide it.
const MIN_TOKENS: usize = 32;
/// A file is tokenized from its beginning: first this many bytes for each needed token, then twice as many.
const BYTES_PER_TOKEN: usize = 8;
/// The end of a part of a text may have other tokens than in the whole text, so this many tokens more are needed.
const TOKENS_AFTER_CUT: usize = 64;

/// The windows of a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Windows {
    /// The ids of each window, with BOS.
    pub ids: Vec<Vec<u32>>,
    /// The bytes of each window's scored text.
    pub text_bytes: Vec<u64>,
    /// The number of log-probabilities at the beginning of each window that belong to no token of the text: a tokenizer may put
    /// several ids before a text.
    pub before_text: usize,
    /// The bytes of the text after the last window.
    pub left_out_bytes: u64,
}

impl Prompts {
    /// The windows of a workload that scores text: as many as it has rounds, and no more than the text has.
    pub fn windows(&self, workload: &Workload) -> Result<Windows> {
        let length = match workload.prompt {
            Prompt::Tokens(tokens) => tokens as usize,
            Prompt::Text(_) => 0,
        };
        ensure!(
            length > self.bos.len() + 1,
            "a window of {length} tokens has no room for two tokens of text\nhint: {}",
            this_command_with_value("--prompt-tokens", None, &(self.bos.len() + 2).to_string())
        );
        let (body, most) = (length - self.bos.len(), workload.rounds as usize);
        let wanted = body.saturating_mul(most);
        let (ids, all_bytes) = match &workload.scored_text {
            Some(file) => (self.beginning(&file.text, wanted)?, file.text.len()),
            None => (self.text_ids.clone(), self.text_bytes),
        };
        ensure!(
            ids.len() >= MIN_TOKENS,
            "the text has {}, and a perplexity needs {MIN_TOKENS}\nhint: name a longer text with `--text FILE`",
            plural(ids.len(), "token")
        );
        let ranges = cut(ids.len(), body, most, !self.bos.is_empty());
        let mut ends = self.bytes_until_ends(&ids, &ranges);
        if let (Some(end), Some(bytes), true) = (ranges.last(), ends.last_mut(), ids.len() <= wanted) {
            // The whole text was cut, so its length is known.
            *bytes = if end.end == ids.len() { all_bytes } else { *bytes };
        }
        let starts = [0].into_iter().chain(ends.iter().copied());
        let scored_bytes = |((range, start), end): ((&Range<usize>, usize), &usize)| {
            let first = if self.bos.is_empty() {
                self.tokenizer.decode(&ids[range.start..=range.start]).len()
            } else {
                0
            };
            end.saturating_sub(start + first) as u64
        };
        let text_bytes = ranges.iter().zip(starts).zip(&ends).map(scored_bytes).collect();
        let end = ends.last().copied().unwrap_or(0);
        let window = |range: &Range<usize>| [&self.bos[..], &ids[range.clone()]].concat();
        Ok(Windows {
            ids: ranges.iter().map(window).collect(),
            text_bytes,
            before_text: self.bos.len().saturating_sub(1),
            left_out_bytes: all_bytes.saturating_sub(end) as u64,
        })
    }

    /// The bytes of the text up to the end of each window. The windows follow one another from the beginning of the text.
    fn bytes_until_ends(&self, ids: &[u32], windows: &[Range<usize>]) -> Vec<usize> {
        // The tokens whose bytes are counted end where a character ends. A character may have several tokens, of which a window
        // may have only some.
        let (mut counted, mut bytes) = (0, 0);
        let mut ends = Vec::new();
        for window in windows {
            // A tokenizer may decode the first token of a text in another way, so one more token is before the others.
            let before = usize::from(counted > 0);
            let length_of_before = self.tokenizer.decode(&ids[counted - before..counted]).len();
            let decoded = self.tokenizer.decode(&ids[counted - before..window.end]);
            let whole = whole_characters(&decoded).saturating_sub(length_of_before);
            ends.push(bytes + whole);
            if whole_characters(&decoded) == decoded.len() {
                (counted, bytes) = (window.end, bytes + whole);
            }
        }
        ends
    }

    /// The ids of a text without BOS, up to at least `wanted` ids.
    fn beginning(&self, text: &str, wanted: usize) -> Result<Vec<u32>> {
        let mut end = wanted.saturating_add(TOKENS_AFTER_CUT).saturating_mul(BYTES_PER_TOKEN);
        loop {
            let part = &text[..text.floor_char_boundary(end)];
            let ids = self.tokenizer.encode(part)?.split_off(self.bos.len());
            if part.len() == text.len() || ids.len() >= wanted.saturating_add(TOKENS_AFTER_CUT) {
                return Ok(ids);
            }
            end = end.saturating_mul(2);
        }
    }
}

/// The bytes of a decoded text without the beginning of a character that its last tokens do not complete.
fn whole_characters(decoded: &str) -> usize {
    decoded.trim_end_matches(char::REPLACEMENT_CHARACTER).len()
}

/// The tokens of each window, as positions in the text.
fn cut(tokens: usize, body: usize, most: usize, has_bos: bool) -> Vec<Range<usize>> {
    let windows = (0..most).map(|window| window * body..((window + 1) * body).min(tokens));
    let least = if has_bos { 1 } else { 2 };
    windows.take_while(|it| it.start + least <= it.end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::scenario::Kind;
    use crate::plan::texts::TextFile;

    fn prompts() -> Prompts {
        Prompts::open(&model_files::resolve(None).unwrap().to_string_lossy()).unwrap()
    }

    fn workload(tokens: u32, windows: u32, text: Option<&str>) -> Workload {
        let scored_text = text.map(|text| TextFile { text: text.into(), ..TextFile::default() });
        let kind = Kind::Score;
        Workload { kind, rounds: windows, scored_text, ..Workload::specimen(Prompt::Tokens(tokens)) }
    }

    #[test]
    fn windows_follow_each_other_without_overlap_and_the_last_one_may_be_shorter() {
        assert_eq!(cut(10, 4, 9, true), [0..4, 4..8, 8..10]);
        assert_eq!(cut(10, 4, 2, true), [0..4, 4..8], "at most two windows");
        assert_eq!(cut(9, 4, 9, true), [0..4, 4..8, 8..9]);
        // Nothing is before the only token of the last window.
        assert_eq!(cut(9, 4, 9, false), [0..4, 4..8]);
    }

    #[test]
    fn each_window_begins_with_bos_and_the_rest_is_the_whole_text_in_order() {
        let prompts = prompts();
        let windows = prompts.windows(&workload(64, 5, None)).unwrap();
        assert_eq!(windows.ids.iter().map(Vec::len).collect::<Vec<_>>(), [64; 5]);
        assert!(!prompts.bos.is_empty() && windows.ids.iter().all(|it| it.starts_with(&prompts.bos)));
        let text: Vec<u32> = windows.ids.iter().flat_map(|it| it[prompts.bos.len()..].to_vec()).collect();
        assert_eq!(text, prompts.text_ids[..text.len()]);
        let scored = prompts.tokenizer.decode(&text).len() as u64;
        let whole = prompts.text_bytes as u64;
        assert_eq!(windows.text_bytes.iter().sum::<u64>(), scored);
        assert_eq!(windows.left_out_bytes, whole - scored);
    }

    #[test]
    fn all_bytes_of_a_short_text_are_scored_also_where_characters_have_several_tokens() {
        let text = "Größe, 東京 and 🚲 in one line. ".repeat(9);
        let windows = prompts().windows(&workload(32, 99, Some(&text))).unwrap();
        assert_eq!(windows.text_bytes.iter().sum::<u64>(), text.len() as u64);
        assert_eq!((windows.left_out_bytes, windows.before_text), (0, 0));
    }

    #[test]
    fn without_bos_the_first_token_of_each_window_and_its_bytes_are_not_scored() {
        let prompts = Prompts { bos: Vec::new(), ..prompts() };
        let windows = prompts.windows(&workload(16, 2, None)).unwrap();
        assert_eq!(windows.ids.concat(), prompts.text_ids[..32]);
        for (ids, bytes) in windows.ids.iter().zip(&windows.text_bytes) {
            assert_eq!(*bytes, prompts.tokenizer.decode(&ids[1..]).len() as u64);
        }
    }

    #[test]
    fn the_beginning_of_a_long_text_has_the_tokens_of_the_whole_text() {
        let prompts = prompts();
        let text = prompts.tokenizer.decode(&prompts.text_ids);
        assert_eq!(text.len(), prompts.text_bytes);
        let windows = prompts.windows(&workload(64, 3, Some(&text))).unwrap();
        assert_eq!(windows, prompts.windows(&workload(64, 3, None)).unwrap());
    }

    #[test]
    fn a_text_or_a_window_without_enough_tokens_has_no_perplexity() {
        let refused = |workload| prompts().windows(&workload).unwrap_err().to_string();
        let short = refused(workload(64, 3, Some("Hello.")));
        assert!(
            short.ends_with("and a perplexity needs 32\nhint: name a longer text with `--text FILE`"),
            "{short}"
        );
        let narrow = "a window of 2 tokens has no room for two tokens of text\nhint: orchestrate ";
        let refused = refused(workload(2, 3, None));
        assert!(refused.starts_with(narrow) && refused.ends_with(" --prompt-tokens 3"), "{refused}");
    }
}
