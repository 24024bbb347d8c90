//! Tests of the program as its users see it: commands, runs, messages about failing engines. The tests are one binary,
//! because linking is slow and each binary links the whole program. Each file has one subject.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod axes;
mod baseline_comparison;
mod baseline_rerun;
mod baselines;
mod budgets;
mod calibrate;
mod check;
mod cli;
mod compare;
mod containment;
mod core_lock;
mod costs;
mod cuda_toolkit;
mod devices;
mod dtype_costs;
mod earlier_records;
mod environment;
mod exit_codes;
mod experiments;
mod explain;
mod failures;
mod false_times;
mod generated;
mod gpu_check;
mod lifetime;
mod measured_tokens;
mod names;
mod nonces;
mod output_checks;
mod own_python;
mod page_cache;
mod partial_prompts;
mod perplexity;
mod prompts;
mod quantization;
mod queries;
mod recommend;
mod records;
mod refusals;
mod run_files;
mod serve;
mod setup;
mod setup_of_several;
mod speculative;
mod stress;
mod terminal;
mod text_engines;
mod verbosity;
