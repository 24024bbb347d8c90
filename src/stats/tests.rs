//! Whether intervals and verdicts keep what they claim, by simulation with noise of known truth.

mod coverage;
mod false_verdicts;
mod families;
mod noise;
mod summaries;
#[cfg(feature = "simulations")]
mod tables;
