//! The tokens of a pass: the ids of some spans, where the first and the last span may be cut.

use std::ops::Range;

use super::{Span, Wanted};
use crate::attention::Segment;
use crate::kernels::attention::BLOCK_POSITIONS;
use crate::matrix::Rows;
use crate::ops::Ops;
use crate::pool::MIN_SHARED_ROWS;
use crate::weights::Weights;

#[derive(Debug, Default)]
pub struct Pass {
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    /// The index of the span.
    span: usize,
    /// The range within the span's ids.
    ids: Range<usize>,
    /// The range within the rows of the pass.
    rows: Range<usize>,
    /// The positions of the ids in their sequence.
    positions: Range<usize>,
}

impl Pass {
    /// Cuts spans into passes of at most `max_tokens` tokens.
    pub fn cut(spans: &[Span], max_tokens: usize) -> Vec<Self> {
        let (mut passes, mut pass, mut filled) = (Vec::new(), Self::default(), 0);
        for (number, span) in spans.iter().enumerate() {
            let mut at = 0;
            while at < span.ids.len() {
                let count = (span.ids.len() - at).min(max_tokens - filled);
                let (ids, rows) = (at..at + count, filled..filled + count);
                let first = span.cache.tokens() + at;
                pass.pieces.push(Piece { span: number, ids, rows, positions: first..first + count });
                (at, filled) = (at + count, filled + count);
                if filled == max_tokens {
                    passes.push(std::mem::take(&mut pass));
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            passes.push(pass);
        }
        passes
    }

    pub fn positions(&self) -> Vec<usize> {
        self.pieces.iter().flat_map(|piece| piece.positions.clone()).collect()
    }

    pub fn tokens(&self) -> usize {
        self.pieces.last().map_or(0, |piece| piece.rows.end)
    }

    /// The rows whose logits are computed, in order, with the result that is wanted for each.
    pub fn wanted(&self, spans: &[Span]) -> Vec<(usize, Wanted)> {
        let piece_rows = |piece: &Piece| {
            let (wanted_rows, wanted) = (spans[piece.span].wanted_rows(), spans[piece.span].wanted);
            let rows = piece.rows.clone().zip(piece.ids.clone());
            rows.filter(move |(_, id)| wanted_rows.contains(id)).map(move |(row, _)| (row, wanted))
        };
        self.pieces.iter().flat_map(piece_rows).collect()
    }

    pub fn embed(&self, spans: &[Span], weights: &Weights, scale: f32, hidden: &mut Rows) {
        hidden.reshape(self.tokens(), weights.embedding.width()); // [tokens, hidden]
        for piece in &self.pieces {
            let ids = &spans[piece.span].ids[piece.ids.clone()];
            for ((row, id), position) in piece.rows.clone().zip(ids).zip(piece.positions.clone()) {
                let row = hidden.row_mut(row);
                weights.embedding.row(*id as usize, row);
                if scale != 1.0 {
                    row.iter_mut().for_each(|number| *number *= scale);
                }
                if let Some(positions) = &weights.positions {
                    let learned = &positions.row(position);
                    row.iter_mut().zip(*learned).for_each(|(number, learned)| *number += learned);
                }
            }
        }
    }

    /// Writes keys and values into the caches of the spans.
    pub fn store(&self, ops: &Ops, spans: &mut [Span], layer: usize, keys: &Rows, values: &Rows) {
        for piece in &self.pieces {
            let cache = &mut spans[piece.span].cache;
            let positions = &piece.positions;
            let tiles = cache
                .tiles_mut(layer, positions.start / BLOCK_POSITIONS..positions.end.div_ceil(BLOCK_POSITIONS));
            ops.pool.share_if(positions.len() >= MIN_SHARED_ROWS, tiles, |_, (block, head, mut tile)| {
                let (first, head_dim) = (block * BLOCK_POSITIONS, tile.head_dim());
                for position in positions.start.max(first)..positions.end.min(first + BLOCK_POSITIONS) {
                    let row = piece.rows.start + position - positions.start;
                    let dims = head * head_dim..(head + 1) * head_dim;
                    let (key, value) = (&keys.row(row)[dims.clone()], &values.row(row)[dims]);
                    tile.write(position - first, key, value);
                }
            });
        }
    }

    pub fn segments<'a>(&self, spans: &'a [Span]) -> Vec<Segment<'a>> {
        let segment = |piece: &Piece| Segment {
            cache: spans[piece.span].cache,
            rows: piece.rows.clone(),
            start: piece.positions.start,
        };
        self.pieces.iter().map(segment).collect()
    }

    /// Marks the tokens as stored, after all layers have written their keys and values.
    pub fn commit(&self, spans: &mut [Span]) {
        for piece in &self.pieces {
            spans[piece.span].cache.grow(piece.ids.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::kernels::attention::KvDtype;
    use crate::shape::tests::tiny;

    /// The rows of each pass whose logits are computed, for spans with these numbers of ids and wanted results.
    fn wanted_rows(lengths: &[(usize, Wanted)], max_tokens: usize) -> Vec<Vec<usize>> {
        let mut caches: Vec<_> =
            lengths.iter().map(|_| Cache::new(&tiny(), 100, KvDtype::F32).unwrap()).collect();
        let spans = caches.iter_mut().zip(lengths);
        let spans: Vec<_> =
            spans.map(|(cache, &(ids, wanted))| Span { cache, ids: &[0; 100][..ids], wanted }).collect();
        let rows = |pass: &Pass| pass.wanted(&spans).iter().map(|(row, _)| *row).collect();
        Pass::cut(&spans, max_tokens).iter().map(rows).collect()
    }

    #[test]
    fn logits_are_computed_only_for_the_wanted_rows() {
        use Wanted::{EveryLargest, Largest, Logits, Nothing};
        assert_eq!(wanted_rows(&[(2, Largest), (3, Nothing), (4, Logits)], 100), [[1, 8]]);
        assert_eq!(
            wanted_rows(&[(2, Nothing), (3, EveryLargest), (1, Nothing), (1, Largest)], 100),
            [[2, 3, 4, 6]]
        );
        let rows_of_passes = wanted_rows(&[(3, Largest), (5, EveryLargest), (6, Nothing), (3, Logits)], 4);
        assert_eq!(rows_of_passes, [vec![2, 3], vec![0, 1, 2, 3], vec![], vec![], vec![0]]);
    }
}
