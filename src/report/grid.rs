//! A report as columns and cells of text, for every format that people read. What does not vary over the rows is said once
//! in the caption, what is empty everywhere is left out.

use std::collections::BTreeMap;

use super::safe::{shorten_start, width};
use super::{Engine, Failed, Fault, Figure, Report, Row};
use crate::machine::Machine;
use crate::metric::{METRICS, Metric, Scale, Shown, three_digits};
use crate::plan::Mode;

/// Below so many values the 99th percentile rests on one or two of them.
const ENOUGH_FOR_P99: usize = 100;
/// A longer name is shortened, and stands whole under the table.
const LONGEST_LABEL: usize = 28;
const EXPLANATIONS: &str = "what each figure means: orchestrate metrics";

pub struct Grid {
    pub caption: Vec<String>,
    pub columns: Vec<Column>,
    pub lines: Vec<Line>,
    /// What explains marks and columns, one line each.
    pub legend: Vec<String>,
    /// What failed, whole, with what to do about it.
    pub faults: Vec<Explained>,
}

pub struct Column {
    pub title: String,
    /// Columns of one group stand together under its title.
    pub group: Option<&'static str>,
    pub unit: &'static str,
    pub place: Place,
}

/// What a column is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Says which row it is: repeated where a wide table is broken up.
    Name,
    /// Says what is in effect in the row.
    Fact,
    Figure,
}

pub struct Line {
    /// One for each column; those of figures are empty where `fault` stands in their place.
    pub cells: Vec<String>,
    pub fault: Option<String>,
    /// A configuration that failed as a whole: its fault covers everything right of the name.
    pub whole: bool,
    /// Another case than the line before.
    pub starts_group: bool,
}

pub struct Explained {
    pub names: Vec<String>,
    pub fault: Fault,
}

impl Grid {
    /// `versions` are a column where they vary, unless there is no room for one.
    pub fn of(report: &Report, versions: bool) -> Self {
        let labels = Labels::of(report);
        let mut grid = Self {
            caption: caption(report, versions),
            columns: Vec::new(),
            lines: lines(report),
            legend: Vec::new(),
            faults: explained(report, &labels),
        };
        grid.name_columns(report, &labels, versions);
        grid.figure_columns(report);
        grid.finish(report, &labels);
        grid
    }

    fn name_columns(&mut self, report: &Report, labels: &Labels, versions: bool) {
        let rows = &report.rows;
        if !rows.is_empty() {
            self.column(report, "case", Place::Name, |row| row.case.label.clone(), |_| "-".into());
        }
        if several_engines(report) {
            let of = |engine: &Engine| labels.short(&engine.label);
            self.column(report, "engine", Place::Name, |row| of(&row.engine), |failed| of(&failed.engine));
        }
        for (title, of) in facts().into_iter().filter(|(title, _)| versions || *title != "version") {
            if varies(rows, |row| of(&row.engine)) && !in_every_label(rows, title, of) {
                self.column(report, title, Place::Fact, |row| or_unknown(of(&row.engine)), |_| String::new());
            }
        }
        let planned = |row: &Row| row.samples == report.launches as usize * row.case.samples as usize;
        if rows.iter().any(|row| row.fault.is_none() && !planned(row)) && report.mode == Mode::Warm {
            self.column(report, "n", Place::Fact, |row| row.samples.to_string(), |_| String::new());
        }
    }

