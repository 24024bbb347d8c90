//! Receives the new tokens, gives each a timestamp, streams them, and decides when a sequence is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use protocol::{Chunk, Failed, FailureKind, Finish, Id, Iteration, Message, Sequence, Token};

use crate::Output;
use crate::inbox::Clock;
use crate::load::PlantedDelay;

/// Whether a sequence accepts another token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a sequence that is done takes no more tokens"]
pub enum Flow {
    More,
    Done,
}

/// The new tokens of one iteration.
pub struct Tokens {
    clock: Clock,
    start_ns: u64,
    stop: StopConditions,
    stream: Option<Stream>,
    delay: PlantedDelay,
    sequences: Vec<SequenceState>,
    failed: Option<Failed>,
}

#[derive(Clone)]
pub(crate) struct StopConditions {
    pub max_new_tokens: u32,
    /// Empty if the request ignores EOS.
    pub eos_ids: Arc<[u32]>,
    pub cancelled: Arc<AtomicBool>,
}

/// The destination of streamed tokens.
pub(crate) struct Stream {
    pub output: Output,
    pub id: Option<Id>,
    pub iteration: u32,
}

struct SequenceState {
    prompt_tokens: u32,
    cached_prompt_tokens: Option<u32>,
    /// The drafted tokens, and those of them that were accepted.
    drafts: Option<(u32, u32)>,
    ids: Vec<u32>,
    token_ns: Vec<u64>,
    /// The output of an engine that gives text, in place of ids.
    text: Option<TextOutput>,
    finish: Option<Finish>,
}

#[derive(Default)]
struct TextOutput {
    chunks: Vec<Chunk>,
    tokens: u32,
    count_source: &'static str,
}

/// The most tokens of a sequence for which memory is reserved before the first token: a request may ask for billions.
const MAX_RESERVED_TOKENS: u32 = 1 << 16;

impl Tokens {
    pub(crate) fn new(
        clock: Clock,
        start_ns: u64,
        stop: StopConditions,
        stream: Option<Stream>,
        prompts: &[Vec<u32>],
    ) -> Self {
        let capacity = stop.max_new_tokens.min(MAX_RESERVED_TOKENS) as usize;
        let state = |prompt: &Vec<u32>| SequenceState {
            prompt_tokens: u32::try_from(prompt.len()).unwrap_or(u32::MAX),
            cached_prompt_tokens: None,
            drafts: None,
            ids: Vec::with_capacity(capacity),
            token_ns: Vec::with_capacity(capacity),
            text: None,
            finish: None,
        };
        let (delay, sequences) = (PlantedDelay::default(), prompts.iter().map(state).collect());
        Self { clock, start_ns, stop, stream, delay, sequences, failed: None }
    }

    pub(crate) fn with_delay(self, delay: PlantedDelay) -> Self {
        Self { delay, ..self }
    }

    /// Collects tokens without an output, for tests of an engine that call `Model::generate` directly.
    pub fn collecting(prompts: &[Vec<u32>], max_new_tokens: u32, eos_ids: &[u32]) -> Self {
        let stop = StopConditions { max_new_tokens, eos_ids: eos_ids.into(), cancelled: Arc::default() };
        Self::new(Clock::start(), 0, stop, None, prompts)
    }

    /// Takes a new token of a sequence. The engine must call this as soon as the host can use the token's id.
    pub fn push(&mut self, sequence: usize, id: u32) -> Flow {
        if !self.ids(sequence).is_empty() {
            self.delay.wait();
        }
        self.push_at(sequence, id, Instant::now())
    }

    /// Takes a new token that another thread has received at this time.
    pub fn push_at(&mut self, sequence: usize, id: u32, at: Instant) -> Flow {
        let ns = self.after_start(at);
        let max_new_tokens = self.stop.max_new_tokens as usize;
        let is_eos = self.stop.eos_ids.contains(&id);
        let is_cancelled = self.is_cancelled();
        let Some(state) = self.running(sequence) else { return Flow::Done };
        state.ids.push(id);
        state.token_ns.push(ns);
        state.finish = if is_eos {
            Some(Finish::Eos)
        } else if state.ids.len() >= max_new_tokens {
            Some(Finish::Length)
        } else if is_cancelled {
            Some(Finish::Cancelled)
        } else {
            None
        };
        let (is_done, index) = (state.finish.is_some(), state.ids.len() - 1);
        // The token is written after its timestamp, so the time of writing counts in the time of the next token.
        if let Some(stream) = &self.stream {
            stream.send(sequence, index, id, ns);
            if stream.output.is_broken() {
                // No reader is left, so the request is cancelled.
                self.stop.cancelled.store(true, Ordering::Relaxed);
            }
        }
        if is_done { Flow::Done } else { Flow::More }
    }

