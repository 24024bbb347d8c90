//! The interface of a network to the model: ids in, the likeliest next ids or logits out.

use std::ops::Range;

use protocol::{DeviceMemory, Failed};

use super::MAX_PASS_ROWS;
use crate::matrix::Rows;
use crate::pool::Pool;

/// A network, with its threads.
pub trait Decoder {
    /// The keys and values of one sequence.
    type Cache;

    /// An empty cache for at least this number of ids.
    fn new_cache(&mut self, ids: usize) -> Result<Self::Cache, Failed>;

    /// The most ids that the cache can hold.
    fn capacity(&self, cache: &Self::Cache) -> usize;

    /// Appends the ids of every span to its cache, all in one pass, and puts the requested results into `predictions`.
    fn forward(
        &mut self,
        spans: &mut [Span<'_, Self::Cache>],
        predictions: &mut Predictions,
    ) -> Result<(), Failed>;

    /// Appends the ids to the cache, and calls `on_logits` with the logits of a few rows at a time, `[rows, vocabulary]`, in
    /// order. So the logits of a long text are never in memory all at once.
    fn forward_each(
        &mut self,
        cache: &mut Self::Cache,
        ids: &[u32],
        on_logits: &mut dyn FnMut(&Pool, &Rows),
    ) -> Result<(), Failed>;

    /// Removes all but the first `ids` ids of the cache.
    fn truncate(&mut self, cache: &mut Self::Cache, ids: usize);

    /// The most rows of a pass, and the most rows of long prompts in a step.
    fn max_pass_rows(&self) -> usize {
        MAX_PASS_ROWS
    }

    /// The memory of the device, if the network is not in the memory of the host.
    fn device_memory(&self) -> Option<DeviceMemory> {
        None
    }
}

/// In a pass of at most this number of rows, each row gets the same bits as in a pass of its own. In a larger pass, kernels may
/// round more and sum in another order, so the choice of its rows must not depend on other requests.
pub const MAX_DECODE_ROWS: usize = 8;

/// Ids that go through the network together and continue their sequence. Each id is a row of the pass. A span is never empty.
pub struct Span<'a, C> {
    pub cache: &'a mut C,
    pub ids: &'a [u32],
    pub wanted: Wanted,
}

impl<C> Span<'_, C> {
    /// The indices of the ids whose logits are computed.
    pub fn wanted_rows(&self) -> Range<usize> {
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
    /// The likeliest id after the last row; among equals, the lowest id.
    Largest,
    /// The likeliest id after each row.
    EveryLargest,
    /// The logits of the last row.
    Logits,
}

/// The results of a pass, in the order of its spans. The next pass reuses the memory.
#[derive(Debug, Default)]
pub struct Predictions {
    /// One id for each span that wants `Largest`, and one for each row of a span that wants `EveryLargest`.
    pub ids: Vec<u32>,
    /// [rows, vocabulary]: one row for each span that wants `Logits`.
    pub logits: Rows,
}
