//! Reads the ids of an output that an engine gave as text.
//!
//! A text can be divided into tokens in several ways, and the engine's own way is unknown. So the verifier decides: at each
//! position its likeliest token counts as the engine's token if the text can go on with it. Elsewhere the engine gave another
//! token, and of those that fit the text, the likeliest one to the verifier counts. So a correct engine has the verifier's
//! tokens, and an engine with another text has tokens that the verifier finds unlikely.

use std::cmp::Reverse;

use super::checks::CheckTime;
use super::launch::Launched;
use crate::plan::prompts::Prompts;
use crate::record::ReadText;
use crate::run::process::Cause;

/// The most tokens of one output for which other tokens with the same text are looked for. Reading ends at the next one.
const MAX_SEARCHES: usize = 24;
/// Reading ends after this many tokens that the verifier finds less likely than its own by `UNLIKELY` nats: rounding to 4 bits
/// explains no such token.
const MAX_UNLIKELY: usize = 4;
const UNLIKELY: f64 = 4.0;
/// The most tokens that are compared in one search, those with the longest text.
const MAX_CANDIDATES: usize = 16;
/// A difference from the verifier's token up to this gap, in nats, is a near tie, so no other token is looked for.
const NEAR_TIE: f64 = 0.01;
/// The character for bytes that are no complete character.
const INCOMPLETE: char = '\u{FFFD}';

/// The text of an output, and the tokens that were read from it.
struct Reading<'a> {
    prompts: &'a Prompts,
    /// Without an incomplete character at the end.
    text: &'a str,
    ids: Vec<u32>,
    /// The number of tokens that the engine reports.
    tokens: usize,
}

/// The ids of an output. `tokens` is the number of tokens that the engine reports: its last ones may have no text.
pub(super) async fn read_text(
    verifier: &mut Launched,
    prompts: &Prompts,
    prompt: &[u32],
    (text, tokens): (&str, usize),
    check_time: CheckTime,
) -> Result<ReadText, Cause> {
    let mut reading = Reading { prompts, text: complete(text.trim_start()), ids: Vec::new(), tokens };
    let (mut searches, mut unlikely) = (0, 0);
    'text: while reading.ids.len() < tokens {
        let (guess, is_over) = match reading.division_of_rest() {
            // The text is used up. Only tokens without text may follow, and this id stands for them.
            guess if guess.is_empty() => (vec![prompt[0]], true),
            guess => (guess, false),
        };
        let sequence = [prompt, &reading.ids, &guess].concat();
        let limit = check_time.necessary_request_limit();
        let (logprobs, likeliest) = verifier.score_with_most_likely(&sequence, limit).await?;
        let likeliest = likeliest.ok_or_else(|| {
            Cause::Unsupported("gives no likeliest tokens, so a text cannot be read".into())
        })?;
        let first = prompt.len() + reading.ids.len() - 1;
        let scores = logprobs.into_iter().zip(likeliest).skip(first);
        let mut is_changed = false;
        for (&guessed, (logprob, (likeliest, likeliest_logprob))) in guess.iter().zip(scores) {
            if reading.fits(likeliest) {
                reading.ids.push(likeliest);
                if likeliest == guessed && !is_over {
                    continue;
                }
                is_changed = true;
                break;
            }
            if is_over {
                break;
            }
            let gap = likeliest_logprob - logprob.unwrap_or(f64::NEG_INFINITY);
            let mut chosen = guessed;
            if gap > NEAR_TIE {
                let has_time = !check_time.is_over() || reading.ids.is_empty();
                if searches == MAX_SEARCHES || unlikely == MAX_UNLIKELY || !has_time {
                    break 'text;
                }
                searches += 1;
                let guessed = (guessed, logprob.unwrap_or(f64::NEG_INFINITY));
                let best = reading.likeliest_that_fits(verifier, prompt, guessed, check_time).await?;
                chosen = best.0;
                unlikely += usize::from(likeliest_logprob - best.1 > UNLIKELY);
            }
            if !reading.fits(chosen) {
                // After a token that the verifier finds unlikely, the tokens so far are enough for a judgement.
                if searches > 0 {
                    break 'text;
                }
                let why = "cannot read a text: its tokenizer does not divide the rest of a text";
                return Err(Cause::Unsupported(why.into()));
            }
            reading.ids.push(chosen);
            if chosen != guessed {
                is_changed = true;
                break;
            }
        }
        if is_over && !is_changed {
            break;
        }
    }
    let unread = reading.rest().chars().count() as u32;
    Ok(ReadText { ids: reading.ids, unread, prompt_tokens: prompt.len() as u32 })
}

