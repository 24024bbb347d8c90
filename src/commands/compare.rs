//! `orchestrate compare BASE NEW`: the changes from one record or baseline to another.

use std::path::Path;

use anyhow::Result;
use clap::Args;

use super::baseline::Baseline;
use super::output;
use crate::analysis::compare::judge;
use crate::cli::exit_code::of_conclusion;
use crate::cli::{JudgeArgs, formats};
use crate::record::{self, RunRecord};
use crate::report::{FORMATS, Format};
use crate::shell::Usage;

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Earlier side: a run record, or a baseline by name
    pub base: String,
    /// Later side: a run record, or a baseline by name
    pub new: String,
    #[command(flatten)]
    pub judge: JudgeArgs,
    #[arg(long, value_name = "FORMAT", default_value = FORMATS[0].name, value_parser = formats())]
    pub format: &'static Format,
}

pub fn compare(arguments: &CompareArgs) -> Result<u8> {
    let thresholds = arguments.judge.thresholds()?;
    let (base, of_base) = opened(&arguments.base)?;
    let (new, of_new) = opened(&arguments.new)?;
    let judged = judge(&base, &new, thresholds, arguments.judge.force);
    let mut judgement = judged.map_err(|incomparable| Usage(incomparable.to_string()))?;
    judgement.base.name = arguments.base.clone();
    judgement.new.name = arguments.new.clone();
    judgement.notices.splice(0..0, of_base.into_iter().chain(of_new));
    output::show(&judgement, arguments.format)?;
    Ok(of_conclusion(judgement.conclusion(arguments.judge.fail_on)))
}

/// Opens a file, or else the baseline of that name, with notes about it.
fn opened(name: &str) -> Result<(RunRecord, Vec<String>)> {
    let path = Path::new(name);
    if path.is_file() || name.contains('/') || name.ends_with(".jsonl") {
        return Ok((record::read(path)?, Vec::new()));
    }
    let baseline = Baseline::read(name)?;
    Ok((baseline.record()?, baseline.notices()))
}
