//! The run record: the file under `results/` with the machine, the plan, every raw sample and every failure.
//!
//! A record is lines of JSON, one entry each, appended and flushed at once: only a torn last line can be lost. Nothing in it
//! is derived: a report computes every number from it again. `file` reads records and is the only writer under `results/`;
//! everything else here is pure types.

mod check;
mod conditions;
mod entry;
mod failure;
mod file;
mod output_checks;
mod run_record;

pub use crate::machine::observed::{Energy, GpuPass, Held};
pub use crate::plan::RequestKind;
pub use crate::plan::prompts::held_out::HeldOut;

pub use conditions::{Idle, Late, Limits, Overhead, Pass};
pub use entry::{
    CalibratedFloor, Closed, Converted, End, Entry, Header, Launch, Sample, WarmUp, WarmUpEnd, Warning,
    output_tokens,
};
pub use failure::{Failure, FailureKind, Stage};
pub use file::{Recorder, check_writable, new_id, read, results_dir};
pub use output_checks::{Continued, NotChecked, ReferenceToken, Scored, StoredAnswers};
pub use run_record::{RECORD_VERSION, RunRecord};

#[cfg(test)]
pub mod specimen;
#[cfg(test)]
mod tests;
