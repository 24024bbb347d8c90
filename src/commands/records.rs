//! `orchestrate report RECORD` and `orchestrate compare BASE NEW`: results of stored records.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;

use super::baseline::Baseline;
use super::output;
use crate::analysis::compare::judge;
use crate::cli::exit_code::{DONE, of_conclusion};
use crate::cli::{JudgeArgs, ViewArgs, formats};
use crate::record::{self, RunRecord};
use crate::report::{FORMATS, Format, Report, ReportContent};
use crate::shell::Usage;

#[derive(Debug, Args)]
pub struct ReportArgs {
    pub record: PathBuf,
    #[command(flatten)]
    pub view: ViewArgs,
}

pub fn report(arguments: &ReportArgs) -> Result<u8> {
    arguments.view.check()?;
    let report = Report::of(&record::read(&arguments.record)?);
    let saved = output::short_path(&arguments.record);
    let content = ReportContent { saved: Some(&saved), ..output::with_view(&report, &arguments.view) };
    output::show(&content, arguments.view.format)?;
    Ok(DONE)
}

/// The latest record in a folder.
pub fn latest_record(results: &Path) -> Result<PathBuf> {
    let missing = || {
        let folder = results.display();
        Usage(format!("no run record in `{folder}`\nhint: orchestrate --all, or name a record"))
    };
    record::latest_in(results)?.ok_or_else(|| missing().into())
}

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
    let (base, base_notices) = read(&arguments.base)?;
    let (new, new_notices) = read(&arguments.new)?;
    let judgement = judge(&base, &new, thresholds, arguments.judge.force);
    let mut judgement = judgement.map_err(|incomparable| Usage(incomparable.to_string()))?;
    judgement.base.name = arguments.base.clone();
    judgement.new.name = arguments.new.clone();
    judgement.notices.splice(0..0, base_notices.into_iter().chain(new_notices));
    output::show(&judgement, arguments.format)?;
    Ok(of_conclusion(judgement.conclusion(arguments.judge.fail_on)))
}

/// Reads the record of a file, or else of the baseline of that name with the notices about it.
fn read(name: &str) -> Result<(RunRecord, Vec<String>)> {
    let path = Path::new(name);
    if path.is_file() || name.contains('/') || name.ends_with(".jsonl") {
        return Ok((record::read(path)?, Vec::new()));
    }
    let baseline = Baseline::read(name)?;
    Ok((baseline.record()?, baseline.notices()))
}
