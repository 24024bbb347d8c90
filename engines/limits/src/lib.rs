//! What this machine can do at most: how fast it reads memory and how many operations each of its units does, measured
//! now. For an orchestrator that says how far an engine is from it, and for engines whose own benchmarks do.

use serde::{Deserialize, Serialize};

/// Everything that was probed at one time. Counts and nanoseconds: rates are for who reads them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Memory, by threads and by streams for each of them.
    pub reads: Vec<Reads>,
    pub units: Vec<Operations>,
}

/// Bytes read from memory by so many threads, each walking so many far-apart places at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reads {
    pub threads: u32,
    pub streams: u32,
    pub bytes: u64,
    pub ns: u64,
}

/// Operations of one unit: a multiplication and an addition are two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operations {
    /// `f32_fma`, `avx512_bf16`, `avx512_vnni`, `amx_bf16`, `amx_int8`.
    pub unit: String,
    /// With its operands read from the nearest cache, not kept in registers.
    pub loads: bool,
    pub threads: u32,
    pub operations: u64,
    pub ns: u64,
}
