//! A report: a table-shaped view of a run record, and FORMATS, the ways to render it. To add a format, add a file and its
//! line in `FORMATS`.
//!
//! Everything here is pure: no engine, no clock, no file. So any report can be made again years later.

mod beside;
mod build;
mod caption;
pub mod compare;
mod csv;
pub mod document;
mod engines;
pub mod entries;
mod extent;
mod factors;
mod grid;
mod json;
mod labels;
mod limits;
mod lines;
pub mod machine_page;
mod markdown;
mod notes;
mod outputs;
mod resources;
mod seen;
mod table;
mod verdicts;
mod viewed;
mod wall_time;

use std::fmt;

use serde::Serialize;

use crate::analysis::agreement::Unasked;
use crate::analysis::effective::Doubt;
use crate::analysis::metric::limits::{Key, Limit};
use crate::analysis::metric::share::Absent;
use crate::analysis::metric::{Metric, MetricId};
use crate::machine::{Device, Machine};
use crate::plan::{Mode, Order};
use crate::record::{FailureKind, Overhead, Stage, WarmUp};
pub use document::Content;
use document::Lines;
pub use extent::Extent;
pub use outputs::Output;
pub use resources::Resources;
pub use resources::facts::FACTS;
use stats::Summary;
pub use verdicts::Verdicts;
pub use viewed::Viewed;
pub use wall_time::WallTime;

pub const FORMATS: &[Format] = &[table::FORMAT, markdown::FORMAT, csv::FORMAT, json::FORMAT];

/// One way to render whatever there is to show.
#[derive(Debug)]
pub struct Format {
    /// What `--format` takes; also how a file of it ends.
    pub name: &'static str,
    pub about: &'static str,
    pub shape: Shape,
}

/// What a format renders, and how. Commands decide by this, never by a format's name.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// For people. The second argument is the number of columns that the reader has, where that is known.
    Document(fn(&dyn Content, Option<usize>) -> Vec<u8>),
    /// For spreadsheets. Not all content has lines, and a line has no place for several comparisons.
    Lines(fn(&Lines) -> Vec<u8>),
    /// For programs: everything that the content has, from its JSON.
    Json(fn(Vec<u8>) -> Vec<u8>),
}

/// What of a report its reader wants to see. Formats for programs have everything always.
#[derive(Debug, Clone, Copy, Default)]
pub struct View {
    /// Verdicts on every pair, not on each engine against its reference alone.
    pub pairs: bool,
    /// Where the wall time went.
    pub wall_time: bool,
    /// What each case needed beside time.
    pub resources: bool,
}

/// Launches that differ by more times than this say more about the machine than about the engine.
const WIDE_SPREAD: f64 = 2.0;

impl Format {
    /// `None` where this format needs lines and the content has none.
    pub fn render(&self, content: &dyn Content, reader: Option<usize>) -> Option<Vec<u8>> {
        match self.shape {
            Shape::Document(render) => Some(render(content, reader)),
            Shape::Lines(render) => content.lines().map(|lines| render(&lines)),
            Shape::Json(render) => Some(render(content.json())),
        }
    }

    pub fn is_for_people(&self) -> bool {
        matches!(self.shape, Shape::Document(_))
    }

    pub fn has_lines(&self) -> bool {
        matches!(self.shape, Shape::Lines(_))
    }
}

impl Default for &'static Format {
    fn default() -> Self {
        &FORMATS[0]
    }
}

/// The format of that name.
pub fn named(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}

/// Every text in it is one safe line: no control character, no escape sequence.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub record: String,
    pub started: String,
    pub orchestrate_version: String,
    pub commit: Option<String>,
    pub command: Vec<String>,
    pub machine: Machine,
    /// What asking costs by itself, where it was measured.
    pub overhead: Option<Overhead>,
    /// What the machine can do, as each probe of the run found it.
    pub limits: Vec<Limit>,
    pub mode: Mode,
    pub order: Order,
    /// How far each workload was measured, in the plan's order.
    pub extents: Vec<Extent>,
    /// For the whole run, where it was given one.
    pub budget_ns: Option<u64>,
    pub seed: u64,
    /// The label or engine that ratios are taken against.
    pub reference: String,
    /// To be said before anything else: the run did not end as planned.
    pub notices: Vec<String>,
    /// Grouped by case in the plan's order, engines within.
    pub rows: Vec<Row>,
    /// Configurations that could not be measured at all, or not to the end.
    pub failed: Vec<Failed>,
    pub verdicts: Verdicts,
    /// What was found of the output of each row's engine, once for each; none where nobody was asked.
    pub outputs: Vec<Output>,
    pub unasked: Option<Unasked>,
    pub warnings: Vec<String>,
    /// Of these: what engines state that is not what was seen.
    pub doubts: Vec<Doubt>,
    /// What a figure must be read with; each begins with the label that it is about, between backticks.
    pub notes: Vec<String>,
}

