//! How likely a text is: the logits of every row, a stretch at a time, so that those of a long text never stand whole in memory.

use std::sync::atomic::{AtomicU64, Ordering};

use engine_kit::sampling::log_softmax_at;
use protocol::Failed;

use super::decoder::{Decoder, Found, Span, Wanted};

/// Rows of logits at once: 64 MiB where a vocabulary has 128 Ki ids.
const ROWS: usize = 128;

/// Natural logarithms of the probabilities of `ids[1..]`, summed in f64.
pub fn score<D: Decoder>(
    decoder: &mut D,
    sequence: &mut D::Sequence,
    ids: &[u32],
    found: &mut Found,
) -> Result<Vec<f64>, Failed> {
    let mut scores = Vec::with_capacity(ids.len());
    let (Some((_, given)), Some((_, next))) = (ids.split_last(), ids.split_first()) else {
        return Ok(scores);
    };
    for (ids, next) in given.chunks(ROWS).zip(next.chunks(ROWS)) {
        decoder.forward(&mut [Span { sequence, ids, wanted: Wanted::EveryLogits }], found)?;
        let bits: Vec<_> = next.iter().map(|_| AtomicU64::new(0)).collect();
        let logits = &found.logits; // [rows, vocabulary]
        decoder.pool().share(next.len(), &|row, _| {
            bits[row].store(log_softmax_at(logits.row(row), next[row]).to_bits(), Ordering::Relaxed);
        });
        scores.extend(bits.into_iter().map(|bits| f64::from_bits(bits.into_inner())));
    }
    Ok(scores)
}
