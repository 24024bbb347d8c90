//! `orchestrate setup`: builds an engine and creates its environment, lists what is set up, removes it.

use std::io::IsTerminal;

use anyhow::Result;

use super::experiment::INTERRUPTED_SET_UP;
use super::interrupts::Interrupts;
use super::progress::{Display, Progress};
use super::{listing, output};
use crate::cli::SetupArgs;
use crate::cli::exit_code::DONE;
use crate::engines::registry::Registry;
use crate::engines::setup::{self, SettingUp};
use crate::run::event::Event;
use crate::run::new_id;
use crate::run::process::Keeper;
use crate::shell::Usage;
use crate::text;

pub fn set_up(arguments: &SetupArgs) -> Result<u8> {
    let registry = Registry::open()?;
    let Some(name) = arguments.engine.as_deref().filter(|_| !arguments.list) else {
        return listing::set_ups(&registry);
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
