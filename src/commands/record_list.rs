//! `orchestrate report --list`: the records of a folder, newest first.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::plan::arguments::suite_of;
use crate::record::{self, End, RunRecord};
use crate::report::Content;
use crate::report::document::{Document, Item, Layouts, Lines, List, NamedField, Section, column};
use crate::report::json::json_bytes;
use crate::text::{line, plural};

/// The columns of a spreadsheet.
const COLUMNS: [&str; 8] = ["started", "record", "models", "engines", "scenarios", "blocks", "end", "file"];

/// The records of a folder, and the files that cannot be read as a record. JSON has these names: add, never rename.
#[derive(Debug, Serialize)]
pub struct RecordList {
    folder: String,
    records: Vec<ListedRecord>,
    unreadable: Vec<UnreadableFile>,
    /// The command that makes or finds a record, if the folder has none.
    #[serde(skip)]
    hint: String,
}

/// One record. JSON has these names: add, never rename.
#[derive(Debug, Serialize)]
struct ListedRecord {
    /// The start of the run in UTC, as RFC 3339 writes it.
    started: String,
    record: String,
    models: Vec<String>,
    engines: Vec<String>,
    scenarios: Vec<String>,
    /// The suite that has exactly the workloads of the record.
    suite: Option<&'static str>,
    /// The number of blocks with a measured request.
    blocks: usize,
    end: &'static str,
    file: String,
}

#[derive(Debug, Serialize)]
struct UnreadableFile {
    file: String,
    why: String,
}

impl RecordList {
    /// The records of a folder. `hint` is the command that helps if there are none.
    pub fn of(folder: &Path, hint: String) -> Result<Self> {
        let (mut records, mut unreadable) = (Vec::new(), Vec::new());
        for path in record::files_in(folder)? {
            let file = line(&path.display().to_string());
            match record::read(&path) {
                Ok(record) => {
                    records.push((record::order_key(&record.header), ListedRecord::of(&record, file)))
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    let why = line(error.lines().next().unwrap_or_default());
                    unreadable.push(UnreadableFile { file, why });
                }
            }
        }
        records.sort_by(|(a, _), (b, _)| b.cmp(a));
        let records = records.into_iter().map(|(_, record)| record).collect();
        Ok(Self { folder: line(&folder.display().to_string()), records, unreadable, hint })
    }
}

impl ListedRecord {
    fn of(record: &RunRecord, file: String) -> Self {
        let plan = &record.header.plan;
        let rows = || plan.configurations.iter().filter(|it| it.role.is_none());
        let launches = record.launches.iter().map(|it| (it.launch, it.block));
        let blocks: BTreeMap<u32, u32> = launches.collect();
        let measured: BTreeSet<u32> =
            record.measured().filter_map(|it| blocks.get(&it.launch).copied()).collect();
        Self {
            started: line(&record.header.started),
            record: line(&record.header.id),
            models: distinct(rows().map(|it| it.model.name.as_str())),
            engines: distinct(rows().map(|it| it.label.as_str())),
            scenarios: distinct(plan.cases.iter().map(|it| it.workload.scenario.as_str())),
            suite: suite_of(plan.cases.iter().map(|it| &it.workload)).map(|suite| suite.name),
            blocks: measured.len(),
            end: match record.end {
                Some(End::Finished) => "finished",
                Some(End::Interrupted) => "interrupted",
                None => "cut off",
            },
            file,
        }
    }

    /// `2026-01-02 03:04 results/x.jsonl: embedded, decode, 5 blocks, finished; engines: a, b`.
    fn sentence(&self) -> String {
        let (models, engines) = (self.models.join(", "), self.engines.join(", "));
        let scenarios = self.suite.map_or_else(|| self.scenarios.join(", "), String::from);
        let (start, blocks) = (minute(&self.started), plural(self.blocks, "block"));
        format!("{start} {}: {models}, {scenarios}, {blocks}, {}; engines: {engines}", self.file, self.end)
    }
}

/// The names without repetitions, in their order.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut distinct: Vec<String> = Vec::new();
    for name in names.map(line) {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}

/// `2026-01-02 03:04`: the start without seconds, for people.
fn minute(started: &str) -> String {
    started.get(..16).map_or_else(|| started.into(), |minute| minute.replace('T', " "))
}

impl Content for RecordList {
    fn document(&self, _: Layouts) -> Document {
        let (mut parts, mut notes) = (Vec::new(), Vec::new());
        if self.records.is_empty() {
            notes.push(format!("no run record in the folder `{}`", self.folder));
            notes.push(format!("hint: {}", self.hint));
        } else {
            let heading =
                format!("run records in the folder `{}`, newest first; times are in UTC:", self.folder);
            let items = self.records.iter().map(|it| Item::Listed(it.sentence())).collect();
            parts.push(Section::List(List { heading: Some(heading), items, ..List::default() }));
        }
        notes.extend(self.unreadable.iter().map(|it| format!("not listed: {}", it.why)));
        parts.push(Section::List(List::plain(notes)));
        Document { parts, summary: None }
    }

    fn lines(&self) -> Option<Lines> {
        let fields = |it: &ListedRecord| -> Vec<NamedField> {
            vec![
                (column!("started"), (&it.started).into()),
                (column!("record"), (&it.record).into()),
                (column!("models"), (&it.models.join(" ")).into()),
                (column!("engines"), (&it.engines.join(", ")).into()),
                (column!("scenarios"), (&it.scenarios.join(" ")).into()),
                (column!("blocks"), it.blocks.into()),
                (column!("end"), it.end.into()),
                (column!("file"), (&it.file).into()),
            ]
        };
        Some(Lines { columns: &COLUMNS, lines: self.records.iter().map(fields).collect() })
    }

    fn json(&self) -> Vec<u8> {
        json_bytes(self)
    }
}
