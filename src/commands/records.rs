//! `orchestrate report [RECORD]` and `orchestrate compare BASE [NEW]`: results of stored records.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;

use super::baseline::Baseline;
use super::output;
use super::record_list::RecordList;
use crate::analysis::compare::judge;
use crate::cli::exit_code::{DONE, of_conclusion};
use crate::cli::{JudgeArgs, Verbosity, ViewArgs, formats, verbosity};
use crate::record::{self, Latest, RunRecord, earlier_results_dirs, results_dir};
use crate::report::{FORMATS, Format, JudgementContent, Report, ReportContent};
use crate::shell::{Usage, pasteable};
use crate::text;

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// A run record; default: the latest one in the folder for records
    pub record: Option<PathBuf>,
    /// List the records in the folder, newest first
    #[arg(long, conflicts_with_all = ["record", "pairs", "TableArgs", "price_per_hour"])]
    pub list: bool,
    /// Folder for records; default: ORCHESTRATE_RESULTS, else `results` of the current folder
    #[arg(long, value_name = "DIR", conflicts_with = "record")]
    pub results: Option<PathBuf>,
    #[command(flatten)]
    pub view: ViewArgs,
}

pub fn report(mut arguments: ReportArgs) -> Result<u8> {
    arguments.view.check_format()?;
    let results = results_dir(arguments.results.as_deref());
    if arguments.list {
        let list = RecordList::of(&results, no_record_hint(&results))?;
        output::show(&list, arguments.view.format)?;
        return Ok(DONE);
    }
    let path = arguments.record.clone().map_or_else(|| latest_record(&results), Ok)?;
    let record = record::read(&path);
    let cases = record.iter().flat_map(|record| &record.header.plan.cases);
    arguments.view.check(&cases.map(|case| case.workload.scenario.as_str()).collect::<Vec<_>>())?;
    let record = record?;
    arguments.view.add_tables(&record.header.plan.shown_tables());
    let report = Report::of(&record);
    let saved = output::short_path(&path);
    let content = ReportContent { saved: Some(&saved), ..output::with_view(&report, &arguments.view) };
    output::show(&content, arguments.view.format)?;
    Ok(DONE)
}

/// The folder's latest record with a measurement. A notice names a later one, which measured nothing. Without a record, the error has
/// the command that makes or finds one.
fn latest_record(results: &Path) -> Result<PathBuf> {
    let Latest { path, skipped } = record::latest_in(results)?.ok_or_else(|| no_record(results))?;
    if let Some(newest) = skipped.first().filter(|_| verbosity() != Verbosity::Quiet) {
        let later = match skipped.len() {
            1 => "a later record has none".to_string(),
            count => format!("{count} later records have none"),
        };
        let (path, newest) = (output::short_path(&path), pasteable(&[output::short_path(newest)]));
        let notice = format!("note: `{path}` is the latest record with a measurement; {later}");
        let hint = format!("hint: orchestrate report {newest}");
        output::print_notice(&text::break_lines(&format!("{notice}\n{hint}"), output::WIDTH));
    }
    Ok(path)
}

/// The error of a command that needs a record.
pub fn no_record(results: &Path) -> anyhow::Error {
    let hint = no_record_hint(results);
    Usage(format!("no run record in the folder `{}`\nhint: {hint}", results.display())).into()
}

/// The command that lists the records of another folder, where earlier versions wrote them, or that makes a record.
fn no_record_hint(results: &Path) -> String {
    match earlier_results_dirs(results).first() {
        Some(folder) => {
            format!("orchestrate report --list --results {}", pasteable(&[folder.display().to_string()]))
        }
        None => "orchestrate --all".into(),
    }
}

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Earlier side: a run record, or a baseline by name
    pub base: String,
    /// Later side: a run record, or a baseline by name; default: the latest record in the folder for records
    pub new: Option<String>,
    /// Folder of the latest record; default: ORCHESTRATE_RESULTS, else `results` of the current folder
    #[arg(long, value_name = "DIR", conflicts_with = "new")]
    pub results: Option<PathBuf>,
    #[command(flatten)]
    pub judge: JudgeArgs,
    /// Print a table of all metrics, and every note; default: one screen
    #[arg(long)]
    pub full: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = FORMATS[0].name, value_parser = formats())]
    pub format: &'static Format,
}

pub fn compare(arguments: &CompareArgs) -> Result<u8> {
    let thresholds = arguments.judge.thresholds()?;
    let (base, base_notices) = read(&arguments.base)?;
    let new_name = match &arguments.new {
        Some(name) => name.clone(),
        None => latest_record(&results_dir(arguments.results.as_deref()))?.display().to_string(),
    };
    let (new, new_notices) = read(&new_name)?;
    let judgement = judge(&base, &new, thresholds, arguments.judge.force);
    let mut judgement = judgement.map_err(|incomparable| Usage(incomparable.to_string()))?;
    judgement.base.name = arguments.base.clone();
    judgement.new.name = new_name;
    judgement.notices.splice(0..0, base_notices.into_iter().chain(new_notices));
    if base.header.id == new.header.id {
        // A record has no difference to itself, so a sentence replaces the table. The other formats have all entries.
        if arguments.format.name == FORMATS[0].name {
            output::print_lines(&same_run(&base))?;
            return Ok(of_conclusion(judgement.conclusion(arguments.judge.fail_on)));
        }
        judgement.notices.insert(0, same_run(&base));
    }
    output::show(&JudgementContent { judgement: &judgement, full: arguments.full }, arguments.format)?;
    Ok(of_conclusion(judgement.conclusion(arguments.judge.fail_on)))
}

/// The notice about a run that is compared with itself.
fn same_run(record: &RunRecord) -> String {
    format!(
        "both are the same record ({}), so there is no difference; `orchestrate report --list` lists others",
        record.header.id
    )
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
