//! A loaded model: prompts in, tokens out, step by step. `decoder` is its interface to a network.
//!
//! ```text
//! generate  the sequences of one request, together in steps   score  logits of all rows, a chunk at a time
//! slots     the sequences of several requests at once
//!     \        /
//!      sequence::advance   one step: tokens for sequences past their prompts, chunks of the prompts of others
//!      step                the rows of a step, and their grouping into passes through the network
//! ```

pub mod decoder;
pub mod sequence;
mod step;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};

use engine_kit::sampling::log_softmax_at;
use engine_kit::{Flow, Job, Model, Slots, Tokens};
use protocol::{Facts, Failed};

use decoder::{Decoder, Predictions};
use sequence::{Drafts, Sequence};
use step::{Schedule, chunk_rows};

/// The most rows of a pass, and the most rows of long prompts in a step, unless the decoder has another limit. While another
/// request waits for its next token, the limit of a step is `step::MAX_ROWS_WHILE_DECODING`. Requests can be cancelled only
/// between two steps, so steps are short.
pub(crate) const MAX_PASS_ROWS: usize = 256;

/// The most caches that keep their keys and values for later requests: twice the requests that may overlap.
const MAX_KEPT: usize = 16;
/// The fewest ids at the start of a prompt for which it takes a cache with keys and values. With fewer, the cache is left to a request
/// that it fits.
const MIN_SHARED_IDS: usize = 16;

/// A cache that no sequence uses.
struct Spare<C> {
    cache: C,
    /// The ids whose keys and values later requests may use.
    ids: Vec<u32>,
}

/// The network, and the state of the current requests.
pub struct LoadedModel<D: Decoder> {
    decoder: D,
    facts: Facts,
    /// The most tokens that prompt lookup drafts in a step, for requests that ask for it.
    lookup: usize,
    /// Caches of the last requests, whose memory is reused; also their contents, if both requests allow it. The next request drops
    /// those that it does not need, so that one large batch does not keep its memory.
    spare: Vec<Spare<D::Cache>>,
    /// Sequences of overlapping requests, each with the slot of its request and its index in the request.
    admitted: Vec<(usize, usize, Sequence<D::Cache>)>,
    predictions: Predictions,
}

impl<D: Decoder> LoadedModel<D> {
    pub fn new(decoder: D, facts: Facts, lookup: usize) -> Self {
        Self {
            decoder,
            facts,
            lookup,
            spare: Vec::new(),
            admitted: Vec::new(),
            predictions: Predictions::default(),
        }
    }

    fn sequences(&mut self, job: &Job) -> Result<Vec<Sequence<D::Cache>>, Failed> {
        let keeps = job.prefix_cache && job.use_cache;
        self.drop_spare(if keeps { job.prompts.len().max(MAX_KEPT) } else { job.prompts.len() });
        // One size for all sequences of a job, so that their memory is interchangeable.
        let longest = job.prompts.iter().map(Vec::len).max().unwrap_or_default();
        let capacity = longest + job.max_new_tokens as usize;
        let sequence = |(index, prompt): (usize, &Vec<u32>)| {
            let cache = match keeps {
                true => self.cache_with_start(prompt, capacity)?,
                false => (self.cache(capacity)?, 0),
            };
            Ok(Sequence::new(cache, prompt, index, job, self.lookup))
        };
        job.prompts.iter().enumerate().map(sequence).collect()
    }

    /// Drops all but the latest spare caches.
    fn drop_spare(&mut self, kept: usize) {
        let dropped = self.spare.len().saturating_sub(kept);
        self.spare.drain(..dropped);
    }

    /// Takes the spare cache that holds the longest start of a prompt. Also gives the number of these ids.
    fn cache_with_start(&mut self, prompt: &[u32], capacity: usize) -> Result<(D::Cache, usize), Failed> {
        // The last id of a prompt is always computed, because the next one follows from it.
        let start = &prompt[..prompt.len() - 1];
        let shared = |spare: &Spare<D::Cache>| {
            let ids = spare.ids.iter().zip(start).take_while(|(kept, id)| kept == id).count();
            if self.decoder.capacity(&spare.cache) >= capacity { ids } else { 0 }
        };
        let longest = self.spare.iter().map(shared).enumerate().max_by_key(|(_, ids)| *ids);
        if let Some((index, ids)) = longest.filter(|(_, ids)| *ids >= MIN_SHARED_IDS) {
            let mut cache = self.spare.remove(index).cache;
            self.decoder.truncate(&mut cache, ids);
            return Ok((cache, ids));
        }
        // Other caches keep their contents while there is room for one more.
        let is_full = self.spare.len() >= MAX_KEPT || self.spare.iter().any(|spare| spare.ids.is_empty());
        Ok((if is_full { self.cache(capacity)? } else { self.decoder.new_cache(capacity)? }, 0))
    }

    /// Takes a spare cache for at least this number of ids, and empties it, or makes one. If every spare cache is too small, one is
    /// dropped to free its memory. An empty cache is taken first, then the oldest.
    fn cache(&mut self, ids: usize) -> Result<D::Cache, Failed> {
        let fits = |spare: &Spare<D::Cache>| self.decoder.capacity(&spare.cache) >= ids;
        let fitting = self.spare.iter().enumerate().filter(|(_, spare)| fits(spare));
        let fitting = fitting.min_by_key(|(_, spare)| !spare.ids.is_empty()).map(|(index, _)| index);
        if let Some(index) = fitting {
            let mut cache = self.spare.remove(index).cache;
            self.decoder.truncate(&mut cache, 0);
            return Ok(cache);
        }
        self.spare.pop();
        self.decoder.new_cache(ids)
    }

