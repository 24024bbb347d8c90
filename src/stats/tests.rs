//! Simulations with noise around a known true value. They check that intervals and verdicts are right as often as they claim.

mod coverage;
mod estimators;
mod false_verdicts;
mod noise;
#[cfg(feature = "simulations")]
mod tables;
