//! The position of a token in a run, as sentences name it.

use std::collections::HashMap;

use serde::Serialize;

use crate::plan::Plan;
use crate::record::{RunRecord, Sample};
use crate::text::line;

/// A text that an engine generated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Text {
    /// The continuation of the held-out prompt.
    HeldOut,
    /// A measured request.
    Sample { workload: String, index: u32, block: u32 },
}

impl Text {
    /// `` `decode` sample 3 (block 0) ``.
    pub fn name(&self) -> String {
        match self {
            Self::HeldOut => "the held-out prompt's continuation".into(),
            Self::Sample { workload, index, block } => format!("`{workload}` sample {index} (block {block})"),
        }
    }

    pub fn of(plan: &Plan, blocks: &HashMap<u32, u32>, launch: u32, case: usize, index: u32) -> Self {
        let workload = line(&plan.cases[case].workload.label);
        Self::Sample { workload, index, block: blocks.get(&launch).copied().unwrap_or(0) }
    }
}

/// The block of each launch.
pub fn blocks(record: &RunRecord) -> HashMap<u32, u32> {
    record.launches.iter().map(|it| (it.launch, it.block)).collect()
}

/// The measured greedy requests of a configuration, in their order.
pub fn greedy_samples(record: &RunRecord, configuration: usize) -> impl Iterator<Item = &Sample> {
    let cases = &record.header.plan.cases;
    record.measured().filter(move |sample| {
        let case = &cases[sample.case];
        case.configuration == configuration && case.workload.is_greedy()
    })
}
