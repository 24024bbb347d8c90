//! The parts of a record beside its samples: the machine's limits, the samplers' results and the orchestrator's overhead.

use serde::{Deserialize, Serialize};

use crate::machine::observed::{Energy, GpuPass, Held};

/// The machine's limits just before a block.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The block that follows; after the last one, the number of blocks.
    pub block: u32,
    #[serde(flatten)]
    pub probed: machine_limits::Limits,
}

/// The delay of streamed tokens after their time stamps, on the orchestrator's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    pub first_ns: i64,
    pub median_ns: i64,
}

/// A pass of one case in one launch in which samplers run: no table shows its times. It counts the requests in which energy
/// and GPUs were sampled; without those, the request in which memory was sampled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    pub launch: u32,
    pub case: usize,
    pub requests: u32,
    pub prompt_tokens: u64,
    pub new_tokens: u64,
    /// On the orchestrator's clock, all requests together.
    pub elapsed_ns: u64,
    /// The shortest time of several requests for one token, on the orchestrator's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_token_ns: Option<u64>,
    /// The largest memory of the process tree in one earlier request, by proportional set size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub energy: Vec<Energy>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuPass>,
}

/// The energy that the counters showed while the run was idle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    pub energy: Vec<Energy>,
}

/// The orchestrator's overhead, measured with an engine that does nothing, just before the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overhead {
    /// The median time from a request to its answer.
    pub request_ns: u64,
    /// The median time that each streamed token adds.
    pub streamed_token_ns: u64,
    pub requests: u32,
}
