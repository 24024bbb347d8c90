//! The rows of a step, and their grouping into passes through the network.
//!
//! A request's ids must not depend on other requests. So rows that make the next token go in passes of at most
//! `MAX_DECODE_ROWS` rows, where each row gets the same bits as alone. Passes for long prompts contain only chunks
//! of long prompts.

use super::decoder::{MAX_DECODE_ROWS, Wanted};
use super::sequence::Sequence;

/// The most rows of long prompts in a step while another request waits for its next token: a longer step would delay the token.
pub const MAX_ROWS_WHILE_DECODING: usize = 128;

/// The priority between prompts and tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// The sequences of one request: all prompts are read first, and then the tokens are generated together.
    Together,
    /// Several requests: each decoding request makes a token in every step (without a cache, if the step has room for all of its
    /// rows). Long prompts share the rows of a step, so that none waits for another to end.
    Shared,
}

/// The rows of one sequence that a step computes.
#[derive(Debug)]
pub struct Chunk {
    /// The index of the sequence.
    pub index: usize,
    pub rows: usize,
    /// The number of the chunk's rows that check drafted ids.
    pub drafted: usize,
    pub wanted: Wanted,
    kind: Kind,
}

/// The kind of a chunk, and of its pass. A step runs the kinds in this order, so its tokens do not wait for its prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Each row makes a token, or checks a draft.
    Tokens,
    /// Whole prompts of a few rows; without a cache, also whole sequences.
    Short,
    /// Prompts of many rows, or parts of such prompts.
    Long,
}

/// Plans the chunks of a step, sorted by kind, with at most `max_pass_rows` rows of long prompts. Drafts are appended to the ids of
/// their sequence.
pub fn plan<S>(sequences: &mut [&mut Sequence<S>], schedule: Schedule, max_pass_rows: usize) -> Vec<Chunk> {
    let any_decoding = sequences.iter().any(|sequence| sequence.generated() > 0);
    let any_unread = sequences.iter().any(|sequence| sequence.generated() == 0);
    let prompts_first = schedule == Schedule::Together && any_unread;
    let mut order: Vec<usize> = (0..sequences.len()).collect();
    // Without the cache, a token needs all rows of its sequence. A step may be too small for all sequences, so those with the
    // fewest generated tokens come first.
    order.sort_by_key(|index| sequences[*index].generated());
    let mut prompts_left = sequences.iter().filter(|sequence| sequence.uncached() > MAX_DECODE_ROWS).count();
    let mut rows_left =
        if schedule == Schedule::Shared && any_decoding { MAX_ROWS_WHILE_DECODING } else { max_pass_rows };
    let mut chunks = Vec::with_capacity(sequences.len());
    for index in order {
        let sequence = &mut *sequences[index];
        if prompts_first && sequence.generated() > 0 {
            continue;
        }
        if sequence.uncached() <= MAX_DECODE_ROWS {
            chunks.push(short_chunk(sequence, index));
            continue;
        }
        let fair_share = if schedule == Schedule::Shared {
            (rows_left / prompts_left.max(1)).max(MIN_ROWS_FOR_CUT)
        } else {
            rows_left
        };
        prompts_left = prompts_left.saturating_sub(1);
        let max_rows = fair_share.min(rows_left);
        if max_rows < MIN_ROWS_FOR_CUT && sequence.uncached() > max_rows {
            continue;
        }
        let rows = chunk_rows(sequence.uncached(), max_rows);
        rows_left -= rows;
        let wanted = if rows == sequence.uncached() { sequence.wanted() } else { Wanted::Nothing };
        chunks.push(Chunk { index, rows, drafted: 0, wanted, kind: Kind::Long });
    }
    chunks.sort_by_key(|chunk| (chunk.kind, chunk.index));
    chunks
}

fn short_chunk<S>(sequence: &mut Sequence<S>, index: usize) -> Chunk {
    let rows = sequence.uncached();
    if rows > 1 {
        return Chunk { index, rows, drafted: 0, wanted: sequence.wanted(), kind: Kind::Short };
    }
    let max_drafts = sequence.max_drafts();
    let drafted = draft(sequence.ids_mut(), max_drafts);
    let wanted = if drafted > 0 { Wanted::EveryLargest } else { sequence.wanted() };
    Chunk { index, rows: 1 + drafted, drafted, wanted, kind: Kind::Tokens }
}

/// The number of chunks that the next pass takes from the start of the list. They have one kind, and at most `MAX_DECODE_ROWS`
/// rows; of long prompts, only the rows that need logits count.
pub fn chunks_of_pass(chunks: &[Chunk]) -> usize {
    let mut rows = 0;
    let fits = |chunk: &&Chunk| {
        rows += match chunk.kind {
            Kind::Tokens | Kind::Short => chunk.rows,
            Kind::Long => usize::from(chunk.wanted != Wanted::Nothing),
        };
        chunk.kind == chunks[0].kind && rows <= MAX_DECODE_ROWS
    };
    // A single chunk is a pass even if it exceeds this limit.
    chunks.iter().take_while(fits).count().max(1)
}

