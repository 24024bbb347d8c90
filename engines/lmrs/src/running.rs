//! The network behind the face that a model asks: spans of any kinds in one step, whatever the network answers in one pass.

use engine_kit::OrFail;
use engine_kit::sampling::greedy;
use protocol::{Failed, FailureKind};

use crate::kernels::attention::Stored;
use crate::kernels::rows::DECODE_TOKENS;
use crate::model::AT_ONCE;
use crate::model::decoder::{Decoder, FEW, Found, Span, Wanted};
use crate::network::{self, Answer, CHUNK, Network, NoNumbers, Sequence};
use crate::ops::Ops;
use crate::pool::Pool;
use crate::rows::Rows;

const _: () = assert!(FEW == DECODE_TOKENS, "what few rows are is what kernels decode at once");
const _: () =
    assert!(AT_ONCE <= CHUNK, "a stretch of a prompt is one pass: cut again, it could leave a few rows over");

/// What is reserved and not touched costs next to nothing, so requests of most lengths use the same memory again.
const LEAST_ROOM: usize = 4096;

/// A network with its weights, and the threads that it computes with.
pub struct Running {
    pub network: Network,
    pub ops: Ops,
    /// Tokens that a sequence can come to.
    pub context: usize,
    /// What keys and values are kept in.
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
        found.ids.clear();
        let kinds: Vec<_> = spans.iter().map(|span| (span.wanted, span.ids.len())).collect();
        let given =
            spans.iter_mut().map(|span| network::Span { sequence: &mut *span.sequence, ids: span.ids });
        let mut given: Vec<_> = given.collect();
        let wanted = strongest(&kinds);
        match self.network.forward(&mut self.ops, &mut given, wanted).map_err(failed)? {
            Answer::Ids(ids) => {
                let asked = kinds.iter().zip(ids).filter(|((kind, _), _)| *kind == Wanted::Largest);
                found.ids.extend(asked.map(|(_, id)| id));
            }
            // The common case needs no copy: requests that are all sampled.
            Answer::Logits(logits) if kinds.iter().all(|(kind, _)| *kind == Wanted::Logits) => {
                found.logits = logits
            }
            Answer::Logits(logits) => {
                found.logits.reshape(0, self.network.shape.vocabulary);
                sort(&logits, &kinds, wanted, found);
            }
        }
        Ok(())
    }

    fn forward_each(
        &mut self,
        sequence: &mut Sequence,
        ids: &[u32],
        each: &mut dyn FnMut(&Pool, &Rows),
    ) -> Result<(), Failed> {
        let span = network::Span { sequence, ids };
        self.network.forward_each(&mut self.ops, span, each).map_err(failed)
    }

    fn truncate(&mut self, sequence: &mut Sequence, ids: usize) {
        sequence.truncate(ids);
    }
}

/// Weights that lead nowhere are the model's fault; all else was checked before.
fn failed(error: anyhow::Error) -> Failed {
    let kind = if error.is::<NoNumbers>() { FailureKind::Model } else { FailureKind::Internal };
    Failed::new(kind, format!("{error:#}"))
}

/// The least that answers all of them.
fn strongest(kinds: &[(Wanted, usize)]) -> network::Wanted {
    let any = |wanted: Wanted| kinds.iter().any(|(kind, _)| *kind == wanted);
    if any(Wanted::EveryLargest) {
        network::Wanted::All
    } else if any(Wanted::Logits) {
        network::Wanted::Last
    } else if any(Wanted::Largest) {
        network::Wanted::Largest
    } else {
        network::Wanted::Nothing
    }
}

/// Rows of logits to the spans that asked for them.
fn sort(logits: &Rows, kinds: &[(Wanted, usize)], wanted: network::Wanted, found: &mut Found) {
    let mut first = 0;
    for &(kind, ids) in kinds {
        let rows = match wanted {
            network::Wanted::All => ids,
            network::Wanted::Last => 1,
            network::Wanted::Nothing | network::Wanted::Largest => 0,
        };
        let all = first..first + rows;
        first = all.end;
        match kind {
            Wanted::Nothing => {}
            Wanted::Largest => found.ids.extend(all.last().map(|row| greedy(logits.row(row)))),
            Wanted::EveryLargest => found.ids.extend(all.map(|row| greedy(logits.row(row)))),
            Wanted::Logits => all.last().into_iter().for_each(|row| found.logits.append(logits.row(row))),
        }
    }
}
