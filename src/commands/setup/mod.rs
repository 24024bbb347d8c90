//! `orchestrate setup`: builds an engine and creates its environment, lists what is set up, removes it.

mod list;

use std::io::IsTerminal;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;

use super::experiment::INTERRUPTED_SET_UP;
use super::interrupts::Interrupts;
use super::progress::{Display, Progress};
use super::{listing, output};
use crate::cli::exit_code::DONE;
use crate::engines::registry::Registry;
use crate::engines::setup::{self, SettingUp};
use crate::machine::{CPU, Device};
use crate::run::event::Event;
use crate::run::new_id;
use crate::run::process::Keeper;
use crate::shell::Usage;
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
        return list::list(&registry);
    };
    let Some(engine) = registry.engines.iter().find(|engine| engine.manifest.name == name) else {
        return Err(Usage(format!("no engine `{name}`\nhint: orchestrate engines")).into());
    };
    if arguments.remove {
        output::print(setup::remove(engine, &registry.engines)?.as_bytes())?;
        return Ok(DONE);
    }
    let devices = setup::checked_devices(&registry, engine, &arguments.device)?;
    let keeper = Keeper::start(&new_id())?;
    let display = if std::io::stderr().is_terminal() { Display::Live } else { Display::Plain };
    let mut progress = Progress::new(display);
    let mut listener = |event| progress.event(Event::SetUp(event));
    let _interrupts = Interrupts::listen(INTERRUPTED_SET_UP)?;
    let mark = keeper.mark();
    let mut setting_up = SettingUp::new(&registry, mark, &mut listener);
    let mut said = String::new();
    for device in &devices {
        said.push_str(&setting_up.set_up(engine, device)?);
    }
    output::print(text::narrow(&said, listing::WIDTH).as_bytes())?;
    Ok(DONE)
}
