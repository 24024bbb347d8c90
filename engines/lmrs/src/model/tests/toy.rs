//! A network without weights: the next id is a hash of the last few ids, however they were computed.

use protocol::{Failed, FailureKind};

use crate::model::decoder::{Decoder, FEW, Found, Span, Wanted};
use crate::pool::Pool;
use crate::rows::Rows;

pub const VOCABULARY: usize = 29;

pub struct Toy {
    pool: Pool,
    /// The number of last ids that enter the hash: with few, a text soon repeats itself.
    memory: usize,
    pub context: usize,
    /// Rows of every span of every pass.
    pub passes: Vec<Vec<usize>>,
    pub started: usize,
}

impl Toy {
    pub fn new(memory: usize) -> Self {
        Self { pool: Pool::new(2), memory, context: usize::MAX, passes: Vec::new(), started: 0 }
    }

    /// The logits of every id after these.
    pub fn logits(&self, ids: &[u32]) -> Vec<f32> {
        let last = &ids[ids.len().saturating_sub(self.memory)..];
        let mut hash = last.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &id| {
            (hash ^ u64::from(id + 1)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mut next = || {
            hash = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (hash >> 40) as f32 / (1 << 22) as f32
        };
        (0..VOCABULARY).map(|_| next()).collect()
    }

    /// The greedy continuation of a prompt, computed one by one.
    pub fn expected(&self, prompt: &[u32], count: usize) -> Vec<u32> {
        let mut ids = prompt.to_vec();
        (0..count).for_each(|_| ids.push(engine_kit::sampling::greedy(&self.logits(&ids))));
        ids.split_off(prompt.len())
    }
}

impl Decoder for Toy {
    type Sequence = Vec<u32>;

    fn start(&mut self, ids: usize) -> Result<Vec<u32>, Failed> {
        self.started += 1;
        Ok(Vec::with_capacity(ids))
    }

    fn room(&self, sequence: &Vec<u32>) -> usize {
        sequence.capacity()
    }

    fn forward(&mut self, spans: &mut [Span<'_, Vec<u32>>], found: &mut Found) -> Result<(), Failed> {
        assert!(!spans.is_empty() && spans.iter().all(|span| !span.ids.is_empty()), "a pass of nothing");
        assert_alike(spans);
        self.passes.push(spans.iter().map(|span| span.ids.len()).collect());
        found.ids.clear();
        let mut rows = Vec::new();
        for span in spans {
            assert!(
                span.sequence.len() + span.ids.len() <= span.sequence.capacity(),
                "more than was asked for"
            );
            for (row, &id) in span.ids.iter().enumerate() {
                span.sequence.push(id);
                let logits = self.logits(span.sequence);
                let is_last = row + 1 == span.ids.len();
                match span.wanted {
                    Wanted::Largest if is_last => found.ids.push(engine_kit::sampling::greedy(&logits)),
                    Wanted::EveryLargest => found.ids.push(engine_kit::sampling::greedy(&logits)),
                    Wanted::Logits if is_last => rows.push(logits),
                    _ => {}
                }
            }
            if span.sequence.len() > self.context {
                return Err(Failed::new(FailureKind::Internal, "beyond the context"));
            }
        }
        found.logits.reshape(rows.len(), VOCABULARY);
        rows.iter().enumerate().for_each(|(row, logits)| found.logits.row_mut(row).copy_from_slice(logits));
        Ok(())
    }

    /// Calls `each` with a few rows at a time; the last call may have fewer.
    fn forward_each(
        &mut self,
        sequence: &mut Vec<u32>,
        ids: &[u32],
        each: &mut dyn FnMut(&Pool, &Rows),
    ) -> Result<(), Failed> {
        self.passes.push(vec![ids.len()]);
        for ids in ids.chunks(7) {
            let mut logits = Rows::new(ids.len(), VOCABULARY);
            for (row, &id) in ids.iter().enumerate() {
                sequence.push(id);
                logits.row_mut(row).copy_from_slice(&self.logits(sequence));
            }
            each(&self.pool, &logits);
        }
        Ok(())
    }

    fn truncate(&mut self, sequence: &mut Vec<u32>, ids: usize) {
        assert!(ids <= sequence.len(), "there is less than what is to stay");
        sequence.truncate(ids);
    }
}

/// Checks the grouping rule: a network can guarantee equal bits for few rows only in passes without long parts. The same rule
/// holds for rows whose logits are computed.
fn assert_alike(spans: &[Span<'_, Vec<u32>>]) {
    let rows = |span: &Span<'_, _>| span.ids.len();
    if spans.iter().any(|span| rows(span) > FEW) {
        assert!(spans.iter().all(|span| rows(span) > FEW && span.wanted != Wanted::EveryLargest));
    } else {
        assert!(spans.iter().map(rows).sum::<usize>() <= FEW);
    }
    assert!(spans.iter().map(|span| span.asked().len()).sum::<usize>() <= FEW);
}
