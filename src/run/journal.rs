//! Writes the record of a run and tells the displays. Knows no engine and no schedule.

use anyhow::Result;

use crate::record::{Entry, Failure, FailureKind, Recorder, RunRecord, Warning};
use crate::run::event::{Event, Listener};

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

    pub fn tell(&mut self, event: Event) {
        (self.listener)(event, &self.recorder.record);
    }

    /// Warns about one configuration. Without one, the warning concerns the machine or the whole run.
    pub fn warn(&mut self, configuration: Option<usize>, message: String) -> Result<()> {
        let warning = Warning { configuration, message };
        self.tell(Event::Warned(warning.clone()));
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
            self.tell(Event::Failed { label, failure: failure.clone() });
            self.take(Entry::Failure(failure))?;
        }
        Ok(())
    }
}
