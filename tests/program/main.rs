//! The program for its users: commands, runs, messages about failing engines. It is one binary, because each binary links
//! the whole program again. Each file is one subject, and their tests run in parallel.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod baseline_comparison;
mod baseline_rerun;
mod baselines;
mod calibrate;
mod check;
mod cli;
mod compare;
mod cuda_toolkit;
mod devices;
mod earlier_records;
mod experiments;
mod failures;
mod gpu_check;
mod lifetime;
mod measured_tokens;
mod output_checks;
mod own_python;
mod setup;
