//! `orchestrate report RECORD`: makes the report of a run record again.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::output;
use crate::cli::ViewArgs;
use crate::cli::exit_code::DONE;
use crate::record;
use crate::report::Report;

#[derive(Debug, Args)]
pub struct ReportArgs {
    pub record: PathBuf,
    #[command(flatten)]
    pub view: ViewArgs,
}

pub fn report(arguments: &ReportArgs) -> Result<u8> {
    arguments.view.check()?;
    let report = Report::of(&record::read(&arguments.record)?);
    output::show(&output::viewed(&report, &arguments.view), arguments.view.format)?;
    Ok(DONE)
}
