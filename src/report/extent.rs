//! How far each workload was measured: blocks, and what ended them.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::record::RunRecord;
use crate::text::line;
use stats::{LOOKS, StoppedBy};

/// JSON has it as it stands: add, never rename.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Extent {
    /// The workload's label.
    pub workload: String,
    pub scenario: String,
    pub blocks: u32,
    /// `None` where the run ended before anything else did.
    pub stopped_by: Option<StoppedBy>,
}

/// One for each workload, in the order in which the plan first names them.
pub fn extents(record: &RunRecord) -> Vec<Extent> {
    let plan = &record.header.plan;
    // Where a run was cut off, what it was to be; where that was left open, how far it came.
    let begun = begun(record);
    let unended = plan.extent.blocks.unwrap_or(begun);
    let mut known = BTreeSet::new();
    let workloads = plan.cases.iter().map(|case| &case.workload);
    let extents = workloads.filter(|workload| known.insert(workload.label.as_str())).map(|workload| {
        let closed = record.closed.iter().find(|closed| closed.workload == workload.label);
        Extent {
            workload: line(&workload.label),
            scenario: line(&workload.scenario),
            blocks: closed.map_or(unended, |closed| closed.blocks),
            stopped_by: closed.map(|closed| closed.by),
        }
    });
    extents.collect()
}

/// Blocks that at least one engine was launched in. What is launched for proof belongs to none.
fn begun(record: &RunRecord) -> u32 {
    let launches = record.launches.iter().filter(|launch| !launch.proves);
    launches.map(|launch| launch.block.saturating_add(1)).max().unwrap_or(0)
}

/// So many as would say more than those that there were, for a remedy: as many as a run of its own accord goes on to.
pub fn more_blocks(record: &RunRecord) -> usize {
    let were =
        (begun(record) as usize).max(record.header.plan.extent.blocks.map_or(0, |blocks| blocks as usize));
    LOOKS.into_iter().skip(1).find(|look| *look > were).unwrap_or(were.saturating_mul(2))
}
