//! Checks whether an engine computes the model that it loaded. The facts of a record give each configuration a verification
//! status: `exact`, `agrees`, `drifts`, `wrong` or `unverified`; without log-probabilities, `tokens agree` or `text agrees`.
//!
//! Two checks find different errors. `scores` compares log-probabilities of a given text, token by token, so near ties have no
//! effect. `greedy` and `gaps` compare the ids that the engine generated in the measured requests, and `greedy` also those after
//! the held-out prompt: an engine may score well and still generate other tokens. `tokens_alone` judges engines without `score`. `bounds` has the accepted differences. `costs`
//! narrows them by what the dtypes of an engine cost on this model. `token_loss` compares whole outputs with this cost.
//! `early_text` finds engines that compute only a part of a prompt. `coverage` names the missing checks.

pub mod bounds;
mod costs;
mod coverage;
mod early_text;
mod gaps;
mod greedy;
mod judge;
mod prediction;
mod scores;
mod status;
mod token_loss;
mod tokens;
mod tokens_alone;
mod verifier;

use crate::plan::Role;
use crate::record::RunRecord;

pub use coverage::GREEDY_OPTION;
pub use prediction::Prediction;
pub use scores::{STRETCH_TOKENS, Scores};
pub use status::{Agreement, FEATURES, NoChecks, Status, implement, no_checks, two_digits};
pub use verifier::Against;

impl Agreement {
    /// The agreement of each configuration of the plan.
    pub fn of(record: &RunRecord) -> Vec<Self> {
        let plan = &record.header.plan;
        let mut agreements: Vec<Self> =
            (0..plan.configurations.len()).map(|configuration| judge::judge(record, configuration)).collect();
        // A twin or baseline without checks of its own has the status of the configuration that it belongs to.
        for (index, configuration) in plan.configurations.iter().enumerate() {
            let Some(Role::Twin { of } | Role::Baseline { of }) = configuration.role else { continue };
            let checked = &agreements[index];
            let was_checked =
                checked.scores.is_some() || checked.is_wrong() || checked.status != Status::Unverified;
            if let Some(original) = agreements.get(of).filter(|_| !was_checked) {
                agreements[index] = original.clone();
            }
        }
        agreements
    }
}

/// For each configuration of the plan, whether its output is wrong.
pub fn wrong_outputs(record: &RunRecord) -> Vec<bool> {
    Agreement::of(record).iter().map(Agreement::is_wrong).collect()
}

#[cfg(test)]
pub mod specimen;
#[cfg(test)]
mod tests;
