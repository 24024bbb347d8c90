//! What was needed as columns and cells.

use std::collections::{BTreeMap, BTreeSet};

use super::Resources;
use super::facts::{Counts, FACTS, Fact};
use crate::analysis::metric::{Known, Scale, Unit};
use crate::report::beside;
use crate::report::document::{Column, Fit, Part, Table};
use crate::report::{Report, Row};
use crate::text::three_digits;

/// None where nothing was measured.
pub fn parts(report: &Report, fit: Fit) -> Vec<Part> {
    let measured = report.rows.iter().filter(|row| row.fault.is_none());
    let rows: Vec<(&Row, &Resources)> =
        measured.filter_map(|row| Some((row, row.resources.as_ref()?))).collect();
    if rows.is_empty() {
        return Vec::new();
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
    let cells = |resources: &Resources| {
        let cell = |(_, fact): &&(&str, &Fact)| match (fact.of)(resources) {
            Some(value) => written(value, fact.counts, scale(fact.counts)),
            None => "n/a".into(),
        };
        facts.iter().map(cell).collect()
    };
    let make = |room| {
        let columns = facts.iter().map(|(title, fact)| Column::figure(title, scale(fact.counts).symbol));
        beside::table(report, room, &rows, columns.collect(), cells)
    };
    let mut notes = legend(&unknown);
    notes.extend(of_gpus(&rows));
    let table = Table { notes, ..make(fit(&make)) };
    vec![Part::Heading("what each case needed:".into()), Part::Table(table)]
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
