//! The verification status of engines in a report: a column if statuses differ or have deviations, and a line for each problem.

use std::collections::BTreeSet;

use serde::Serialize;

use super::headings::OUTPUT;
use super::rows::{Row, ScoredText, group_by_key};
use super::run_data::RunData;
use crate::analysis::agreement::{
    Against, Agreement, GREEDY_OPTION, NoChecks, Prediction, Status, no_checks,
};
use crate::analysis::metric::MetricId;
use crate::shell::command_with;
use crate::text::{line, plural, with_commas};

/// The most reasons in one line; JSON has all.
const MAX_REASONS: usize = 2;

/// The verification status of one row's engine. JSON has these names: add, never rename.
#[derive(Debug, Clone, Serialize)]
pub struct Output {
    /// The configuration's label.
    pub engine: String,
    #[serde(flatten)]
    pub agreement: Agreement,
    /// The prediction of the held-out text, if the engine scored it and found no token impossible.
    pub prediction: Option<Prediction>,
    /// Whether the engine gave a token of the held-out text the probability 0. Then the text has no loss.
    pub finds_a_token_impossible: bool,
}

/// The verification status of each measured configuration that has a row. Empty if the run had no output checks.
pub fn outputs(data: &RunData) -> Vec<Output> {
    if no_checks(data.record).is_some() {
        return Vec::new();
    }
    let rows = (0..data.plan.configurations.len()).filter(|&index| data.is_measured_row(index));
    rows.map(|index| Output {
        engine: data.engines[index].label.clone(),
        agreement: data.agreements[index].clone(),
        prediction: Prediction::of(data.record, index),
        finds_a_token_impossible: finds_a_token_impossible(data, index),
    })
    .collect()
}

/// Whether a configuration gave a token of the held-out text the probability 0.
fn finds_a_token_impossible(data: &RunData, configuration: usize) -> bool {
    let mut windows = data.record.scored.iter().filter(|it| it.configuration == configuration);
    windows.any(|it| it.logprobs.iter().any(Option::is_none))
}

/// The reason for each perplexity that is not available: of the scored texts if the run has some, or else of the output checks.
pub fn without_perplexity<'a>(rows: impl IntoIterator<Item = &'a Row>, outputs: &[Output]) -> Vec<String> {
    let why = |subject: String, impossible: Option<String>| match impossible {
        None => format!("{subject}: no perplexity, because it is larger than any number of 64 bits"),
        Some(tokens) => format!("{subject}: no perplexity, because it finds {tokens} impossible"),
    };
    let scored: Vec<(&Row, ScoredText)> =
        rows.into_iter().filter_map(|row| Some((row, row.scored_text?))).collect();
    if scored.is_empty() {
        let lacks = |it: &Output| it.prediction.is_some_and(|prediction| prediction.perplexity.is_none());
        let lacking = outputs.iter().filter(|it| it.finds_a_token_impossible || lacks(it));
        let reason = |it: &Output| {
            let impossible = it.finds_a_token_impossible.then(|| "a token of the held-out text".to_string());
            why(format!("`{}`", it.engine), impossible)
        };
        return lacking.map(reason).collect();
    }
    let lacks = |row: &Row| row.failure.is_none() && row.summary(MetricId::PERPLEXITY).is_none();
    let reason = |(row, text): (&Row, ScoredText)| {
        let tokens = || {
            let all = plural(with_commas(text.tokens), "token");
            format!("{} of {all}", with_commas(text.impossible_tokens))
        };
        let impossible = (text.impossible_tokens > 0).then(tokens);
        why(format!("`{}` `{}`", row.engine.label, row.case.label), impossible)
    };
    scored.into_iter().filter(|(row, _)| lacks(row)).map(reason).collect()
}

/// The command of a run without sampling, so that its tokens can be checked.
pub fn greedy_command(command: &[String]) -> String {
    command_with(command, GREEDY_OPTION)
}

/// Whether the output of an engine is unverified because its tokens were sampled.
pub fn is_sampled(output: &Output) -> bool {
    output.is_unverified() && output.agreement.recorded_hint() == Some(GREEDY_OPTION)
}

impl Output {
    pub fn is_unverified(&self) -> bool {
        self.agreement.status == Status::Unverified
    }

    /// The text in place of a verdict, for an engine with wrong output.
    pub fn why_not_compared(&self) -> String {
        format!("the output of `{}` is wrong{}; its speed is not compared", self.engine, self.reasons())
    }

    fn reasons(&self) -> String {
        let reasons: Vec<String> =
            self.agreement.reasons.iter().take(MAX_REASONS).map(|reason| line(reason)).collect();
        if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) }
    }
}

/// Whether a column is needed, because statuses differ or some status has a deviation.
pub fn needs_column(outputs: &[Output]) -> bool {
    let mut agreements = outputs.iter().map(|it| &it.agreement);
    let first = outputs.first().map(|it| it.agreement.status);
    agreements.any(|it| Some(it.status) != first || it.shown_rms().is_some())
}

/// The status that all rows share, for the caption.
pub fn common_status(outputs: &[Output]) -> Option<String> {
    let first = outputs.first().filter(|_| !needs_column(outputs))?;
    Some(format!("output {}", first.agreement.cell()))
}

/// The explanation of the column, or the reason why outputs were not checked.
pub fn legend(rows: &[Row], outputs: &[Output], no_checks: Option<NoChecks>) -> Option<String> {
    if rows.is_empty() {
        return None;
    }
    let unchecked = |why| Some(format!("{}: not checked, because {why}", OUTPUT.title));
    match no_checks {
        Some(NoChecks::ByRequest) => return unchecked("of `--verifier none`; hint: `--verifier ENGINE`"),
        Some(NoChecks::ByAge) => return unchecked("the record is older than output checks"),
        None => {}
    }
    let verifier = |it: &Output| match &it.agreement.against {
        Against::Engine { label } => Some(format!("`{}`", line(label))),
        Against::ReferenceAnswers { by } => Some(format!("{} (reference answers)", line(by))),
        Against::Itself | Against::Nothing => None,
    };
    let verifiers: BTreeSet<String> = outputs.iter().filter_map(verifier).collect();
    if verifiers.is_empty() || !needs_column(outputs) {
        return None;
    }
    let verifiers = verifiers.into_iter().collect::<Vec<_>>().join(", ");
    Some(format!("{}: difference from {verifiers} on held-out text, in nats", OUTPUT.title))
}

/// Notes about output that drifts or is unverified. Engines with the same reason share a line. For wrong output,
/// `why_not_compared` has the text.
pub fn notes(outputs: &[Output]) -> Vec<String> {
    let is_noted = |status: Status| matches!(status, Status::Drifts | Status::Unverified);
    let noted = outputs.iter().filter(|it| is_noted(it.agreement.status));
    let groups =
        group_by_key(noted.map(|it| ((it.agreement.status, it.reasons()), format!("`{}`", it.engine))));
    let write = |((status, reasons), names): ((Status, String), Vec<String>)| {
        let is = if status == Status::Drifts { "drifts" } else { "is unverified" };
        // The reasons are about `it`, so several engines have them one by one.
        let each = if names.len() > 1 { "each of " } else { "" };
        format!("{each}{} {is}{reasons}", names.join(", "))
    };
    groups.into_iter().map(write).collect()
}

#[cfg(test)]
mod tests;
