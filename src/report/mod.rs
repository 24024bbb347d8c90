//! A report: the results of a run record as tables, and FORMATS, the ways to render them. To add a format, add a file and
//! its line in `FORMATS`.
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

/// A way to render any content.
#[derive(Debug)]
pub struct Format {
    /// The value of `--format`, and the extension of a file in this format.
    pub name: &'static str,
    pub about: &'static str,
    pub shape: Shape,
}

/// The shape of content that a format renders. Commands decide by this, never by a format's name.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// For people. The second argument is the width of the terminal in columns, where it is known.
    Document(fn(&dyn Content, Option<usize>) -> Vec<u8>),
    /// For spreadsheets. Some content has no lines, and a line has no room for several comparisons.
    Lines(fn(&Lines) -> Vec<u8>),
    /// For programs: the complete content, from its JSON.
    Json(fn(Vec<u8>) -> Vec<u8>),
}

/// The optional parts of a report. Formats for programs always have all of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct View {
    /// Verdicts on every pair, in place of each engine against its reference.
    pub pairs: bool,
    /// The account of the wall time.
    pub wall_time: bool,
    /// The resources of each case: memory, cores, energy.
    pub resources: bool,
}

/// Launches that differ by more than this factor say more about the machine than about the engine.
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

pub fn named(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}

/// A report of one run. Every text in it is one safe line, without control characters and escape sequences.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub record: String,
    pub started: String,
    pub orchestrate_version: String,
    pub commit: Option<String>,
    pub command: Vec<String>,
    pub machine: Machine,
    /// The orchestrator's own cost, where it was measured.
    pub overhead: Option<Overhead>,
    /// The limits of the machine, with the value of each probe.
    pub limits: Vec<Limit>,
    pub mode: Mode,
    pub order: Order,
    /// How far each workload was measured, in the plan's order.
    pub extents: Vec<Extent>,
    /// The time budget of the whole run, where it has one.
    pub budget_ns: Option<u64>,
    pub seed: u64,
    /// The label or engine that ratios are taken against.
    pub reference: String,
    /// Shown before anything else: the run did not end as planned.
    pub notices: Vec<String>,
    /// Grouped by case in the plan's order, engines within.
    pub rows: Vec<Row>,
    /// Configurations that failed as a whole.
    pub failed: Vec<Failed>,
    pub verdicts: Verdicts,
    /// The output status of each row's engine, one for each; empty where no engine was checked.
    pub outputs: Vec<Output>,
    pub unasked: Option<Unasked>,
    pub warnings: Vec<String>,
    /// The warnings about claims of engines that differ from the observation.
    pub doubts: Vec<Doubt>,
    /// Notes about the results; each begins with its label between backticks.
    pub notes: Vec<String>,
}

/// One case: an engine configuration in one scenario.
#[derive(Debug, Clone)]
pub struct Row {
    pub case: Case,
    pub engine: Engine,
    /// Launches and measured requests of this case.
    pub launches: usize,
    pub samples: usize,
    pub figures: Vec<Figure>,
    /// The limit that the share of the headline refers to, or the reason why there is none.
    pub limit: Result<Option<Key>, Absent>,
    /// The label of its reference; its own label where it is the reference.
    pub reference: Option<String>,
    /// One for each launch that had a warm-up.
    pub warm_ups: Vec<WarmUp>,
    pub wall_time: Option<WallTime>,
    pub resources: Option<Resources>,
    pub fault: Option<Fault>,
    /// Whether a claim of its engine does not fit the observation, so that its results may flatter it. It is never ranked first.
    pub doubted: bool,
}

/// The planned case.
#[derive(Debug, Clone)]
pub struct Case {
    pub label: String,
    pub scenario: String,
    pub headline: Option<&'static Metric>,
    /// Measured requests in each launch.
    pub rounds: u32,
    /// The planned warm-up requests; `None` where the warm-up went on until it was steady.
    pub warmup: Option<u32>,
}

/// A configuration with the facts that it stated. A fact that it did not state is absent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Engine {
    /// Unique in the plan: the name in progress, notes and hints.
    pub label: String,
    /// The name in a table with columns of factors: the engine and its preset.
    pub name: String,
    pub engine: String,
    pub model: String,
    pub version: Option<String>,
    pub device: Option<Device>,
    pub dtype: Option<Dtype>,
    pub threads: Option<u32>,
    pub asked: Asked,
}

/// A dtype as text: that of the weights, or `bf16/f32` where the engine computes in another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dtype {
    pub weights: String,
    /// Present where it differs from the weights.
    pub compute: Option<String>,
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compute = self.compute.iter().map(|compute| format!("/{compute}"));
        write!(f, "{}{}", self.weights, compute.collect::<String>())
    }
}

/// The options that the plan requested. An option that was left to the engine is absent.
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

/// Why something was not measured. JSON has these names: add, never rename.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Fault {
    pub kind: FailureKind,
    pub when: String,
    pub message: String,
    /// A remedy in each line; the first can be pasted.
    pub hint: Option<String>,
    pub stderr: Vec<String>,
    /// How often it happened, at most once in each launch.
    pub times: usize,
}

impl Row {
    pub fn is_reference(&self) -> bool {
        self.reference.as_ref() == Some(&self.engine.label)
    }

    /// The ratio of the best launch to the worst, by the headline, where that is more than noise.
    pub fn wide_spread(&self) -> Option<f64> {
        let figure = self.figure(self.case.headline?.id).filter(|_| self.fault.is_none())?;
        figure.summary.launch_spread().filter(|&spread| spread > WIDE_SPREAD)
    }

    pub fn figure(&self, metric: MetricId) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.metric.id == metric)
    }
}

impl Fault {
    /// The failure in one line: `exited at sample 17: killed by signal 9 (3 times)`.
    pub fn line(&self) -> String {
        // The message is complete: nothing broke.
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

/// The text that a reader with this terminal width sees.
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
