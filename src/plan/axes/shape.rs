//! The values of the axes that most requests leave at their defaults, with the requests of a round that follow from them.

use protocol::{Padding, Speculation};
use serde::{Deserialize, Serialize};

use crate::plan::arrivals::{self, Burstiness, Rate, RoundLength};
use crate::plan::length_files::RequestLengths;
use crate::plan::lengths::{self, Lengths};
use crate::plan::texts::TextKind;
use crate::plan::traces::{Trace, TraceRequest};

/// The requests of a round for each request that is open at once. With fewer, the time without all of them open would count much.
const REQUESTS_OF_EACH: u32 = 4;

/// The values of the axes that most requests leave at their defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shape {
    /// The tokens before the scenario's prompt, for a deep cache. The prompt that is sent has `depth + prompt_tokens` tokens.
    #[serde(skip_serializing_if = "is_zero")]
    pub depth: u32,
    #[serde(skip_serializing_if = "is_one")]
    pub batch: u32,
    /// The tokens at the start of each prompt of a window that are the same in all of them. They come before the scenario's prompt.
    #[serde(skip_serializing_if = "is_zero")]
    pub shared_prefix: u32,
    /// The requests of a conversation. Each one repeats the one before it, with the engine's own answer and a new text of the user.
    #[serde(skip_serializing_if = "is_one")]
    pub turns: u32,
    /// Whether requests may use keys and values of earlier requests, as only those that share their beginning may.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prefix_cache: bool,
    #[serde(skip_serializing_if = "Clone::clone")]
    pub use_cache: bool,
    /// The padding of a batch of uneven prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub padding: Option<Padding>,
    /// How the engine drafts tokens.
    #[serde(skip_serializing_if = "Speculation::is_off")]
    pub speculation: Speculation,
    /// Whether the kernel has the model's files in memory before a launch.
    #[serde(skip_serializing_if = "PageCache::is_kept")]
    pub page_cache: PageCache,
    /// The number of requests that are open at once. `None`: all of a round, those that have arrived, or one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// The rate at which requests arrive, whether or not earlier ones are answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_rate: Option<Rate>,
    #[serde(skip_serializing_if = "Burstiness::is_default")]
    pub burstiness: Burstiness,
    /// The length of a round: of an engine's use, or of arrivals at a rate, if the user set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<RoundLength>,
    /// The arrivals and lengths of requests from a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// The number of overlapping requests in a round, if the user set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    /// The lengths of overlapping requests. From a file, those of a round in the record.
    #[serde(skip_serializing_if = "Lengths::is_default")]
    pub lengths: Lengths,
    #[serde(skip_serializing_if = "TextKind::is_natural")]
    pub text: TextKind,
}

/// The files of the model before a launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageCache {
    /// The kernel has the files in memory, as far as memory allows.
    #[default]
    Kept,
    /// The kernel has dropped its copies, so that the engine reads the files from the disk.
    Dropped,
}

impl PageCache {
    pub fn is_kept(&self) -> bool {
        *self == Self::Kept
    }
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            depth: 0,
            shared_prefix: 0,
            turns: 1,
            prefix_cache: false,
            batch: 1,
            use_cache: true,
            padding: None,
            speculation: Speculation::Off,
            page_cache: PageCache::Kept,
            concurrency: None,
            request_rate: None,
            burstiness: Burstiness::default(),
            duration: None,
            trace: None,
            requests: None,
            lengths: Lengths::default(),
            text: TextKind::Natural,
        }
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

impl Shape {
    /// Whether a request has one sequence of natural text, with a cache of keys and values.
    pub fn is_one_cached_sequence(&self) -> bool {
        Self { depth: 0, duration: None, ..*self } == Self::default()
    }

    /// Whether a round has several requests, which may overlap.
    pub fn overlaps(&self) -> bool {
        self.concurrency.is_some() || self.requests.is_some() || self.has_arrivals()
    }

    /// Whether requests arrive at their own times, whether or not earlier ones are answered.
    pub fn has_arrivals(&self) -> bool {
        self.request_rate.is_some() || self.trace.is_some()
    }

    /// The number of prompts of a round: those of a batch, or those of all overlapping requests. Conversations are whole.
    pub fn sequences(&self) -> u32 {
        let of_users = |users: u32| users.saturating_mul(REQUESTS_OF_EACH);
        let overlapping = match (self.trace, self.request_rate) {
            (Some(trace), _) => Some(trace.requests().len() as u32),
            (None, Some(rate)) => Some(arrivals::requests(rate, self.duration)),
            (None, None) => self.concurrency.map(of_users),
        };
        let requests = self.requests.or(overlapping).unwrap_or(self.batch.max(1));
        requests.next_multiple_of(self.turns.max(1))
    }

