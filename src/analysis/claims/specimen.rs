//! Records of two correct engines, `patient-original` and `beacon`. Tests change the facts or the samples of `beacon`.

use protocol::Facts;

use super::Contradiction;
use crate::analysis::agreement::Agreement;
use crate::analysis::values::Values;
use crate::record::specimen::{BEACON, ORIGINAL, measured, selection};
use crate::record::{Launch, RequestKind, RunRecord, Sample};

/// The index of `beacon`, the configuration that tests change.
pub const BEACON_INDEX: usize = 1;

pub fn contradictions(record: &RunRecord) -> Vec<Contradiction> {
    super::contradictions(&Values::of(record), &Agreement::of(record))
}

/// A record of three blocks of the decode scenario.
pub fn decode_record(change: impl FnOnce(&mut RunRecord)) -> RunRecord {
    record_of(&["decode"], change)
}

/// A record of three blocks of these scenarios.
pub fn record_of(scenarios: &[&str], change: impl FnOnce(&mut RunRecord)) -> RunRecord {
    record_of_blocks(3, scenarios, change)
}

/// A record of this many blocks of these scenarios.
pub fn record_of_blocks(blocks: u32, scenarios: &[&str], change: impl FnOnce(&mut RunRecord)) -> RunRecord {
    let mut selection = selection(&["patient-original", "beacon"]);
    selection.scenarios.retain(|it| scenarios.contains(&it.name));
    selection.extent.blocks = Some(blocks);
    let mut record = measured(&selection, &[ORIGINAL, BEACON]);
    // Two threads are busy for almost the whole request.
    for sample in &mut record.samples {
        sample.cpu_ns = Some(2 * (sample.answered_ns - sample.sent_ns) - 1000);
    }
    change(&mut record);
    record
}

/// Changes the facts that beacon reports.
pub fn change_facts(record: &mut RunRecord, change: impl Fn(&mut Facts)) {
    launches(record).for_each(|launch| change(&mut launch.loaded.as_mut().unwrap().facts));
}

pub fn launches(record: &mut RunRecord) -> impl Iterator<Item = &mut Launch> {
    record.launches.iter_mut().filter(|launch| launch.configuration == BEACON_INDEX)
}

/// The samples of beacon, of any kind.
pub fn samples(record: &mut RunRecord) -> impl Iterator<Item = &mut Sample> {
    let cases = record.header.plan.cases_of(BEACON_INDEX);
    record.samples.iter_mut().filter(move |sample| cases.contains(&sample.case))
}

pub fn measured_samples(record: &mut RunRecord) -> impl Iterator<Item = &mut Sample> {
    samples(record).filter(|sample| sample.kind == RequestKind::Measured)
}

/// The record with two busy threads in every sample, for a test that has changed the times of requests.
pub fn with_busy_cores(mut record: RunRecord) -> RunRecord {
    for sample in &mut record.samples {
        sample.cpu_ns = Some(2 * (sample.answered_ns - sample.sent_ns));
    }
    record
}
