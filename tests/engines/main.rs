//! Tests of the real engines. The engines must be built in release and set up, which `scripts/check --full` does first, so these
//! tests need the feature `full`.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

#[path = "../support/mod.rs"]
mod support;

mod agreement;
mod batches;
mod conformance;
mod engine;
mod models;
mod perplexity;