/// One case: an engine configuration in one scenario.
#[derive(Debug, Clone)]
pub struct Row {
    pub case: Case,
    pub engine: Engine,
    /// Launches and measured requests that it rests on.
    pub launches: usize,
    pub samples: usize,
    pub figures: Vec<Figure>,
    /// What its headline's share is of, or why it has none, where that is known.
    pub limit: Result<Option<Key>, Absent>,
    /// What it is compared with: its own label where it is the reference.
    pub reference: Option<String>,
    /// One for each launch that had a warm-up.
    pub warm_ups: Vec<WarmUp>,
    pub wall_time: Option<WallTime>,
    pub resources: Option<Resources>,
    pub fault: Option<Fault>,
    /// What its engine states gives reason to doubt that its figures are as good as they look: it is never ranked first.
    pub doubted: bool,
}

/// What was asked for.
#[derive(Debug, Clone)]
pub struct Case {
    pub label: String,
    pub scenario: String,
    pub headline: Option<&'static Metric>,
    /// Measured requests in each launch.
    pub rounds: u32,
    /// As asked for; `None` where the warm-up went on until it was steady.
    pub warmup: Option<u32>,
}

/// A configuration, and the facts that it stated to be in effect. What it did not state is absent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Engine {
    /// Unique in the plan: what progress, notes and hints call it.
    pub label: String,
    /// What a table calls it beside the columns of what varies: the engine and its preset.
    pub name: String,
    pub engine: String,
    pub model: String,
    pub version: Option<String>,
    pub device: Option<Device>,
    pub dtype: Option<Dtype>,
    pub threads: Option<u32>,
    pub asked: Asked,
}

/// As it is written: that of the weights; `bf16/f32` where the engine computes in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dtype {
    pub weights: String,
    /// Where it is another.
    pub compute: Option<String>,
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compute = self.compute.iter().map(|compute| format!("/{compute}"));
        write!(f, "{}{}", self.weights, compute.collect::<String>())
    }
}

/// What the plan asked a configuration for. What it left to the engine is absent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Asked {
    pub device: Option<Device>,
    pub dtype: Option<String>,
    pub threads: Option<u32>,
}

#[derive(Debug, Clone)]
pub struct Figure {
    pub metric: &'static Metric,
    pub summary: Summary,
}

#[derive(Debug, Clone)]
pub struct Failed {
    pub engine: Engine,
    pub fault: Fault,
}

/// Why something was not measured. JSON has it as it stands: add, never rename.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Fault {
    pub kind: FailureKind,
    pub when: String,
    pub message: String,
    /// A way out in each line; the first can be pasted.
    pub hint: Option<String>,
    pub stderr: Vec<String>,
    /// How often it happened: once in each launch, at most.
    pub times: usize,
}

impl Row {
    pub fn is_reference(&self) -> bool {
        self.reference.as_ref() == Some(&self.engine.label)
    }

    /// How many times as much one launch gave as another, by the headline, where that is more than noise.
    pub fn wide_spread(&self) -> Option<f64> {
        let figure = self.figure(self.case.headline?.id).filter(|_| self.fault.is_none())?;
        figure.summary.launch_spread().filter(|&spread| spread > WIDE_SPREAD)
    }

    pub fn figure(&self, metric: MetricId) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.metric.id == metric)
    }
}

impl Fault {
    /// In one line: `exited at sample 17: killed by signal 9 (3 times)`.
    pub fn line(&self) -> String {
        // That says it all: nothing broke.
        if self.kind == FailureKind::TooSlow {
            return self.message.clone();
        }
        let times = if self.times > 1 { format!(" ({} times)", self.times) } else { String::new() };
        let when = match (&self.kind, self.when.as_str()) {
            (FailureKind::Unavailable, _) | (_, "") => String::new(),
            // The message says that it cannot start.
            (FailureKind::Start, when) if Stage::is_start(when) => return format!("{}{times}", self.message),
            (_, when) => format!(" at {when}"),
        };
        format!("{}{when}: {}{times}", self.kind, self.message)
    }
}

/// As a reader of so many columns sees it.
#[cfg(test)]
pub fn shown(content: &dyn Content, format: &str, width: Option<usize>) -> String {
    String::from_utf8(named(format).unwrap().render(content, width).unwrap()).unwrap()
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod large;
#[cfg(test)]
mod shares;
#[cfg(test)]
mod sweeps;
#[cfg(test)]
mod tests;
