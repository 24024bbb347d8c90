//! Turns run records into comparisons: ratios, intervals and verdicts. Pure.
//!
//! ```text
//! RunRecord --values::Measured--> values by configuration, block and round --within--> each configuration with its reference
//!                                                       --settings--> each case with the same case without a setting
//! two RunRecords --comparable, between--> the change of each metric, or the reason why the records are incomparable
//! ```

pub mod between;
pub mod comparable;
pub mod judgement;
pub mod latency;
pub mod matching;
pub mod sentence;
pub mod settings;
pub mod within;

pub use comparable::differences;
pub use judgement::{Judgement, judge, judge_within};
pub use matching::matching;
pub use sentence::sentence;
pub use settings::{SettingEffect, setting_effects};
pub use within::{Compared, all_pairs, compare_within, interim_analysis, stored_floor};
