//! Two tables with a line for each case: its resources, and the parts of its wall time, whose printed values add up.

use std::collections::{BTreeMap, BTreeSet};

use super::document::{Column, Layout, Line, Section, Table};
use super::headings::{self, Heading};
use super::labels::{Labels, name_of};
use super::resources::{Fact, Quantity, RESOURCE_FACTS, Resources};
use super::rows::Row;
use super::run_report::Report;
use super::wall_time::{PARTS, TimePart, WallTime};
use crate::analysis::metric::{MemorySource, MetricId, Scale, Unit, by_id};
use crate::text::{shorten, three_digits};

/// The measured cases of a report, each with the values of its line.
struct Cases<'a, T> {
    report: &'a Report,
    rows: Vec<(&'a Row, &'a T)>,
}

impl<'a, T> Cases<'a, T> {
    /// `None` where no case has a line.
    fn of(report: &'a Report, shown: impl Fn(&'a Row) -> Option<&'a T>) -> Option<Self> {
        let measured = report.rows.iter().filter(|row| row.failure.is_none());
        let rows: Vec<(&Row, &T)> = measured.filter_map(|row| Some((row, shown(row)?))).collect();
        (!rows.is_empty()).then_some(Self { report, rows })
    }

    /// The table: the case, the name of the engine, then the cells of `cells`.
    fn table(&self, layout: Layout, values: Vec<Column>, cells: impl Fn(&T) -> Vec<String>) -> Table {
        // The table has no columns for the options that vary, so they are part of the engine's name.
        let layout = Layout { columns_of_varying_options: false, ..layout };
        let labels = Labels::of(self.report, layout);
        let line = |(row, shown): &(&Row, &T)| {
            let engine = labels.short(&name_of(&row.engine, layout));
            let names = [shorten(&row.case.label, layout.max_word), engine];
            Line::of(names.into_iter().chain(cells(shown)).collect())
        };
        Table {
            columns: [Column::named(headings::CASE), Column::named(headings::ENGINE)]
                .into_iter()
                .chain(values)
                .collect(),
            lines: self.rows.iter().map(line).collect(),
            gap: layout.gap,
            ..Table::default()
        }
    }
}

pub struct ResourceTable<'a> {
    cases: Cases<'a, Resources>,
    bytes: Scale,
    joules: Scale,
    /// The columns: facts that some row has.
    known: Vec<TitledFact>,
    /// The facts that no row has: the legend lists them.
    unknown: Vec<TitledFact>,
}

