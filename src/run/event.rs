//! What set-up and run tell the displays. They meet nowhere else.

use crate::engines::setup::SetUpEvent;
use crate::record::{Failure, RunRecord, Warning};

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    SetUp(SetUpEvent),
    /// The whole run; without a number of blocks it ends when enough is known.
    RunStarted {
        configurations: usize,
        blocks: Option<u32>,
        record: String,
    },
    /// `until` is how many blocks are planned so far, `requests` how many requests are made by then, those included that
    /// are made already.
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
    /// An engine is asked to prove what it does, before anything is measured.
    Proving {
        label: String,
    },
    /// After the last block: an engine in f32 is asked what it would have said in the place of others.
    Judging {
        label: String,
        samples: usize,
    },
    CaseStarted {
        label: String,
        workload: String,
    },
    /// One more request of the plan is done. The record has its sample, of that launch and case.
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

/// Where the events of a run go, each with the record so far, from which a display derives what it shows.
pub type Listener<'a> = &'a mut dyn FnMut(Event, &RunRecord);
