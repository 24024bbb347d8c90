//! Checks whether an engine computes the model that it was given. The facts of a record give each configuration a verification
//! status: `exact`, `agrees`, `drifts`, `wrong` or `unverified`.
//!
//! Two checks find different errors. `scores` compares log-probabilities of a given text, token by token and far from near ties.
//! `greedy` and `gaps` compare the ids that the engine generated in the measured requests, because an engine may score well and
//! still generate other tokens. `bounds` has the accepted differences. `coverage` names the missing checks.

pub mod bounds;
mod coverage;
mod gaps;
mod greedy;
mod judge;
mod scores;
mod status;
mod tokens;
mod verifier;

use crate::plan::Role;
use crate::record::RunRecord;

pub use status::{Agreement, NoChecks, Status, no_checks};
pub use verifier::Against;

impl Agreement {
    /// One for each configuration of the plan.
    pub fn of(record: &RunRecord) -> Vec<Self> {
        let plan = &record.header.plan;
        let mut found: Vec<Self> =
            (0..plan.configurations.len()).map(|configuration| judge::judge(record, configuration)).collect();
        // A twin or baseline without checks of its own has the status of its row.
        for (index, configuration) in plan.configurations.iter().enumerate() {
            let Some(Role::Twin { of } | Role::Baseline { of }) = configuration.role else { continue };
            let was_checked = found[index].scores.is_some() || found[index].is_wrong();
            if let Some(original) = found.get(of).filter(|_| !was_checked) {
                found[index] = original.clone();
            }
        }
        found
    }
}

/// For each configuration of the plan, whether its output is wrong.
pub fn wrong(record: &RunRecord) -> Vec<bool> {
    Agreement::of(record).iter().map(Agreement::is_wrong).collect()
}

#[cfg(test)]
pub mod specimen;
#[cfg(test)]
mod tests;
