//! Checks whether an engine computes the model that it was given. The facts of a record give each configuration a verification
//! status: `exact`, `agrees`, `drifts`, `wrong` or `unverified`. Pure: the result can be computed again years later.
//!
//! Every engine has two checks, because each finds errors that the other misses. `scores` compares its log-probabilities of a
//! given text, token by token and far from near ties: is its arithmetic that of the model? An engine may score well and still
//! generate other tokens. So `greedy` and `opinions` compare the ids that it generated in the measured requests. The accepted
//! differences depend on its precision and were measured (`bounds`). If a check is missing, for a workload or for the longest
//! text, the engine is `unverified`, with the reason (`vouched`).

pub mod bounds;
mod greedy;
mod judge;
mod opinions;
mod places;
mod scores;
mod tokens;
mod vouched;
mod witness;
pub mod words;

use serde::Serialize;

use crate::plan::{Beside, Proof};
use crate::record::RunRecord;

pub use bounds::Precision;
pub use greedy::Greedy;
pub use opinions::Opinions;
pub use scores::Scores;
pub use witness::Against;

/// The verification status of an engine's output, from the best one to unverified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The verifier's output up to rounding in f32, with the same tokens.
    Exact,
    /// As close as rounding in 16 or 8 bits.
    Agrees,
    /// Not close, but within the rounding of its precision.
    Drifts,
    /// Not the output of this model.
    Wrong,
    /// The verifier did not check its measured tokens or its longest text.
    Unverified,
}

/// The verification of one configuration, with its results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agreement {
    pub standing: Standing,
    pub against: Against,
    /// The precision that sets its bounds.
    pub precision: Precision,
    pub scores: Option<Scores>,
    pub greedy: Option<Greedy>,
    pub opinions: Option<Opinions>,
    /// The reasons why its status is not better: sentences about `it`, most severe first.
    pub reasons: Vec<String>,
}

/// The reason why a record has no output checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unasked {
    /// The user turned them off.
    ByRequest,
    /// The record is older than output checks.
    ByAge,
}

/// The first version of records with output checks.
const FIRST_VERSION: u32 = 3;

impl Agreement {
    /// One for each configuration of the plan.
    pub fn of(record: &RunRecord) -> Vec<Self> {
        let plan = &record.header.plan;
        let mut found: Vec<Self> =
            (0..plan.configurations.len()).map(|configuration| judge::judge(record, configuration)).collect();
        // A twin or baseline without checks of its own has the status of its row.
        for (index, configuration) in plan.configurations.iter().enumerate() {
            let of = match configuration.beside {
                Some(Beside::Twin { of } | Beside::Baseline { of }) => of,
                Some(Beside::Witness) | None => continue,
            };
            let stands = found[index].scores.is_some() || found[index].is_wrong();
            if let Some(original) = found.get(of).filter(|_| !stands) {
                found[index] = original.clone();
            }
        }
        found
    }

    /// The root mean square of the differences from the verifier's log-probabilities, per token.
    pub fn rms(&self) -> Option<f64> {
        self.scores.as_ref().map(|scores| scores.rms)
    }

    pub fn is_wrong(&self) -> bool {
        self.standing == Standing::Wrong
    }

    /// The earliest position, in any text, where the verifier gives another token.
    pub fn first_difference(&self) -> Option<usize> {
        let greedy = self.greedy.as_ref().and_then(|greedy| greedy.first.as_ref()).map(|it| it.place);
        let opinions = self.opinions.as_ref().and_then(|opinions| opinions.first);
        greedy.into_iter().chain(opinions).min()
    }
}

/// The reason why a record has no output checks; `None` where it has them.
pub fn unasked(record: &RunRecord) -> Option<Unasked> {
    if record.header.plan.proof == Proof::Off {
        return Some(Unasked::ByRequest);
    }
    (record.header.record_version < FIRST_VERSION).then_some(Unasked::ByAge)
}

/// For each configuration of the plan, whether its output is wrong.
pub fn wrong(record: &RunRecord) -> Vec<bool> {
    Agreement::of(record).iter().map(Agreement::is_wrong).collect()
}

#[cfg(test)]
pub mod specimen;
#[cfg(test)]
mod tests;
