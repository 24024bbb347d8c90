//! Tests of `orchestrate model`, which makes, converts and pulls models, and of runs with models.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod bad;
mod convert;
mod download;
mod info;
mod pull;
mod runs;
mod synth;