    /// Takes a piece of the text of a sequence, from an engine without access to its ids, with the time when it was received.
    /// `tokens` is the number of its tokens, if the engine knows it. The engine ends the sequence by `end_text`.
    pub fn push_text(&mut self, sequence: usize, text: String, tokens: Option<u32>, at: Instant) -> Flow {
        let (ns, is_cancelled) = (self.after_start(at), self.is_cancelled());
        let Some(state) = self.running(sequence) else { return Flow::Done };
        state.text.get_or_insert_default().chunks.push(Chunk { ns, text, tokens });
        state.finish = is_cancelled.then_some(Finish::Cancelled);
        if is_cancelled { Flow::Done } else { Flow::More }
    }

    /// Ends a sequence of text: with the number of its tokens, and the source of this number.
    pub fn end_text(&mut self, sequence: usize, tokens: u32, count_source: &'static str, finish: Finish) {
        if let Some(state) = self.running(sequence) {
            let text = state.text.get_or_insert_default();
            (text.tokens, text.count_source) = (tokens, count_source);
            state.finish = Some(finish);
        }
    }

    /// A time on the clock of the request. With a coarse clock, the first token could have the time of the start: waits for the
    /// next tick.
    fn after_start(&self, at: Instant) -> u64 {
        let mut ns = self.clock.ns_at(at);
        while ns <= self.start_ns {
            ns = self.clock.ns();
        }
        ns
    }

    /// The state of a sequence that takes more output. Without such a sequence, the request fails.
    fn running(&mut self, sequence: usize) -> Option<&mut SequenceState> {
        let count = self.sequences.len();
        let problem = match self.sequences.get(sequence) {
            None => format!("a token for sequence {sequence}, but the number of sequences is {count}"),
            Some(state) if state.finish.is_some() => {
                format!("a token for sequence {sequence} after it was done")
            }
            Some(_) => return self.sequences.get_mut(sequence),
        };
        self.fail(internal(problem));
        None
    }

    pub fn is_done(&self, sequence: usize) -> bool {
        self.sequences.get(sequence).is_none_or(|state| state.finish.is_some())
    }

    pub fn all_done(&self) -> bool {
        self.sequences.iter().all(|state| state.finish.is_some())
    }

    /// Whether the request was cancelled. `push` ends its sequences; an engine needs this only in long work without a `push`.
    pub fn is_cancelled(&self) -> bool {
        self.stop.cancelled.load(Ordering::Relaxed)
    }

    /// The tokens of a sequence so far.
    pub fn ids(&self, sequence: usize) -> &[u32] {
        self.sequences.get(sequence).map_or(&[], |state| &state.ids)
    }

    /// Sets the number of prompt tokens that came from the cache of an earlier request.
    pub fn set_cached_prompt_tokens(&mut self, sequence: usize, tokens: u32) {
        if let Some(state) = self.sequences.get_mut(sequence) {
            state.cached_prompt_tokens = Some(tokens);
        }
    }

    /// Sets the number of prompt tokens that a server has counted. Without this call it is the number of the ids of the request.
    pub fn set_prompt_tokens(&mut self, sequence: usize, tokens: u32) {
        if let Some(state) = self.sequences.get_mut(sequence) {
            state.prompt_tokens = tokens;
        }
    }

    /// Sets how many tokens of a sequence were drafted so far, and how many of these were accepted. An engine calls this for a
    /// request with `speculation`.
    pub fn set_drafts(&mut self, sequence: usize, drafted: u32, accepted: u32) {
        if let Some(state) = self.sequences.get_mut(sequence) {
            state.drafts = Some((drafted, accepted));
        }
    }