    fn figure_columns(&mut self, report: &Report) {
        for metric in METRICS {
            let shown = |row: &Row| match metric.shown {
                Shown::AsHeadline => row.case.headline.is_some_and(|headline| headline.name == metric.name),
                Shown::Estimate | Shown::Percentiles => true,
            };
            let figure = |row: &Row| row.figure(metric.name).filter(|_| row.fault.is_none()).cloned();
            if !report.rows.iter().any(|row| shown(row) && figure(row).is_some()) {
                continue;
            }
            if metric.shown == Shown::Percentiles {
                self.percentile_columns(report, metric);
                continue;
            }
            let figures = report.rows.iter().filter_map(figure);
            let scale = Scale::of(metric.unit, figures.map(|figure| figure.summary.estimate));
            self.figure_column(report, metric, metric.title, None, scale, |figure| {
                scale.write(figure.summary.estimate)
            });
        }
        // Where only the reference itself was measured there is nothing to compare.
        if report.rows.iter().any(|row| row.ratio.is_some_and(|ratio| ratio != 1.0)) {
            let write = |row: &Row| match row.ratio {
                Some(ratio) => format!("{}x", three_digits(ratio)),
                None if row.fault.is_some() => String::new(),
                None => "n/a".into(),
            };
            self.column(report, "x ref", Place::Figure, write, |_| String::new());
        }
    }

    fn percentile_columns(&mut self, report: &Report, metric: &'static Metric) {
        let figures = report.rows.iter().filter_map(|row| row.figure(metric.name));
        let ends = figures.flat_map(|figure| [figure.summary.p50, figure.summary.p99]);
        let scale = Scale::of(metric.unit, ends);
        let group = Some(metric.title);
        self.figure_column(report, metric, "p50", group, scale, |figure| scale.write(figure.summary.p50));
        self.figure_column(report, metric, "p95", group, scale, |figure| scale.write(figure.summary.p95));
        self.figure_column(report, metric, "p99", group, scale, |figure| {
            let mark = if figure.summary.n < ENOUGH_FOR_P99 { "~" } else { "" };
            format!("{mark}{}", scale.write(figure.summary.p99))
        });
    }

    fn figure_column(
        &mut self,
        report: &Report,
        metric: &Metric,
        title: &str,
        group: Option<&'static str>,
        scale: Scale,
        write: impl Fn(&Figure) -> String,
    ) {
        // In a case that is not about this metric the cell stays empty; where others have it, it is `n/a`.
        let with_it: Vec<&str> = report
            .rows
            .iter()
            .filter(|row| row.figure(metric.name).is_some())
            .map(|row| row.case.label.as_str())
            .collect();
        let cell = |row: &Row| match row.figure(metric.name) {
            _ if row.fault.is_some() => String::new(),
            Some(figure) => write(figure),
            None if with_it.contains(&row.case.label.as_str()) => "n/a".into(),
            None => String::new(),
        };
        self.column(report, title, Place::Figure, cell, |_| String::new());
        if let Some(column) = self.columns.last_mut() {
            (column.group, column.unit) = (group, scale.symbol);
        }
    }

    fn column(
        &mut self,
        report: &Report,
        title: &str,
        place: Place,
        of_row: impl Fn(&Row) -> String,
        of_failed: impl Fn(&Failed) -> String,
    ) {
        self.columns.push(Column { title: title.into(), group: None, unit: "", place });
        let cells = report.rows.iter().map(of_row).chain(report.failed.iter().map(of_failed));
        for (line, cell) in self.lines.iter_mut().zip(cells) {
            line.cells.push(cell);
        }
    }

    fn finish(&mut self, report: &Report, labels: &Labels) {
        let has =
            |mark: &str| self.lines.iter().any(|line| line.cells.iter().any(|cell| cell.starts_with(mark)));
        if has("~") {
            self.legend.push(format!("~ an estimate: fewer than {ENOUGH_FOR_P99} values"));
        }
        if self.columns.iter().any(|column| column.title == "x ref") {
            self.legend.push(format!(
                "x ref: how many times as good as `{}`, by {}",
                report.reference,
                headlines(report)
            ));
        } else if report.rows.iter().any(|row| row.fault.is_none() && row.ratio.is_none()) {
            let reference = &report.reference;
            self.legend.push(match reference.is_empty() {
                true => "no ratios: no reference is named".into(),
                false => format!("no ratios: the reference `{reference}` was not measured"),
            });
        }
        let dtypes = || report.rows.iter().filter_map(|row| row.engine.dtype.as_ref());
        if dtypes().any(|dtype| dtype.contains('/')) {
            self.legend.push("dtype a/b: weights in a, computed in b".into());
        }
        for (whole, short) in &labels.0 {
            self.legend.push(format!("{short} is {whole}"));
        }
        self.legend.push(EXPLANATIONS.into());
    }
}

