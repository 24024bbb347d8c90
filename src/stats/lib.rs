//! Pure statistics over `f64`, without samples, engines, units or clocks. Every statistical method cites its source. Tests
//! compare the results with numpy, scipy and statsmodels.
//!
//! Each arrow has the name of a module:
//!
//! ```text
//! values of two configurations, block by block --ratio--> one log ratio for each block
//!     --interval--> Student's t over blocks, corrected for interim analyses
//!     --stopping--> enough blocks
//!     --decision (noise_floor, verdict)--> faster, slower, same, inconclusive
//!     --phrase--> words for a report
//! ```
//!
//! `experiment` takes the steps up to the verdict for many configurations and metrics. `trend` is about one configuration alone: whether
//! a value grows while it is used.

mod decision;
mod distribution;
mod experiment;
mod interval;
mod noise_floor;
mod obstacle;
mod phrase;
mod random;
mod ratio;
mod significance;
mod stopping;
mod summary;
mod trend;
mod verdict;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

pub use decision::{Decision, Undecided, decide};
pub use distribution::normal_quantile;
pub use experiment::{
    Better, Comparison, Experiment, FloorSource, PairResult, Probabilities, Series, SourcedFloor, Twin,
    levels,
};
pub use interval::{Design, Evidence, MIN_VERDICT_BLOCKS};
pub use noise_floor::{NoiseFloor, VerdictThresholds};
pub use obstacle::Obstacle;
pub use phrase::{
    NO_DIFFERENCE, Phrase, bounds_in_cell, not_beyond_noise, quality, range_in_words,
    ratios_with_same_digits, size, with_other,
};
pub use random::Random;
pub use ratio::{Blocks, NoRatio, Ratios, Rounds};
pub use significance::{binomial_tail, mann_whitney};
pub use stopping::{Analysis, INTERIM_ANALYSES, Rule, StoppedBy};
pub use summary::{Summary, geometric_mean, median, outliers, quantile};
pub use trend::{Growth, Level, Trend};
pub use verdict::{MetricKind, Severity, SeverityThresholds, Verdict};
