//! What cannot run, what failed, what a reader should know: rows and warnings of the record.

use std::time::Duration;

use anyhow::Result;

use super::Run;
use super::blocking::off_thread;
use crate::plan::Prompt;
use crate::plan::prompts::Prompts;
use crate::record::{Entry, Failure, FailureKind, Warning};
use crate::run::event::Event;
use crate::run::process::Fault;

impl Run<'_> {
    /// Configurations that cannot be started, and models that no prompt can be made for, are rows before anything runs.
    pub(super) async fn refuse_what_cannot_run(&mut self) -> Result<()> {
        for index in 0..self.plan.configurations.len() {
            let configuration = self.plan.configurations[index].clone();
            let refusal = match configuration.unavailable {
                Some(unavailable) => Some((FailureKind::Unavailable, unavailable.reason, unavailable.hint)),
                None if self.prompts.contains_key(&configuration.model.path) => None,
                None => {
                    let path = configuration.model.path.clone();
                    match off_thread(move || Prompts::of_model(&path)).await? {
                        Ok(prompts) => {
                            self.prompts.insert(configuration.model.path, prompts);
                            None
                        }
                        Err(error) => Some((FailureKind::Model, format!("{error:#}"), None)),
                    }
                }
            };
            if let Some((kind, message, hint)) = refusal {
                let when = "start".to_string();
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

    pub(super) fn last_launch(&self) -> Option<u32> {
        self.launches.checked_sub(1)
    }

    pub(super) fn fail(
        &mut self,
        configuration: usize,
        case: Option<usize>,
        launch: Option<u32>,
        fault: Fault,
    ) -> Result<()> {
        self.record_failure(Failure {
            configuration,
            case,
            launch,
            kind: fault.cause.kind(),
            when: fault.when.to_string(),
            message: fault.cause.to_string(),
            hint: fault.cause.hint(),
            stderr: fault.stderr,
        })
    }

    fn record_failure(&mut self, failure: Failure) -> Result<()> {
        let configuration = &self.plan.configurations[failure.configuration];
        let (label, is_row) = (configuration.label.clone(), configuration.beside.is_none());
        match failure.case {
            Some(case) => self.failed.extend([case]),
            None => self.failed.extend(self.plan.cases_of(failure.configuration)),
        }
        // What cannot be started is told of the row; its twin has nothing to add.
        if is_row || failure.kind != FailureKind::Unavailable {
            (self.listener)(Event::Failed { label, failure: failure.clone() });
            self.recorder.take(Entry::Failure(failure))?;
        }
        Ok(())
    }

    /// A case that the budget left nothing for is a row all the same.
    pub(super) fn name_what_had_no_time(&mut self) -> Result<()> {
        let Some(budget_ns) = self.plan.extent.budget_ns else { return Ok(()) };
        let budget = Duration::from_nanos(budget_ns);
        for case in 0..self.plan.cases.len() {
            if self.failed.contains(&case) || self.recorder.record.measured().any(|it| it.case == case) {
                continue;
            }
            let spent = humantime::format_duration(budget);
            self.record_failure(Failure {
                configuration: self.plan.cases[case].configuration,
                case: Some(case),
                kind: FailureKind::NoTime,
                message: format!("the budget of {spent} was used up before it was measured"),
                hint: Some(format!("--budget {}", humantime::format_duration(budget * 4))),
                ..Failure::default()
            })?;
        }
        Ok(())
    }

    /// Once: who sits apart is not measured in the same moments as the others.
    pub(super) fn tell_of_sittings(&mut self, block: u32, sittings: &[Vec<usize>]) -> Result<()> {
        if sittings.len() < 2 || std::mem::replace(&mut self.told_of_sittings, true) {
            return Ok(());
        }
        let label = |index: &usize| format!("`{}`", self.plan.configurations[*index].label);
        let each = sittings.iter().map(|sitting| sitting.iter().map(label).collect::<Vec<_>>().join(" and "));
        let message = format!(
            "not all engines may fit into memory at once, so these are measured one after the other, in block {} and in later \
             ones unless they turn out to be smaller: {}; what the machine does between them is in the ratios: a smaller \
             model, fewer engines at a time or more `--blocks` help",
            block + 1,
            each.collect::<Vec<_>>().join(", then ")
        );
        self.warn_of_the_machine(vec![message])
    }

    /// A prompt of the user's own cannot be salted.
    pub(super) fn warn_of_one_prompt(&mut self) -> Result<()> {
        let own = self.plan.cases.iter().any(|case| matches!(case.workload.prompt, Prompt::Text(_)));
        let message = "every request has the same prompt, so an engine that keeps prefixes computes it once; without `--prompt` \
                       every request begins with tokens of its own";
        self.warn_of_the_machine(own.then(|| message.to_string()).into_iter().collect())
    }

    pub(super) fn warn_of_the_machine(&mut self, messages: Vec<String>) -> Result<()> {
        for message in messages {
            let warning = Warning { configuration: None, message };
            (self.listener)(Event::Warned(warning.clone()));
            self.recorder.take(Entry::Warning(warning))?;
        }
        Ok(())
    }

    pub(super) fn warn(&mut self, configuration: usize, message: String) -> Result<()> {
        let warning = Warning { configuration: Some(configuration), message };
        (self.listener)(Event::Warned(warning.clone()));
        self.recorder.take(Entry::Warning(warning))
    }
}
