//! Checks whether the configuration that an engine states is the one that it ran in. Each check compares a claim with observed
//! data: the memory and processor time of its processes, its scores, the time of a repeated prompt, the orchestrator's clock.
//! Pure, from the record, so an old record is checked as well.
//!
//! A check reports nothing where it cannot prove anything: small models, short requests, missing facts.

mod arithmetic;
mod bandwidth;
mod cache;
mod clock;
mod doubt;
mod eos;
mod memory;
mod stamps;
mod subject;
mod threads;

use crate::analysis::agreement::Agreement;
use crate::analysis::values::Values;
use crate::plan::Beside;
use crate::record::Warning;

pub use doubt::{About, Doubt};
use subject::{Subject, subjects};

/// All claims of a record that do not hold, in the order of its configurations. There is one agreement for each.
pub fn doubts(values: &Values, agreements: &[Agreement]) -> Vec<Doubt> {
    let subjects = subjects(values, agreements);
    let rooms = [
        memory::doubts,
        arithmetic::doubts,
        bandwidth::doubts,
        threads::doubts,
        cache::doubts,
        eos::doubts,
        clock::doubts,
        stamps::doubts,
    ];
    let of = |subject: &Subject| -> Vec<Doubt> {
        rooms.iter().flat_map(|room| room(subject, &subjects)).collect()
    };
    // A twin repeats the claims of its original, and a verifier has no row.
    let rows = subjects.iter().filter(|subject| {
        !matches!(subject.configuration.beside, Some(Beside::Twin { .. } | Beside::Witness))
    });
    rows.flat_map(of).collect()
}

/// Whether a false claim could have improved a configuration's results.
pub fn is_doubted(doubts: &[Doubt], configuration: usize) -> bool {
    doubts.iter().any(|doubt| doubt.configuration == configuration && doubt.unseats)
}

/// Whether a warning in a record of an earlier program repeats one of these claims.
pub fn is_said(doubts: &[Doubt], warning: &Warning) -> bool {
    let mut about = doubts.iter().filter(|doubt| Some(doubt.configuration) == warning.configuration);
    about.any(|doubt| clock::is_said(&doubt.message, &warning.message))
}

#[cfg(test)]
pub mod specimen;
#[cfg(test)]
mod tests;