/// What may vary between engines, and how a row says it.
type Fact = (&'static str, fn(&Engine) -> Option<String>);

fn facts() -> [Fact; 4] {
    [
        ("version", |engine| engine.version.clone()),
        ("device", |engine| engine.device.clone()),
        ("dtype", |engine| engine.dtype.clone()),
        ("threads", |engine| engine.threads.map(|threads| threads.to_string())),
    ]
}

fn or_unknown(fact: Option<String>) -> String {
    fact.unwrap_or_else(|| "?".into())
}

fn varies<T: PartialEq>(rows: &[Row], of: impl Fn(&Row) -> T) -> bool {
    rows.iter().skip(1).any(|row| of(row) != of(&rows[0]))
}

/// A factor that the plan varied is part of the label already; where the engine did what was asked, that is enough.
fn in_every_label(rows: &[Row], title: &str, of: fn(&Engine) -> Option<String>) -> bool {
    rows.iter().all(|row| {
        let Some(value) = of(&row.engine) else { return false };
        let words: Vec<&str> = row.engine.label.split(' ').collect();
        match title {
            "threads" => words.windows(2).any(|pair| pair[0] == value && pair[1].starts_with("thread")),
            _ => words.iter().skip(1).any(|word| *word == value),
        }
    })
}

fn several_engines(report: &Report) -> bool {
    varies(&report.rows, |row| row.engine.label.clone()) || !report.failed.is_empty()
}

/// First what ran, then how often, then where.
fn caption(report: &Report, versions: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(first) = report.rows.first() {
        let rows = &report.rows;
        let mut parts: Vec<String> = Vec::new();
        if !several_engines(report) {
            let version = first.engine.version.iter().map(|version| format!(" {version}"));
            parts.push(format!("{}{}", first.engine.label, version.collect::<String>()));
        }
        if !varies(rows, |row| row.engine.model.clone()) {
            parts.push(format!("model {}", first.engine.model));
        }
        for (title, of) in facts() {
            let (Some(value), false) = (of(&first.engine), varies(rows, |row| of(&row.engine))) else {
                continue;
            };
            match title {
                "version" if !several_engines(report) => {}
                "version" => parts.push(format!("version {value}")),
                "threads" => parts.push(counted(value.parse().unwrap_or(0), "thread")),
                _ => parts.push(value),
            }
        }
        lines.push(parts.join(", "));
        if !versions && varies(rows, |row| row.engine.version.clone()) {
            let all: BTreeMap<&str, &str> = rows
                .iter()
                .filter_map(|row| Some((row.engine.engine.as_str(), row.engine.version.as_deref()?)))
                .collect();
            let all = all.iter().map(|(engine, version)| format!("{engine} {version}"));
            lines.push(format!("versions: {}", all.collect::<Vec<_>>().join(", ")));
        }
        lines.push(how_often(report));
    }
    lines.push(format!(
        "{}orchestrate {}, record {}",
        machine(&report.machine),
        report.orchestrate_version,
        report.record
    ));
    lines
}

fn how_often(report: &Report) -> String {
    let samples = by_scenario(report, |row| row.case.samples.to_string());
    let warmups: Vec<u32> = report.rows.iter().map(|row| row.case.warmup).collect();
    let warmup = match warmups.iter().max() {
        Some(0) | None => String::new(),
        Some(1) => ", after 1 warm-up".into(),
        Some(most) => format!(", after {most} warm-ups"),
    };
    match report.mode {
        Mode::Warm => {
            format!("{}, samples in each: {samples}{warmup}", counted(u64::from(report.launches), "launch"))
        }
        Mode::OneShot => format!("one-shot: one process for each request; rounds: {}", report.launches),
    }
}

/// What headlines the ratios are taken by.
fn headlines(report: &Report) -> String {
    by_scenario(report, |row| row.case.headline.map_or("n/a", |metric| metric.title).to_string())
}

/// `10 (ttft, decode), 1 (load)`: a value that all rows share stands alone.
fn by_scenario(report: &Report, of: impl Fn(&Row) -> String) -> String {
    let mut values: Vec<(String, Vec<&str>)> = Vec::new();
    for row in &report.rows {
        let value = of(row);
        let scenario = row.case.scenario.as_str();
        match values.iter_mut().find(|(other, _)| *other == value) {
            Some((_, scenarios)) if scenarios.contains(&scenario) => {}
            Some((_, scenarios)) => scenarios.push(scenario),
            None => values.push((value, vec![scenario])),
        }
    }
    if let [(value, _)] = values.as_slice() {
        return value.clone();
    }
    let written = values.iter().map(|(value, scenarios)| format!("{value} ({})", scenarios.join(", ")));
    written.collect::<Vec<_>>().join(", ")
}

fn machine(machine: &Machine) -> String {
    let cores = machine.cpu.allowed_cores.or(machine.cpu.logical_cores);
    let parts = machine.cpu.model.iter().cloned().chain(cores.map(|cores| counted(u64::from(cores), "core")));
    let text = parts.collect::<Vec<_>>().join(", ");
    if text.is_empty() { text } else { format!("{text}; ") }
}

fn counted(count: u64, what: &str) -> String {
    match (count, what) {
        (1, _) => format!("1 {what}"),
        (_, "launch") => format!("{count} launches"),
        _ => format!("{count} {what}s"),
    }
}

/// The lines without their cells.
fn lines(report: &Report) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut case = "";
    for row in &report.rows {
        let fault = row.fault.as_ref().map(Fault::line);
        lines.push(Line { cells: Vec::new(), fault, whole: false, starts_group: row.case.label != case });
        case = &row.case.label;
    }
    for (index, failed) in report.failed.iter().enumerate() {
        let fault = Some(failed.fault.line());
        lines.push(Line { cells: Vec::new(), fault, whole: true, starts_group: index == 0 });
    }
    lines
}

