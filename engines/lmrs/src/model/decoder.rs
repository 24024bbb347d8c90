//! What a model asks of a network: rows of ids in, the likeliest ids or logits out.

use std::ops::Range;

use protocol::Failed;

use crate::pool::Pool;
use crate::rows::Rows;

/// A network, and the threads that it computes with.
pub trait Decoder {
    /// The keys and values of one sequence.
    type Sequence;

    /// One that holds nothing, with room for so many ids, or more.
    fn start(&mut self, ids: usize) -> Result<Self::Sequence, Failed>;

    /// How many ids it can ever hold.
    fn room(&self, sequence: &Self::Sequence) -> usize;

    /// Appends the ids of every span to its sequence, all in one pass, and puts what is wanted of them into `found`.
    fn forward(&mut self, spans: &mut [Span<'_, Self::Sequence>], found: &mut Found) -> Result<(), Failed>;

    /// Appends the ids to the sequence, and calls `each` with the logits after them, `[some rows, vocabulary]`, in order: those
    /// of a long text never stand whole in memory.
    fn forward_each(
        &mut self,
        sequence: &mut Self::Sequence,
        ids: &[u32],
        each: &mut dyn FnMut(&Pool, &Rows),
    ) -> Result<(), Failed>;

    /// Forgets all but the first so many ids.
    fn truncate(&mut self, sequence: &mut Self::Sequence, ids: usize);
}

/// So many rows in one pass are each computed as they would be alone. Where there are more, a level of kernels may round more and
/// take sums in another order, so which rows go together must not depend on what else is under way.
pub const FEW: usize = 8;

/// Ids that go through the network together, after those that their sequence holds. Never empty.
pub struct Span<'a, S> {
    pub sequence: &'a mut S,
    pub ids: &'a [u32],
    pub wanted: Wanted,
}

impl<S> Span<'_, S> {
    /// Which of its ids are computed to their logits. The others are not, whatever is wanted of spans beside it.
    pub fn asked(&self) -> Range<usize> {
        let all = self.ids.len();
        match self.wanted {
            Wanted::Nothing => all..all,
            Wanted::Largest | Wanted::Logits => all.saturating_sub(1)..all,
            Wanted::EveryLargest => 0..all,
        }
    }
}

/// What is to be known of a span's rows. Each says how likely every id is as the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Only that they stand: the end of the prompt is yet to come.
    Nothing,
    /// The likeliest after the last row, the lowest id among equals.
    Largest,
    /// The likeliest after each row.
    EveryLargest,
    /// The logits of the last row.
    Logits,
}

/// The answers for all spans, in their order. Its memory is used again and again.
#[derive(Debug, Default)]
pub struct Found {
    /// One for each `Largest`, one for each row of an `EveryLargest`.
    pub ids: Vec<u32>,
    /// [rows, vocabulary]: one row for each `Logits`.
    pub logits: Rows,
}
