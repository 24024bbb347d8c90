//! How far each workload was measured: the blocks, and the reason for the end.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::record::RunRecord;
use crate::text::line;
use stats::{INTERIM_ANALYSES, StoppedBy};

/// The blocks of a workload. JSON has these names: add, never rename.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Extent {
    /// The workload's label.
    pub workload: String,
    pub scenario: String,
    pub blocks: u32,
    /// `None` where the run ended before the workload was complete.
    pub stopped_by: Option<StoppedBy>,
}

/// The extents, one for each workload, in the order in which the plan first names them.
pub fn extents(record: &RunRecord) -> Vec<Extent> {
    let plan = &record.header.plan;
    // An interrupted run shows the planned number of blocks. Without a plan it shows the blocks that began.
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

/// The number of blocks in which at least one engine was launched. Launches for output checks count for none.
fn begun(record: &RunRecord) -> u32 {
    let launches = record.launches.iter().filter(|launch| !launch.for_output_checks);
    launches.map(|launch| launch.block.saturating_add(1)).max().unwrap_or(0)
}

/// A larger number of blocks for a remedy: the next interim analysis of a run without `--blocks`.
pub fn more_blocks(record: &RunRecord) -> usize {
    let were =
        (begun(record) as usize).max(record.header.plan.extent.blocks.map_or(0, |blocks| blocks as usize));
    INTERIM_ANALYSES.into_iter().skip(1).find(|look| *look > were).unwrap_or(were.saturating_mul(2))
}
