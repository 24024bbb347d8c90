//! The input of all explanations, and the parts that they consist of.

use serde::Serialize;

use crate::plan::Case;
use crate::record::RunRecord;
use crate::report::next_measurement::More;
use crate::report::ranking::Ranking;
use crate::report::rows::Row;
use crate::report::run_data::RunData;
use crate::report::run_report::Report;
use crate::shell::pasteable;
use crate::text::line;

/// A record with everything that is computed from it.
pub struct Context<'a> {
    pub record: &'a RunRecord,
    pub data: RunData<'a>,
    pub report: &'a Report,
    pub rankings: Vec<Ranking<'a>>,
}

/// A title, sentences about one subject, and remedies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Part {
    pub title: String,
    pub sentences: Vec<String>,
    pub hints: Vec<String>,
    /// Whether a ratio has `Mark::NotAQuotient`.
    #[serde(skip)]
    pub has_inexact_ratio: bool,
    /// The option that gives all comparisons of the part enough blocks.
    #[serde(skip)]
    pub more: Option<More>,
}

impl Context<'_> {
    /// The row of a configuration in a workload.
    pub fn row(&self, configuration: usize, workload: &str) -> Option<&Row> {
        let label = &self.data.engines[configuration].label;
        self.report.rows.iter().find(|row| row.engine.label == *label && row.case.label == workload)
    }

    /// The index of a row's case in the plan.
    pub fn case(&self, row: &Row) -> Option<usize> {
        let is_case = |case: &Case| {
            self.data.engines[case.configuration].label == row.engine.label
                && line(&case.workload.label) == row.case.label
        };
        self.data.plan.cases.iter().position(is_case)
    }

    pub fn configuration(&self, label: &str) -> Option<usize> {
        self.data.engines.iter().position(|engine| engine.label == label)
    }

    pub fn ranking(&self, row: &Row) -> Option<&Ranking<'_>> {
        self.rankings.iter().find(|it| it.case == row.case.label && it.model == row.engine.model)
    }
}

impl Part {
    pub fn titled(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// Adds a sentence, unless the part has it already: two comparisons may have the same evidence.
    pub fn say(&mut self, sentence: impl Into<String>) {
        let sentence = sentence.into();
        if !self.sentences.contains(&sentence) {
            self.sentences.push(sentence);
        }
    }

    /// Adds the remedy of more blocks. A part keeps the largest one, so that its comparisons have one remedy.
    pub fn measure_again(&mut self, more: More) {
        self.more = More::largest(self.more.take().into_iter().chain([more]));
    }

    /// Adds a remedy, unless the part has it already.
    pub fn hint(&mut self, hint: impl Into<String>) {
        let hint = hint.into();
        if !self.hints.contains(&hint) {
            self.hints.push(hint);
        }
    }
}

/// A command of this program that explains these names.
pub fn command(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| pasteable(&[name.to_string()])).collect();
    format!("orchestrate explain {}", names.join(" "))
}

/// `1 launch`, `5 launches`.
pub fn launches(count: usize) -> String {
    if count == 1 { "1 launch".into() } else { format!("{count} launches") }
}
