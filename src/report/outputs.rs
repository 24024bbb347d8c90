//! The output status of engines in a report: a column where it varies, a line for each problem.

use serde::Serialize;

use super::rows::Row;
use super::run_data::RunData;
use crate::analysis::agreement::bounds::{AGREES, EXACT};
use crate::analysis::agreement::{Against, Agreement, NoChecks, Status, no_checks};
use crate::text::line;

pub const TITLE: &str = "output";
/// The number of reasons in one line; JSON has all.
const REASONS: usize = 2;

/// The output status of one row's engine. JSON has these names: add, never rename.
#[derive(Debug, Clone, Serialize)]
pub struct Output {
    /// The configuration's label.
    pub engine: String,
    #[serde(flatten)]
    pub agreement: Agreement,
}

/// The output status of each configuration that has a row.
pub fn outputs(data: &RunData) -> Vec<Output> {
    if no_checks(data.record).is_some() {
        return Vec::new();
    }
    let all = data.plan.configurations.iter().zip(&data.engines).zip(&data.agreements).enumerate();
    let rows = all.filter(|(index, ((configuration, _), _))| {
        let mut cases =
            (0..data.plan.cases.len()).filter(|&case| data.plan.cases[case].configuration == *index);
        configuration.role.is_none() && cases.any(|case| data.values.is_measured(case))
    });
    rows.map(|(_, ((_, engine), agreement))| Output {
        engine: engine.label.clone(),
        agreement: agreement.clone(),
    })
    .collect()
}

impl Output {
    pub fn is_unverified(&self) -> bool {
        self.agreement.status == Status::Unverified
    }

    /// The text in place of a verdict.
    pub fn why_not_compared(&self) -> String {
        format!("`{}` is wrong{}; it is not compared", self.engine, self.reasons())
    }

    fn reasons(&self) -> String {
        let reasons: Vec<String> =
            self.agreement.reasons.iter().take(REASONS).map(|reason| line(reason)).collect();
        if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) }
    }
}

/// Whether a column is needed: statuses differ, or one has a deviation.
pub fn vary(outputs: &[Output]) -> bool {
    let mut agreements = outputs.iter().map(|it| &it.agreement);
    let first = outputs.first().map(|it| it.agreement.status);
    agreements.any(|it| Some(it.status) != first || it.shown_rms().is_some())
}

/// The status that all rows share, for the caption.
pub fn common(outputs: &[Output]) -> Option<String> {
    let first = outputs.first().filter(|_| !vary(outputs))?;
    Some(format!("output {}", first.agreement.cell()))
}

/// The explanation of the column, or the reason why there is none.
pub fn legend(rows: &[Row], outputs: &[Output], no_checks: Option<NoChecks>) -> Option<String> {
    if rows.is_empty() {
        return None;
    }
    match no_checks {
        Some(NoChecks::ByRequest) => {
            return Some(format!(
                "{TITLE}: not checked, because of `--verifier none`; hint: `--verifier ENGINE`"
            ));
        }
        Some(NoChecks::ByAge) => {
            return Some(format!("{TITLE}: not checked, because the record is older than output checks"));
        }
        None => {}
    }
    let mut whom: Vec<String> = Vec::new();
    for against in outputs.iter().map(|it| &it.agreement.against) {
        let said = match against {
            Against::Engine { label } => format!("`{}`", line(label)),
            Against::StoredAnswers { by } => format!("{} (stored answers)", line(by)),
            Against::Itself | Against::Nothing => continue,
        };
        whom.extend((!whom.contains(&said)).then_some(said));
    }
    if whom.is_empty() || !vary(outputs) {
        return None;
    }
    Some(format!(
        "{TITLE}: difference from the log-probabilities of {} on held-out text, in nats (root mean square); exact: up to \
         {EXACT} and the same tokens; agrees: up to {AGREES}; wrong: above the bound for its precision",
        whom.join(", ")
    ))
}

/// Notes about engines that drift or are unverified. Engines with the same reason share a line. Wrong output has its own text.
pub fn notes(outputs: &[Output]) -> Vec<String> {
    let mut notes: Vec<(Status, String, Vec<String>)> = Vec::new();
    let told =
        outputs.iter().filter(|it| [Status::Drifts, Status::Unverified].contains(&it.agreement.status));
    for output in told {
        let (status, name) = (output.agreement.status, format!("`{}`", output.engine));
        let reasons = output.reasons();
        match notes.iter_mut().find(|(other, why, _)| *other == status && *why == reasons) {
            Some((.., names)) => names.push(name),
            None => notes.push((status, reasons, vec![name])),
        }
    }
    let write = |(status, reasons, names): (Status, String, Vec<String>)| {
        let verb = match (status, names.len()) {
            (Status::Drifts, 1) => "drifts",
            (Status::Drifts, _) => "drift",
            (_, 1) => "is unverified",
            _ => "are unverified",
        };
        format!("{} {verb}{reasons}", names.join(", "))
    };
    notes.into_iter().map(write).collect()
}

#[cfg(test)]
mod tests;
