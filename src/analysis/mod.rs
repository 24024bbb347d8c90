//! RunRecord to values, intervals and verdicts: metrics, comparison, output verification, claims. Pure. `run` uses
//! it for interim analyses alone.

pub mod agreement;
pub mod claims;
pub mod compare;
pub mod metric;
pub mod noise_floors;
pub mod values;
