//! Writes the record of a run and sends its events to the displays. It knows no engine and no schedule.

use std::time::Duration;

use anyhow::Result;

use crate::engines::setup::SetUpEvent;
use crate::record::{End, Entry, Failure, FailureKind, Recorder, RunRecord, Warning};

/// An event of set-up or of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// An event of set-up, which comes before the run.
    SetUp(SetUpEvent),
    /// Another run uses the same cores, and this one waits for its end.
    WaitsForRun(String),
    /// The budget of the run is too short, as earlier runs show.
    BudgetTooShort(String),
    /// The run begins. If `blocks` is `None`, the intervals and the time budget decide when it ends. `twins`: the labels of second
    /// copies of configurations.
    RunStarted { configurations: usize, blocks: Option<u32>, twins: Vec<String>, record: String },
    /// A block begins; the first one is 0. `until` blocks are planned so far; together they have about this many `requests`.
    BlockStarted { block: u32, until: u32, requests: u64 },
    /// The block is complete, and no engine is running. Displays may show the results so far.
    BlockFinished { block: u32 },
    /// A process of a block is about to start. One-shot processes have no such event.
    LaunchStarted { label: String },
    /// An engine loads its model, or the model is converted for it.
    Loading { label: String, phase: String, fraction: Option<f64> },
    /// The engine can take requests.
    Loaded { label: String, load_ns: u64 },
    /// Before the output checks: the verifier measures by how much narrow dtypes change its answers.
    MeasuringDtypes { label: String, limit: Duration },
    /// Before the first block: the output check of an engine begins, the first one with `number` 1.
    CheckingOutput { label: String, number: usize, of: usize },
    /// After the last block: the verifier checks the tokens of other engines.
    CheckingTokens { label: String, samples: usize },
    /// The next request is the first one of a case in a launch.
    CaseStarted { label: String, workload: String },
    /// A request of the plan is done, and its sample is in the record. `warmup` is true for each request that is not measured,
    /// such as a discarded one.
    Sampled { label: String, workload: String, warmup: bool, launch: u32, case: usize },
    /// A case or a whole configuration failed.
    Failed { label: String, failure: Failure },
    /// A fact or a decision, for a display that shows all.
    Detail(String),
    /// A warning, which is also written to the record.
    Warned(Warning),
    /// The user ended the run.
    Interrupted,
    /// The record is complete. `None` if it was not kept, because the command line lets nothing be measured.
    RunFinished { record: Option<String> },
}

/// The receiver of a run's events. Each event comes with the record so far, from which displays derive their content.
pub type Listener<'a> = &'a mut dyn FnMut(Event, &RunRecord);

pub(super) struct Journal<'a> {
    recorder: &'a mut Recorder,
    listener: Listener<'a>,
}

impl<'a> Journal<'a> {
    pub fn new(recorder: &'a mut Recorder, listener: Listener<'a>) -> Self {
        Self { recorder, listener }
    }

    pub fn record(&self) -> &RunRecord {
        &self.recorder.record
    }

    pub fn path(&self) -> String {
        self.recorder.path.display().to_string()
    }

    /// Ends the record. It is removed if nothing was measured because of the command line.
    pub fn finish(&mut self, end: End) -> Result<()> {
        let is_kept = end != End::Finished || !self.record().is_refused();
        let record = is_kept.then(|| self.path());
        if !is_kept {
            self.recorder.discard()?;
        }
        self.send(Event::RunFinished { record });
        Ok(())
    }

    /// Writes an entry. If that is not possible, the error ends the run.
    pub fn take(&mut self, entry: Entry) -> Result<()> {
        self.recorder.take(entry)
    }

    pub fn send(&mut self, event: Event) {
        (self.listener)(event, &self.recorder.record);
    }

    /// Records and sends a warning. Without a configuration, the warning concerns the machine or the whole run.
    pub fn warn(&mut self, configuration: Option<usize>, message: String) -> Result<()> {
        let warning = Warning { configuration, message };
        self.send(Event::Warned(warning.clone()));
        self.take(Entry::Warning(warning))
    }

    pub fn warn_all(&mut self, messages: Vec<String>) -> Result<()> {
        messages.into_iter().try_for_each(|message| self.warn(None, message))
    }

    /// Records a failure and sends it to the displays.
    pub fn fail(&mut self, failure: Failure) -> Result<()> {
        let configuration = &self.record().header.plan.configurations[failure.configuration];
        let (label, is_row) = (configuration.label.clone(), configuration.role.is_none());
        // If an engine cannot start, its row has the reason, so its twin needs no failure.
        if is_row || failure.kind != FailureKind::Unavailable {
            self.send(Event::Failed { label, failure: failure.clone() });
            self.take(Entry::Failure(failure))?;
        }
        Ok(())
    }
}
