//! Turns run records into verdicts: differences, their size and their certainty. Pure.
//!
//! ```text
//! RunRecord --values::Measured--> values by configuration, block and round --within--> each configuration against its reference
//!     stats::Verdict decides there whether a difference counts
//! two RunRecords --comparable, between--> per metric the change from one to the other, or why they are incomparable
//! ```

pub mod between;
pub mod comparable;
pub mod judgement;
pub mod matching;
pub mod sentence;
pub mod within;

pub use comparable::differences;
pub use judgement::{Judgement, judge, judge_within};
pub use matching::matching;
pub use sentence::sentence;
pub use within::{Compared, all_pairs, interim_analysis, within};
