//! The engines of a run that lack a calibration on this machine, and the command that calibrates them.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::analysis::metric;
use crate::plan::Case;
use crate::plan::scenario::{self, Kind};
use crate::record::RunRecord;
use crate::text::line;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calibration {
    /// The time of the oldest calibration that the run uses, if any.
    pub since: Option<String>,
    /// The rows that lack a calibration for at least one workload.
    pub uncalibrated: Vec<Uncalibrated>,
    /// The command that calibrates these rows with the options of this run. `None` if no options select exactly their workloads,
    /// because a calibration of other workloads may take hours.
    pub remedy: Option<String>,
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
        // A score has no noise.
        measured_cases.retain(|case| plan.cases[*case].workload.kind != Kind::Score);
        // The command below cannot name the file of a run file's scenario.
        measured_cases.retain(|case| scenario::is_in_table(&plan.cases[*case].workload.scenario));
        let mut uncalibrated = Vec::new();
        let mut uncalibrated_cases = Vec::new();
        for (index, configuration) in plan.configurations.iter().enumerate() {
            if configuration.role.is_some() {
                continue;
            }
            let cases = plan.cases.iter().enumerate().filter(|(_, case)| case.configuration == index);
            let measured: Vec<_> = cases.filter(|(case, _)| measured_cases.contains(case)).collect();
            let lacking = measured.iter().filter(|(_, Case { workload, .. })| {
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
            let workloads = listed.map(|(_, case)| line(&case.workload.label)).collect();
            uncalibrated.push(Uncalibrated { engine: line(&configuration.label), workloads });
            uncalibrated_cases.extend(lacking.into_iter().map(|(case, _)| *case));
        }
        let since = record.header.noise_floors.iter().map(|floor| line(&floor.since)).min();
        let is_exact = !uncalibrated_cases.is_empty() && plan.has_exact_arguments(&uncalibrated_cases);
        let command = || line(&format!("orchestrate calibrate {}", plan.arguments_of(&uncalibrated_cases)));
        Self { since, uncalibrated, remedy: is_exact.then(command) }
    }
}
