//! What a run finds out about the machine and about processor time. A binary of its own, since cargo runs one binary after the
//! other: the models that `tests/models` computes would take the processors that these tests read about.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod blocks;
mod gpu_limits;
mod liars;
mod limits;
mod machine;
