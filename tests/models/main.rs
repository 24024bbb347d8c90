//! `orchestrate model`: models made, converted, pulled, refused, and runs that use them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod bad;
mod convert;
mod info;
mod pull;
mod runs;
mod synth;
