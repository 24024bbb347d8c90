//! `orchestrate recommend`: measures the engines that are set up, in the precisions that fit into the memory, and recommends one
//! for the latency of a chat. `--record` recommends from an earlier record.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;

use super::experiment::{self, MeasuredRun};
use super::{dry_run, output};
use crate::cli::exit_code::{DONE, FAILED_CASES};
use crate::cli::{RunArgs, Verbosity, verbosity};
use crate::engines::registry::Registry;
use crate::machine::Machine;
use crate::plan::selection::{Names, distinct};
use crate::plan::{Mode, Order, Plan, Selection};
use crate::record::{self, RunRecord};
use crate::report::recommendation::Recommendation;
use crate::report::{Content, Report};
use crate::shell::unused_option;
use crate::text::{plural, time};

#[derive(Debug, Args)]
pub struct RecommendArgs {
    /// Recommend from this run record, and measure nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_A_MEASUREMENT)]
    pub record: Option<PathBuf>,
    #[command(flatten)]
    pub run: RunArgs,
}

/// Options without an effect on a recommendation from a record, because nothing is measured and no report is shown.
const OF_A_MEASUREMENT: [&str; 11] = [
    "all",
    "presets",
    "engines",
    "models",
    "scenarios",
    "sort",
    "full",
    "pairs",
    "blocks",
    "budget",
    "dry_run",
];

pub fn recommend(RecommendArgs { record, mut run }: RecommendArgs) -> Result<u8> {
    refuse_unused_arguments(&run)?;
    if let Some(path) = record {
        let record = record::read(&path)?;
        let untried = untried_presets(&Registry::open()?, &record.header.plan);
        let recommendation = Recommendation::of_file(&record, &path, untried);
        show(&recommendation, None, &run)?;
        return Ok(if recommendation.is_complete() { DONE } else { FAILED_CASES });
    }
    let registry = Registry::open()?;
    let named = Names { all: run.engines.is_empty() || run.all, ..run.names() };
    run.engines = rows(&registry, &named);
    // No engine is built or set up: the rows that are not ready are listed with the command that makes them ready.
    (run.all, run.presets, run.no_setup) = (false, false, true);
    let resolved = experiment::resolve(&registry, &run)?;
    if run.extent.dry_run {
        return dry_run::show(&plan(&resolved.without_set_up()?), &resolved.results, &[], &[]);
    }
    let mut ready = resolved.make_ready()?;
    if shows_report(&run) {
        ready.expect_report();
    }
    let plan = plan(&ready.selection);
    if plan.extent.has_default_budget && verbosity() != Verbosity::Quiet {
        output::print_notice(&format!("{}\n", budget_notice(&plan)));
    }
    let MeasuredRun { recorder, end } = ready.run(plan)?;
    let record = &recorder.record;
    // The commands that the recommendation names must find the record.
    let untried = untried_presets(&registry, &record.header.plan);
    let recommendation = match run.results {
        Some(_) => Recommendation::of_file(record, &recorder.path, untried),
        None => Recommendation::of(record, untried),
    };
    show(&recommendation, Some(record), &run)?;
    let code = experiment::exit_code(record, end?, &named);
    Ok(if code == DONE && !recommendation.is_complete() { FAILED_CASES } else { code })
}

/// The rows to measure, as `-e` takes them: the named engines, or all. An engine that is named without a preset is also measured
/// with each preset that changes its precision, and with `--presets` with its other presets.
fn rows(registry: &Registry, named: &Names) -> Vec<String> {
    let mut rows: Vec<String> = named.engines.clone();
    for engine in &registry.engines {
        let name = &engine.manifest.name;
        if named.all && !rows.contains(name) {
            rows.push(name.clone());
        }
        if rows.contains(name) {
            let other = engine.other_presets().filter(|_| named.presets);
            let presets = engine.precision_presets().chain(other).map(|preset| format!("{name}:{preset}"));
            let presets: Vec<String> = distinct(&presets.collect::<Vec<_>>());
            let presets: Vec<String> = presets.into_iter().filter(|row| !rows.contains(row)).collect();
            rows.extend(presets);
        }
    }
    rows
}

/// The presets that the plan's engines have, that belong to no suite, and that are no row of the plan.
fn untried_presets(registry: &Registry, plan: &Plan) -> Vec<String> {
    let is_row = |engine: &str, preset: Option<&str>| {
        let mut rows = plan.configurations.iter().filter(|it| it.role.is_none());
        rows.any(|it| it.engine == engine && preset.is_none_or(|preset| it.preset.as_deref() == Some(preset)))
    };
    let of_plan = registry.engines.iter().filter(|engine| is_row(&engine.manifest.name, None));
    let untried = of_plan.flat_map(|engine| {
        let name = &engine.manifest.name;
        let presets = engine.other_presets().filter(|preset| !is_row(name, Some(preset)));
        presets.map(move |preset| format!("{name}:{preset}"))
    });
    untried.collect()
}