    /// The same shape with the lengths of a round, drawn from their file. All engines and all rounds have the same ones.
    pub fn with_drawn_lengths(self, seed: u64) -> Self {
        Self { lengths: self.lengths.drawn(self.sequences(), seed), ..self }
    }

    /// The number of conversations in a round of overlapping requests.
    pub fn conversations(&self) -> u32 {
        self.sequences() / self.turns.max(1)
    }

    /// The request of a round whose answer a request repeats. `None` for the first one of a conversation.
    pub fn turn_before(&self, index: u32) -> Option<u32> {
        let is_first = index.is_multiple_of(self.turns.max(1));
        (!is_first).then(|| index - 1)
    }

    /// The most sequences that may be computed at once.
    pub fn most_at_once(&self) -> u32 {
        self.concurrency.unwrap_or_else(|| self.conversations())
    }

    /// The most tokens of a prompt, and the most new tokens, if lengths come from a file.
    pub fn longest_of_file(&self) -> Option<RequestLengths> {
        let of_trace = |trace: Trace| {
            let longest =
                |tokens: fn(&TraceRequest) -> u32| trace.requests().iter().map(tokens).max().unwrap_or(1);
            RequestLengths::from((longest(|it| it.prompt_tokens), longest(|it| it.new_tokens)))
        };
        self.trace.map(of_trace).or_else(|| Some(self.lengths.file()?.longest()))
    }

    /// The request with the most tokens, if lengths come from a file: its longest prompt and its longest output may belong to two
    /// requests. `None` in a conversation, which has several.
    pub fn largest_of_file(&self) -> Option<RequestLengths> {
        let of_trace = |trace: Trace| {
            let requests =
                trace.requests().iter().map(|it| RequestLengths::from((it.prompt_tokens, it.new_tokens)));
            requests.max_by_key(RequestLengths::tokens)
        };
        match (self.trace, self.lengths.file()) {
            _ if self.turns > 1 => None,
            (Some(trace), _) => of_trace(trace),
            (None, file) => Some(file?.largest()),
        }
    }

    /// The tokens of a prompt before those of the scenario.
    pub fn tokens_before_prompt(&self) -> u32 {
        self.depth.saturating_add(self.shared_prefix)
    }

    /// The lengths of the prompts of a round, if the longest has `longest` tokens.
    pub fn prompt_lengths(&self, longest: u32) -> Vec<u32> {
        (0..self.sequences()).map(|index| self.prompt_length(longest, index)).collect()
    }

    /// The length of one prompt of a round, or of the new text in a later turn of a conversation. Uneven prompts of a batch shrink from
    /// the longest to a quarter of it, so that the batch has much padding. Overlapping requests are uneven, as those of real users are.
    pub fn prompt_length(&self, longest: u32, index: u32) -> u32 {
        match (self.overlaps(), self.padding) {
            _ if self.trace.is_some() => self.of_trace(index).map_or(longest, |it| it.prompt_tokens),
            (true, _) => {
                let own = self.lengths.of_prompt(longest.saturating_sub(self.shared_prefix), index);
                // A later turn has the prefix in the turns that it repeats.
                if self.turn_before(index).is_none() { self.shared_prefix.saturating_add(own) } else { own }
            }
            (false, Some(_)) => lengths::quarters(longest, index),
            (false, None) => longest,
        }
    }

    /// The length of a prompt with the turns that it repeats. `answer` gives the number of tokens in an earlier answer of the round;
    /// `None` if it is unknown.
    pub fn length_with_history(
        &self,
        longest: u32,
        mut index: u32,
        answer: impl Fn(u32) -> Option<u32>,
    ) -> Option<u32> {
        let mut length = self.prompt_length(longest, index);
        while let Some(before) = self.turn_before(index) {
            length += self.prompt_length(longest, before) + answer(before)?;
            index = before;
        }
        Some(length)
    }

    /// The number of tokens that one request of a round asks for.
    pub fn output_length(&self, longest: u32, index: u32) -> u32 {
        match self.overlaps() {
            // A warm-up may ask for fewer tokens than the trace has.
            _ if self.trace.is_some() => {
                self.of_trace(index).map_or(longest, |it| it.new_tokens.min(longest))
            }
            true => self.lengths.of_output(longest, index),
            false => longest,
        }
    }

    fn of_trace(&self, index: u32) -> Option<&'static TraceRequest> {
        self.trace?.requests().get(index as usize)
    }
}
