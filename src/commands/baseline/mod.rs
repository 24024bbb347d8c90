//! Baselines: run records under a name, with the programs that they were measured with.
//!
//! ```text
//! a run --accept--> its record and its programs --store--> $DATA/baselines/NAME/
//! NAME --open--> values to compare with
//! NAME --reruns--> its programs, measured in turn with those of the run
//! ```
//!
//! `$DATA` is the user's data folder. A baseline's folder has the record (`record.jsonl`), the description (`baseline.json`)
//! and the programs (`programs/DIGEST/FILE`). A copy keeps the file name of its program, because a program may read its own name.

mod accept;
mod after_run;
mod command;
mod comparison_base;
mod description;
mod library;
mod program;
mod rerun;
mod store;

use anyhow::{Result, ensure};

use crate::cli::RunArgs;
use crate::shell::Usage;

pub use after_run::conclude;
pub use command::{BaselineCommand, baseline};
pub use comparison_base::ComparisonBase;
pub use description::Baseline;
pub use store::check_name;

/// Refuses invalid combinations of arguments before anything is built.
pub fn check_arguments(arguments: &RunArgs) -> Result<()> {
    arguments.judge.thresholds()?;
    let Some(name) = &arguments.baseline.save_baseline else { return Ok(()) };
    check_name(name)?;
    let why = "a baseline needs two blocks that agree, and this run has one block";
    let has_two_blocks = arguments.extent.extent().blocks.is_none_or(|blocks| blocks >= 2);
    ensure!(
        has_two_blocks,
        Usage(format!("--save-baseline: {why}\nhint: {}", accept::command_with_blocks(5)))
    );
    Ok(())
}
