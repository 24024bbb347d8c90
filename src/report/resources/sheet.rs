//! What was needed as columns and cells.

use std::collections::{BTreeMap, BTreeSet};

use super::Resources;
use super::facts::{Counts, FACTS, Fact};
use crate::analysis::metric::{Known, Scale, Unit};
use crate::report::grid::{Cells, Column, Line, Place, Room};
use crate::report::labels::Labels;
use crate::report::{Report, Row};
use crate::text::shorten;
use crate::text::three_digits;

pub struct Sheet {
    pub heading: Vec<String>,
    pub cells: Cells,
    pub legend: Vec<String>,
}

impl Sheet {
    pub fn of(report: &Report, room: Room) -> Self {
        // Labels tell rows apart that differ in a factor alone.
        let room = Room { factors: false, ..room };
        let labels = Labels::of(report, room);
        let rows: Vec<(&Row, &Resources)> = report
            .rows
            .iter()
            .filter(|row| row.fault.is_none())
            .filter_map(|row| Some((row, row.resources.as_ref()?)))
            .collect();
        if rows.is_empty() {
            return Self { heading: Vec::new(), cells: Cells::default(), legend: Vec::new() };
        }
        let scale_of = |of: fn(Counts) -> bool, unit: Unit| {
            let facts = || FACTS.iter().filter(move |fact| of(fact.counts));
            Scale::of(unit, rows.iter().flat_map(|(_, it)| facts().filter_map(|fact| (fact.of)(it))))
        };
        let bytes = scale_of(Counts::is_bytes, Unit::Bytes);
        let joules = scale_of(Counts::is_joules, Unit::Joules);
        let scale = |counts: Counts| match counts {
            Counts::Bytes | Counts::GpuBytes => bytes,
            Counts::Joules | Counts::GpuJoules => joules,
            Counts::Plain(symbol) | Counts::Gpu(symbol) => Scale { divisor: 1.0, symbol },
        };
        // What nobody knows in any row is said once.
        let known = |fact: &&(&str, &Fact)| rows.iter().any(|(_, it)| (fact.1.of)(it).is_some());
        let titled: Vec<(&str, &Fact)> = FACTS.iter().filter_map(|fact| Some((fact.title?, fact))).collect();
        let (facts, unknown): (Vec<&(&str, &Fact)>, Vec<_>) = titled.iter().partition(known);
        let mut columns = vec![named("case"), named("engine")];
        columns.extend(facts.iter().map(|(title, fact)| figure(title, scale(fact.counts))));
        let lines = rows.iter().map(|(row, resources)| {
            let engine = labels.short(&room.name_of(&row.engine));
            let mut cells = vec![shorten(&row.case.label, room.word), engine];
            cells.extend(facts.iter().map(|(_, fact)| match (fact.of)(resources) {
                Some(value) => written(value, fact.counts, scale(fact.counts)),
                None => "n/a".into(),
            }));
            Line { cells, fault: None, whole: false }
        });
        let lines = lines.collect();
        let mut legend = legend(&unknown);
        legend.extend(of_gpus(&rows));
        Self { heading: vec!["what each case needed:".into()], cells: Cells { columns, lines }, legend }
    }
}

fn written(value: f64, counts: Counts, scale: Scale) -> String {
    match counts {
        Counts::Plain(_) | Counts::Gpu(_) => three_digits(value),
        Counts::Bytes | Counts::GpuBytes | Counts::Joules | Counts::GpuJoules => scale.write(value),
    }
}

fn legend(unknown: &[&(&str, &Fact)]) -> Vec<String> {
    let counted = "memory counts the process tree, each page once; its peak may lie at load, and its parts were seen in \
                   requests; energy is over idle";
    let mut legend = vec![counted.to_string()];
    // Without a GPU all of its own are unknown, which one word says.
    let of_gpus = || unknown.iter().filter(|(_, fact)| fact.counts.is_of_gpus());
    let no_gpu =
        of_gpus().count() == FACTS.iter().filter(|it| it.title.is_some() && it.counts.is_of_gpus()).count();
    let titles = unknown.iter().filter(|(_, fact)| !(no_gpu && fact.counts.is_of_gpus()));
    let mut titles: Vec<&str> = titles.map(|(title, _)| *title).collect();
    if no_gpu {
        titles.push("all of GPUs");
    }
    if !titles.is_empty() {
        legend.push(format!("n/a in every row: {}", titles.join(", ")));
    }
    if unknown.iter().any(|(_, fact)| fact.counts == Counts::Joules) {
        let why = "energy: no counter could be read, or not all of an engine's own, or none beyond idle (`orchestrate machine` \
                   says which there are)";
        legend.push(why.into());
    }
    legend
}

/// Whose word the memory of devices is, and what slowed them down: each once, with the engines of which it is true.
fn of_gpus(rows: &[(&Row, &Resources)]) -> Vec<String> {
    let mut said: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (row, resources) in rows {
        let whose = resources.device_bytes_from.map(|known| match known {
            Known::Processes => "device memory as the driver counts it of their processes".to_string(),
            Known::Growth => {
                "device memory as the whole device grew since before the launch, since the driver names none \
                              of their processes"
                    .into()
            }
            Known::Stated => "device memory by their own word: nobody counted, or less".into(),
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

fn named(title: &str) -> Column {
    Column { title: title.into(), group: None, unit: "", place: Place::Name, text: true }
}

fn figure(title: &str, scale: Scale) -> Column {
    Column { title: title.into(), group: None, unit: scale.symbol, place: Place::Figure, text: false }
}
