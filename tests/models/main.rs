//! Tests of `orchestrate model`, which makes, converts and pulls models, and of runs with models.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

#[path = "../support/mod.rs"]
mod support;

mod bad;
mod convert;
mod download;
mod info;
mod pull;
mod runs;
mod synth;
