//! The state of a sequence from its prompt to its last token, and the step that advances several sequences together.

use std::slice;

use engine_kit::Job;
use engine_kit::sampling::{Rng, sample};
use protocol::{Failed, Sampling, Speculation};

use super::decoder::{Decoder, Predictions, Span, Wanted};
use super::step::{self, Chunk, Schedule};

pub struct Sequence<C> {
    cache: C,
    ids: Vec<u32>,
    prompt_ids: usize,
    /// The number of ids in the cache. After each token: all but the last, or 0 if the request does not use the cache.
    cached: usize,
    /// The ids of the prompt that an earlier request had computed. `None` if the request does not allow it.
    from_earlier: Option<usize>,
    /// The most ids of the sequence: its prompt and all new tokens.
    max_ids: usize,
    /// `None` means greedy.
    sampling: Option<Sampling>,
    rng: Rng,
    use_cache: bool,
    /// The most ids that prompt lookup drafts in a step; 0 disables it.
    lookup: usize,
    /// The ids that were drafted so far, and those of them that were accepted. `None` if the request asks for no drafts.
    drafts: Option<Drafts>,
    done: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drafts {
    pub drafted: u32,
    pub accepted: u32,
}

impl<C> Sequence<C> {
    /// The state before the first step. `cached`: the ids of the prompt in the cache. `index` is the sequence's index in its job.
    /// `lookup` is the length of drafts if the request asks for them. Only greedy sequences with a cache draft ids, because a draft is
    /// compared with the likeliest id.
    pub fn new((cache, cached): (C, usize), prompt: &[u32], index: usize, job: &Job, lookup: usize) -> Self {
        let max_ids = prompt.len() + job.max_new_tokens as usize;
        let wants_drafts = job.speculation == Speculation::PromptLookup;
        let can_draft = wants_drafts && job.sampling.is_none() && job.use_cache;
        Self {
            cache,
            ids: prompt.to_vec(),
            prompt_ids: prompt.len(),
            cached,
            from_earlier: job.prefix_cache.then_some(cached),
            max_ids,
            sampling: job.sampling,
            rng: Rng::for_sequence(&job.sampling, index),
            use_cache: job.use_cache,
            lookup: if can_draft { lookup } else { 0 },
            drafts: wants_drafts.then(Drafts::default),
            done: false,
        }
    }

    pub fn is_done(&self) -> bool {
        self.done
    }

    pub fn drafts(&self) -> Option<Drafts> {
        self.drafts
    }

    pub fn from_earlier(&self) -> Option<usize> {
        self.from_earlier
    }

    /// The cache, and the ids in it that later requests may use.
    pub fn into_cache(mut self) -> (C, Vec<u32>) {
        self.ids.truncate(if self.from_earlier.is_some() { self.cached } else { 0 });
        (self.cache, self.ids)
    }

    pub fn generated(&self) -> usize {
        self.ids.len() - self.prompt_ids
    }

    /// The number of ids that the cache does not hold yet.
    pub fn uncached(&self) -> usize {
        self.ids.len() - self.cached
    }

    pub fn wanted(&self) -> Wanted {
        if self.sampling.is_some() { Wanted::Logits } else { Wanted::Largest }
    }

    /// The most ids that the next step may draft. The last possible token is not drafted: it never enters the network.
    pub fn max_drafts(&self) -> usize {
        self.lookup.min(self.max_ids.saturating_sub(self.ids.len() + 1))
    }

