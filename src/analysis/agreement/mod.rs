//! Does an engine compute the model that it was given? From what a record holds for proof to a standing for each
//! configuration: `exact`, `agrees`, `drifts`, `wrong` or `unverified`. Pure: it can be found again years later.
//!
//! Two questions are asked of every engine, because each catches what the other cannot. Its log-probabilities of a text that it
//! did not choose say whether its arithmetic is the model's, token by token and far from any near tie (`scores`); an engine
//! may give them rightly and still generate something else. The ids that it generated, in the very requests that were
//! measured, say whether that arithmetic was at work while the clock ran (`greedy`, `opinions`). What counts as near
//! depends on what it computes in, and was measured (`bounds`). Where either question is open, for a single workload or for the
//! longest text, nothing good is said of an engine: it is `unverified`, with what is missing (`vouched`).

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

/// What an engine's output is, from the best to what nothing is known of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The witness's own, as far as f32 goes, and the same tokens.
    Exact,
    /// As near as rounding in 16 or 8 bits takes it.
    Agrees,
    /// Not near, and no farther than what it computes in explains.
    Drifts,
    /// Another model's, or none's.
    Wrong,
    /// Nobody was shown what it gave while it was measured, or what it makes of long texts.
    Unverified,
}

/// How one configuration stands, with the figures that say so.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agreement {
    pub standing: Standing,
    pub against: Against,
    /// What it is excused by.
    pub precision: Precision,
    pub scores: Option<Scores>,
    pub greedy: Option<Greedy>,
    pub opinions: Option<Opinions>,
    /// Why it does not stand higher: sentences with figures about `it`, the gravest first.
    pub reasons: Vec<String>,
}

/// Why a record says nothing of any engine's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unasked {
    /// Whoever ran it wanted none.
    ByRequest,
    /// It is older than these questions.
    ByAge,
}

/// The first version of records that has entries for proof.
const FIRST_VERSION: u32 = 3;

impl Agreement {
    /// One for each configuration of the plan.
    pub fn of(record: &RunRecord) -> Vec<Self> {
        let plan = &record.header.plan;
        let mut found: Vec<Self> =
            (0..plan.configurations.len()).map(|configuration| judge::judge(record, configuration)).collect();
        // What stands beside a row and was not asked itself is taken for what it stands beside.
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

    /// Per token, against the witness: the root mean square of what their log-probabilities differ by.
    pub fn rms(&self) -> Option<f64> {
        self.scores.as_ref().map(|scores| scores.rms)
    }

    pub fn is_wrong(&self) -> bool {
        self.standing == Standing::Wrong
    }

    /// The earliest token, of any text, that the witness would not have given.
    pub fn first_difference(&self) -> Option<usize> {
        let greedy = self.greedy.as_ref().and_then(|greedy| greedy.first.as_ref()).map(|it| it.place);
        let opinions = self.opinions.as_ref().and_then(|opinions| opinions.first);
        greedy.into_iter().chain(opinions).min()
    }
}

/// Why nothing can be said of a record's engines; `None` where they were asked.
pub fn unasked(record: &RunRecord) -> Option<Unasked> {
    if record.header.plan.proof == Proof::Off {
        return Some(Unasked::ByRequest);
    }
    (record.header.record_version < FIRST_VERSION).then_some(Unasked::ByAge)
}

/// The configurations whose output is wrong: one for each in the plan.
pub fn wrong(record: &RunRecord) -> Vec<bool> {
    Agreement::of(record).iter().map(Agreement::is_wrong).collect()
}

#[cfg(test)]
pub mod specimen;
#[cfg(test)]
mod tests;
