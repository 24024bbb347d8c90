//! `orchestrate`, `orchestrate run`: finds engines, makes them ready, plans, measures and reports.

use std::path::Path;

use anyhow::{Context, Result};

use super::baseline::{self, ComparisonBase};
use super::{dry_run, experiment, output};
use crate::analysis::compare::Judgement;
use crate::cli::exit_code::{DONE, WORSE, most_severe};
use crate::cli::{JudgeArgs, RunArgs};
use crate::engines::registry::Registry;
use crate::machine::Machine;
use crate::plan::{Plan, Selection, scenario, selection};
use crate::record::{self, End, Recorder, Warning};
use crate::report::{Content, FORMATS, Report, ReportContent, targets};
use crate::shell::Usage;

pub fn run(mut arguments: RunArgs) -> Result<u8> {
    let own: Vec<&str> = arguments.file.scenarios.iter().map(|it| it.name).collect();
    arguments.view.check(&own)?;
    baseline::check_arguments(&arguments)?;
    let base = ComparisonBase::open(&arguments.baseline)?;
    let registry = Registry::open()?;
    let scenarios = selection::scenarios(&registry, &arguments.scenarios, &arguments.file.scenarios)?;
    let shapes: Vec<_> = scenarios.iter().map(|it| it.shapes(&arguments.axes)).collect();
    let tables = scenario::tables_of(&arguments.scenarios, &scenarios, &shapes);
    arguments.view.add_tables(&tables);
    let arguments = &arguments;
    let resolved = experiment::resolve(&registry, arguments)?;
    if arguments.extent.dry_run {
        // Weights can be compared only after they are read. So a dry run accepts differences, as with `--force`.
        let judge = JudgeArgs { force: true, ..arguments.judge };
        let (mut plan, _) = planned(arguments, &resolved.without_set_up()?, base.as_ref(), &judge)?;
        let left_out = check_targets(&mut plan, arguments)?.into_iter().map(left_out_target);
        let warnings: Vec<String> = changed_inputs(&plan, arguments)?.into_iter().chain(left_out).collect();
        return dry_run::show(&plan, &resolved.results, &warnings, &resolved.prepared_first());
    }
    if !arguments.file.targets.is_empty() {
        // Before anything is built.
        check_targets(&mut Plan::new(&resolved.without_set_up()?), arguments)?;
    }
    let mut ready = resolved.make_ready()?;
    let (mut plan, warnings) = planned(arguments, &ready.selection, base.as_ref(), &arguments.judge)?;
    plan.tables = Some(tables.iter().map(|it| it.name().to_string()).collect());
    for number in check_targets(&mut plan, arguments)? {
        ready.warn(left_out_target(number));
    }
    ready.warnings.extend(warnings);
    for message in changed_inputs(&plan, arguments)? {
        ready.warn(message);
    }
    if arguments.view.format.is_for_people() && !prints_only_json(arguments) {
        ready.expect_report();
    }
    if shows_results_so_far(arguments) {
        ready.show_after_blocks(Box::new(|record| {
            let report = Report::so_far(record);
            let shown = output::with_view(&report, &arguments.view);
            let rendered = output::render(&shown, arguments.view.format).ok();
            rendered.map(|bytes| String::from_utf8_lossy(&bytes).into())
        }));
    }
    let measured = ready.run(plan)?;
    // An interrupted run is not judged.
    let is_finished = matches!(measured.end, Ok(Some(End::Finished)));
    let judge = |base: &ComparisonBase| base.judge(&measured.recorder.record, &arguments.judge);
    let judgement = base.as_ref().filter(|_| is_finished).map(judge);
    // The results are shown even when the record could not be written.
    show(&measured.recorder, judgement.as_ref(), arguments)?;
    let code = experiment::exit_code(&measured.recorder.record, measured.end?, &arguments.names());
    let is_missed = is_finished && targets::are_missed(&Report::of(&measured.recorder.record).targets);
    let code = most_severe([code, if is_missed { WORSE } else { DONE }]);
    baseline::conclude(arguments, judgement, &measured.recorder, code)
}

/// Checks the targets of a plan, and returns the numbers of those that are left out.
fn check_targets(plan: &mut Plan, arguments: &RunArgs) -> Result<Vec<usize>> {
    let left_out = if arguments.file.is_overridden { targets::leave_out_unnamed(plan) } else { Vec::new() };
    targets::check(plan)?;
    Ok(left_out)
}

fn left_out_target(number: usize) -> String {
    format!("target {number} of the run file names no case of this run, and is left out")
}

/// A warning for each file that has changed since the record of `--like`.
fn changed_inputs(plan: &Plan, arguments: &RunArgs) -> Result<Vec<String>> {
    let Some(path) = &arguments.file.like else { return Ok(Vec::new()) };
    let record = record::read(path)?;
    let changed = plan.changed_inputs(&record.header.plan).into_iter();
    Ok(changed.map(|input| format!("{input} has changed since the record of `--like`")).collect())
}

/// The run file that a record embeds.
pub fn file_of_record(path: &Path) -> Result<String> {
    let record = record::read(path)?;
    let plan = &record.header.plan;
    record.header.run_file.with_context(|| {
        let cases: Vec<usize> = (0..plan.cases.len()).collect();
        Usage(format!(
            "the record embeds no run file: it is older, or of another command\nhint: orchestrate {}",
            plan.arguments_of(&cases)
        ))
    })
}

/// The plan with the programs of a baseline that are measured again, and warnings for the record.
fn planned(
    arguments: &RunArgs,
    selection: &Selection,
    base: Option<&ComparisonBase>,
    judge: &JudgeArgs,
) -> Result<(Plan, Vec<Warning>)> {
    let mut plan = Plan::new(selection);
    if scenario::measures_precisions(&arguments.scenarios) {
        // The suite adds the precisions, so one that is too large is no failure.
        plan = plan.mark_too_large(&Machine::probe());
        if arguments.reference.is_none() {
            plan = plan.with_available_reference();
        }
    }
    match base {
        Some(base) => base.join(plan, &Machine::probe(), judge),
        None => Ok((plan, Vec::new())),
    }
}

fn show(recorder: &Recorder, judgement: Option<&Result<Judgement>>, arguments: &RunArgs) -> Result<()> {
    let report = Report::of(&recorder.record);
    let saved = (!recorder.record.is_refused()).then(|| output::short_path(&recorder.path));
    let shown =
        ReportContent { judgement, saved: saved.as_deref(), ..output::with_view(&report, &arguments.view) };
    if !prints_only_json(arguments) {
        output::show(&shown, arguments.view.format)?;
    }
    match &arguments.json {
        Some(path) => output::write(&shown.json(), path),
        None => Ok(()),
    }
}

fn prints_only_json(arguments: &RunArgs) -> bool {
    arguments.json.as_deref() == Some(Path::new("-"))
}

/// Whether a terminal shows the results so far after each block.
fn shows_results_so_far(arguments: &RunArgs) -> bool {
    let is_table = arguments.view.format.name == FORMATS[0].name;
    output::is_terminal() && is_table && !prints_only_json(arguments)
}
