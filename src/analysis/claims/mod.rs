//! Checks whether the configuration that an engine states is the one that it ran in. Each check compares a claim with observed
//! data: the memory and CPU time of its processes, its scores, the time of a repeated prompt, the orchestrator's clock.
//! Pure, from the record, so an old record is checked as well.
//!
//! A check reports nothing where it cannot prove anything: small models, short requests, missing facts.

mod bandwidth;
mod cache;
mod clock;
mod dtype;
mod eos;
mod subject;
mod threads;

use crate::analysis::agreement::Agreement;
use crate::analysis::values::Values;
use crate::plan::Role;
use crate::record::Warning;

pub use subject::Contradiction;
use subject::{Subject, subjects};

/// All claims of a record that do not hold, in the order of its configurations. There is one agreement for each.
pub fn contradictions(values: &Values, agreements: &[Agreement]) -> Vec<Contradiction> {
    let subjects = subjects(values, agreements);
    let checks = [
        dtype::contradictions,
        bandwidth::contradictions,
        threads::contradictions,
        cache::contradictions,
        eos::contradictions,
        clock::contradictions,
    ];
    let of = |subject: &Subject| -> Vec<Contradiction> {
        checks.iter().flat_map(|check| check(subject, &subjects)).collect()
    };
    // A twin repeats the claims of its original, and a verifier has no row.
    let is_row = |it: &&Subject| !matches!(it.configuration.role, Some(Role::Twin { .. } | Role::Verifier));
    subjects.iter().filter(is_row).flat_map(of).collect()
}

/// Whether a false claim could have improved a configuration's results.
pub fn is_contradicted(contradictions: &[Contradiction], configuration: usize) -> bool {
    contradictions.iter().any(|it| it.configuration == configuration && it.excludes_from_ranking)
}

/// Whether a warning in a record of an earlier program repeats one of these claims.
pub fn is_repeated(contradictions: &[Contradiction], warning: &Warning) -> bool {
    let mut own = contradictions.iter().filter(|it| Some(it.configuration) == warning.configuration);
    own.any(|contradiction| clock::is_repeated(&contradiction.message, &warning.message))
}

#[cfg(test)]
pub mod specimen;
#[cfg(test)]
mod tests;
