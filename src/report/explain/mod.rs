//! Explanations of a record: why an engine has its verdict, its output status or its warnings, in plain sentences with the
//! values. All values come from `analysis` and from the report.

mod comparison;
mod context;
mod engine;
mod glossary;
mod next_step;
mod output;
mod subject;
mod terms;
mod workload;

use std::collections::BTreeSet;

use serde::Serialize;

use super::document::{Content, Document, Item, Layouts, Lines, List, Section};
use super::json::json_bytes;
use super::marks::Mark;
use super::ranking::rankings;
use super::run_data::RunData;
use super::run_report::Report;
use crate::record::RunRecord;
use crate::report::next_measurement::More;
use crate::shell::quoted_command;
pub use comparison::Detail;
use context::{Context, Part, command};
use subject::Subject;

/// The explanation of an engine, of a case, of both, or of the terms of a report. JSON has these names: add, never rename.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Explanation {
    /// The record's id; empty for a term, which needs no record.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub record: String,
    pub about: String,
    pub parts: Vec<Part>,
    /// Commands that explain more.
    pub more: Vec<String>,
}

/// The explanation of the engine, the case or both that these words name. Without words: of the terms. The error lists the names
/// of the record. `detail` applies to an engine.
pub fn explain(record: &RunRecord, words: &[String], detail: Detail) -> Result<Explanation, String> {
    let report = Report::of(record);
    let context = Context { record, data: RunData::of(record), report: &report, rankings: rankings(&report) };
    if words.is_empty() {
        return Ok(context.terms());
    }
    let name = words.join(" ");
    let subject = subject::find(&context.data, &name)?;
    let explanation = context.explanation(&subject, detail);
    // `TTFT` is the title of a column, and in small letters the name of a scenario.
    let columns = if subject.configurations.is_empty() { terms::with_title(&name) } else { Vec::new() };
    let parts = columns.into_iter().chain(explanation.parts).collect();
    Ok(Explanation { parts, ..explanation })
}

/// The explanation of the terms of all reports, or of the term that these words name. `None` if there is no such term.
pub fn explain_term(words: &[String]) -> Option<Explanation> {
    let (about, parts) = match words {
        [] => ("the terms of the report".to_string(), terms::all()),
        words => (words.join(" "), terms::named(&words.join(" "))),
    };
    let more = vec!["orchestrate explain ENGINE".into(), "orchestrate metrics".into()];
    (!parts.is_empty()).then(|| Explanation { about, parts, more, ..Explanation::default() })
}

/// The command that explains the term whose name is similar to these words.
pub fn similar_term(words: &[String]) -> Option<String> {
    terms::similar(&words.join(" ")).map(|name| command(&[&name]))
}

impl Context<'_> {
    fn terms(&self) -> Explanation {
        Explanation {
            record: self.report.record.clone(),
            about: "the terms of the report".into(),
            parts: terms::of_report(self.report),
            more: vec!["orchestrate explain ENGINE".into(), "orchestrate metrics".into()],
        }
    }

    fn explanation(&self, subject: &Subject, detail: Detail) -> Explanation {
        let Subject { configurations, workloads, .. } = subject;
        let mut parts = Vec::new();
        match (configurations.is_empty(), workloads.is_empty()) {
            (true, _) => {
                for workload in workloads {
                    parts.extend(workload::case_parts(self, workload));
                }
            }
            (false, true) => {
                for &configuration in configurations {
                    parts.extend(engine::parts(self, configuration, detail));
                }
            }
            (false, false) => {
                for &configuration in configurations {
                    for workload in workloads {
                        parts.extend(workload::row_parts(self, configuration, workload));
                    }
                }
            }
        }
        // The meaning of the mark stands where it first occurs.
        if let Some(part) = parts.iter_mut().find(|part| part.has_inexact_ratio) {
            let mark = Mark::NotAQuotient;
            part.say(format!("`{mark}`: {}.", mark.about()));
        }
        let more_blocks = more_blocks(&mut parts);
        parts.extend(more_blocks);
        let more = self.more(subject, detail);
        Explanation { record: self.report.record.clone(), about: subject.name.clone(), parts, more }
    }

    /// Commands that explain the same subject in more or in less detail.
    fn more(&self, subject: &Subject, detail: Detail) -> Vec<String> {
        let Subject { configurations, workloads, .. } = subject;
        let labels: BTreeSet<&str> =
            configurations.iter().map(|&index| self.data.engines[index].label.as_str()).collect();
        // The last case is the most important one.
        let measured = |label: &str| self.report.rows.iter().rfind(|row| row.engine.label == label);
        match (labels.first(), workloads.first()) {
            (Some(label), None) => {
                let row = measured(label).map(|row| command(&[label, &row.case.label]));
                let full = row.as_ref().filter(|_| detail == Detail::Brief);
                full.map(|_| command(&[label, "--full"])).into_iter().chain(row).collect()
            }
            (Some(label), Some(_)) => vec![command(&[label])],
            (None, Some(workload)) => {
                let row = self.report.rows.iter().find(|row| row.case.label == *workload);
                row.map(|row| command(&[&row.engine.label, workload])).into_iter().collect()
            }
            (None, None) => Vec::new(),
        }
    }
}

/// The remedy of more blocks, once in an explanation: in the part that needs it, or after several that need it.
fn more_blocks(parts: &mut [Part]) -> Option<Part> {
    let more = More::largest(parts.iter().filter_map(|part| part.more.clone()))?;
    let mut needing: Vec<&mut Part> = parts.iter_mut().filter(|part| part.more.is_some()).collect();
    if let [only] = needing.as_mut_slice() {
        only.hint(more.hint());
        return None;
    }
    let mut part = Part::titled("next step");
    part.say("This option gives each comparison above enough blocks, if more blocks can decide it.");
    part.hint(more.hint());
    Some(part)
}

impl Content for Explanation {
    fn document(&self, _: Layouts) -> Document {
        let caption = match self.record.as_str() {
            "" => self.about.clone(),
            record => format!("{}, record {record}", self.about),
        };
        let mut parts = vec![Section::Caption(vec![caption])];
        parts.extend(self.parts.iter().map(|part| {
            let sentences = part.sentences.iter().cloned().map(Item::Listed);
            let hints = part.hints.iter().map(|hint| Item::Plain(format!("hint: {}", quoted_command(hint))));
            let heading = (!part.title.is_empty()).then(|| part.title.clone());
            Section::List(List { heading, items: sentences.chain(hints).collect(), ..List::default() })
        }));
        let more = self.more.iter().map(|command| format!("more: `{command}`"));
        parts.extend((!self.more.is_empty()).then(|| Section::List(List::plain(more))));
        Document { parts, summary: None }
    }

    fn lines(&self) -> Option<Lines> {
        None
    }

    fn json(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Versioned<'a> {
            report_version: u32,
            #[serde(flatten)]
            explanation: &'a Explanation,
        }
        json_bytes(&Versioned { report_version: super::json::REPORT_VERSION, explanation: self })
    }

    /// At most 100 columns, because long lines of text are hard to read.
    fn width(&self, terminal_width: Option<usize>) -> usize {
        terminal_width.unwrap_or(100).clamp(40, 100)
    }
}

#[cfg(test)]
mod tests;