/// The time of a configuration in the default budget, which is enough for about five blocks of a small model.
const BUDGET_OF_A_CONFIGURATION: Duration = Duration::from_secs(30);

/// The number of configurations that can start, and the time budget.
fn budget_notice(plan: &Plan) -> String {
    let count = plan.row_indices().filter(|&row| plan.configurations[row].unavailable.is_none()).count();
    let budget = time(plan.extent.budget().unwrap_or_default());
    let configurations = plural(count, "configuration");
    format!("{configurations} can be measured; the time budget is {budget}, or that of `--budget`")
}

/// The plan, in which precisions that do not fit into the memory are marked as unavailable. One row has a twin, which gives a
/// noise floor. The default budget grows with the number of rows that can start.
fn plan(selection: &Selection) -> Plan {
    let mut plan = Plan::new(selection).mark_too_large(&Machine::probe());
    let can_start = |plan: &Plan, index: usize| plan.configurations[index].unavailable.is_none();
    let with_twin = plan.row_indices().find(|&row| can_start(&plan, row) && plan.twin_of(row).is_some());
    let first = plan.row_indices().find(|&row| can_start(&plan, row));
    if let (None, Some(first)) = (with_twin, first) {
        plan.add_twin(first);
    }
    if plan.extent.has_default_budget {
        let rows = plan.row_indices().filter(|&row| can_start(&plan, row)).count();
        let of_rows = (BUDGET_OF_A_CONFIGURATION * rows as u32).as_nanos() as u64;
        plan.extent.budget_ns = plan.extent.budget_ns.map(|by_default| by_default.max(of_rows));
    }
    plan
}

fn prints_only_json(run: &RunArgs) -> bool {
    run.json.as_deref() == Some(Path::new("-"))
}

/// Whether the report of a run comes before the recommendation.
fn shows_report(run: &RunArgs) -> bool {
    run.view.format.is_for_people() && !prints_only_json(run)
}

/// Shows the report of a run, then the recommendation. JSON has only the recommendation, because it is one document.
fn show(recommendation: &Recommendation, record: Option<&RunRecord>, run: &RunArgs) -> Result<()> {
    if let Some(record) = record.filter(|_| shows_report(run)) {
        let report = Report::of(record);
        output::show(&output::with_view(&report, &run.view), run.view.format)?;
        output::print("\n")?;
    }
    if !prints_only_json(run) {
        output::show(recommendation, run.view.format)?;
    }
    match &run.json {
        Some(path) => output::write(&recommendation.json(), path),
        None => Ok(()),
    }
}

/// The options of a run that the help leaves out, because `refuse_unused_arguments` refuses them.
pub const REFUSED: &[&str] = &[
    "order",
    "save_baseline",
    "baseline",
    "rerun_baseline",
    "mode",
    "fail_on",
    "warning",
    "critical",
    "force",
];

fn refuse_unused_arguments(run: &RunArgs) -> Result<()> {
    let (extent, baseline) = (&run.extent, &run.baseline);
    let given = [
        (
            "--verifier none",
            run.names().verifier.as_deref() == Some("none"),
            "only verified output is recommended",
        ),
        ("--mode one-shot", run.mode == Mode::OneShot, "a chat needs an engine that stays loaded"),
        ("--order sequential", extent.order == Order::Sequential, "engines are compared in turn"),
        ("--save-baseline NAME", baseline.save_baseline.is_some(), "`orchestrate run` saves baselines"),
        ("--baseline NAME", baseline.baseline.is_some(), "`orchestrate compare` compares records"),
    ];
    for (flag, is_given, why) in given {
        ensure!(!is_given, unused_option("recommend", flag, why));
    }
    if let Some(option) = run.judge.first_given() {
        bail!(unused_option("recommend", option, "`orchestrate compare` compares records"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::specimen::selection;

    #[test]
    fn the_default_budget_grows_with_the_configurations_and_a_budget_of_the_user_stays() {
        let names: Vec<String> = (0..17).map(|number| format!("engine-{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let budget = |names: &[&str], budget_ns: Option<u64>| {
            let mut selection = selection(names);
            (selection.extent.blocks, selection.extent.budget_ns) = (None, budget_ns);
            plan(&selection).extent.budget().map(|it| it.as_secs())
        };
        assert_eq!([budget(&names, None), budget(&names[..2], None)], [Some(510), Some(180)]);
        assert_eq!(budget(&names, Some(60_000_000_000)), Some(60));
    }
}
