//! Checks whether the configuration that an engine states is the one that it ran in. Each check compares a claim with observed
//! data: the memory and processor time of its processes, its scores, the time of a repeated prompt, the orchestrator's clock.
//! Pure, from the record, so an old record is checked as well.
//!
//! A check reports nothing where it cannot prove anything: small models, short requests, missing facts.

mod arithmetic;
mod bandwidth;
mod cache;
mod clock;
mod eos;
mod memory;
mod stamps;
mod threads;

use std::collections::BTreeMap;

use protocol::Facts;
use serde::Serialize;

use crate::analysis::agreement::Agreement;
use crate::analysis::metric::Unit;
use crate::analysis::values::Values;
use crate::machine::Device;
use crate::plan::{Beside, Case, Configuration};
use crate::record::{Launch, RunRecord, Sample, Warning};

/// A claim that does not hold: the value that an engine states, and the observed value.
#[derive(Debug, Clone, PartialEq)]
pub struct Doubt {
    pub configuration: usize,
    /// The label of the configuration.
    pub label: String,
    pub about: About,
    pub stated: String,
    pub seen: String,
    /// Names the engine, both values and the source of the second.
    pub message: String,
    /// Whether the false claim could have improved its results: then no row of it is ranked first.
    pub unseats: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// The dtype of its weights or of its arithmetic.
    Dtype,
    Threads,
    PrefixCache,
    Eos,
    /// The times that it states.
    Clock,
}

/// All claims of a record that do not hold, in the order of its configurations. There is one agreement for each.
pub fn doubts(values: &Values, agreements: &[Agreement]) -> Vec<Doubt> {
    let subjects = subjects(values, agreements);
    let rooms = [
        memory::doubts,
        arithmetic::doubts,
        bandwidth::doubts,
        threads::doubts,
        cache::doubts,
        eos::doubts,
        clock::doubts,
        stamps::doubts,
    ];
    let of = |subject: &Subject| -> Vec<Doubt> {
        rooms.iter().flat_map(|room| room(subject, &subjects)).collect()
    };
    // A twin repeats the claims of its original, and a verifier has no row.
    let rows = subjects.iter().filter(|subject| {
        !matches!(subject.configuration.beside, Some(Beside::Twin { .. } | Beside::Witness))
    });
    rows.flat_map(of).collect()
}

/// Whether a false claim could have improved a configuration's results.
pub fn is_doubted(doubts: &[Doubt], configuration: usize) -> bool {
    doubts.iter().any(|doubt| doubt.configuration == configuration && doubt.unseats)
}

/// Whether a warning in a record of an earlier program repeats one of these claims.
pub fn is_said(doubts: &[Doubt], warning: &Warning) -> bool {
    let mut about = doubts.iter().filter(|doubt| Some(doubt.configuration) == warning.configuration);
    about.any(|doubt| clock::is_said(&doubt.message, &warning.message))
}

/// One configuration with all its data in the record, without launches for output checks.
struct Subject<'a> {
    record: &'a RunRecord,
    values: &'a Values<'a>,
    index: usize,
    configuration: &'a Configuration,
    launches: BTreeMap<u32, &'a Launch>,
    agreement: &'a Agreement,
    /// All its samples in the order of the record, of any role: memory, caches and clocks show in every one.
    samples: Vec<&'a Sample>,
}

fn subjects<'a>(values: &'a Values<'a>, agreements: &'a [Agreement]) -> Vec<Subject<'a>> {
    let (record, plan) = (values.record, values.plan);
    let mut subjects: Vec<Subject> = plan
        .configurations
        .iter()
        .enumerate()
        .zip(agreements)
        .map(|((index, configuration), agreement)| Subject {
            record,
            values,
            index,
            configuration,
            agreement,
            launches: record.launches_of(index).map(|launch| (launch.launch, launch)).collect(),
            samples: Vec::new(),
        })
        .collect();
    for sample in &record.samples {
        let subject = &mut subjects[plan.cases[sample.case].configuration];
        if subject.launches.contains_key(&sample.launch) {
            subject.samples.push(sample);
        }
    }
    subjects
}

impl<'a> Subject<'a> {
    fn doubt(&self, about: About, unseats: bool, stated: String, seen: String, says: &str) -> Doubt {
        let label = self.configuration.label.clone();
        let message = format!("{label}: {says}");
        Doubt { configuration: self.index, label, about, stated, seen, message, unseats }
    }

    /// The facts that it stated after each load.
    fn stated(&self) -> impl Iterator<Item = &'a Facts> {
        self.launches.values().filter_map(|launch| Some(&launch.loaded.as_ref()?.facts))
    }

    /// The first fact that it stated about something.
    fn fact<T>(&self, of: impl Fn(&'a Facts) -> Option<T>) -> Option<T> {
        self.stated().find_map(of)
    }

    /// Whether the started processes do all of its work, so that their memory and processor time are all that it needs.
    fn works_here(&self) -> bool {
        let stated = self.fact(|facts| facts.device.as_deref());
        let device = Device::in_effect(stated, &self.configuration.device);
        let loaded = self.launches.values().filter_map(|launch| launch.loaded.as_ref());
        device.is_cpu() && loaded.map(|loaded| loaded.pids.len()).sum::<usize>() == 0
    }

    /// Its measured cases, in the plan's order.
    fn cases(&self) -> impl Iterator<Item = usize> {
        let cases = self.record.header.plan.cases.iter().enumerate();
        let own = cases.filter(|(_, case)| case.configuration == self.index).map(|(index, _)| index);
        own.filter(|&case| self.values.is_measured(case))
    }

    /// The measured requests of all of its cases.
    fn measured(&self) -> impl Iterator<Item = &'a Sample> {
        self.cases().flat_map(|case| self.values.samples(case))
    }

    fn case(&self, index: usize) -> &'a Case {
        &self.record.header.plan.cases[index]
    }

    /// The name of its case, for a sentence.
    fn name_of(&self, case: usize) -> String {
        format!("`{}`", self.case(case).workload.label)
    }
}

fn bytes(bytes: f64) -> String {
    Unit::Bytes.show(bytes)
}

fn time(ns: f64) -> String {
    Unit::Nanoseconds.show(ns)
}

#[cfg(test)]
pub mod specimen;
#[cfg(test)]
mod tests;
