//! The programs of a baseline, as configurations that are measured in turn with today's.

use std::path::Path;

use anyhow::Result;

use super::description::Baseline;
use super::program::Program;
use super::store;
use crate::analysis::compare::matching;
use crate::plan::{Configuration, Plan, Role};
use crate::shell::Usage;
use crate::shell::pasteable;

/// A program of the baseline, to be measured beside a row of today.
#[derive(Debug)]
pub struct StandIn {
    pub configuration: Configuration,
    /// The identity of the program: the same file as then, or its copy.
    pub note: String,
    /// The reasons why it may differ from the program that was measured.
    pub doubts: Vec<String>,
}

/// The stand-ins, one for each row of the baseline: its configuration and program of then, with today's model. An
/// unchanged program runs from its old path, otherwise its copy runs.
pub fn stand_ins(baseline: &Baseline, then: &Plan, plan: &Plan) -> Result<Vec<StandIn>> {
    let (name, mut found) = (&baseline.name, Vec::new());
    for (of_then, of) in matching(then, plan).pairs {
        let (old, row) = (&then.configurations[of_then], &plan.configurations[of]);
        // A configuration that failed then is not in the baseline.
        let Some(kept) = baseline.configurations.iter().find(|kept| kept.label == old.label) else {
            continue;
        };
        let (path, note) = which_program(name, &kept.program).map_err(|why| {
            let label = &kept.label;
            Usage(format!("baseline `{name}`: the program of `{label}` cannot be measured again: {why}"))
        })?;
        let mut command = old.command.clone();
        match command.first_mut() {
            Some(program) => *program = path,
            None => command.push(path),
        }
        let configuration = Configuration {
            label: format!("{} ({name})", row.label),
            command,
            // The model may have moved; its path of today counts.
            model: row.model.clone(),
            alone: row.alone || old.alone,
            unavailable: None,
            role: Some(Role::Baseline { of }),
            ..old.clone()
        };
        let mut doubts: Vec<_> = kept.program.leans_on.iter().filter_map(|it| it.doubt()).collect();
        doubts.extend(kept.program.runs_elsewhere(&kept.engine));
        let identities = old.model.identity.as_ref().zip(row.model.identity.as_ref());
        if identities.is_some_and(|(then, now)| then != now) {
            doubts.push(format!("the model `{}` has changed", old.model.name));
        }
        found.push(StandIn { configuration, note, doubts });
    }
    if found.is_empty() {
        return Err(Usage(no_row(baseline, plan)).into());
    }
    Ok(found)
}

/// A program given by its path, in place of the only engine of a plan.
pub fn of_program(program: &Path, plan: &Plan) -> Result<StandIn> {
    let rows: Vec<usize> = plan.rows().collect();
    let &[of] = &rows[..] else {
        let labels: Vec<_> =
            rows.iter().map(|&row| format!("`{}`", plan.configurations[row].label)).collect();
        let (program, labels) = (program.display(), labels.join(", "));
        let hint = "select one engine, one model and one device";
        return Err(Usage(format!(
            "`{program}` can be the baseline of only one row, but the run has {labels}\nhint: {hint}"
        ))
        .into());
    };
    let row = &plan.configurations[of];
    let path = program.to_string_lossy().into_owned();
    let mut command = vec![path.clone()];
    command.extend(row.command.iter().skip(1).cloned());
    let note = format!("`{}` is measured in turn with it", pasteable(&command));
    let label = format!("{} (baseline)", row.label);
    let role = Some(Role::Baseline { of });
    let configuration = Configuration { label, command, unavailable: None, role, ..row.clone() };
    Ok(StandIn { configuration, note, doubts: Vec::new() })
}

impl StandIn {
    /// Adds the configuration and the workloads of its row to the plan. It gets a twin, so that the record has its noise;
    /// a row with a twin needs no second one.
    pub fn join(self, mut plan: Plan) -> Plan {
        let Some(Role::Baseline { of }) = self.configuration.role else { return plan };
        let place = plan.configurations.len();
        plan.add(self.configuration, &plan.workloads_of(of));
        if plan.twin_of(of).is_none() {
            plan.add_twin(place);
        }
        plan
    }
}

/// The path of the program now, with a note about it.
fn which_program(name: &str, program: &Program) -> std::result::Result<(String, String), String> {
    let Some(digest) = &program.digest else {
        return Err(program.not_kept.clone().unwrap_or_else(|| "it was not stored".into()));
    };
    if store::digest(Path::new(&program.path)).ok().as_ref() == Some(digest) {
        return Ok((program.path.clone(), format!("`{}` is unchanged", program.path)));
    }
    let Some(kept) = &program.kept else {
        let why = program.not_kept.as_deref().unwrap_or("it was not stored");
        return Err(format!("`{}` has changed, and there is no copy: {why}", program.path));
    };
    let kept = store::kept_path(name, kept).map_err(|error| format!("{error:#}"))?;
    match store::digest(&kept) {
        Ok(found) if found == *digest => {
            let note = format!("the stored copy of `{}` is measured", program.path);
            Ok((kept.to_string_lossy().into_owned(), note))
        }
        Ok(_) => Err(format!("its copy `{}` was changed", kept.display())),
        Err(error) => Err(format!("{error:#}")),
    }
}

/// The error for a baseline and a plan without a common row.
fn no_row(baseline: &Baseline, plan: &Plan) -> String {
    let listed = |labels: Vec<&str>| labels.iter().map(|it| format!("`{it}`")).collect::<Vec<_>>().join(", ");
    let (name, baseline_rows) =
        (&baseline.name, listed(baseline.configurations.iter().map(|it| it.label.as_str()).collect()));
    let rows = plan.configurations.iter().filter(|it| it.role.is_none());
    let run_rows = listed(rows.map(|it| it.label.as_str()).collect());
    format!("baseline `{name}` has no row of this run: it has {baseline_rows}, the run has {run_rows}")
}
