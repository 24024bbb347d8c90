//! The interface of a network to the model: rows of ids in, the likeliest ids or logits out.

use std::ops::Range;

use protocol::Failed;

use crate::pool::Pool;
use crate::rows::Rows;

/// A network, with its threads.
pub trait Decoder {
    /// The keys and values of one sequence.
    type Sequence;

    /// An empty sequence with room for at least this number of ids.
    fn start(&mut self, ids: usize) -> Result<Self::Sequence, Failed>;

    /// The most ids that the sequence can hold.
    fn room(&self, sequence: &Self::Sequence) -> usize;

    /// Appends the ids of every span to its sequence, all in one pass, and puts the requested results into `found`.
    fn forward(&mut self, spans: &mut [Span<'_, Self::Sequence>], found: &mut Found) -> Result<(), Failed>;

    /// Appends the ids to the sequence, and calls `each` with the logits after them, `[some rows, vocabulary]`, in order. A
    /// long text's logits are never in memory all at once.
    fn forward_each(
        &mut self,
        sequence: &mut Self::Sequence,
        ids: &[u32],
        each: &mut dyn FnMut(&Pool, &Rows),
    ) -> Result<(), Failed>;

    /// Removes all but the first `ids` ids.
    fn truncate(&mut self, sequence: &mut Self::Sequence, ids: usize);
}

/// The most rows of a pass for which each row gets the same bits as alone. With more rows, kernels may round more and sum in
/// another order, so other requests must not influence which rows go together.
pub const FEW: usize = 8;

/// Ids that go through the network together and continue their sequence. Never empty.
pub struct Span<'a, S> {
    pub sequence: &'a mut S,
    pub ids: &'a [u32],
    pub wanted: Wanted,
}

impl<S> Span<'_, S> {
    /// The ids whose logits are computed. Other spans have no influence.
    pub fn asked(&self) -> Range<usize> {
        let all = self.ids.len();
        match self.wanted {
            Wanted::Nothing => all..all,
            Wanted::Largest | Wanted::Logits => all.saturating_sub(1)..all,
            Wanted::EveryLargest => 0..all,
        }
    }
}

/// The results that are wanted for a span's rows: each row predicts the next id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// No result, because the prompt continues.
    Nothing,
    /// The likeliest id after the last row, the lowest among equals.
    Largest,
    /// The likeliest id after each row.
    EveryLargest,
    /// The logits of the last row.
    Logits,
}

/// The results for all spans, in their order. The memory is reused.
#[derive(Debug, Default)]
pub struct Found {
    /// One id for each `Largest`, one for each row of an `EveryLargest`.
    pub ids: Vec<u32>,
    /// [rows, vocabulary]: one row for each `Logits`.
    pub logits: Rows,
}
