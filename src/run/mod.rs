//! Plan to run record. Launches every configuration in every round, asks every case, records all of it. A failed case is
//! recorded and never fatal; only a record that cannot be written ends a run.

mod case;
mod form;
mod launch;

pub use launch::{launching, load_request};

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use tokio::sync::watch;

use crate::engine::{Deadlines, Fault};
use crate::event::{Event, Listener};
use crate::plan::{Mode, Plan};
use crate::prompts::Prompts;
use crate::record::{Converted, End, Entry, Failure, Recorder, Warning};

/// How to run, beside what to run.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub deadlines: Deadlines,
    pub debug: bool,
}

/// A run under way.
pub struct Run<'a> {
    plan: Plan,
    recorder: &'a mut Recorder,
    listener: Listener<'a>,
    settings: Settings,
    /// By model path. A model that no prompt can be made for fails its configurations.
    prompts: BTreeMap<String, Prompts>,
    /// Cases that failed: they are not asked again.
    failed: BTreeSet<usize>,
    /// Configurations that answer no `hello`.
    minimal: BTreeSet<usize>,
    /// Configurations whose engine is given another form of the model.
    converted: BTreeMap<usize, Converted>,
    launches: u32,
    /// Also those that no record refers to: each process has a mark of its own, by which what it leaves is ended.
    started: u32,
}

/// What ends a launch early.
enum Stop {
    /// The engine's doing: a row.
    Fault(Fault),
    /// This program's: the run ends.
    Broken(anyhow::Error),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Self {
        Self::Broken(error)
    }
}

impl<'a> Run<'a> {
    pub fn new(recorder: &'a mut Recorder, listener: Listener<'a>, settings: Settings) -> Self {
        let plan = recorder.record.header.plan.clone();
        Self {
            plan,
            recorder,
            listener,
            settings,
            prompts: BTreeMap::new(),
            failed: BTreeSet::new(),
            minimal: BTreeSet::new(),
            converted: BTreeMap::new(),
            launches: 0,
            started: 0,
        }
    }

    /// Runs to the end, or until an interrupt is heard. Either way the record says which.
    pub async fn run(mut self, mut interrupted: watch::Receiver<u32>) -> Result<End> {
        let (record, requests) = (self.recorder.path.display().to_string(), self.requests());
        (self.listener)(Event::RunStarted {
            configurations: self.plan.configurations.len(),
            launches: self.plan.launches,
            requests,
            record: record.clone(),
        });
        // Leaving a launch in the middle drops its engine, which ends the engine's processes.
        let end = tokio::select! {
            biased;
            _ = interrupted.wait_for(|&heard| heard > 0) => End::Interrupted,
            ran = self.rounds() => ran.map(|()| End::Finished)?,
        };
        if end == End::Interrupted {
            (self.listener)(Event::Interrupted);
        }
        self.recorder.take(Entry::End(end))?;
        (self.listener)(Event::RunFinished { record });
        Ok(end)
    }

    async fn rounds(&mut self) -> Result<()> {
        self.refuse_what_cannot_run()?;
        for round in 0..self.plan.launches {
            for configuration in self.plan.order(round) {
                let cases = self.open_cases(configuration);
                let launched = match self.plan.mode {
                    Mode::Warm => self.launch_warm(configuration, round, cases).await,
                    Mode::OneShot => self.launch_one_shots(configuration, round, cases).await,
                };
                match launched {
                    Ok(()) => {}
                    Err(Stop::Fault(fault)) => self.fail(configuration, None, fault)?,
                    Err(Stop::Broken(error)) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Configurations that cannot be started, and models that no prompt can be made for, are rows before anything runs.
    fn refuse_what_cannot_run(&mut self) -> Result<()> {
        for index in 0..self.plan.configurations.len() {
            let configuration = self.plan.configurations[index].clone();
            let refusal = match configuration.unavailable {
                Some(unavailable) => Some(("unavailable", unavailable.reason, unavailable.hint)),
                None if self.prompts.contains_key(&configuration.model.path) => None,
                None => match Prompts::of_model(&configuration.model.path) {
                    Ok(prompts) => {
                        self.prompts.insert(configuration.model.path, prompts);
                        None
                    }
                    Err(error) => Some(("model", format!("{error:#}"), None)),
                },
            };
            if let Some((kind, message, hint)) = refusal {
                let (kind, when) = (kind.to_string(), "start".to_string());
                self.record_failure(Failure {
                    configuration: index,
                    kind,
                    when,
                    message,
                    hint,
                    ..Failure::default()
                })?;
            }
        }
        Ok(())
    }

    /// The cases of a configuration that can still be asked.
    fn open_cases(&self, configuration: usize) -> Vec<usize> {
        self.plan.cases_of(configuration).into_iter().filter(|case| !self.failed.contains(case)).collect()
    }

    fn fail(&mut self, configuration: usize, case: Option<usize>, fault: Fault) -> Result<()> {
        self.record_failure(Failure {
            configuration,
            case,
            launch: (self.launches > 0).then(|| self.launches - 1),
            kind: fault.cause.kind().into(),
            when: fault.when.to_string(),
            message: fault.cause.to_string(),
            hint: fault.cause.hint(),
            stderr: fault.stderr,
        })
    }

    fn record_failure(&mut self, failure: Failure) -> Result<()> {
        let label = self.plan.configurations[failure.configuration].label.clone();
        let closed: Vec<usize> = match failure.case {
            Some(case) => vec![case],
            None => self.plan.cases_of(failure.configuration),
        };
        let open = |case: &&usize| !self.failed.contains(case);
        let planned: u64 = closed.iter().filter(open).map(|&case| self.requests_of(case)).sum();
        let made =
            self.recorder.record.samples.iter().filter(|sample| closed.contains(&sample.case)).count() as u64;
        let skipped = Event::Skipped { requests: planned.saturating_sub(made) };
        self.failed.extend(closed);
        (self.listener)(skipped);
        (self.listener)(Event::Failed { label, failure: failure.clone() });
        self.recorder.take(Entry::Failure(failure))
    }

    fn warn(&mut self, configuration: usize, message: String) -> Result<()> {
        let warning = Warning { configuration: Some(configuration), message };
        (self.listener)(Event::Warned(warning.clone()));
        self.recorder.take(Entry::Warning(warning))
    }

    /// Requests of the whole plan, warm-up included.
    fn requests(&self) -> u64 {
        (0..self.plan.cases.len()).map(|case| self.requests_of(case)).sum()
    }

    fn requests_of(&self, case: usize) -> u64 {
        let workload = &self.plan.cases[case].workload;
        let warmup = if self.plan.mode == Mode::Warm { workload.warmup } else { 0 };
        u64::from(self.plan.launches) * u64::from(warmup + workload.samples)
    }
}

/// A workload for the tests of rooms around this one.
#[cfg(test)]
pub fn example_workload(prompt: crate::plan::Prompt) -> crate::plan::Workload {
    crate::plan::Workload {
        scenario: "decode".into(),
        label: "decode".into(),
        kind: crate::scenario::Kind::Warm,
        headline: "decode_rate".into(),
        prompt,
        max_new_tokens: 8,
        ignore_eos: true,
        sampling: None,
        warmup: 1,
        samples: 2,
    }
}
