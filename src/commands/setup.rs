//! `orchestrate setup`: builds engines and creates their environments, lists engines with their status, removes environments.

mod several;
mod with_set_up;

use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use model_files::size;

use super::output::{self, unchecked_python};
use crate::cli::exit_code::{DONE, FAILED_CASES};
use crate::engines::manifest::{Engine, Program, SetUp};
use crate::engines::registry::{Registry, State, missing_driver};
use crate::engines::setup;
use crate::machine::{CPU, Device};
use crate::plan::selection::distinct;
use crate::shell::{Usage, megabytes, pasteable, this_command_with};
use several::SeveralEngines;
use with_set_up::with_set_up;

#[derive(Debug, Args)]
pub struct SetupArgs {
    /// Engines to set up; for several engines or a download, one question with the sizes comes first
    #[arg(value_name = "ENGINE", value_delimiter = ',')]
    pub engines: Vec<String>,
    /// Set up every engine that this machine can run
    #[arg(long, conflicts_with_all = ["engines", "list", "remove"])]
    pub all: bool,
    /// Do not ask before a download or before several engines are set up
    #[arg(short, long)]
    pub yes: bool,
    /// List what is set up, with path and size
    #[arg(long)]
    pub list: bool,
    /// Remove the environments of these engines
    #[arg(long, conflicts_with = "list")]
    pub remove: bool,
    /// Devices to set up, comma-separated; an engine may have a program for each
    #[arg(long, value_delimiter = ',', default_value = CPU, value_parser = Device::from_str, conflicts_with_all = ["list", "remove"])]
    pub device: Vec<Device>,
}

pub fn setup(arguments: &SetupArgs) -> Result<u8> {
    let registry = Registry::open()?;
    if arguments.list {
        return list(&registry, &arguments.engines);
    }
    let named = distinct(&arguments.engines);
    let named = named.iter().map(|name| registry.with_manifest(name)).collect::<Result<Vec<_>, _>>()?;
    if named.is_empty() && !arguments.all {
        if arguments.remove {
            let problem = "`setup --remove` needs the name of an engine";
            return Err(Usage(format!("{problem}\nhint: orchestrate setup --list")).into());
        }
        let hint = this_command_with(&["--list"]);
        return Err(Usage(format!("no engine is named, and `--all` is not given\nhint: {hint}")).into());
    }
    if arguments.remove {
        let removed = named.iter().map(|engine| setup::remove(engine, &registry.engines));
        return output::print_text(&removed.collect::<Result<String>>()?).map(|()| DONE);
    }
    let names: Vec<&str> = named.iter().map(|engine| engine.manifest.name.as_str()).collect();
    let target = if arguments.all { "--all".into() } else { names.join(" ") };
    let devices = setup::check_devices(&registry, &target, &arguments.device)?;
    match named.as_slice() {
        [engine] => one(&registry, engine, &devices, arguments.yes),
        [] => {
            let engines = &registry.engines.iter().collect::<Vec<_>>();
            SeveralEngines { registry: &registry, engines, devices: &devices, all: true }
                .set_up(arguments.yes)
        }
        engines => SeveralEngines { registry: &registry, engines, devices: &devices, all: false }
            .set_up(arguments.yes),
    }
}

/// Sets one engine up, and brings its build up to date. A download is confirmed first.
fn one(registry: &Registry, engine: &Engine, devices: &[Device], without_asking: bool) -> Result<u8> {
    if !several::confirm_download(registry, engine, devices, without_asking)? {
        return Ok(FAILED_CASES);
    }
    let results = with_set_up(registry, true, |setting_up| {
        devices.iter().map(|device| setting_up.set_up(engine, device)).collect::<Result<String>>()
    })?;
    output::print_lines(&results?).map(|()| DONE)
}

/// Prints the status of the programs and the environment of these engines. Without names, prints those of all engines and the
/// unused environments.
fn list(registry: &Registry, names: &[String]) -> Result<u8> {
    let named = distinct(names);
    let named = named.iter().map(|name| registry.with_manifest(name)).collect::<Result<Vec<_>, _>>()?;
    let is_listed = |engine: &&Engine| {
        let is_same = |it: &&Engine| it.manifest.name == engine.manifest.name;
        named.is_empty() || named.iter().any(is_same)
    };
    let mut text = String::new();
    for engine in registry.engines.iter().filter(is_listed) {
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
    let unused = if named.is_empty() { setup::unused(&registry.engines)? } else { Vec::new() };
    if !unused.is_empty() {
        writeln!(text, "unused environments (of older requirements, other checkouts or scripts):")?;
    }
    for folder in unused {
        writeln!(text, "    {}", with_disk_size(&folder))?;
        writeln!(text, "    hint: rm -r {}", pasteable(&[folder.display().to_string()]))?;
    }
    output::print_lines(&text).map(|()| DONE)
}

fn with_disk_size(folder: &Path) -> String {
    format!("{} ({} on disk)", folder.display(), size(setup::used_bytes(folder)))
}

/// The status of a program: whether it exists, whether it can run, and the note about its build.
fn build_status(registry: &Registry, program: Program) -> String {
    let (status, note) = match registry.state_ignoring_driver(program) {
        State::CannotRun(unavailable) => return unavailable.reason,
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
        SetUp::Auto => "a run makes it",
        SetUp::Request => "`setup` makes it",
    };
    Ok(Some(format!("missing: {download} to download, {installed} installed; {when}")))
}
