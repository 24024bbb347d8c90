//! What there is: engines, scenarios, metrics, environments. Plain text, for a person.

use std::fmt::Write as _;

use anyhow::Result;

use crate::exit_code::DONE;
use crate::manifest::{Engine, SetUp};
use crate::metric::METRICS;
use crate::output;
use crate::registry::{Registry, State};
use crate::report::FACTS;
use crate::scenario::{SCENARIOS, SUITES};
use crate::shell::megabytes;

pub fn engines() -> Result<u8> {
    let registry = Registry::open()?;
    let mut text = String::new();
    for engine in &registry.engines {
        let manifest = &engine.manifest;
        let state = registry.state(engine);
        let (word, missing) = match &state {
            State::Ready(_) => ("ready".to_string(), None),
            state => {
                let missing = registry.missing(engine, state);
                (missing.reason.clone(), missing.hint)
            }
        };
        let reference = if manifest.reference { " (the reference)" } else { "" };
        writeln!(text, "{}{reference}: {word}\n    {}", manifest.name, manifest.about)?;
        for (name, preset) in &manifest.presets {
            writeln!(text, "    :{name}  {}", preset.about)?;
        }
        if let Some(hint) = missing {
            writeln!(text, "    hint: {hint}")?;
        }
    }
    writeln!(text, "\nAny program that speaks the protocol is an engine too: -e ./its-path")?;
    output::print(text.as_bytes())?;
    Ok(DONE)
}

pub fn scenarios() -> Result<u8> {
    let mut text = String::new();
    for scenario in SCENARIOS {
        let lengths: Vec<_> = scenario.prompt_tokens.iter().map(u32::to_string).collect();
        writeln!(text, "{}\n    {}", scenario.name, scenario.about)?;
        let (prompt, output) = (lengths.join(", "), scenario.max_new_tokens);
        writeln!(
            text,
            "    prompt tokens: {prompt}; output tokens: {output}; rounds a block: {}",
            scenario.rounds
        )?;
    }
    writeln!(text, "\nsuites:")?;
    for suite in SUITES {
        writeln!(text, "{}\n    {} ({})", suite.name, suite.about, suite.scenarios.join(", "))?;
    }
    output::print(text.as_bytes())?;
    Ok(DONE)
}

pub fn scenario_names() -> impl Iterator<Item = &'static str> {
    SCENARIOS.iter().map(|scenario| scenario.name).chain(SUITES.iter().map(|suite| suite.name))
}

pub fn metrics() -> Result<u8> {
    let mut text = String::new();
    for metric in METRICS {
        writeln!(text, "{} ({})\n    {}", metric.name, metric.unit.symbol(), metric.about)?;
    }
    writeln!(text, "\nbeside them, in --resources and in formats for programs:")?;
    for (unit, itself) in FACTS.iter().filter_map(|fact| Some((fact.counts.unit(), fact.itself.as_ref()?))) {
        writeln!(text, "resources.{} ({unit})\n    {}", itself.name, itself.about)?;
    }
    output::print(text.as_bytes())?;
    Ok(DONE)
}

/// What `setup` would do for each engine, and where it stands.
pub fn set_ups(registry: &Registry) -> Result<u8> {
    let mut text = String::new();
    for engine in &registry.engines {
        writeln!(text, "{}: {}", engine.manifest.name, set_up(registry, engine)?)?;
    }
    output::print(text.as_bytes())?;
    Ok(DONE)
}

fn set_up(registry: &Registry, engine: &Engine) -> Result<String> {
    let manifest = &engine.manifest;
    let built = match registry.state(engine) {
        State::Never(unavailable) => return Ok(unavailable.reason),
        State::NotBuilt => "not built",
        _ => "built",
    };
    let (Some(environment), Some(folder)) = (&manifest.environment, engine.environment()) else {
        return Ok(format!("{built}; needs no environment"));
    };
    let folder = folder?;
    let size = format!(
        "{} to download, {} installed",
        megabytes(environment.download_mb),
        megabytes(environment.installed_mb)
    );
    let when = match manifest.setup {
        SetUp::Auto => "a run sets it up by itself",
        SetUp::Request => "set up on request",
    };
    Ok(match places::interpreter(&folder) {
        Some(_) => format!("{built}; its environment stands in {}", folder.display()),
        None => format!("{built}; its environment is not there: {size}; {when}"),
    })
}
