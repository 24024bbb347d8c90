//! `orchestrate keeper`, hidden: ends the remaining processes of a run. The run itself starts it.

use anyhow::Result;
use clap::Args;

use crate::cli::exit_code::DONE;
use crate::run::process::keep;

#[derive(Debug, Args)]
pub struct KeeperArgs {
    pub run: String,
}

pub fn keeper(arguments: &KeeperArgs) -> Result<u8> {
    keep(&arguments.run);
    Ok(DONE)
}
