//! Simulations with noise of known truth, which check the claims of intervals and verdicts.

mod coverage;
mod false_verdicts;
mod families;
mod noise;
mod summaries;
#[cfg(feature = "simulations")]
mod tables;
