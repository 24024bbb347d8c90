//! Tests of the rules about the source tree that no compiler checks.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod build_script;
mod layers;
mod modules;
mod tidy;