type TitledFact = (Heading, &'static Fact);

impl<'a> ResourceTable<'a> {
    pub fn of(report: &'a Report) -> Option<Self> {
        let cases = Cases::of(report, |row| row.resources.as_ref())?;
        let values = |fact: &'static Fact| cases.rows.iter().filter_map(move |(_, it)| (fact.value_of)(it));
        let scale_of = |has: fn(Quantity) -> bool, unit: Unit| {
            Scale::of(unit, RESOURCE_FACTS.iter().filter(|fact| has(fact.quantity)).flat_map(values))
        };
        let bytes = scale_of(Quantity::is_bytes, Unit::Bytes);
        let joules = scale_of(Quantity::is_joules, Unit::Joules);
        let titled = RESOURCE_FACTS.iter().filter_map(|fact| Some((fact.heading()?, fact)));
        let (known, unknown) = titled.partition(|&(_, fact): &TitledFact| values(fact).next().is_some());
        Some(Self { cases, bytes, joules, known, unknown })
    }

    pub fn table(&self, layout: Layout) -> Table {
        let columns =
            self.known.iter().map(|(heading, fact)| Column::value(*heading, self.scale(fact).symbol));
        let cell = |resources: &Resources, fact: &Fact| match ((fact.value_of)(resources), fact.quantity) {
            (None, _) => "n/a".into(),
            (Some(value), Quantity::Plain(_) | Quantity::Gpu(_)) => three_digits(value),
            (Some(value), _) => self.scale(fact).write(value),
        };
        let cells =
            |resources: &Resources| self.known.iter().map(|(_, fact)| cell(resources, fact)).collect();
        self.cases.table(layout, columns.collect(), cells)
    }

    pub fn sections(&self, layout: Layout) -> [Section; 2] {
        let mut notes = resource_legend(&self.unknown);
        notes.extend(gpu_notes(&self.cases.rows));
        let table = Table { notes, ..self.table(layout) };
        [Section::Heading("resources of each case:".into()), Section::Table(table)]
    }

    fn scale(&self, fact: &Fact) -> Scale {
        match fact.quantity {
            Quantity::Bytes | Quantity::GpuBytes => self.bytes,
            Quantity::Joules | Quantity::GpuJoules => self.joules,
            Quantity::Plain(symbol) | Quantity::Gpu(symbol) => Scale { divisor: 1.0, symbol },
        }
    }
}

fn resource_legend(unknown: &[TitledFact]) -> Vec<String> {
    let explanation = "memory: that of the process tree, each page once; only the peak includes loading; energy: above idle";
    let mut legend = vec![explanation.to_string()];
    // Without a GPU, one entry stands for all GPU values.
    let of_gpus = |fact: &Fact| fact.quantity.is_of_gpus();
    let no_gpu = RESOURCE_FACTS.iter().filter(|fact| fact.title.is_some() && of_gpus(fact)).count()
        == unknown.iter().filter(|(_, fact)| of_gpus(fact)).count();
    let titles =
        unknown.iter().filter(|(_, fact)| !(no_gpu && of_gpus(fact))).map(|(heading, _)| heading.title);
    let titles: Vec<&str> = titles.chain(no_gpu.then_some("all GPU values")).collect();
    if !titles.is_empty() {
        legend.push(format!("n/a in every row: {}", titles.join(", ")));
    }
    if unknown.iter().any(|(_, fact)| fact.quantity == Quantity::Joules) {
        let why =
            "no energy: a counter cannot be read, or shows nothing above idle; hint: orchestrate machine";
        legend.push(why.into());
    }
    legend
}

/// Notes about GPUs: the source of device memory, and the reasons of a slow-down. Each note names its engines.
fn gpu_notes(rows: &[(&Row, &Resources)]) -> Vec<String> {
    let mut notes: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (row, resources) in rows {
        let source = resources.device_bytes_from.map(|known| match known {
            MemorySource::Processes => "device memory, as the driver counts it for these processes".to_string(),
            MemorySource::Growth => {
                "device memory, as growth of the whole device since the launch, because the driver names no process"
                    .into()
            }
            MemorySource::Reported => "device memory, as the engine reports it, because the driver has no larger value".into(),
        });
        let by = resources.gpu_slowed_by.join(", ");
        let slowed = (!by.is_empty()).then(|| format!("GPU slowed down ({by})"));
        for note in source.into_iter().chain(slowed) {
            notes.entry(note).or_default().insert(&row.engine.label);
        }
    }
    let written = |(note, engines): (String, BTreeSet<&str>)| {
        format!("{note}: {}", engines.into_iter().collect::<Vec<_>>().join(", "))
    };
    notes.into_iter().map(written).collect()
}

/// The reason why the total of a launch can be smaller than its cold start.
const BETWEEN: &str =
    "the time from the end of the load to the request is in no part; the cold start includes it";

pub struct WallTimeTable<'a> {
    cases: Cases<'a, WallTime>,
    scale: Scale,
    /// The parts that some row has.
    parts: Vec<TimePart>,
}

impl<'a> WallTimeTable<'a> {
    pub fn of(report: &'a Report) -> Option<Self> {
        let cases = Cases::of(report, |row| row.wall_time.as_ref())?;
        let totals = cases.rows.iter().map(|(_, wall_time)| wall_time.total_ns as f64);
        let scale = Scale::of(Unit::Nanoseconds, totals);
        let has = |part: &TimePart| cases.rows.iter().any(|(_, it)| it.part(*part).is_some());
        let parts = PARTS.into_iter().filter(has).collect();
        Some(Self { cases, scale, parts })
    }

