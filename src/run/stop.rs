//! The early end of a launch: a fault of the engine, which becomes a row, or an error of this program.

use anyhow::Result;

use crate::record::Failure;
use crate::run::process::{Cause, Fault, Stage};

pub(super) enum Stop {
    /// The engine's fault, which becomes a row.
    Fault(Failed),
    /// An error of this program, which ends the run.
    Broken(anyhow::Error),
}

/// How an engine failed, and in which launch.
pub(super) struct Failed {
    pub fault: Fault,
    /// The number of its launch, if that is in the record.
    pub launch: Option<u32>,
}

impl Stop {
    /// A fault without a process that could have last lines of stderr.
    pub fn refused(when: Stage, cause: Cause) -> Self {
        Fault { when, cause, stderr: Vec::new() }.into()
    }

    /// Separates the engine's faults from errors of this program, which go on as errors.
    pub fn survive<T>(result: Result<T, Self>) -> Result<Result<T, Failed>> {
        match result {
            Ok(value) => Ok(Ok(value)),
            Err(Self::Fault(failed)) => Ok(Err(failed)),
            Err(Self::Broken(error)) => Err(error),
        }
    }
}

impl Failed {
    pub fn row(self, configuration: usize, case: Option<usize>) -> Failure {
        let Self { fault, launch } = self;
        Failure {
            configuration,
            case,
            launch,
            kind: fault.cause.kind(),
            when: fault.when.to_string(),
            message: fault.cause.to_string(),
            hint: fault.cause.hint(),
            stderr: fault.stderr,
        }
    }
}

/// A fault before the launch is in the record.
impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(Failed { fault, launch: None })
    }
}

impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Self {
        Self::Broken(error)
    }
}
