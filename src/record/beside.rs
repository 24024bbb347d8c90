//! What a record holds beside its samples: the machine's limits at the time, what samplers saw, what the orchestrator costs.

use serde::{Deserialize, Serialize};

use crate::machine::observed::{Energy, GpuPass, Held};

/// What the machine could do at most just before a block.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The number of blocks where it was probed after the last one.
    pub block: u32,
    #[serde(flatten)]
    pub probed: machine_limits::Limits,
}

/// How long after their stamps streamed tokens arrived, on the orchestrator's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    pub first_ns: i64,
    pub median_ns: i64,
}

/// A pass of one case in one launch in which samplers looked on: nothing in it is timed for a table. What is counted are the
/// requests over which energy and GPUs were looked at; where there are neither, the one in which memory was.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    pub launch: u32,
    pub case: usize,
    pub requests: u32,
    pub prompt_tokens: u64,
    pub new_tokens: u64,
    /// On the orchestrator's clock, all requests together.
    pub elapsed_ns: u64,
    /// The shortest of some requests for one token alone, on the orchestrator's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_token_ns: Option<u64>,
    /// The most that the process tree held in one request before those, by proportional set size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub energy: Vec<Energy>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuPass>,
}

/// What the counters counted while nothing of this run ran.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    pub energy: Vec<Energy>,
}

/// What asking costs, measured with an engine that does nothing, just before the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overhead {
    /// The median from a request to its answer.
    pub request_ns: u64,
    /// The median that each streamed token adds.
    pub streamed_token_ns: u64,
    pub requests: u32,
}
