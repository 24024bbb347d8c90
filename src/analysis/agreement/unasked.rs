//! Whether a record has output checks at all.

use crate::plan::Proof;
use crate::record::RunRecord;

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

/// The reason why a record has no output checks; `None` where it has them.
pub fn unasked(record: &RunRecord) -> Option<Unasked> {
    if record.header.plan.proof == Proof::Off {
        return Some(Unasked::ByRequest);
    }
    (record.header.record_version < FIRST_VERSION).then_some(Unasked::ByAge)
}