    pub fn ids_mut(&mut self) -> &mut Vec<u32> {
        &mut self.ids
    }
}

/// A callback for each new token of a sequence, or for its failure, with the sequence's index. It returns whether the sequence
/// continues.
pub type Emit<'a> = dyn FnMut(usize, Result<u32, Failed>) -> bool + 'a;

/// Runs one step of all sequences.
pub fn advance<D: Decoder>(
    decoder: &mut D,
    sequences: &mut [&mut Sequence<D::Cache>],
    schedule: Schedule,
    predictions: &mut Predictions,
    emit: &mut Emit,
) {
    let chunks = step::plan(sequences, schedule, decoder.max_pass_rows());
    let mut remaining = chunks.as_slice();
    while !remaining.is_empty() {
        let (chunks, later) = remaining.split_at(step::chunks_of_pass(remaining));
        pass_or_retry(decoder, sequences, chunks, predictions, emit);
        remaining = later;
    }
}

/// Runs one pass. If it fails, each chunk runs in a pass of its own, and a sequence fails only if its own pass fails.
fn pass_or_retry<D: Decoder>(
    decoder: &mut D,
    sequences: &mut [&mut Sequence<D::Cache>],
    chunks: &[Chunk],
    predictions: &mut Predictions,
    emit: &mut Emit,
) {
    let Err(failed) = pass(decoder, sequences, chunks, predictions, emit) else { return };
    if let [chunk] = chunks {
        sequences[chunk.index].done = true;
        emit(chunk.index, Err(failed));
        return;
    }
    for chunk in chunks {
        let sequence = &mut *sequences[chunk.index];
        decoder.truncate(&mut sequence.cache, sequence.cached);
        pass_or_retry(decoder, sequences, slice::from_ref(chunk), predictions, emit);
    }
}

/// Runs one pass through the network. `chunks` are in the order of the sequences.
fn pass<D: Decoder>(
    decoder: &mut D,
    sequences: &mut [&mut Sequence<D::Cache>],
    chunks: &[Chunk],
    predictions: &mut Predictions,
    emit: &mut Emit,
) -> Result<(), Failed> {
    let mut planned = chunks.iter().peekable();
    let mut spans = Vec::with_capacity(chunks.len());
    for (index, sequence) in sequences.iter_mut().enumerate() {
        let Some(chunk) = planned.next_if(|chunk| chunk.index == index) else { continue };
        let ids = &sequence.ids[sequence.cached..][..chunk.rows];
        spans.push(Span { cache: &mut sequence.cache, ids, wanted: chunk.wanted });
    }
    decoder.forward(&mut spans, predictions)?;
    let (mut predicted_ids, mut logits_row) = (predictions.ids.iter().copied(), 0);
    for chunk in chunks {
        let sequence = &mut *sequences[chunk.index];
        sequence.cached += chunk.rows;
        match chunk.wanted {
            Wanted::Nothing => continue,
            Wanted::Logits => {
                let id = sample(predictions.logits.row(logits_row), &sequence.sampling, &mut sequence.rng);
                logits_row += 1;
                sequence.push(id, chunk.index, emit);
            }
            Wanted::Largest => {
                predicted_ids.by_ref().take(1).for_each(|id| sequence.push(id, chunk.index, emit));
            }
            Wanted::EveryLargest => {
                let likeliest: Vec<u32> = predicted_ids.by_ref().take(chunk.rows).collect();
                sequence.check_drafts(&likeliest, chunk, emit);
            }
        }
        // Removes rejected drafts from the cache, or everything if the request does not use the cache.
        let cached = if sequence.use_cache { sequence.ids.len() - 1 } else { 0 };
        if sequence.cached != cached {
            sequence.cached = cached;
            decoder.truncate(&mut sequence.cache, cached);
        }
    }
    Ok(())
}

impl<C> Sequence<C> {
    fn push(&mut self, id: u32, index: usize, emit: &mut Emit) {
        self.ids.push(id);
        self.done = !emit(index, Ok(id));
    }

    /// Accepts the likeliest ids as long as they equal the drafts, and then the first that differs or follows the last draft.
    fn check_drafts(&mut self, likeliest: &[u32], chunk: &Chunk, emit: &mut Emit) {
        let drafts = self.ids.split_off(self.ids.len() - chunk.drafted);
        let mut accepted = 0;
        for (index, &id) in likeliest.iter().enumerate() {
            let is_drafted = drafts.get(index) == Some(&id);
            accepted += u32::from(is_drafted);
            self.push(id, chunk.index, emit);
            if self.done || !is_drafted {
                break;
            }
        }
        if let Some(counts) = &mut self.drafts {
            counts.drafted += drafts.len() as u32;
            counts.accepted += accepted;
        }
    }
}
