//! Events of set-up and of runs, for the displays. Both types meet only here.

use crate::engines::setup::SetUpEvent;
use crate::record::{Failure, RunRecord, Warning};

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    SetUp(SetUpEvent),
    /// The whole run. Without a number of blocks it ends once enough is known.
    RunStarted {
        configurations: usize,
        blocks: Option<u32>,
        record: String,
    },
    /// `until` is the number of blocks planned so far. `requests` is the number of requests until then, including those already
    /// made.
    BlockStarted {
        block: u32,
        until: u32,
        requests: u64,
    },
    LaunchStarted {
        label: String,
    },
    Loading {
        label: String,
        phase: String,
        fraction: Option<f64>,
    },
    Loaded {
        label: String,
        load_ns: u64,
    },
    /// An engine's output check before the measurements.
    CheckingOutput {
        label: String,
    },
    /// After the last block: the reference engine checks the tokens of other engines.
    CheckingTokens {
        label: String,
        samples: usize,
    },
    CaseStarted {
        label: String,
        workload: String,
    },
    /// One more request of the plan is done. The record has its sample, for that launch and case.
    Sampled {
        label: String,
        workload: String,
        warmup: bool,
        launch: u32,
        case: usize,
    },
    Failed {
        label: String,
        failure: Failure,
    },
    Warned(Warning),
    Interrupted,
    RunFinished {
        record: String,
    },
}

/// The receiver of a run's events. Each event comes with the record so far, and a display derives its content from that.
pub type Listener<'a> = &'a mut dyn FnMut(Event, &RunRecord);
