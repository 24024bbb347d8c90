//! Tests of the real engines, built and set up: `scripts/check --full`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod agreement;
mod conformance;
mod engine;
mod models;
