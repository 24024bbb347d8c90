//! The recommendation of an engine and a preset for each model of a record, for the latency of a chat: the best of all, the best
//! without quantization and the best at a lower precision, each with its evidence, and a list of what was not tried.
//!
//! Only an engine with verified output is recommended, and none with a contradicted claim. If the difference between an engine
//! and the fastest one is inconclusive, and their ratio is at most `MAX_TIE_RATIO`, they tie. The status of the output decides a
//! tie, then the higher precision, then the smaller memory.

mod choice;
mod lines;
mod result;

use std::path::Path;

use super::document::{Content, Document, Layouts, Lines, List, Section};
use super::json::{REPORT_VERSION, json_bytes};
use super::run_data::RunData;
use super::run_report::Report;
use crate::record::RunRecord;
use choice::Candidates;
pub use result::Recommendation;

impl Recommendation {
    /// The recommendation from the latest record, so its commands name no file. `untried`: the presets of its engines that the
    /// record does not have.
    pub fn of(record: &RunRecord, untried: Vec<String>) -> Self {
        Self::new(record, None, untried)
    }

    /// The recommendation from the record in this file. Its commands name the file.
    pub fn of_file(record: &RunRecord, path: &Path, untried: Vec<String>) -> Self {
        Self::new(record, Some(path), untried)
    }

    fn new(record: &RunRecord, path: Option<&Path>, untried_presets: Vec<String>) -> Self {
        let report = Report::of(record);
        let data = RunData::of(record);
        let candidates = Candidates::of(&data, &report);
        let mut models: Vec<String> = Vec::new();
        for configuration in &data.plan.configurations {
            let model = crate::text::line(&configuration.model.name);
            if !models.contains(&model) {
                models.push(model);
            }
        }
        let mut recommendation = Self {
            report_version: REPORT_VERSION,
            record: report.record.clone(),
            first_token: candidates.first_token.clone(),
            decode: candidates.decode.clone(),
            models: models.iter().map(|model| candidates.for_model(model)).collect(),
            not_tried: lines::not_tried(&data, &report),
            untried_presets,
            sentences: Vec::new(),
        };
        recommendation.sentences = lines::sentences(&recommendation, &report, path);
        recommendation
    }

    /// Whether an engine is recommended for every model.
    pub fn is_complete(&self) -> bool {
        !self.models.is_empty() && self.models.iter().all(|it| it.best.is_some())
    }
}

impl Content for Recommendation {
    fn document(&self, _: Layouts) -> Document {
        let heading = Some("recommendation for the latency of a chat".to_string());
        let list = List { heading, ..List::plain(self.sentences.iter().cloned()) };
        Document { parts: vec![Section::List(list)], summary: None }
    }

    fn lines(&self) -> Option<Lines> {
        None
    }

    fn json(&self) -> Vec<u8> {
        json_bytes(self)
    }

    fn width(&self, terminal_width: Option<usize>) -> usize {
        terminal_width.unwrap_or(100).clamp(40, 100)
    }
}

#[cfg(test)]
mod tests;
