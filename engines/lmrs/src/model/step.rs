//! The rows of a step, and their grouping into passes through the network.
//!
//! A request's ids must not depend on other requests. So rows that make the next token go in passes of at most `FEW` rows,
//! where each row gets the same bits as alone. They never go together with a long prompt. Passes for long prompts contain only
//! chunks of long prompts.

use super::PASS_ROWS;
use super::decoder::{FEW, Wanted};
use super::sequence::Sequence;

/// Rows of prompts in a step while other sequences wait for their next token.
const SHARED_ROWS: usize = 128;

/// The priority between prompts and tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// The sequences of one request: all prompts are read first, and then the tokens are generated together.
    Together,
    /// Several requests: each decoding request makes a token in every step. Prompts share the remaining rows, so that a short
    /// prompt does not wait for a long one.
    Shared,
}

/// The chunk of a sequence in a step.
#[derive(Debug)]
pub struct Chunk {
    /// The index of the sequence.
    pub index: usize,
    pub rows: usize,
    /// Rows that check drafted ids.
    pub drafted: usize,
    pub wanted: Wanted,
    kind: Kind,
}

/// The kind of a pass, in order of execution: tokens never wait for prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Each row makes a token, or checks a draft.
    Tokens,
    /// Whole prompts of a few rows.
    Short,
    /// Parts of longer prompts.
    Long,
}

/// Plans a step, sorted by kind. Drafts are appended to the ids, where the network reads them.
pub fn plan<S>(sequences: &mut [&mut Sequence<S>], schedule: Schedule) -> Vec<Chunk> {
    let decoding = sequences.iter().any(|sequence| sequence.generated() > 0);
    let unread = sequences.iter().any(|sequence| sequence.generated() == 0);
    let prompts_first = schedule == Schedule::Together && unread;
    let mut order: Vec<usize> = (0..sequences.len()).collect();
    // Without the cache, each token reads all rows of its sequence: the sequence with the fewest tokens is next.
    order.sort_by_key(|index| sequences[*index].generated());
    let mut reading = sequences.iter().filter(|sequence| sequence.uncached() > FEW).count();
    let mut left = if schedule == Schedule::Shared && decoding { SHARED_ROWS } else { PASS_ROWS };
    let mut chunks = Vec::with_capacity(sequences.len());
    for index in order {
        let sequence = &mut *sequences[index];
        if prompts_first && sequence.generated() > 0 {
            continue;
        }
        if sequence.uncached() <= FEW {
            chunks.push(short_chunk(sequence, index));
            continue;
        }
        let fair_share =
            if schedule == Schedule::Shared { (left / reading.max(1)).max(LEAST_CHUNK) } else { left };
        reading = reading.saturating_sub(1);
        let room = fair_share.min(left);
        if room < LEAST_CHUNK && sequence.uncached() > room {
            continue;
        }
        let rows = chunk_rows(sequence.uncached(), room);
        left -= rows;
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
    let most = sequence.may_draft();
    let drafted = draft(sequence.ids_mut(), most);
    let wanted = if drafted > 0 { Wanted::EveryLargest } else { sequence.wanted() };
    Chunk { index, rows: 1 + drafted, drafted, wanted, kind: Kind::Tokens }
}

/// The number of chunks, from the first, in the next pass: of one kind, with at most `FEW` rows whose logits are computed.
pub fn chunks_of_pass(chunks: &[Chunk]) -> usize {
    let mut rows = 0;
    let fits = |chunk: &&Chunk| {
        rows += match chunk.kind {
            Kind::Tokens | Kind::Short => chunk.rows,
            Kind::Long => usize::from(chunk.wanted != Wanted::Nothing),
        };
        chunk.kind == chunks[0].kind && rows <= FEW
    };
    // A single draft may exceed this limit.
    chunks.iter().take_while(fits).count().max(1)
}

/// The fewest rows of a long prompt in one pass.
const LEAST_CHUNK: usize = 4 * FEW;

/// Rows of the waiting prompt that go now, if `most` rows have room; never fewer than `LEAST_CHUNK`. The remaining part is
/// empty or longer than `FEW`, so all rows of a long prompt are computed in the same way, wherever it is cut.
pub fn chunk_rows(uncached: usize, most: usize) -> usize {
    match uncached.saturating_sub(most) {
        0 => uncached,
        1..=FEW => most - 2 * FEW,
        _ => most,
    }
}

/// The most last ids that are compared.
const LONGEST: usize = 4;
/// The fewest last ids that must match: a single id repeats too easily.
const SHORTEST: usize = 2;

/// Speculation by prompt lookup: the last few ids are searched in the earlier text, and the ids that followed there are the
/// draft. A draft costs almost nothing, and one pass of the network checks all its ids. The function appends at most `most`
/// likely next ids to `ids`, and returns their number. The longest match wins, and then the last.
fn draft(ids: &mut Vec<u32>, most: usize) -> usize {
    let end = ids.len();
    if most == 0 || end <= SHORTEST {
        return 0;
    }
    let (mut best, mut from) = (SHORTEST - 1, 0);
    for after in (SHORTEST..end).rev() {
        // `after` is the index of the first id after the match.
        let matching =
            (1..=LONGEST.min(after)).take_while(|back| ids[after - back] == ids[end - back]).count();
        if matching > best {
            (best, from) = (matching, after);
        }
        if best == LONGEST {
            break;
        }
    }
    if from == 0 {
        return 0;
    }
    ids.extend_from_within(from..end.min(from + most));
    ids.len() - end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_prompt_has_no_short_chunk_and_no_chunk_longer_than_the_room() {
        for most in [LEAST_CHUNK, 100, 128, 256] {
            for rows in 1..2000 {
                let (mut uncached, mut pieces) = (rows, Vec::new());
                while uncached > 0 {
                    pieces.push(chunk_rows(uncached, most));
                    uncached -= pieces[pieces.len() - 1];
                }
                assert!(pieces.iter().all(|piece| *piece <= most), "{rows} of {most}: {pieces:?}");
                assert!(
                    rows <= FEW || pieces.iter().all(|piece| *piece > FEW),
                    "{rows} of {most}: {pieces:?}"
                );
            }
        }
    }

    fn drafted(ids: &[u32], most: usize) -> Vec<u32> {
        let mut longer = ids.to_vec();
        let count = draft(&mut longer, most);
        assert_eq!(longer.len(), ids.len() + count);
        longer.split_off(ids.len())
    }

    #[test]
    fn the_ids_after_an_earlier_match_are_drafted() {
        assert_eq!(drafted(&[1, 2, 3, 4, 5, 9, 2, 3], 2), [4, 5]);
        assert_eq!(drafted(&[1, 2, 3, 4, 5, 9, 2, 3], 100), [4, 5, 9, 2, 3]);
        assert_eq!(drafted(&[7, 7, 7], 3), [7]);
    }

    #[test]
    fn the_longest_match_wins_and_then_the_latest() {
        assert_eq!(drafted(&[1, 2, 3, 10, 2, 3, 11, 1, 2, 3], 1), [10]);
        assert_eq!(drafted(&[2, 3, 10, 2, 3, 11, 5, 2, 3], 1), [11]);
    }

    #[test]
    fn nothing_is_drafted_without_a_match_or_with_a_limit_of_zero() {
        assert!(drafted(&[1, 2, 3, 4], 4).is_empty());
        assert!(drafted(&[3, 9, 3], 4).is_empty());
        assert!(drafted(&[1, 2, 1, 2], 0).is_empty());
        assert!(drafted(&[], 4).is_empty() && drafted(&[1], 4).is_empty() && drafted(&[1, 1], 4).is_empty());
    }
}