impl Reading<'_> {
    /// The text of these ids as far as its characters are complete.
    fn text_of(&self, ids: &[u32]) -> String {
        complete(self.prompts.decode_output(ids).trim_start()).to_owned()
    }

    /// The text after the tokens that were read. Empty if their text is another one.
    fn rest(&self) -> &str {
        self.text.strip_prefix(self.text_of(&self.ids).as_str()).unwrap_or_default()
    }

    /// Whether the text can go on with this token. A token that completes no character fits only where a character of several
    /// bytes follows.
    fn fits(&self, id: u32) -> bool {
        let ids = [self.ids.as_slice(), &[id]].concat();
        let Some(rest) = self.text.strip_prefix(self.text_of(&ids).as_str()) else { return false };
        let is_incomplete = self.prompts.decode_output(&ids).ends_with(INCOMPLETE);
        !is_incomplete || rest.chars().next().is_none_or(|next| !next.is_ascii())
    }

    /// The tokenizer's division of the remaining text, up to the reported number of tokens. If the tokens so far are the
    /// tokenizer's own, the division of the whole text goes on after them: some tokenizers add a space before a text.
    fn division_of_rest(&self) -> Vec<u32> {
        let rest = self.rest();
        if rest.is_empty() {
            return Vec::new();
        }
        let (whole, before) = (self.prompts.encode_output(self.text), self.text_of(&self.ids));
        let continues = (0..whole.len()).find(|&end| self.text_of(&whole[..end]) == before);
        let mut ids = continues.map_or_else(|| self.prompts.encode_output(rest), |end| whole[end..].to_vec());
        ids.truncate(self.tokens - self.ids.len());
        ids
    }

    /// The likeliest of the tokens with which the text can go on, among which is this one with its log-probability.
    async fn likeliest_that_fits(
        &self,
        verifier: &mut Launched,
        prompt: &[u32],
        guessed: (u32, f64),
        check_time: CheckTime,
    ) -> Result<(u32, f64), Cause> {
        let rest = self.rest();
        let mut candidates: Vec<(usize, u32)> = Vec::new();
        for (id, text) in self.prompts.texts_of_ids().iter().enumerate() {
            let id = id as u32;
            let is_similar = text.contains(INCOMPLETE) || rest.trim_start().starts_with(text.trim_start());
            if !text.is_empty() && is_similar && id != guessed.0 && self.fits(id) {
                candidates.push((complete(text).len(), id));
            }
        }
        candidates.sort_by_key(|(length, id)| (Reverse(*length), *id));
        let mut best = guessed;
        for (_, id) in candidates.into_iter().take(MAX_CANDIDATES) {
            let sequence = [prompt, &self.ids, &[id]].concat();
            let (logprobs, _) = verifier.score(&sequence, check_time.necessary_request_limit()).await?;
            let logprob = logprobs.last().copied().flatten().unwrap_or(f64::NEG_INFINITY);
            if logprob > best.1 {
                best = (id, logprob);
            }
        }
        Ok(best)
    }
}

/// A text without an incomplete character at its end.
fn complete(text: &str) -> &str {
    text.trim_end_matches(INCOMPLETE)
}
