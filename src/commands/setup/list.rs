//! `orchestrate setup --list`: the set-up engines, with path and size.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use model_files::size;

use crate::cli::exit_code::DONE;
use crate::commands::listing::{WIDTH, unseen};
use crate::commands::output;
use crate::engines::manifest::{Engine, Program, SetUp};
use crate::engines::own_python;
use crate::engines::registry::{Registry, State, without_driver};
use crate::engines::setup;
use crate::shell::{megabytes, pasteable};
use crate::text;

/// Prints the status of each engine, and the effect of `setup`.
pub fn list(registry: &Registry) -> Result<u8> {
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
        writeln!(text, "unused (older pins, other checkouts or scripts):")?;
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

/// The status of a program: whether it exists, whether it can run, and the time to build it.
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
        return Ok(Some(format!("your own: {}", unseen(&own))));
    }
    let folder = folder?;
    if paths::interpreter(&folder).is_some() {
        return Ok(Some(on_disk(&folder)));
    }
    let (download, installed) = (megabytes(environment.download_mb), megabytes(environment.installed_mb));
    let when = match engine.manifest.setup {
        SetUp::Auto => "made by the first run",
        SetUp::Request => "on request",
    };
    Ok(Some(format!("missing: {download} to download, {installed} installed; {when}")))
}
