//! Tests of blocks, false claims, limits, other processes and the machine's facts. They are a separate binary, because cargo
//! runs one test binary at a time: the computations of `tests/models` would disturb these tests.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

#[path = "../support/mod.rs"]
mod support;

mod blocks;
mod false_claims;
mod gpu_limits;
mod limits;
mod machine;
mod other_processes;
