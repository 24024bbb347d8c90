//! A report as columns and cells of text, for every format that people read. What does not vary over the rows is said once
//! in the caption, what is empty everywhere is left out.

use super::caption::{caption, falls_short, headlines, several_engines};
use super::factors::{FACTORS, varies};
use super::labels::Labels;
use super::safe::shorten;
use super::{Engine, Failed, Fault, Figure, Report, Row, WIDE_SPREAD};
use crate::metric::{METRICS, Metric, Scale, Shown, three_digits};

/// Below so many values the 99th percentile rests on one or two of them.
const ENOUGH_FOR_P99: usize = 100;
const EXPLANATIONS: &str = "what each figure means: orchestrate metrics";

pub struct Grid {
    pub caption: Vec<String>,
    pub columns: Vec<Column>,
    pub lines: Vec<Line>,
    /// What explains marks and columns, one line each.
    pub legend: Vec<String>,
    /// What failed, whole, with what to do about it.
    pub faults: Vec<Explained>,
    pub warnings: Vec<String>,
    pub notes: Vec<String>,
}

pub struct Column {
    pub title: String,
    /// Columns of one group stand together under its title.
    pub group: Option<&'static str>,
    pub unit: &'static str,
    pub place: Place,
    /// Words stand at the left, numbers at the right.
    pub text: bool,
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
}

pub struct Explained {
    pub names: Vec<String>,
    pub fault: Fault,
}

/// What a narrow terminal has no room for.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Where versions vary they are a column, else a line of the caption.
    pub versions: bool,
    /// A longer name is shortened, and stands whole under the table.
    pub label: usize,
    /// What the plan varied has columns of its own, else it is part of the engine's name.
    pub factors: bool,
    /// A longer case, version, device or dtype is shortened.
    pub word: usize,
}

impl Room {
    /// What a table calls an engine: different for different rows of a case, together with the factors' columns.
    pub fn name_of(self, engine: &Engine) -> String {
        if self.factors { engine.name.clone() } else { engine.label.clone() }
    }
}

impl Grid {
    pub fn of(report: &Report, room: Room) -> Self {
        let labels = Labels::of(report, room);
        let mut grid = Self {
            caption: caption(report, room),
            columns: Vec::new(),
            lines: lines(report),
            legend: Vec::new(),
            faults: explained(report, &labels),
            warnings: report.warnings.iter().map(|warning| labels.sentence(warning)).collect(),
            notes: report.notes.iter().map(|note| labels.sentence(note)).collect(),
        };
        grid.name_columns(report, &labels, room);
        grid.fact_columns(report, room);
        grid.figure_columns(report);
        let figures = grid.columns.iter().any(|column| column.place == Place::Figure);
        if !figures && grid.lines.iter().any(|line| line.fault.is_some()) {
            // Faults need a place to stand.
            grid.column(report, "outcome", Place::Figure, |_| String::new(), |_| String::new());
            grid.columns
                .iter_mut()
                .filter(|column| column.title == "outcome")
                .for_each(|column| column.text = true);
        }
        grid.finish(report, &labels);
        grid
    }

    fn name_columns(&mut self, report: &Report, labels: &Labels, room: Room) {
        if !report.rows.is_empty() {
            let case = |row: &Row| shorten(&row.case.label, room.word);
            self.column(report, "case", Place::Name, case, |_| "-".into());
        }
        if several_engines(report, room) {
            let of = |engine: &Engine| labels.short(&room.name_of(engine));
            self.column(report, "engine", Place::Name, |row| of(&row.engine), |failed| of(&failed.engine));
        }
        for factor in FACTORS.iter().filter(|factor| room.factors && factor.is_swept(report)) {
            let of_row = |row: &Row| match (factor.title, &row.fault) {
                ("model", _) => labels.short(&row.engine.model),
                (_, Some(_)) => factor.failed(&row.engine, room.word),
                (_, None) => factor.measured(&row.engine, room.word),
            };
            let of_failed = |failed: &Failed| match factor.title {
                "model" => labels.short(&failed.engine.model),
                _ => factor.failed(&failed.engine, room.word),
            };
            self.column(report, factor.title, Place::Name, of_row, of_failed);
        }
    }

    fn fact_columns(&mut self, report: &Report, room: Room) {
        for factor in FACTORS.iter().filter(|factor| room.versions || factor.title != "version") {
            let named = room.factors && factor.is_swept(report);
            if factor.differs(report) && !named {
                let stated = |row: &Row| (factor.stated)(&row.engine).unwrap_or_else(|| "?".into());
                let cell = |row: &Row| shorten(&stated(row), room.word);
                self.column(report, factor.title, Place::Fact, cell, |_| String::new());
            }
        }
        if falls_short(report) {
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
                Some(ratio) => {
                    format!("{}x{}", three_digits(ratio), if row.ratio_is_unsure { "?" } else { "" })
                }
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
        let text = place != Place::Figure && !matches!(title, "threads" | "n");
        self.columns.push(Column { title: title.into(), group: None, unit: "", place, text });
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
            if report.rows.iter().any(|row| row.ratio_is_unsure) {
                let of = "launches of the row or of its reference differ by more than";
                self.legend.push(format!("x?: {of} {WIDE_SPREAD} times"));
            }
        } else if varies(&report.rows, |row| row.engine.label.clone()) {
            let reference = &report.reference;
            let own = report
                .rows
                .iter()
                .any(|row| [&row.engine.label, &row.engine.name, &row.engine.engine].contains(&reference));
            self.legend.push(match (reference.is_empty(), own) {
                (true, _) => "no ratios: no reference is named (`--reference NAME`)".into(),
                (_, true) => format!("no ratios: nothing was measured beside the reference `{reference}`"),
                _ => format!("no ratios: the reference `{reference}` was not measured"),
            });
        }
        let names = self.columns.iter().enumerate().filter(|(_, column)| column.place == Place::Name);
        let unstated = |(index, column): (usize, &Column)| {
            let mut cells = self.lines.iter().map(|line| &line.cells[index]);
            FACTORS.iter().any(|factor| factor.title == column.title) && cells.any(|cell| cell.ends_with('?'))
        };
        if names.into_iter().any(unstated) {
            self.legend
                .push("a setting with ?: asked for, but the engine does not state what it runs with".into());
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

/// The lines without their cells.
fn lines(report: &Report) -> Vec<Line> {
    let of_row =
        |row: &Row| Line { cells: Vec::new(), fault: row.fault.as_ref().map(Fault::line), whole: false };
    let of_failed =
        |failed: &Failed| Line { cells: Vec::new(), fault: Some(failed.fault.line()), whole: true };
    report.rows.iter().map(of_row).chain(report.failed.iter().map(of_failed)).collect()
}

/// Faults that say the same stand once, with the names of all that they befell.
fn explained(report: &Report, labels: &Labels) -> Vec<Explained> {
    let of_rows = report.rows.iter().filter_map(|row| {
        let name = format!("{}, {}", labels.label(&row.engine.label), row.case.label);
        row.fault.as_ref().map(|fault| (name, fault))
    });
    let of_failed = report.failed.iter().map(|failed| (labels.label(&failed.engine.label), &failed.fault));
    let mut all: Vec<Explained> = Vec::new();
    for (name, fault) in of_rows.chain(of_failed) {
        match all.iter_mut().find(|other| other.fault == *fault) {
            Some(other) => other.names.push(name),
            None => all.push(Explained { names: vec![name], fault: fault.clone() }),
        }
    }
    all
}
