//! Options for the format and the parts of a report.

use std::collections::BTreeSet;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::analysis::metric::{METRICS, Metric};
use crate::plan::scenario::{SCENARIOS, SuiteTable};
use crate::report::{self, Format, TableId};
use crate::shell::{Usage, this_command_with_value, this_command_without, unknown_name_or};

/// The format of a report, and its optional parts.
#[derive(Debug, Args)]
pub struct ViewArgs {
    /// Format of the report
    #[arg(long, value_name = "FORMAT", default_value = report::FORMATS[0].name, value_parser = formats())]
    pub format: &'static Format,
    /// Print the full report with all cases and notes; default: one screen
    #[arg(long)]
    pub full: bool,
    /// Sort the rows by `engine`, a workload or a metric; default: the best row first, by the first line of the upper table
    #[arg(long, value_name = "NAME")]
    pub sort: Option<String>,
    /// Compare every pair of engines; default: each with the reference
    #[arg(long)]
    pub pairs: bool,
    #[command(flatten)]
    pub tables: TableArgs,
    /// Price of an hour of this machine: adds a table of the cost of a million tokens
    #[arg(long, value_name = "PRICE", value_parser = parse_price)]
    pub price_per_hour: Option<f64>,
}

/// Defines the options that add a table to a report, and the table of each.
macro_rules! table_options {
    ($($(#[$help:meta])* $option:ident: $table:ident;)+) => {
        #[derive(Debug, Default, Args)]
        pub struct TableArgs { $($(#[$help])* #[arg(long)] $option: bool,)+ }

        impl TableArgs {
            /// The tables of the options on the command line, each with the name of its option.
            pub fn selected(&self) -> Vec<(&'static str, TableId)> {
                let all = [$((stringify!($option), TableId::$table, self.$option),)+];
                all.into_iter().filter(|it| it.2).map(|(option, table, _)| (option, table)).collect()
            }

            pub fn add(&mut self, tables: &[TableId]) {
                $(self.$option |= tables.contains(&TableId::$table);)+
            }
        }
    };
}

table_options! {
    /// Add a table of the wall time: start, imports, weights, compiling, first token, steady state, unattributed time
    wall_time: WallTime;
    /// Add a table of the distribution of each case: mean, deviation, range and percentiles, with the mean of each scenario
    distribution: Distribution;
    /// Add a table of the latency of overlapping requests: percentiles of TTFT, ITL and whole requests, and the queue over time
    serving: Serving;
    /// Add a table of what each setting changes (batch, cache, padding, depth, drafts) on the same engine
    settings: Settings;
    /// Add a table of the quality of each configuration: perplexity and difference from the verifier, beside memory and speed
    quality: Quality;
    /// Add a table of each engine's precisions: speed, memory, perplexity and drift against its widest one
    precision: Precision;
    /// Add a table of the resources of each case: memory, cores, energy, GPU
    resources: Resources;
}

fn parse_price(text: &str) -> Result<f64, String> {
    let price = text.parse().ok().filter(|price: &f64| price.is_finite() && *price > 0.0);
    price.ok_or_else(|| "expected a price above zero, as in `1.20`".into())
}

impl ViewArgs {
    /// Adds the tables of suites to those of the options.
    pub fn add_tables(&mut self, tables: &[SuiteTable]) {
        let table = |it: &SuiteTable| match it {
            SuiteTable::Distribution => TableId::Distribution,
            SuiteTable::Serving => TableId::Serving,
            SuiteTable::Settings => TableId::Settings,
            SuiteTable::Quality => TableId::Quality,
            SuiteTable::Precision => TableId::Precision,
        };
        self.tables.add(&tables.iter().map(table).collect::<Vec<_>>());
    }

    /// Refuses parts that the format cannot show, before anything is measured.
    /// `own`: the names of the scenarios of a run file.
    pub fn check(&self, own: &[&str]) -> Result<(), Usage> {
        self.check_sort(own)?;
        self.check_format()
    }

    pub fn check_format(&self) -> Result<(), Usage> {
        if self.pairs && self.format.has_lines() {
            let why = format!("a line of {} cannot hold a comparison with several engines", self.format.name);
            let other = report::FORMATS.iter().find(|it| !it.has_lines()).map_or("table", |it| it.name);
            let hint = this_command_with_value("--format", None, other);
            return Err(Usage(format!("--pairs: {why}\nhint: {hint}")));
        }
        Ok(())
    }
}

impl ViewArgs {
    /// Refuses a name that no column can have. The report itself refuses a workload that the run does not have.
    fn check_sort(&self, own: &[&str]) -> Result<(), Usage> {
        let Some(name) = &self.sort else { return Ok(()) };
        if self.full {
            let message = "--sort: it orders the one screen, and the full report has the order of the plan";
            let hint = this_command_without(&[("--full", false)], &[]);
            return Err(Usage(format!("{message}\nhint: {hint}")));
        }
        if !self.format.is_for_people() {
            let format = self.format.name;
            let message = format!("--sort: it orders the one screen, and {format} has the order of the plan");
            let hint = this_command_without(&[("--sort", true)], &[]);
            return Err(Usage(format!("{message}\nhint: {hint}")));
        }
        let scenarios = SCENARIOS.iter().map(|scenario| scenario.name).chain(own.iter().copied());
        // A record has the scenario of each of its cases.
        let words: BTreeSet<&str> = scenarios.chain([report::BY_ENGINE]).collect();
        let words: Vec<&str> = words.into_iter().collect();
        let of_scenario = name.split(' ').next().is_some_and(|word| words.contains(&word));
        let name_and_space = format!("{} ", name.to_lowercase());
        let is_title =
            |metric: &Metric| name_and_space.starts_with(&format!("{} ", metric.title.to_lowercase()));
        if of_scenario || METRICS.iter().any(|metric| metric.name() == name || is_title(metric)) {
            return Ok(());
        }
        // A report has only some of the scenarios, so the hint lists none.
        let hint = || {
            let by_engine = report::BY_ENGINE;
            format!("--sort {by_engine}, a workload of the report or a metric of `orchestrate metrics`")
        };
        // The titles are in small letters, so that a title and a scenario of the same name count once.
        let titles: Vec<String> = METRICS.iter().map(|metric| metric.title.to_lowercase()).collect();
        let names = METRICS.iter().map(|metric| metric.name()).chain(titles.iter().map(String::as_str));
        let known: BTreeSet<&str> = words.iter().copied().chain(names).collect();
        let known: Vec<&str> = known.into_iter().collect();
        let Usage(unknown) = unknown_name_or("workload or metric", name, &known, hint);
        Err(Usage(format!("--sort: {unknown}")))
    }
}

pub fn formats() -> impl TypedValueParser<Value = &'static Format> {
    formats_where(|_| true)
}

/// A parser of the formats that a command supports.
pub fn formats_where(is_supported: fn(&Format) -> bool) -> impl TypedValueParser<Value = &'static Format> {
    let supported = report::FORMATS.iter().filter(|format| is_supported(format));
    let values = supported.map(|format| PossibleValue::new(format.name).help(format.about));
    PossibleValuesParser::from(values.collect::<Vec<_>>())
        .try_map(|name| report::format_named(&name).ok_or("no such format"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::report::FORMATS;
    use crate::report::document::Shape;

    #[test]
    fn every_format_that_has_lines_refuses_pairs() {
        static LINES: Format = Format { name: "records", about: "", shape: Shape::Lines(|_| Vec::new()) };
        let view = |format| ViewArgs {
            format,
            full: false,
            sort: None,
            pairs: true,
            tables: TableArgs::default(),
            price_per_hour: None,
        };
        let refused = view(&LINES).check(&[]).unwrap_err().to_string();
        assert!(refused.contains("a line of records") && refused.ends_with(" --format table"), "{refused}");
        for format in FORMATS {
            assert_eq!(view(format).check(&[]).is_err(), format.has_lines(), "{}", format.name);
            let sorted = ViewArgs { pairs: false, sort: Some("decode".into()), ..view(format) };
            assert_eq!(sorted.check(&[]).is_err(), !format.is_for_people(), "{}", format.name);
        }
    }

    #[test]
    fn a_command_accepts_only_the_formats_that_it_supports() {
        let (command, parser) = (clap::Command::new("x"), formats_where(|it| !it.has_lines()));
        for format in FORMATS {
            let accepted = parser.parse_ref(&command, None, OsStr::new(format.name)).ok();
            assert_eq!(accepted.map(|it| it.name), (!format.has_lines()).then_some(format.name));
        }
    }
}
