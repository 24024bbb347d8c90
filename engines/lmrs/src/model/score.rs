//! Log-probabilities of a text, a few rows at a time: a long text's logits are never in memory all at once.

use std::sync::atomic::{AtomicU64, Ordering};

use engine_kit::sampling::log_softmax_at;
use protocol::Failed;

use super::AT_ONCE;
use super::decoder::Decoder;
use super::stretch::stretch;

/// Natural logarithms of the probabilities of `ids[1..]`, with sums in f64.
pub fn score<D: Decoder>(
    decoder: &mut D,
    sequence: &mut D::Sequence,
    ids: &[u32],
) -> Result<Vec<f64>, Failed> {
    let (Some((_, mut given)), Some((_, mut next))) = (ids.split_last(), ids.split_first()) else {
        return Ok(Vec::new());
    };
    let mut scores = Vec::with_capacity(next.len());
    while !given.is_empty() {
        let (now, later) = given.split_at(stretch(given.len(), AT_ONCE));
        decoder.forward_each(sequence, now, &mut |pool, logits| {
            let (these, rest) = next.split_at(logits.tokens());
            let bits: Vec<_> = these.iter().map(|_| AtomicU64::new(0)).collect();
            pool.share(these.len(), &|row, _| {
                bits[row].store(log_softmax_at(logits.row(row), these[row]).to_bits(), Ordering::Relaxed);
            });
            scores.extend(bits.into_iter().map(|bits| f64::from_bits(bits.into_inner())));
            next = rest;
        })?;
        given = later;
    }
    Ok(scores)
}
