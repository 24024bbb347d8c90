//! Whether a record has output checks at all.

use crate::plan::Verification;
use crate::record::RunRecord;

/// The reason why a record has no output checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoChecks {
    /// The user turned them off.
    ByRequest,
    /// The record is older than output checks.
    ByAge,
}

/// The first version of records with output checks.
const FIRST_VERSION: u32 = 3;

/// The reason why a record has no output checks; `None` where it has them.
pub fn no_checks(record: &RunRecord) -> Option<NoChecks> {
    if record.header.plan.verification == Verification::Off {
        return Some(NoChecks::ByRequest);
    }
    (record.header.record_version < FIRST_VERSION).then_some(NoChecks::ByAge)
}