    pub fn table(&self, layout: Layout) -> Table {
        let total = Heading::from(by_id(MetricId::TOTAL));
        let headings = self.parts.iter().map(|part| part.heading()).chain([headings::REMAINDER, total]);
        let columns = headings.map(|heading| Column::value(heading, self.scale.symbol)).collect();
        self.cases.table(layout, columns, |wall_time| time_cells(wall_time, &self.parts, self.scale))
    }

    pub fn sections(&self, layout: Layout) -> [Section; 2] {
        let labels = Labels::of(self.cases.report, Layout { columns_of_varying_options: false, ..layout });
        let Heading { title, about } = headings::REMAINDER;
        let rest = format!("{title}: {}", about.trim_end_matches('.'));
        let mut notes = vec![
            rest,
            BETWEEN.into(),
            "the first request of a launch takes longer: see the metric `first_run`".into(),
        ];
        let lacks_part = |wall_time: &WallTime| self.parts.iter().any(|part| wall_time.part(*part).is_none());
        let lacks_some = self.cases.rows.iter().any(|(_, wall_time)| lacks_part(wall_time));
        notes.extend(lacks_some.then(|| "n/a: the engine reports no time of this part".into()));
        let shortened = self.cases.rows.iter().filter(|(_, wall_time)| wall_time.shortened > 0);
        notes.extend(shortened.map(|(row, wall_time)| {
            let WallTime { shortened, launches, requests, .. } = wall_time;
            format!(
                "`{}` `{}`: its reported times exceed the elapsed time in {shortened} of {} launches and requests: \
                 they were scaled down to the elapsed time",
                labels.label(&row.engine.label),
                row.case.label,
                launches + requests
            )
        }));
        let heading = "wall time from the start of the engine to the end of one request, means over launches and measured \
            requests:";
        [Section::Heading(heading.into()), Section::Table(Table { notes, ..self.table(layout) })]
    }
}

/// The cells: each part, then the remainder and the total.
fn time_cells(wall_time: &WallTime, parts: &[TimePart], scale: Scale) -> Vec<String> {
    let known_ns: Vec<Option<u64>> = parts.iter().map(|part| wall_time.part(*part)).collect();
    let mut all: Vec<u64> = known_ns.iter().map(|ns| ns.unwrap_or(0)).collect();
    all.push(wall_time.unattributed_ns);
    // Values are rounded to steps, which leave four digits of the total. A step is at least a nanosecond.
    let exponent = wall_time.total_ns.max(1).ilog10();
    let step = 10u64.pow(exponent.saturating_sub(3));
    let mut steps = apportion(&all, step);
    steps.push(steps.iter().sum());
    let decimals = (scale.divisor / step as f64).log10().max(0.0).round() as usize;
    let write = |steps: u64| format!("{:.*}", decimals, (steps * step) as f64 / scale.divisor);
    let known = known_ns.iter().map(Option::is_some).chain([true, true]);
    let cells = steps.into_iter().zip(known);
    cells.map(|(steps, known)| if known { write(steps) } else { "n/a".into() }).collect()
}

/// Each value as a number of steps, rounded by largest remainder, so that the numbers add up to the rounded sum of the values.
fn apportion(ns: &[u64], step: u64) -> Vec<u64> {
    let mut steps: Vec<u64> = ns.iter().map(|ns| ns / step).collect();
    let total = (ns.iter().sum::<u64>() + step / 2) / step;
    let missing = total.saturating_sub(steps.iter().sum());
    let mut order: Vec<usize> = (0..ns.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(ns[index] % step));
    for index in order.into_iter().take(missing as usize) {
        steps[index] += 1;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_parts_add_up_to_the_total() {
        assert_eq!(apportion(&[14, 14, 14], 10), [2, 1, 1]);
        assert_eq!(apportion(&[15, 15], 10), [2, 1]);
        assert_eq!(apportion(&[0, 7, 0], 10), [0, 1, 0]);
        assert_eq!(apportion(&[0, 4, 0], 10), [0, 0, 0]);
        assert_eq!(apportion(&[123, 456], 1), [123, 456]);
    }
}
