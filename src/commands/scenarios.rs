//! `orchestrate scenarios`: the scenarios and suites that `-s` takes.

use std::fmt::Write as _;

use anyhow::Result;

use super::output::{self, folded};
use crate::cli::exit_code::DONE;
use crate::engines::registry::Registry;
use crate::plan::scenario::{SCENARIOS, SUITES};

pub fn scenarios() -> Result<u8> {
    let mut text = String::new();
    for scenario in SCENARIOS {
        let lengths: Vec<_> = scenario.prompt_tokens.iter().map(u32::to_string).collect();
        writeln!(text, "{}", scenario.name)?;
        text.push_str(&folded(scenario.about));
        let (prompt, output) = (lengths.join(", "), scenario.max_new_tokens);
        writeln!(
            text,
            "    prompt tokens: {prompt}; output tokens: {output}; rounds a block: {}",
            scenario.rounds
        )?;
    }
    writeln!(text, "\nsuites:")?;
    for suite in SUITES {
        writeln!(text, "{}", suite.name)?;
        text.push_str(&folded(&format!("{} ({})", suite.about, suite.scenarios.join(", "))));
    }
    for (name, engine, suite) in Registry::open()?.suites() {
        writeln!(text, "{name}")?;
        text.push_str(&folded(&format!("{} ({})", suite.about, suite.scenarios.join(", "))));
        text.push_str(&folded(&format!("rows: {}", engine.rows_of(name).join(", "))));
    }
    output::print(text.as_bytes())?;
    Ok(DONE)
}
