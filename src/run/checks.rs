//! The parts that both output checks share: the one before the first block (`check_held_out`) and the one after the last (`measured_tokens`). The
//! record has the reason for each missing check, and no result is lost.

use std::time::Instant;

use anyhow::Result;

use super::journal::Journal;
use super::launches::Launches;
use super::request::Requests;
use crate::engines::manifest;
use crate::plan::{Model, Plan, Verification};
use crate::record::{Entry, NotChecked};
use crate::run::process::Cause;
use crate::shell::this_program;

pub(super) struct OutputChecks<'r, 'a> {
    pub plan: &'a Plan,
    pub journal: &'r mut Journal<'a>,
    pub launches: &'r mut Launches<'a>,
    pub requests: &'r Requests<'a>,
    /// The end of the run's budget, where it has one.
    pub budget_ends: Option<Instant>,
}

impl OutputChecks<'_, '_> {
    pub fn not_checked(&mut self, index: usize, reason: String, hint: Option<String>) -> Result<()> {
        let not_checked = NotChecked { configuration: Some(index), model: None, reason, hint };
        self.journal.take(Entry::NotChecked(not_checked))
    }

    /// Records that no verifier can check a model's outputs, with a hint to set one up.
    pub fn no_verifier(&mut self, model: &Model, why: &str) -> Result<()> {
        let reference = manifest::embedded().ok().and_then(|all| {
            let found = all.iter().find(|it| it.manifest.reference);
            found.map(|engine| format!("{} setup {}", this_program(), engine.manifest.name))
        });
        let hint = reference.filter(|_| self.plan.verification == Verification::Usual);
        self.model_not_checked(model, why.into(), Some(hint.unwrap_or_else(|| "--verifier ENGINE".into())))
    }

    pub fn model_not_checked(&mut self, model: &Model, reason: String, hint: Option<String>) -> Result<()> {
        let not_checked = NotChecked { configuration: None, model: Some(model.path.clone()), reason, hint };
        self.journal.take(Entry::NotChecked(not_checked))
    }
}

/// Whether the engine gave an invalid answer.
pub(super) fn is_breach(cause: &Cause) -> bool {
    matches!(cause, Cause::Protocol(_) | Cause::WrongOutput(_))
}

pub(super) fn longer_budget() -> Option<String> {
    Some("a longer `--budget`".into())
}
