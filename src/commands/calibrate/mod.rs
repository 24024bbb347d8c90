//! The smallest change that this machine can show: engines are measured against themselves, and the result is kept for
//! each machine.
//!
//! ```text
//! engines asked for --plan_of--> each with a twin --run--> RunRecord --floors_of--> floors --table--> stdout
//!                                                                                   --store--> DATA/calibration/MACHINE.json
//! every later run --known--> its record's header
//! ```

mod table;

use std::path::Path;

use anyhow::Result;

use crate::analysis::noise_floors::{KEPT_FROM, Known, floors_of, plan_of};
use crate::cli::RunArgs;
use crate::commands::dry_run;
use crate::commands::experiment::{self, Measured};
use crate::commands::noise_floors;
use crate::commands::output;
use crate::engines::registry::Registry;
use crate::machine::Machine;
use crate::plan::{Order, Plan, Selection};
use crate::report::Content;
use crate::shell::Usage;
use table::Floors;

pub fn calibrate(mut arguments: RunArgs) -> Result<u8> {
    refuse_what_does_nothing(&arguments)?;
    let asked_for = arguments.all || !arguments.engines.is_empty();
    if !asked_for {
        // A calibration builds only engines that the user named.
        (arguments.all, arguments.no_setup) = (true, true);
    }
    let registry = Registry::open()?;
    let resolved = experiment::resolve(&registry, &arguments)?;
    let plan = |selection: &Selection| {
        if asked_for { Ok(plan_of(selection)) } else { plan_of_what_is_ready(selection) }
    };
    if arguments.extent.dry_run {
        return dry_run::show(&plan(&resolved.as_it_stands()?)?, &resolved.results);
    }
    let ready = resolved.make_ready()?;
    let plan = plan(&ready.selection)?;
    let Measured { recorder, end } = ready.run(plan)?;
    let record = &recorder.record;
    let floors = floors_of(record);
    // The results before an interrupt are valid too.
    let worth_keeping: Vec<Known> =
        floors.iter().filter(|it| it.paired.blocks() >= KEPT_FROM).cloned().collect();
    let kept = keep(&record.header.machine, &worth_keeping);
    let to_stdout = arguments.json.as_deref() == Some(Path::new("-"));
    let floors = Floors { record, floors: &floors, kept: kept.as_deref().ok() };
    if !to_stdout {
        output::show(&floors, arguments.view.format)?;
    }
    if let Some(path) = &arguments.json {
        output::write(&floors.json(), path)?;
    }
    kept?;
    Ok(experiment::exit_code(record, end?, &arguments.names()))
}

/// Stores the noise floors and returns the path; without floors nothing is stored.
fn keep(machine: &Machine, floors: &[Known]) -> Result<String> {
    if floors.is_empty() {
        return Ok(String::new());
    }
    let file = noise_floors::file_of(machine)?;
    noise_floors::store(&file, machine, floors)?;
    Ok(file.display().to_string())
}

fn plan_of_what_is_ready(selection: &Selection) -> Result<Plan> {
    let mut ready = selection.clone();
    let devices = &selection.devices;
    ready.candidates.retain(|it| devices.iter().any(|device| it.on(device).unavailable.is_none()));
    if ready.candidates.is_empty() {
        let hint = "orchestrate engines";
        return Err(Usage(format!("no engine is ready for calibration\nhint: {hint}")).into());
    }
    Ok(plan_of(&ready))
}

fn refuse_what_does_nothing(arguments: &RunArgs) -> Result<()> {
    let (extent, baseline, view) = (&arguments.extent, &arguments.baseline, &arguments.view);
    let given = [
        (
            "--order sequential",
            extent.order == Order::Sequential,
            "an engine and its twin are measured in turn",
        ),
        ("--save-baseline", baseline.save_baseline.is_some(), "a calibration is kept for the machine"),
        ("--baseline", baseline.baseline.is_some(), "there is nothing to compare"),
        ("--pairs", view.pairs, "there is nothing to compare"),
        ("--resources", view.resources, "`orchestrate report --resources RECORD` shows it"),
        ("--wall-time", view.wall_time, "`orchestrate report --wall-time RECORD` shows it"),
    ];
    match given.into_iter().find(|(_, given, _)| *given) {
        Some((flag, _, why)) => Err(Usage(format!("`calibrate` takes no `{flag}`: {why}")).into()),
        None => Ok(()),
    }
}
