//! `orchestrate overhead`: the cost of this program itself.

use anyhow::Result;
use clap::Args;

use super::output;
use crate::analysis::metric::Unit;
use crate::cli::exit_code::DONE;
use crate::cli::formats;
use crate::report::document::{
    Column, Document, Field, Item, Layouts, Line, Lines, List, NamedField, Section, Table, column,
};
use crate::report::headings::{COST, MEDIAN, P95, P99, SAMPLES};
use crate::report::json::json_bytes;
use crate::report::{self, Content, Format};
use crate::run::overhead::{Overhead, Timing};

#[derive(Debug, Args)]
pub struct OverheadArgs {
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = report::FORMATS[0].name, value_parser = formats())]
    pub format: &'static Format,
}

/// The columns of a spreadsheet.
const COLUMNS: [&str; 7] = ["cost", "unit", "n", "median", "p95", "p99", "about"];

pub fn overhead(arguments: &OverheadArgs) -> Result<u8> {
    output::show(&Overhead::measure()?, arguments.format)?;
    Ok(DONE)
}

impl Content for Overhead {
    fn document(&self, _: Layouts) -> Document {
        let heading = "overhead of `orchestrate`, measured now with an engine that computes nothing:";
        let show = |ns: f64| Unit::Nanoseconds.show(ns);
        let line = |it: &Timing| {
            let values = [it.median_ns, it.p95_ns, it.p99_ns].map(show);
            Line::of([it.name.into(), it.n.to_string()].into_iter().chain(values).collect())
        };
        let values = [SAMPLES, MEDIAN, P95, P99].map(|heading| Column::value(heading, ""));
        let columns = std::iter::once(Column::named(COST)).chain(values).collect();
        let lines = self.timings.iter().map(line).collect();
        let about = |it: &Timing| Item::Listed(format!("{}: {}", it.name, it.about));
        let items = self.timings.iter().map(about).collect();
        let parts = vec![
            Section::Heading(heading.into()),
            Section::Table(Table { columns, lines, gap: 2, ..Table::default() }),
            Section::List(List { items, ..List::default() }),
        ];
        Document { parts, summary: None }
    }

    fn lines(&self) -> Option<Lines> {
        let line = |it: &Timing| -> Vec<NamedField> {
            vec![
                (column!("cost"), Field(it.name.into())),
                (column!("unit"), it.unit.into()),
                (column!("n"), it.n.into()),
                (column!("median"), it.median_ns.into()),
                (column!("p95"), it.p95_ns.into()),
                (column!("p99"), it.p99_ns.into()),
                (column!("about"), it.about.into()),
            ]
        };
        Some(Lines { columns: &COLUMNS, lines: self.timings.iter().map(line).collect() })
    }

    fn json(&self) -> Vec<u8> {
        json_bytes(&self.timings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::shown;

    fn timing(name: &'static str, unit: &'static str) -> Timing {
        Timing { name, about: "a cost", n: 2, unit, median_ns: 3e3, p95_ns: 4e3, p99_ns: 5e3 }
    }

    #[test]
    fn values_are_aligned_under_their_headings() {
        let overhead = Overhead { timings: vec![timing("request", "ns")] };
        let text = shown(&overhead, "table", None);
        let (head, about) = ("cost     n   median      p95      p99\n", "- request: a cost");
        assert!(text.contains(head) && text.contains(about), "{text}");
    }

    #[test]
    fn each_line_of_a_spreadsheet_has_the_unit_of_its_cost() {
        let overhead = Overhead { timings: vec![timing("request", "ns"), timing("CPU", "ns/s")] };
        let text = shown(&overhead, "csv", None);
        assert!(text.contains("request,ns,2,3000,4000,5000,"), "{text}");
        assert!(text.contains("CPU,ns/s,2,3000,4000,5000,"), "{text}");
    }
}
