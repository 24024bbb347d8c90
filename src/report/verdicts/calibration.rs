//! Which engines of a run lack a calibration on this machine, and the command that calibrates them.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::analysis::metric;
use crate::machine::CPU;
use crate::plan::scenario::SUITES;
use crate::plan::{Configuration, Mode, Plan};
use crate::record::RunRecord;
use crate::shell::pasteable;
use crate::text::line;

const DEFAULT_MODEL: &str = "embedded";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calibration {
    /// The time of the oldest calibration that the run uses, if any.
    pub since: Option<String>,
    /// The rows that lack a calibration for at least one workload.
    pub uncalibrated: Vec<Uncalibrated>,
    /// The command that calibrates these rows.
    pub remedy: String,
}

/// An engine that lacks a calibration for some or all workloads. JSON has these names: add, never rename.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Uncalibrated {
    pub engine: String,
    /// The labels of the workloads that lack a calibration. Empty if all lack it.
    pub workloads: Vec<String>,
}

impl Calibration {
    pub fn of(record: &RunRecord) -> Self {
        let plan = &record.header.plan;
        let mut measured_cases: BTreeSet<usize> = record.measured().map(|sample| sample.case).collect();
        // A case that fails cannot be calibrated.
        measured_cases.retain(|case| !record.has_failed(*case));
        let mut uncalibrated = Vec::new();
        let (mut rows, mut scenarios): (Vec<&Configuration>, Vec<&str>) = (Vec::new(), Vec::new());
        for (index, configuration) in plan.configurations.iter().enumerate() {
            if configuration.role.is_some() {
                continue;
            }
            let cases = plan.cases.iter().enumerate().filter(|(_, case)| case.configuration == index);
            let measured: Vec<_> = cases.filter(|(case, _)| measured_cases.contains(case)).collect();
            let lacking = measured.iter().map(|(_, case)| &case.workload).filter(|workload| {
                let headline = metric::headline(plan, workload).map(|metric| metric.id);
                let mut floors =
                    record.header.noise_floors.iter().filter(|floor| floor.configuration == index);
                !floors.any(|floor| floor.workload == workload.label && Some(floor.metric) == headline)
            });
            let lacking: Vec<_> = lacking.collect();
            if lacking.is_empty() {
                continue;
            }
            let some_are_calibrated = lacking.len() < measured.len();
            let listed = lacking.iter().filter(|_| some_are_calibrated);
            let workloads = listed.map(|workload| line(&workload.label)).collect();
            uncalibrated.push(Uncalibrated { engine: line(&configuration.label), workloads });
            rows.push(configuration);
            for workload in lacking {
                if !scenarios.contains(&workload.scenario.as_str()) {
                    scenarios.push(&workload.scenario);
                }
            }
        }
        let since = record.header.noise_floors.iter().map(|floor| line(&floor.since)).min();
        Self { since, uncalibrated, remedy: line(&command(plan, &rows, &scenarios)) }
    }
}

/// The command that calibrates these rows. It leaves out options with default values.
fn command(plan: &Plan, rows: &[&Configuration], scenarios: &[&str]) -> String {
    let distinct = |value_of: &dyn Fn(&Configuration) -> Option<String>| {
        let mut values: Vec<String> = Vec::new();
        for value in rows.iter().filter_map(|row| value_of(row)) {
            if !values.contains(&value) {
                values.push(value);
            }
        }
        values
    };
    let mut words: Vec<String> = vec!["orchestrate calibrate".into()];
    words.extend(
        distinct(&|row| Some(row.engine_argument())).into_iter().map(|engine| format!("-e {engine}")),
    );
    // If any model is not the default, the command names all models.
    if plan.configurations.iter().any(|it| it.model.name != DEFAULT_MODEL) {
        let models = distinct(&|row| Some(row.model.path.clone()));
        words.extend(models.into_iter().map(|path| format!("-m {}", pasteable(&[path]))));
    }
    let of_default_suite = SUITES[0].parts.iter().map(|part| part.scenario);
    if !scenarios.iter().copied().eq(of_default_suite) {
        words.push(format!("-s {}", pasteable(&[scenarios.join(",")])));
    }
    let devices = distinct(&|row| Some(row.device.to_string()).filter(|device| !device.is_empty()));
    if devices.iter().any(|device| device != CPU) {
        words.push(format!("--device {}", pasteable(&[devices.join(",")])));
    }
    let dtypes = distinct(&|row| row.dtype.clone());
    if !dtypes.is_empty() {
        words.push(format!("--dtype {}", pasteable(&[dtypes.join(",")])));
    }
    if plan.mode == Mode::OneShot {
        words.push("--mode one-shot".into());
    }
    words.join(" ")
}
