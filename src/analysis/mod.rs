//! Turns a run record into values, intervals and verdicts: metrics, comparison, output verification, claims. Pure. `run` uses
//! this module only for interim analyses.

pub mod agreement;
pub mod claims;
pub mod compare;
pub mod metric;
pub mod noise_floors;
pub mod values;