/// Faults that say the same stand once, with the names of all that they befell.
fn explained(report: &Report, labels: &Labels) -> Vec<Explained> {
    let of_rows = report.rows.iter().filter_map(|row| {
        let name = format!("{}, {}", labels.short(&row.engine.label), row.case.label);
        row.fault.as_ref().map(|fault| (name, fault))
    });
    let of_failed = report.failed.iter().map(|failed| (labels.short(&failed.engine.label), &failed.fault));
    let mut all: Vec<Explained> = Vec::new();
    for (name, fault) in of_rows.chain(of_failed) {
        match all.iter_mut().find(|other| other.fault == *fault) {
            Some(other) => other.names.push(name),
            None => all.push(Explained { names: vec![name], fault: fault.clone() }),
        }
    }
    all
}

/// Long labels and what stands for them: different for different labels.
struct Labels(Vec<(String, String)>);

impl Labels {
    fn of(report: &Report) -> Self {
        let rows = report.rows.iter().map(|row| &row.engine.label);
        let all = rows.chain(report.failed.iter().map(|failed| &failed.engine.label));
        let mut labels: Vec<(String, String)> = Vec::new();
        for label in all.filter(|label| width(label) > LONGEST_LABEL) {
            if labels.iter().any(|(whole, _)| whole == label) {
                continue;
            }
            let mut short = shorten_start(label, LONGEST_LABEL);
            let mut number = 2;
            while labels.iter().any(|(_, other)| *other == short) {
                short = format!("{} #{number}", shorten_start(label, LONGEST_LABEL - 4));
                number += 1;
            }
            labels.push((label.clone(), short));
        }
        Self(labels)
    }

    fn short(&self, label: &str) -> String {
        let found = self.0.iter().find(|(whole, _)| whole == label);
        found.map_or_else(|| label.to_string(), |(_, short)| short.clone())
    }
}
