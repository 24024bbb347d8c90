//! The programs of a baseline, as configurations that are measured in turn with the configurations of this run.

use std::path::Path;

use anyhow::{Result, bail, ensure};

use super::description::{Baseline, Row};
use super::program::{Dependency, Program};
use super::store;
use crate::analysis::compare::matching;
use crate::plan::{Configuration, Plan, Role};
use crate::shell::{Usage, pasteable};

/// The program of a baseline, or one named by its path, that is measured in turn with a row of this run.
#[derive(Debug)]
pub struct Rerun {
    pub configuration: Configuration,
    /// A note for the user: which program is measured.
    pub note: String,
    /// The changes of the program's dependencies and of the model since the baseline was measured.
    pub changes: Vec<String>,
}

/// A rerun for each row of the baseline that this run has too: its configuration and program, with the model of this run. An
/// unchanged program runs from its old path, otherwise its copy runs.
pub fn reruns(baseline: &Baseline, baseline_plan: &Plan, plan: &Plan) -> Result<Vec<Rerun>> {
    let (name, mut reruns) = (&baseline.name, Vec::new());
    for (old_index, index) in matching(baseline_plan, plan).pairs {
        let (old, row) = (&baseline_plan.configurations[old_index], &plan.configurations[index]);
        // A configuration that failed, or had wrong output, is not in the baseline.
        let saved = baseline.configurations.iter().find(|saved| saved.label == old.label);
        let Some(Row { label, engine, program }) = saved else { continue };
        let (path, note) = current_program(name, program).map_err(|why| {
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
            // The model may have moved since then, so its path in this run is used.
            model: row.model.clone(),
            alone: row.alone || old.alone,
            unavailable: None,
            role: Some(Role::Baseline { of: index }),
            ..old.clone()
        };
        let mut changes: Vec<_> = program.dependencies.iter().filter_map(Dependency::change).collect();
        changes.extend(program.interpreter_change(engine));
        let identities = old.model.identity.as_ref().zip(row.model.identity.as_ref());
        if identities.is_some_and(|(old, new)| old != new) {
            changes.push(format!("the model `{}` has changed", old.model.name));
        }
        reruns.push(Rerun { configuration, note, changes });
    }
    ensure!(!reruns.is_empty(), Usage(no_row(baseline, plan)));
    Ok(reruns)
}

/// The rerun of a program that is given by its path, in turn with the only row of a plan.
pub fn from_program(program: &Path, plan: &Plan) -> Result<Rerun> {
    let rows: Vec<usize> = plan.row_indices().collect();
    let &[of] = &rows[..] else {
        let labels = quoted(rows.iter().map(|&row| &plan.configurations[row].label));
        let program = program.display();
        bail!(Usage(format!(
            "`{program}` can be the baseline of only one row, but the run has {labels}\n\
             hint: select one engine, one model and one device"
        )));
    };
    let row = &plan.configurations[of];
    let path = program.to_string_lossy().into_owned();
    let mut command = vec![path.clone()];
    command.extend(row.command.iter().skip(1).cloned());
    let note = format!("`{}` is measured in turn with the new program", pasteable(&command));
    let label = format!("{} (baseline)", row.label);
    let role = Some(Role::Baseline { of });
    let configuration = Configuration { label, command, unavailable: None, role, ..row.clone() };
    Ok(Rerun { configuration, note, changes: Vec::new() })
}

impl Rerun {
    /// Adds the configuration to the plan, with the workloads of its row. A twin of the configuration shows its noise, unless
    /// the row has a twin already.
    pub fn join(self, mut plan: Plan) -> Plan {
        let Some(Role::Baseline { of }) = self.configuration.role else { return plan };
        let index = plan.configurations.len();
        plan.add(self.configuration, &plan.workloads_of(of));
        if plan.twin_of(of).is_none() {
            plan.add_twin(index);
        }
        plan
    }
}

/// The path from which the program is started in this run, with a note for the user.
fn current_program(name: &str, program: &Program) -> std::result::Result<(String, String), String> {
    let Some(digest) = &program.digest else {
        return Err(program.no_copy.clone().unwrap_or_else(|| "it was not stored".into()));
    };
    if store::digest(Path::new(&program.path)).ok().as_ref() == Some(digest) {
        return Ok((program.path.clone(), format!("`{}` is unchanged", program.path)));
    }
    let Some(copy) = &program.copy else {
        let why = program.no_copy.as_deref().unwrap_or("it was not stored");
        return Err(format!("`{}` has changed, and there is no copy: {why}", program.path));
    };
    let copy = store::copy_path(name, copy).map_err(|error| format!("{error:#}"))?;
    match store::digest(&copy) {
        Ok(copy_digest) if copy_digest == *digest => {
            let note = format!("the stored copy of `{}` is measured", program.path);
            Ok((copy.to_string_lossy().into_owned(), note))
        }
        Ok(_) => Err(format!("its copy `{}` was changed", copy.display())),
        Err(error) => Err(format!("{error:#}")),
    }
}

/// The error for a baseline and a plan without a common row.
fn no_row(baseline: &Baseline, plan: &Plan) -> String {
    let (name, baseline_rows) = (&baseline.name, quoted(baseline.configurations.iter().map(|it| &it.label)));
    let rows = plan.configurations.iter().filter(|it| it.role.is_none());
    let run_rows = quoted(rows.map(|it| &it.label));
    format!("baseline `{name}` has no row of this run: it has {baseline_rows}, the run has {run_rows}")
}

fn quoted<'a>(labels: impl Iterator<Item = &'a String>) -> String {
    labels.map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ")
}