    /// Fails this request alone; overlapping requests go on. A `step` that returns an error fails all of them.
    pub fn fail(&mut self, failed: Failed) {
        self.failed.get_or_insert(failed);
    }

    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Ends the iteration. Returns an error if the request failed, or if the engine stopped early and the request was not
    /// cancelled.
    pub(crate) fn finish(self) -> Result<Iteration, Failed> {
        let (end_ns, cancelled) = (self.clock.ns(), self.is_cancelled());
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let requested = self.stop.max_new_tokens;
        let mut sequences = Vec::with_capacity(self.sequences.len());
        for (index, state) in self.sequences.into_iter().enumerate() {
            let count = state.ids.len();
            let Some(finish) = state.finish.or_else(|| cancelled.then_some(Finish::Cancelled)) else {
                let message = format!("{count} of {requested} tokens of sequence {index} and stopped");
                return Err(internal(message));
            };
            let sequence = Sequence {
                prompt_tokens: state.prompt_tokens,
                finish,
                cached_prompt_tokens: state.cached_prompt_tokens,
                drafted_tokens: state.drafts.map(|(drafted, _)| drafted),
                accepted_tokens: state.drafts.map(|(_, accepted)| accepted),
                ..Sequence::default()
            };
            sequences.push(match state.text {
                None => Sequence { output_ids: Some(state.ids), token_ns: Some(state.token_ns), ..sequence },
                Some(text) => Sequence {
                    chunks: Some(text.chunks),
                    output_tokens: Some(text.tokens),
                    count_source: Some(text.count_source.into()),
                    ..sequence
                },
            });
        }
        Ok(Iteration { start_ns: self.start_ns, end_ns, sequences })
    }
}

/// The failure of an engine that broke the contract of `Model` or `Slots`.
fn internal(message: String) -> Failed {
    Failed::new(FailureKind::Internal, format!("the engine returned {message}"))
}

impl Stream {
    fn send(&self, sequence: usize, index: usize, id: u32, ns: u64) {
        let to_u32 = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        self.output.send(&Message::Token(Token {
            id: self.id.clone(),
            iteration: self.iteration,
            sequence: to_u32(sequence),
            index: to_u32(index),
            ids: vec![id],
            ns,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_ends_at_the_length_or_at_eos() {
        let mut tokens = Tokens::collecting(&[vec![1, 2], vec![3]], 3, &[9]);
        assert_eq!((tokens.push(0, 5), tokens.push(1, 9)), (Flow::More, Flow::Done));
        assert_eq!((tokens.push(0, 6), tokens.all_done(), tokens.is_done(1)), (Flow::More, false, true));
        assert_eq!((tokens.push(0, 7), tokens.all_done()), (Flow::Done, true));
        assert_eq!((tokens.ids(0), tokens.ids(1)), ([5, 6, 7].as_slice(), [9].as_slice()));
        tokens.set_cached_prompt_tokens(0, 1);
        let iteration = tokens.finish().unwrap();
        let counts = iteration.sequences.iter().map(|s| (s.prompt_tokens, s.cached_prompt_tokens));
        assert_eq!(counts.collect::<Vec<_>>(), [(2, Some(1)), (1, None)]);
    }

    #[test]
    fn the_first_token_is_later_than_the_start() {
        for _ in 0..1000 {
            let mut tokens = Tokens::collecting(&[vec![1]], 1, &[]);
            tokens.start_ns = tokens.clock.ns();
            assert_eq!(tokens.push(0, 5), Flow::Done);
            let iteration = tokens.finish().unwrap();
            let first_ns = iteration.sequences[0].token_ns.as_ref().unwrap()[0];
            assert!(first_ns > iteration.start_ns);
        }
    }

    #[test]
    fn a_stream_without_a_reader_ends_the_work() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut tokens = Tokens::collecting(&[vec![1]], 1000, &[]);
        tokens.stream = Some(Stream { output: Output::new(writer), id: None, iteration: 0 });
        assert_eq!(tokens.push(0, 5), Flow::More);
        assert!(tokens.is_cancelled());
        assert_eq!(tokens.push(0, 5), Flow::Done);
    }
}
