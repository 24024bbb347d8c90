//! The run record: the file in the results folder with the machine, the plan, every raw sample and every failure.
//!
//! A record has one line of JSON for each entry. Each line is written with one call, so a crash can lose only the last one.
//! Reports compute every number from the record again. `file` finds and reads records, and is the only writer in the results
//! folder. The other modules do no input or output.

mod entry;
mod failure;
mod file;
mod run_record;

pub use crate::machine::observed::{Energy, GpuPass, HeldMemory};
pub use crate::plan::RequestKind;
pub use crate::plan::prompts::held_out::HeldOut;

pub use entry::{
    CalibratedFloor, CheckedOutput, Closed, Continued, Converted, CoreLockState, DifferingToken, DtypeCost,
    DtypeCosts, End, Entry, FEWER_BLOCKS, Header, HeldOutScores, Idle, Late, Launch, Limits, NotChecked,
    Overhead, Pass, ReadText, ReferenceAnswers, ReferenceToken, RequestTimes, RunEnd, Sample, SearchStep,
    TextScores, UnmeasuredCost, WarmUp, WarmUpEnd, Warning, WindowScores, output_tokens,
};
pub use failure::{Failure, FailureKind, Stage};
pub use file::{
    Latest, Recorder, check_writable, earlier_results_dirs, files_in, latest_in, new_id, newest_in,
    order_key, read, results_dir,
};
pub use run_record::{RECORD_VERSION, RunRecord};

#[cfg(test)]
pub mod specimen;
#[cfg(test)]
mod tests;
