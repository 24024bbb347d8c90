//! The network as a `Decoder`, with its threads and memory.

use engine_kit::OrFail;
use protocol::{Failed, FailureKind};

use crate::kernels::attention::Stored;
use crate::kernels::rows::DECODE_TOKENS;
use crate::model::AT_ONCE;
use crate::model::decoder::{Decoder, FEW, Found, Span};
use crate::network::{CHUNK, Network, NoNumbers, Sequence};
use crate::ops::Ops;
use crate::pool::Pool;
use crate::rows::Rows;

const _: () = assert!(FEW == DECODE_TOKENS, "what few rows are is what kernels decode at once");
const _: () =
    assert!(AT_ONCE <= CHUNK, "a stretch of a prompt is one pass: cut again, it could leave a few rows over");

/// The least room of a sequence. Untouched memory costs almost nothing, so most requests can reuse the same memory.
const LEAST_ROOM: usize = 4096;

/// A network with its weights and its threads.
pub struct Running {
    pub network: Network,
    pub ops: Ops,
    /// The most tokens of a sequence.
    pub context: usize,
    /// The number type of keys and values.
    pub stored: Stored,
}

impl Decoder for Running {
    type Sequence = Sequence;

    fn start(&mut self, ids: usize) -> Result<Sequence, Failed> {
        let room = ids.next_power_of_two().max(LEAST_ROOM).min(self.context);
        Sequence::new(&self.network.shape, room, self.stored).or_fail(FailureKind::OutOfMemory)
    }

    fn room(&self, sequence: &Sequence) -> usize {
        sequence.context()
    }

    fn forward(&mut self, spans: &mut [Span<'_, Sequence>], found: &mut Found) -> Result<(), Failed> {
        self.network.forward(&mut self.ops, spans, found).map_err(failed)
    }

    fn forward_each(
        &mut self,
        sequence: &mut Sequence,
        ids: &[u32],
        each: &mut dyn FnMut(&Pool, &Rows),
    ) -> Result<(), Failed> {
        self.network.forward_each(&mut self.ops, sequence, ids, each).map_err(failed)
    }

    fn truncate(&mut self, sequence: &mut Sequence, ids: usize) {
        sequence.truncate(ids);
    }
}

/// Weights that produce NaN are the model's fault; everything else was checked before.
fn failed(error: anyhow::Error) -> Failed {
    let kind = if error.is::<NoNumbers>() { FailureKind::Model } else { FailureKind::Internal };
    Failed::new(kind, format!("{error:#}"))
}
