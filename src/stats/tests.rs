//! Simulations with noise around a known true value. They check that intervals contain it, and that verdicts are right, as
//! often as claimed.

mod coverage;
mod estimators;
mod false_verdicts;
mod noise;
#[cfg(feature = "simulations")]
mod tables;
