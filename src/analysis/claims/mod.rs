//! Checks whether an engine ran in the configuration that it reports. Each check compares a claim with other data: the memory and
//! CPU time of its processes, its scores and tokens, the time of a repeated prompt, the probed limits, the orchestrator's clock.
//! The checks use only the record, so they also work on an old record.
//!
//! A check reports nothing if it cannot prove anything: for small models, short requests, missing facts.

mod cache;
mod clock;
mod configuration_data;
mod dtype;
mod eos;
mod prompt_tokens;
mod rates;
mod threads;

use crate::analysis::agreement::Agreement;
use crate::analysis::values::Values;
use crate::plan::Role;
use crate::record::Warning;

#[cfg(test)]
pub use configuration_data::About;
pub use configuration_data::Contradiction;
use configuration_data::{ConfigurationData, subjects};

/// All claims of a record that do not hold, in the order of its configurations. `agreements` has one entry for each
/// configuration.
pub fn contradictions(values: &Values, agreements: &[Agreement]) -> Vec<Contradiction> {
    let subjects = subjects(values, agreements);
    let checks = [
        dtype::contradictions,
        rates::contradictions,
        threads::contradictions,
        cache::contradictions,
        prompt_tokens::contradictions,
        eos::contradictions,
        clock::contradictions,
    ];
    let all_checks = |subject: &ConfigurationData| -> Vec<Contradiction> {
        checks.iter().flat_map(|check| check(subject, &subjects)).collect()
    };
    subjects.iter().filter(|it| is_row(it)).flat_map(all_checks).collect()
}

/// A twin repeats the claims of its original, and a verifier and the null engine have no row.
fn is_row(subject: &ConfigurationData) -> bool {
    !matches!(subject.configuration.role, Some(Role::Twin { .. } | Role::Verifier | Role::NullEngine))
}

/// Whether a claim of a configuration does not hold. Every such claim has the same effect: the rows of the configuration are
/// marked and have no rank.
pub fn is_contradicted(contradictions: &[Contradiction], configuration: usize) -> bool {
    contradictions.iter().any(|it| it.configuration == configuration)
}

/// Sentences on facts that contradict no claim, but that a reader who compares engines should know. They begin with the label of
/// the engine.
pub fn remarks(values: &Values, agreements: &[Agreement]) -> Vec<String> {
    let remarks = [threads::remark, cache::remark];
    let subjects = subjects(values, agreements);
    let of = |subject: &ConfigurationData| -> Vec<String> {
        let remarks = remarks.iter().filter_map(|remark| remark(subject));
        remarks.map(|it| format!("{}: {it}", subject.configuration.label)).collect()
    };
    subjects.iter().filter(|it| is_row(it)).flat_map(of).collect()
}

/// Whether a warning in an older record repeats one of these contradictions.
pub fn is_repeated(contradictions: &[Contradiction], warning: &Warning) -> bool {
    let mut of_configuration =
        contradictions.iter().filter(|it| Some(it.configuration) == warning.configuration);
    of_configuration.any(|contradiction| clock::is_repeated(&contradiction.message, &warning.message))
}

#[cfg(test)]
pub mod specimen;
#[cfg(test)]
mod tests;
