//! Pure statistics over `f64`, without samples, engines, units or clocks. Every method cites its source, and the tests compare
//! it with numpy and scipy.
//!
//! ```text
//! values of two configurations, block by block --ratio--> one log ratio for each block
//!     --interval--> Student's t over blocks, corrected for the interim analyses of --stopping-->
//!     --decision (floor, verdict)--> faster, slower, same, inconclusive --words, class--> people and exit codes
//! ```
//!
//! `experiment` does all of it for many configurations and metrics.

mod bootstrap;
mod class;
mod decision;
mod experiment;
mod geometric;
mod interval;
mod noise_floor;
mod outliers;
mod quantile;
mod random;
mod ratio;
mod significance;
mod special;
mod stopping;
mod student;
mod summary;
mod verdict;
mod words;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

pub use class::{Class, Thresholds};
pub use decision::{Decision, Undecided, decide};
pub use experiment::{Better, Comparison, Experiment, Probabilities, Series, Twin, levels};
pub use geometric::geometric_mean;
pub use interval::{Design, Evidence, FIRM};
pub use noise_floor::{Epsilon, NoiseFloor};
pub use outliers::outliers;
pub use quantile::{median, quantile};
pub use random::Random;
pub use ratio::{Blocks, Ratios, Refusal, Rounds};
pub use significance::mann_whitney;
pub use stopping::{Analysis, INTERIM_ANALYSES, Rule, StoppedBy};
pub use summary::Summary;
pub use verdict::Verdict;
pub use words::{NO_DIFFERENCE, Phrase, Quality};
