//! Tests of the rules about the source tree that no compiler checks.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

#[path = "../support/mod.rs"]
mod support;

mod build_script;
mod layers;
mod modules;
mod tidy;
