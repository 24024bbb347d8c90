//! The resources of cases as columns and cells.

use std::collections::{BTreeMap, BTreeSet};

use super::case_table;
use super::document::{Column, Layout, Section, Table};
use super::resources::Resources;
use super::resources::facts::{Counts, FACTS, Fact};
use super::rows::Row;
use super::run_report::Report;
use crate::analysis::metric::{Known, Scale, Unit};
use crate::text::three_digits;

/// The measured cases of a report, with the resources of each.
pub struct ResourceTable<'a> {
    report: &'a Report,
    rows: Vec<(&'a Row, &'a Resources)>,
    bytes: Scale,
    joules: Scale,
    /// The columns: values that some row has.
    known: Vec<Titled>,
    /// The values that no row has: the legend lists them.
    unknown: Vec<Titled>,
}

type Titled = (&'static str, &'static Fact);

impl<'a> ResourceTable<'a> {
    /// `None` where nothing was measured.
    pub fn of(report: &'a Report) -> Option<Self> {
        let measured = report.rows.iter().filter(|row| row.fault.is_none());
        let rows: Vec<(&Row, &Resources)> =
            measured.filter_map(|row| Some((row, row.resources.as_ref()?))).collect();
        let scale_of = |of: fn(Counts) -> bool, unit: Unit| {
            let facts = || FACTS.iter().filter(move |fact| of(fact.counts));
            Scale::of(unit, rows.iter().flat_map(|(_, it)| facts().filter_map(|fact| (fact.of)(it))))
        };
        let (bytes, joules) =
            (scale_of(Counts::is_bytes, Unit::Bytes), scale_of(Counts::is_joules, Unit::Joules));
        let is_known = |(_, fact): &Titled| rows.iter().any(|(_, it)| (fact.of)(it).is_some());
        let titled = FACTS.iter().filter_map(|fact| Some((fact.title?, fact)));
        let (known, unknown) = titled.partition(is_known);
        (!rows.is_empty()).then_some(Self { report, rows, bytes, joules, known, unknown })
    }

    pub fn table(&self, layout: Layout) -> Table {
        let columns = self.known.iter().map(|(title, fact)| Column::figure(title, self.scale(fact).symbol));
        let cell = |resources: &Resources, fact: &Fact| match (fact.of)(resources) {
            Some(value) => written(value, fact.counts, self.scale(fact)),
            None => "n/a".into(),
        };
        let cells =
            |resources: &Resources| self.known.iter().map(|(_, fact)| cell(resources, fact)).collect();
        case_table::table(self.report, layout, &self.rows, columns.collect(), cells)
    }

    pub fn parts(&self, layout: Layout) -> [Section; 2] {
        let mut notes = legend(&self.unknown);
        notes.extend(of_gpus(&self.rows));
        let table = Table { notes, ..self.table(layout) };
        [Section::Heading("resources of each case:".into()), Section::Table(table)]
    }

    fn scale(&self, fact: &Fact) -> Scale {
        match fact.counts {
            Counts::Bytes | Counts::GpuBytes => self.bytes,
            Counts::Joules | Counts::GpuJoules => self.joules,
            Counts::Plain(symbol) | Counts::Gpu(symbol) => Scale { divisor: 1.0, symbol },
        }
    }
}

fn written(value: f64, counts: Counts, scale: Scale) -> String {
    match counts {
        Counts::Plain(_) | Counts::Gpu(_) => three_digits(value),
        Counts::Bytes | Counts::GpuBytes | Counts::Joules | Counts::GpuJoules => scale.write(value),
    }
}

fn legend(unknown: &[Titled]) -> Vec<String> {
    let counted = "memory: the process tree, each page once, the peak also during load, its parts during requests only; \
        energy: above idle";
    let mut legend = vec![counted.to_string()];
    // Without a GPU one entry stands for all its values.
    let of_gpus = || unknown.iter().filter(|(_, fact)| fact.counts.is_of_gpus());
    let no_gpu =
        of_gpus().count() == FACTS.iter().filter(|it| it.title.is_some() && it.counts.is_of_gpus()).count();
    let titles = unknown.iter().filter(|(_, fact)| !(no_gpu && fact.counts.is_of_gpus()));
    let mut titles: Vec<&str> = titles.map(|(title, _)| *title).collect();
    if no_gpu {
        titles.push("all GPU values");
    }
    if !titles.is_empty() {
        legend.push(format!("n/a in every row: {}", titles.join(", ")));
    }
    if unknown.iter().any(|(_, fact)| fact.counts == Counts::Joules) {
        let why =
            "energy: a counter cannot be read, or shows no energy above idle; hint: orchestrate machine";
        legend.push(why.into());
    }
    legend
}

/// Notes about GPUs: the source of device memory, and the reasons of a slow-down. Each note names its engines.
fn of_gpus(rows: &[(&Row, &Resources)]) -> Vec<String> {
    let mut said: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (row, resources) in rows {
        let whose = resources.device_bytes_from.map(|known| match known {
            Known::Processes => "device memory, as the driver counts it for these processes".to_string(),
            Known::Growth => {
                "device memory, as growth of the whole device since the launch, because the driver names no process"
                    .into()
            }
            Known::Stated => "device memory, as the engine states it: the driver has no larger value".into(),
        });
        let by = resources.gpu_slowed_by.join(", ");
        let slowed = (!by.is_empty()).then(|| format!("GPU slowed down ({by})"));
        for what in whose.into_iter().chain(slowed) {
            said.entry(what).or_default().insert(&row.engine.label);
        }
    }
    let written = |(what, engines): (String, BTreeSet<&str>)| {
        format!("{what}: {}", engines.into_iter().collect::<Vec<_>>().join(", "))
    };
    said.into_iter().map(written).collect()
}
