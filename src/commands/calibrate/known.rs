//! What earlier calibrations know about a plan.

use super::floors::known_for;
use super::store;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::record::KnownFloor;

/// What this machine's calibration knows about a plan, and what is wrong with it.
pub fn known_floors(plan: &Plan, machine: &Machine) -> (Vec<KnownFloor>, Option<String>) {
    // Without a place for data nothing was ever kept.
    let Ok(file) = store::file_of(machine) else { return (Vec::new(), None) };
    let stored = store::read(&file);
    (known_for(plan, &stored.known), stored.warning)
}
