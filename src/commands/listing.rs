//! What there is: engines, scenarios, metrics, environments. Plain text, for a person.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use model_files::size;
use places::OwnPython;

use crate::analysis::metric::METRICS;
use crate::cli::exit_code::DONE;
use crate::commands::output;
use crate::engines::manifest::{Engine, Program, SetUp};
use crate::engines::own_python;
use crate::engines::registry::{Registry, State, missing, without_driver};
use crate::engines::setup;
use crate::plan::scenario::{SCENARIOS, SUITES};
use crate::report::FACTS;
use crate::shell::{megabytes, pasteable};
use crate::text;

/// Columns of what lists engines, and of what is said while they are set up.
pub const WIDTH: usize = 80;

pub fn engines() -> Result<u8> {
    let registry = Registry::open()?;
    let mut text = String::new();
    for engine in &registry.engines {
        let manifest = &engine.manifest;
        let (word, hint) = standing(&registry, engine.own_program());
        let reference = if manifest.reference { " (the reference)" } else { "" };
        // What is broken goes on further in than what stands below it.
        let head = format!("{}{reference}: {word}", manifest.name);
        text::wrap(&head, WIDTH, "      ").iter().try_for_each(|line| writeln!(text, "{line}"))?;
        writeln!(text, "    {}", manifest.about)?;
        if let Some(own) = own_python::of(engine) {
            writeln!(text, "    in {}", unseen(&own))?;
        }
        for (name, preset) in &manifest.presets {
            let suite = preset.suite.as_ref().map_or_else(String::new, |suite| format!(" (suite {suite})"));
            writeln!(text, "    :{name}  {}{suite}", preset.about)?;
        }
        let mut hints = hint;
        for family in manifest.devices.keys() {
            let (word, more) = standing(&registry, engine.on_family(family));
            writeln!(text, "    on {family}: {word}")?;
            // The same command helps on every device that is served by the same program.
            let more: Vec<Hint> = more.into_iter().filter(|hint| !hints.contains(hint)).collect();
            hints.extend(more);
        }
        for (hint, is_command) in hints {
            match is_command {
                true => writeln!(text, "    hint: {hint}")?,
                false => text.push_str(&folded(&format!("hint: {hint}"))),
            }
        }
    }
    writeln!(text, "\nAny program that speaks the protocol is an engine too: -e ./its-path")?;
    output::print(text::narrow(&text, WIDTH).as_bytes())?;
    Ok(DONE)
}

/// Prose below a name: a hint, or what something is about.
fn folded(said: &str) -> String {
    text::wrap(said, WIDTH - 4, "  ").iter().map(|line| format!("    {line}\n")).collect()
}

/// A way out, and whether it is a command: one is pasted, so it is never folded.
type Hint = (String, bool);

/// Where a program stands, and what changes that. That a machine has no such device asks for nothing.
fn standing(registry: &Registry, program: Program) -> (String, Vec<Hint>) {
    match registry.state(program) {
        State::Ready(_) => ("ready".into(), Vec::new()),
        state => {
            let missing = missing(program, &state);
            let hints = missing.hints().enumerate().map(|(place, hint)| (hint.to_string(), place == 0));
            let hints: Vec<Hint> = hints.filter(|_| without_driver(program).is_none()).collect();
            (missing.reason, hints)
        }
    }
}

/// A Python of the user's own: whether an engine runs in it, the engine says when it is started.
fn unseen(own: &OwnPython) -> String {
    format!("`{}` ({}; not looked into)", own.interpreter.display(), own.variable)
}

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

pub fn metrics() -> Result<u8> {
    let mut text = String::new();
    for metric in METRICS {
        writeln!(text, "{} ({})\n    {}", metric.name(), metric.unit.symbol(), metric.about)?;
    }
    writeln!(
        text,
        "\nof a preset against another of its engine, below the table and in formats for programs:"
    )?;
    writeln!(
        text,
        "derived.difference_ns (ns)\n    what a ratio of times comes to, of a rate for each token: the other preset's figure times \
         (1 / ratio - 1)"
    )?;
    writeln!(text, "\nbeside them, in --resources and in formats for programs:")?;
    for (unit, itself) in FACTS.iter().filter_map(|fact| Some((fact.counts.unit(), fact.itself.as_ref()?))) {
        writeln!(text, "resources.{} ({unit})\n    {}", itself.name, itself.about)?;
    }
    output::print(text::narrow(&text, WIDTH).as_bytes())?;
    Ok(DONE)
}

/// What `setup` would do for each engine, and where it stands.
pub fn set_ups(registry: &Registry) -> Result<u8> {
    let mut text = String::new();
    for engine in &registry.engines {
        writeln!(text, "{}: {}", engine.manifest.name, built(registry, engine.own_program()))?;
        for family in engine.manifest.devices.keys() {
            let program = engine.on_family(family);
            if program.only_for.is_some() {
                writeln!(text, "    for {family}: {}", built(registry, program))?;
            } else if let Some(no_driver) = without_driver(program) {
                writeln!(text, "    for {family}: {}", no_driver.reason)?;
            }
        }
        if let Some(environment) = environment(engine)? {
            writeln!(text, "    environment: {environment}")?;
        }
    }
    let unused = setup::unused(&registry.engines)?;
    if !unused.is_empty() {
        writeln!(text, "of older pins, another checkout or a script:")?;
    }
    for folder in unused {
        writeln!(text, "    {}", on_disk(&folder))?;
        writeln!(text, "    hint: rm -r {}", pasteable(&[folder.display().to_string()]))?;
    }
    output::print(text::narrow(&text, WIDTH).as_bytes())?;
    Ok(DONE)
}

fn on_disk(folder: &Path) -> String {
    format!("{} ({} on disk)", folder.display(), size(setup::used_bytes(folder)))
}

/// Whether a program is there, whether it can run, and how long building it takes.
fn built(registry: &Registry, program: Program) -> String {
    let (built, note) = match registry.made(program) {
        State::Never(unavailable) => return unavailable.reason,
        State::NotBuilt => ("not built", program.build.and_then(|build| build.note.as_ref())),
        State::NoEnvironment | State::Ready(_) => ("built", None),
    };
    let note = note.map_or_else(String::new, |note| format!(" ({note})"));
    let no_driver = without_driver(program).map_or_else(String::new, |it| format!("; {}", it.reason));
    format!("{built}{note}{no_driver}")
}

fn environment(engine: &Engine) -> Result<Option<String>> {
    let (Some(environment), Some(folder)) = (&engine.manifest.environment, engine.environment()) else {
        return Ok(None);
    };
    if let Some(own) = own_python::of(engine) {
        return Ok(Some(format!("none of ours: {}", unseen(&own))));
    }
    let folder = folder?;
    if places::interpreter(&folder).is_some() {
        return Ok(Some(on_disk(&folder)));
    }
    let (download, installed) = (megabytes(environment.download_mb), megabytes(environment.installed_mb));
    let when = match engine.manifest.setup {
        SetUp::Auto => "a run makes it",
        SetUp::Request => "on request",
    };
    Ok(Some(format!("not there: {download} to download, {installed} installed; {when}")))
}
