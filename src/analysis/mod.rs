//! Turns a run record into values, intervals and verdicts: metrics, comparison, output verification, claims. Pure. `run` uses
//! this module for its interim analyses and for the costs of dtypes.

pub mod agreement;
pub mod claims;
pub mod compare;
pub mod loss;
pub mod metric;
pub mod noise_floors;
pub mod values;
