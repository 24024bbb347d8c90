//! `orchestrate metrics`: the meaning of each metric.

use std::fmt::Write as _;

use anyhow::Result;

use super::output::{self, WIDTH};
use crate::analysis::metric::METRICS;
use crate::cli::exit_code::DONE;
use crate::report::FACTS;
use crate::text;

pub fn metrics() -> Result<u8> {
    let mut text = String::new();
    for metric in METRICS {
        writeln!(text, "{} ({})\n    {}", metric.name(), metric.unit.symbol(), metric.about)?;
    }
    writeln!(text, "\nfor two presets of one engine, below the table and in formats for programs:")?;
    writeln!(
        text,
        "derived.difference_ns (ns)\n    the difference in time, for a rate the difference per token: the other preset's value times \
         (1 / ratio - 1)"
    )?;
    writeln!(text, "\nfurther values, in --resources and in formats for programs:")?;
    for (unit, fact) in FACTS.iter().filter_map(|fact| Some((fact.quantity.unit(), fact.explained.as_ref()?)))
    {
        writeln!(text, "resources.{} ({unit})\n    {}", fact.name, fact.about)?;
    }
    output::print(text::narrow(&text, WIDTH).as_bytes())?;
    Ok(DONE)
}