    fn recycle(&mut self, (mut cache, ids): (D::Cache, Vec<u32>)) {
        self.decoder.truncate(&mut cache, ids.len());
        self.spare.push(Spare { cache, ids });
    }
}

impl<D: Decoder> Model for LoadedModel<D> {
    fn facts(&self) -> Facts {
        let device_memory = self.decoder.device_memory();
        Facts { device_memory, ..self.facts.clone() }
    }

    /// Padding of a batch makes no difference: sequences of several lengths are computed side by side, without pad tokens.
    fn generate(&mut self, job: &Job, tokens: &mut Tokens) -> Result<(), Failed> {
        let mut sequences = self.sequences(job)?;
        while !tokens.all_done() && !tokens.is_cancelled() {
            let mut running: Vec<_> =
                sequences.iter_mut().enumerate().filter(|(_, sequence)| !sequence.is_done()).collect();
            let indices: Vec<usize> = running.iter().map(|(index, _)| *index).collect();
            let mut sequences_of_step: Vec<_> =
                running.iter_mut().map(|(_, sequence)| &mut **sequence).collect();
            let mut failed = None;
            let emit = &mut |index: usize, id: Result<u32, Failed>| match id {
                Ok(id) => tokens.push(indices[index], id) == Flow::More,
                Err(error) => {
                    failed = Some(error);
                    false
                }
            };
            sequence::advance(
                &mut self.decoder,
                &mut sequences_of_step,
                Schedule::Together,
                &mut self.predictions,
                emit,
            );
            failed.map_or(Ok(()), Err)?;
        }
        for (index, sequence) in sequences.into_iter().enumerate() {
            report(tokens, index, &sequence);
            self.recycle(sequence.into_cache());
        }
        Ok(())
    }

    fn score(&mut self, ids: &[u32]) -> Result<Vec<f64>, Failed> {
        self.drop_spare(1);
        let mut cache = self.cache(ids.len())?;
        let scores = score(&mut self.decoder, &mut cache, ids);
        self.recycle((cache, Vec::new()));
        scores
    }

    fn slots(&mut self) -> Option<&mut dyn Slots> {
        Some(self)
    }
}

/// Overlapping requests: each step makes a token for each decoding request (without a cache, only if the step has room for all
/// of its rows), and reads chunks of the prompts of others.
impl<D: Decoder> Slots for LoadedModel<D> {
    fn admit(&mut self, slot: usize, job: &Job) -> Result<(), Failed> {
        let sequences = self.sequences(job)?;
        self.admitted
            .extend(sequences.into_iter().enumerate().map(|(index, sequence)| (slot, index, sequence)));
        Ok(())
    }

    /// Runs one step. A long prompt is read a chunk at a time, and its request makes no token before the end of the prompt.
    fn step(&mut self, tokens: &mut [Option<Tokens>]) -> Result<(), Failed> {
        let mut indices = Vec::with_capacity(self.admitted.len());
        let mut running = Vec::with_capacity(self.admitted.len());
        for (slot, index, sequence) in self.admitted.iter_mut().filter(|(.., sequence)| !sequence.is_done()) {
            indices.push((*slot, *index));
            running.push(sequence);
        }
        let emit = &mut |index: usize, id: Result<u32, Failed>| {
            let (slot, index) = indices[index];
            let Some(tokens) = &mut tokens[slot] else { return false };
            match id {
                Ok(id) => tokens.push(index, id) == Flow::More,
                Err(failed) => {
                    tokens.fail(failed);
                    false
                }
            }
        };
        sequence::advance(&mut self.decoder, &mut running, Schedule::Shared, &mut self.predictions, emit);
        for ((slot, index), sequence) in indices.into_iter().zip(running) {
            if let Some(tokens) = &mut tokens[slot] {
                report(tokens, index, sequence);
            }
        }
        Ok(())
    }

    fn leave(&mut self, slot: usize) {
        let (leaving, remaining) =
            std::mem::take(&mut self.admitted).into_iter().partition(|(taken, ..)| *taken == slot);
        self.admitted = remaining;
        let leaving: Vec<(usize, usize, Sequence<D::Cache>)> = leaving;
        leaving.into_iter().for_each(|(.., sequence)| self.recycle(sequence.into_cache()));
    }
}

fn report<C>(tokens: &mut Tokens, index: usize, sequence: &Sequence<C>) {
    if let Some(Drafts { drafted, accepted }) = sequence.drafts() {
        tokens.set_drafts(index, drafted, accepted);
    }
    if let Some(ids) = sequence.from_earlier() {
        tokens.set_cached_prompt_tokens(index, ids as u32);
    }
}

/// Natural logarithms of the probabilities of `ids[1..]`, with sums in f64.
fn score<D: Decoder>(decoder: &mut D, cache: &mut D::Cache, ids: &[u32]) -> Result<Vec<f64>, Failed> {
    let (Some((_, mut inputs)), Some((_, mut next))) = (ids.split_last(), ids.split_first()) else {
        return Ok(Vec::new());
    };
    let mut scores = Vec::with_capacity(next.len());
    while !inputs.is_empty() {
        let (chunk, later) = inputs.split_at(chunk_rows(inputs.len(), decoder.max_pass_rows()));
        decoder.forward_each(cache, chunk, &mut |pool, logits| {
            let (targets, rest) = next.split_at(logits.tokens());
            let bits: Vec<_> = targets.iter().map(|_| AtomicU64::new(0)).collect();
            pool.share(targets.len(), &|row, _| {
                bits[row].store(log_softmax_at(logits.row(row), targets[row]).to_bits(), Ordering::Relaxed);
            });
            scores.extend(bits.into_iter().map(|bits| f64::from_bits(bits.into_inner())));
            next = rest;
        })?;
        inputs = later;
    }
    Ok(scores)
}