/// A long prompt is cut only if at least this number of rows is left in the step. `chunk_rows` may take `2 * MAX_DECODE_ROWS`
/// rows fewer: the chunk still has more than `MAX_DECODE_ROWS`.
const MIN_ROWS_FOR_CUT: usize = 4 * MAX_DECODE_ROWS;

/// The rows of a prompt that the next pass reads, at most `max_rows`. The part after them is empty or longer than
/// `MAX_DECODE_ROWS`. So all rows of a long prompt are computed in the same way, wherever the prompt is cut.
pub fn chunk_rows(uncached: usize, max_rows: usize) -> usize {
    match uncached.saturating_sub(max_rows) {
        0 => uncached,
        1..=MAX_DECODE_ROWS => max_rows - 2 * MAX_DECODE_ROWS,
        _ => max_rows,
    }
}

/// The most ids that `draft` matches.
const MAX_MATCH_IDS: usize = 4;
/// The fewest ids of a match: a single id repeats too easily.
const MIN_MATCH_IDS: usize = 2;

/// Speculation by prompt lookup: the last few ids are searched in the earlier text, and the ids after the match are the draft.
/// A draft costs almost nothing, and one pass of the network checks all its ids. The function appends at most `limit` likely
/// next ids to `ids`, and returns their number. It takes the longest match, and the latest of equally long ones.
fn draft(ids: &mut Vec<u32>, limit: usize) -> usize {
    let end = ids.len();
    if limit == 0 || end <= MIN_MATCH_IDS {
        return 0;
    }
    // `match_end` is the index after the match that is tried; `draft_start` is the one after the longest match, 0 if none.
    let (mut longest, mut draft_start) = (MIN_MATCH_IDS - 1, 0);
    for match_end in (MIN_MATCH_IDS..end).rev() {
        let matching = (1..=MAX_MATCH_IDS.min(match_end))
            .take_while(|back| ids[match_end - back] == ids[end - back])
            .count();
        if matching > longest {
            (longest, draft_start) = (matching, match_end);
        }
        if longest == MAX_MATCH_IDS {
            break;
        }
    }
    if draft_start == 0 {
        return 0;
    }
    ids.extend_from_within(draft_start..end.min(draft_start + limit));
    ids.len() - end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_prompt_has_no_short_chunk_and_no_chunk_above_the_limit() {
        for limit in [MIN_ROWS_FOR_CUT, 100, 128, 256] {
            for rows in 1..2000 {
                let (mut uncached, mut chunks) = (rows, Vec::new());
                while uncached > 0 {
                    chunks.push(chunk_rows(uncached, limit));
                    uncached -= chunks[chunks.len() - 1];
                }
                assert!(chunks.iter().all(|chunk| *chunk <= limit), "{rows} rows, limit {limit}: {chunks:?}");
                assert!(
                    rows <= MAX_DECODE_ROWS || chunks.iter().all(|chunk| *chunk > MAX_DECODE_ROWS),
                    "{rows} rows, limit {limit}: {chunks:?}"
                );
            }
        }
    }

    fn draft_after(ids: &[u32], limit: usize) -> Vec<u32> {
        let mut longer = ids.to_vec();
        let count = draft(&mut longer, limit);
        assert_eq!(longer.len(), ids.len() + count);
        longer.split_off(ids.len())
    }

    #[test]
    fn the_ids_after_an_earlier_match_are_drafted() {
        assert_eq!(draft_after(&[1, 2, 3, 4, 5, 9, 2, 3], 2), [4, 5]);
        assert_eq!(draft_after(&[1, 2, 3, 4, 5, 9, 2, 3], 100), [4, 5, 9, 2, 3]);
        assert_eq!(draft_after(&[7, 7, 7], 3), [7]);
    }

    #[test]
    fn the_longest_match_wins_and_then_the_latest() {
        assert_eq!(draft_after(&[1, 2, 3, 10, 2, 3, 11, 1, 2, 3], 1), [10]);
        assert_eq!(draft_after(&[2, 3, 10, 2, 3, 11, 5, 2, 3], 1), [11]);
    }

    #[test]
    fn nothing_is_drafted_without_a_match_or_with_a_limit_of_zero() {
        assert!(draft_after(&[1, 2, 3, 4], 4).is_empty());
        assert!(draft_after(&[3, 9, 3], 4).is_empty());
        assert!(draft_after(&[1, 2, 1, 2], 0).is_empty());
        assert!(
            draft_after(&[], 4).is_empty()
                && draft_after(&[1], 4).is_empty()
                && draft_after(&[1, 1], 4).is_empty()
        );
    }
}
