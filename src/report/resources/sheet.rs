//! What was needed as columns and cells.

use super::Resources;
use crate::metric::{Scale, Unit, three_digits};
use crate::report::grid::{Cells, Column, Line, Place, Room};
use crate::report::labels::Labels;
use crate::report::safe::shorten;
use crate::report::{Report, Row};

pub struct Sheet {
    pub heading: Vec<String>,
    pub cells: Cells,
    pub legend: Vec<String>,
}

/// A title, and what stands under it.
struct Kind {
    title: &'static str,
    of: fn(&Resources) -> Option<f64>,
    counts: Counts,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    /// All columns of bytes have one scale.
    Bytes,
    Joules,
    Plain(&'static str),
}

const KINDS: &[Kind] = &[
    Kind { title: "peak memory", of: |it| it.peak_bytes, counts: Counts::Bytes },
    Kind { title: "memory anonymous", of: |it| it.anonymous_bytes, counts: Counts::Bytes },
    Kind { title: "memory file-backed", of: |it| it.file_bytes, counts: Counts::Bytes },
    Kind { title: "device memory", of: |it| it.device_bytes, counts: Counts::Bytes },
    Kind { title: "stated weights", of: |it| it.weights_bytes, counts: Counts::Bytes },
    Kind { title: "over weights", of: |it| it.over_weights_bytes, counts: Counts::Bytes },
    Kind { title: "CPU busy", of: |it| it.cores_busy, counts: Counts::Plain("cores") },
    Kind { title: "energy per token", of: |it| it.joules_per_token, counts: Counts::Joules },
    Kind { title: "idle power", of: |it| it.idle_watts, counts: Counts::Plain("W") },
    Kind { title: "GPU busy", of: |it| it.gpu_percent, counts: Counts::Plain("%") },
];

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
        let scale_of = |counts: Counts, unit: Unit| {
            let kinds = || KINDS.iter().filter(move |kind| kind.counts == counts);
            Scale::of(unit, rows.iter().flat_map(|(_, it)| kinds().filter_map(|kind| (kind.of)(it))))
        };
        let (bytes, joules) = (scale_of(Counts::Bytes, Unit::Bytes), scale_of(Counts::Joules, Unit::Joules));
        let scale = |counts: Counts| match counts {
            Counts::Bytes => bytes,
            Counts::Joules => joules,
            Counts::Plain(symbol) => Scale { divisor: 1.0, symbol },
        };
        // What nobody knows in any row is said once.
        let known = |kind: &&Kind| rows.iter().any(|(_, it)| (kind.of)(it).is_some());
        let (kinds, unknown): (Vec<&Kind>, Vec<&Kind>) = KINDS.iter().partition(known);
        let mut columns = vec![named("case"), named("engine")];
        columns.extend(kinds.iter().map(|kind| figure(kind.title, scale(kind.counts))));
        let lines = rows.iter().map(|(row, resources)| {
            let engine = labels.short(&room.name_of(&row.engine));
            let mut cells = vec![shorten(&row.case.label, room.word), engine];
            cells.extend(kinds.iter().map(|kind| match (kind.of)(resources) {
                Some(value) => written(value, kind.counts, scale(kind.counts)),
                None => "n/a".into(),
            }));
            Line { cells, fault: None, whole: false }
        });
        let lines = lines.collect();
        Self {
            heading: vec!["what each case needed:".into()],
            cells: Cells { columns, lines },
            legend: legend(&unknown),
        }
    }
}

fn written(value: f64, counts: Counts, scale: Scale) -> String {
    match counts {
        Counts::Plain(_) => three_digits(value),
        Counts::Bytes | Counts::Joules => scale.write(value),
    }
}

fn legend(unknown: &[&Kind]) -> Vec<String> {
    let counted = "memory counts the process tree, each page once; its peak may lie at load, and its parts were seen in \
                   requests; energy is over idle";
    let mut legend = vec![counted.to_string()];
    if !unknown.is_empty() {
        let titles: Vec<&str> = unknown.iter().map(|kind| kind.title).collect();
        legend.push(format!("n/a in every row: {}", titles.join(", ")));
    }
    if unknown.iter().any(|kind| kind.counts == Counts::Joules) {
        let why = "energy: no counter could be read, or not all of an engine's own, or none beyond idle (`orchestrate machine` \
                   says which there are)";
        legend.push(why.into());
    }
    legend
}

fn named(title: &str) -> Column {
    Column { title: title.into(), group: None, unit: "", place: Place::Name, text: true }
}

fn figure(title: &str, scale: Scale) -> Column {
    Column { title: title.into(), group: None, unit: scale.symbol, place: Place::Figure, text: false }
}
