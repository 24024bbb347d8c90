//! Simulations with noise around a known true value. They check how often intervals contain this value, and how often verdicts
//! are right.

mod coverage;
mod estimators;
mod false_verdicts;
mod noise;
#[cfg(feature = "simulations")]
mod tables;
