//! `orchestrate setup`: builds an engine and creates its environment, lists engines with their status, removes environments.

use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use model_files::size;

use super::experiment::INTERRUPTED_SET_UP;
use super::interrupts::Interrupts;
use super::output::{self, WIDTH, unchecked_python};
use super::progress::{Display, Progress};
use crate::engines::manifest::{Engine, Program, SetUp};
use crate::engines::registry::{Registry, State, missing_driver};
use crate::engines::setup::{self, SetUpContext};
use crate::machine::{CPU, Device};
use crate::record::new_id;
use crate::run::Event;
use crate::run::process::Keeper;
use crate::shell::{Usage, megabytes, pasteable};
use crate::text;

#[derive(Debug, Args)]
pub struct SetupArgs {
    #[arg(required_unless_present = "list")]
    pub engine: Option<String>,
    /// List what is set up, with path and size
    #[arg(long)]
    pub list: bool,
    /// Remove an engine's environment
    #[arg(long, conflicts_with = "list")]
    pub remove: bool,
    /// Devices to set up, comma-separated; an engine may have a program for each
    #[arg(long, value_delimiter = ',', default_value = CPU, value_parser = Device::from_str, conflicts_with_all = ["list", "remove"])]
    pub device: Vec<Device>,
}

pub fn setup(arguments: &SetupArgs) -> Result<u8> {
    let registry = Registry::open()?;
    let Some(name) = arguments.engine.as_deref().filter(|_| !arguments.list) else {
        return list(&registry);
    };
    let engine = registry.engines.iter().find(|engine| engine.manifest.name == name);
    let engine = engine.ok_or_else(|| Usage(format!("no engine `{name}`\nhint: orchestrate engines")))?;
    if arguments.remove {
        return output::succeed(setup::remove(engine, &registry.engines)?);
    }
    let devices = setup::check_devices(&registry, engine, &arguments.device)?;
    let keeper = Keeper::start(&new_id())?;
    let mut progress = Progress::new(Display::of_stderr());
    let mut listener = |event| progress.event(Event::SetUp(event));
    let _interrupts = Interrupts::listen(INTERRUPTED_SET_UP)?;
    let mut setting_up = SetUpContext::new(&registry, keeper.mark(), &mut listener);
    let results = devices.iter().map(|device| setting_up.set_up(engine, device));
    output::succeed(text::break_lines(&results.collect::<Result<String>>()?, WIDTH))
}

/// Prints the status of each engine, and the effect of `setup`.
fn list(registry: &Registry) -> Result<u8> {
    let mut text = String::new();
    for engine in &registry.engines {
        writeln!(text, "{}: {}", engine.manifest.name, build_status(registry, engine.own_program()))?;
        for family in engine.manifest.devices.keys() {
            let program = engine.program_for_family(family);
            if program.only_for.is_some() {
                writeln!(text, "    for {family}: {}", build_status(registry, program))?;
            } else if let Some(no_driver) = missing_driver(program) {
                writeln!(text, "    for {family}: {}", no_driver.reason)?;
            }
        }
        if let Some(environment) = environment_status(engine)? {
            writeln!(text, "    environment: {environment}")?;
        }
    }
    let unused = setup::unused(&registry.engines)?;
    if !unused.is_empty() {
        writeln!(text, "unused environments (of older pins, other checkouts or scripts):")?;
    }
    for folder in unused {
        writeln!(text, "    {}", with_disk_size(&folder))?;
        writeln!(text, "    hint: rm -r {}", pasteable(&[folder.display().to_string()]))?;
    }
    output::succeed(text::break_lines(&text, WIDTH))
}

fn with_disk_size(folder: &Path) -> String {
    format!("{} ({} on disk)", folder.display(), size(setup::used_bytes(folder)))
}

/// The status of a program: whether it exists, whether it can run, and the time to build it.
fn build_status(registry: &Registry, program: Program) -> String {
    let (status, note) = match registry.state_ignoring_driver(program) {
        State::Never(unavailable) => return unavailable.reason,
        State::NotBuilt => ("not built", program.build.and_then(|build| build.note.as_ref())),
        State::NoEnvironment | State::Ready(_) => ("built", None),
    };
    let note = note.map_or_else(String::new, |note| format!(" ({note})"));
    let no_driver = missing_driver(program).map_or_else(String::new, |it| format!("; {}", it.reason));
    format!("{status}{note}{no_driver}")
}

fn environment_status(engine: &Engine) -> Result<Option<String>> {
    let (Some(environment), Some(folder)) = (&engine.manifest.environment, engine.environment()) else {
        return Ok(None);
    };
    if let Some(python) = engine.own_python() {
        return Ok(Some(format!("your own: {}", unchecked_python(&python))));
    }
    let folder = folder?;
    if paths::interpreter(&folder).is_some() {
        return Ok(Some(with_disk_size(&folder)));
    }
    let (download, installed) = (megabytes(environment.download_mb), megabytes(environment.installed_mb));
    let when = match engine.manifest.setup {
        SetUp::Auto => "made by the first run",
        SetUp::Request => "on request",
    };
    Ok(Some(format!("missing: {download} to download, {installed} installed; {when}")))
}
