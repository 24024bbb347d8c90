//! Checks before anything runs: rows of engines that cannot run, and a warning if all prompts are the same.

use anyhow::Result;

use super::journal::Journal;
use super::request::Requests;
use super::schedule::Schedule;
use crate::plan::{Plan, Prompt};
use crate::record::{Failure, FailureKind};
use crate::run::process::Stage;

/// Records a row for each configuration that cannot start or has no prompts.
pub(super) async fn record_unavailable(
    plan: &Plan,
    journal: &mut Journal<'_>,
    requests: &mut Requests<'_>,
    schedule: &mut Schedule<'_>,
) -> Result<()> {
    for (index, configuration) in plan.configurations.iter().enumerate() {
        let refusal = match &configuration.unavailable {
            Some(unavailable) => {
                Some((FailureKind::Unavailable, unavailable.reason.clone(), unavailable.hint.clone()))
            }
            None => match requests.read_model(&configuration.model.path).await? {
                Ok(()) => None,
                Err(error) => Some((FailureKind::Model, format!("{error:#}"), None)),
            },
        };
        if let Some((kind, message, hint)) = refusal {
            let when = Stage::Start.to_string();
            let failure = Failure { configuration: index, kind, when, message, hint, ..Failure::default() };
            schedule.record_failure(journal, failure)?;
        }
    }
    Ok(())
}

/// Warns about a prompt of the user's own, which cannot be salted.
pub(super) fn warn_about_fixed_prompt(plan: &Plan, journal: &mut Journal) -> Result<()> {
    let own = plan.cases.iter().any(|case| matches!(case.workload.prompt, Prompt::Text(_)));
    let message = "every request has the same prompt, so an engine with a prefix cache computes it once; without `--prompt` \
                   each request has a prompt of its own";
    if own { journal.warn(None, message.into()) } else { Ok(()) }
}
