//! Records of two correct engines, `patient-original` and `beacon`. Tests change what one of them states or does.

use protocol::Facts;

use super::Contradiction;
use crate::analysis::agreement::Agreement;
use crate::analysis::values::Values;
use crate::record::specimen::{BASELINE, BEACON, measured, selection};
use crate::record::{Launch, RequestKind, RunRecord, Sample};

/// The configuration that tests change.
pub const BEACONS: usize = 1;

/// The false claims of a record.
pub fn contradictions(record: &RunRecord) -> Vec<Contradiction> {
    super::contradictions(&Values::of(record), &Agreement::of(record))
}

/// Three blocks of the decode scenario.
pub fn decoding(change: impl FnOnce(&mut RunRecord)) -> RunRecord {
    running(&["decode"], change)
}

pub fn running(scenarios: &[&str], change: impl FnOnce(&mut RunRecord)) -> RunRecord {
    let mut selection = selection(&["patient-original", "beacon"]);
    selection.scenarios.retain(|it| scenarios.contains(&it.name));
    selection.extent.blocks = Some(3);
    let mut record = measured(&selection, &[BASELINE, BEACON]);
    // Long enough for a kernel that counts ticks, and busy with both threads.
    for sample in &mut record.samples {
        sample.cpu_ns = Some(2 * (sample.answered_ns - sample.sent_ns) - 1000);
    }
    change(&mut record);
    record
}

/// Changes the facts that beacon states.
pub fn states(record: &mut RunRecord, change: impl Fn(&mut Facts)) {
    launches(record).for_each(|launch| change(&mut launch.loaded.as_mut().unwrap().facts));
}

pub fn launches(record: &mut RunRecord) -> impl Iterator<Item = &mut Launch> {
    record.launches.iter_mut().filter(|launch| launch.configuration == BEACONS)
}

/// The samples of beacon's cases.
pub fn samples(record: &mut RunRecord) -> impl Iterator<Item = &mut Sample> {
    let cases = record.header.plan.cases_of(BEACONS);
    record.samples.iter_mut().filter(move |sample| cases.contains(&sample.case))
}

pub fn measured_samples(record: &mut RunRecord) -> impl Iterator<Item = &mut Sample> {
    samples(record).filter(|sample| sample.kind == RequestKind::Measured)
}

/// The record with the CPU time of two busy threads, whatever was changed.
pub fn with_busy_cores(mut record: RunRecord) -> RunRecord {
    for sample in &mut record.samples {
        sample.cpu_ns = Some(2 * (sample.answered_ns - sample.sent_ns));
    }
    record
}
