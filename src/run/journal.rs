//! Writes the record of a run and sends its events to the displays. Knows no engine and no schedule.

use anyhow::Result;

use crate::engines::setup::SetUpEvent;
use crate::record::{Entry, Failure, FailureKind, Recorder, RunRecord, Warning};

/// An event of set-up or of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Set-up comes before the run, and the same displays show it.
    SetUp(SetUpEvent),
    /// The whole run. Without a number of blocks it ends once enough is known.
    RunStarted { configurations: usize, blocks: Option<u32>, record: String },
    /// `until` is the number of blocks planned so far. `requests` is the number of requests until then, with those already made.
    BlockStarted { block: u32, until: u32, requests: u64 },
    /// A process is about to start.
    LaunchStarted { label: String },
    /// An engine loads its model, or the model is converted for it.
    Loading { label: String, phase: String, fraction: Option<f64> },
    /// The engine can take requests.
    Loaded { label: String, load_ns: u64 },
    /// An engine's output check before the measurements.
    CheckingOutput { label: String },
    /// After the last block: the reference engine checks the tokens of other engines.
    CheckingTokens { label: String, samples: usize },
    /// The first request of a case in a launch follows.
    CaseStarted { label: String, workload: String },
    /// One more request of the plan is done. The record has its sample, for that launch and case.
    Sampled { label: String, workload: String, warmup: bool, launch: u32, case: usize },
    /// A case or a whole configuration failed.
    Failed { label: String, failure: Failure },
    /// A warning, which the record gets too.
    Warned(Warning),
    /// The user ended the run.
    Interrupted,
    /// The record is complete.
    RunFinished { record: String },
}

/// The receiver of a run's events. Each event comes with the record so far, and a display derives its content from that.
pub type Listener<'a> = &'a mut dyn FnMut(Event, &RunRecord);

/// The record of a run under way and the displays that follow it.
pub(super) struct Journal<'a> {
    recorder: &'a mut Recorder,
    listener: Listener<'a>,
}

impl<'a> Journal<'a> {
    pub fn new(recorder: &'a mut Recorder, listener: Listener<'a>) -> Self {
        Self { recorder, listener }
    }

    /// Everything that was recorded so far.
    pub fn record(&self) -> &RunRecord {
        &self.recorder.record
    }

    pub fn path(&self) -> String {
        self.recorder.path.display().to_string()
    }

    /// Writes an entry. Only a record that cannot be written ends a run.
    pub fn take(&mut self, entry: Entry) -> Result<()> {
        self.recorder.take(entry)
    }

    pub fn send(&mut self, event: Event) {
        (self.listener)(event, &self.recorder.record);
    }

    /// Warns about one configuration. Without one, the warning concerns the machine or the whole run.
    pub fn warn(&mut self, configuration: Option<usize>, message: String) -> Result<()> {
        let warning = Warning { configuration, message };
        self.send(Event::Warned(warning.clone()));
        self.take(Entry::Warning(warning))
    }

    pub fn warn_all(&mut self, messages: Vec<String>) -> Result<()> {
        messages.into_iter().try_for_each(|message| self.warn(None, message))
    }

    /// Records a failure as a row.
    pub fn fail(&mut self, failure: Failure) -> Result<()> {
        let configuration = &self.record().header.plan.configurations[failure.configuration];
        let (label, is_row) = (configuration.label.clone(), configuration.role.is_none());
        // An engine that cannot start has its reason in its own row, so its twin gets none.
        if is_row || failure.kind != FailureKind::Unavailable {
            self.send(Event::Failed { label, failure: failure.clone() });
            self.take(Entry::Failure(failure))?;
        }
        Ok(())
    }
}
