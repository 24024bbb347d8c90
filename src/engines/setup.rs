//! Builds engines and creates their environments. This is the only code that installs anything, and it states the size first.
//! Each step is one command, and its output goes to the displays line by line.

mod device;
mod disk;
mod environment;
mod step;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};

use crate::engines::manifest::{Engine, Program, SetUp};
use crate::engines::own_python;
use crate::engines::registry::{self, Registry, State, set_up_command};
use crate::machine::Device;
use crate::shell::Unavailable;
use crate::shell::this_program;

pub use device::checked as checked_devices;
pub use disk::{unused, used_bytes};
pub use environment::remove;
pub use step::SetUpEvent;
use step::{Steps, cause};

/// Words in the errors of pip, uv and cargo when the network is missing.
const NO_NETWORK: [&str; 5] = ["connection", "dns error", "network", "offline", "could not resolve host"];

/// The context of set-up: registry, displays, and the programs that are ready.
pub struct SettingUp<'a> {
    registry: &'a Registry,
    steps: Steps<'a>,
    /// Warnings for the record.
    pub warnings: Vec<String>,
    /// Results so far, by engine and binary.
    prepared: BTreeMap<(String, String), Result<(), Unavailable>>,
}

impl<'a> SettingUp<'a> {
    pub fn new(
        registry: &'a Registry,
        mark: (&'static str, &'a str),
        listener: &'a mut dyn FnMut(SetUpEvent),
    ) -> Self {
        Self { registry, steps: Steps { mark, listener }, warnings: Vec::new(), prepared: BTreeMap::new() }
    }

    /// Before a run: builds a program, and sets its engine up if the manifest lets a run do so. Does nothing for a program that
    /// cannot start on this machine; its row has the reason.
    pub fn prepare(&mut self, program: Program) -> Result<(), Unavailable> {
        if matches!(self.registry.state(program), State::Never(_)) {
            return Ok(());
        }
        if let Some(prepared) = self.prepared.get(&which(program)) {
            return prepared.clone();
        }
        let prepared = self.prepare_once(program);
        self.prepared.insert(which(program), prepared.clone());
        prepared
    }

    fn prepare_once(&mut self, program: Program) -> Result<(), Unavailable> {
        let engine = program.engine;
        if let Err(error) = self.build(program) {
            let trouble = unavailable(program, "it does not build", &error);
            if matches!(self.registry.made(program), State::NotBuilt) {
                return Err(trouble);
            }
            let (name, reason) = (&engine.manifest.name, trouble.reason);
            let on = program.only_for.map_or_else(String::new, |family| format!(" on {family}"));
            let message = format!(
                "the earlier build of `{name}` is measured{on}: {reason} (`--no-setup` builds nothing)"
            );
            (self.steps.listener)(SetUpEvent::Warned(message.clone()));
            self.warnings.push(message);
        }
        match self.registry.made(program) {
            State::NoEnvironment if engine.manifest.setup == SetUp::Auto => {
                let made = environment::create(&mut self.steps, engine);
                made.map_err(|error| unavailable(program, "its environment cannot be set up", &error))
            }
            _ => Ok(()),
        }
    }

    /// On request: builds an engine for a device and sets it up. Gives a message for the user.
    pub fn set_up(&mut self, engine: &Engine, device: &Device) -> Result<String> {
        let (name, program) = (&engine.manifest.name, engine.on(device));
        if let State::Never(unavailable) = self.registry.made(program) {
            bail!("`{name}` cannot run here: {}", unavailable.said());
        }
        if !self.prepared.contains_key(&which(program)) {
            self.build(program)?;
            self.prepared.insert(which(program), Ok(()));
        }
        let no_driver = registry::without_driver(program);
        match self.registry.made(program) {
            State::NotBuilt => {
                bail!("`{name}`: its build succeeded, but there is no `{}` in `release/`", program.binary)
            }
            // A program can be carried to another machine, an environment cannot.
            State::NoEnvironment if no_driver.is_none() => environment::create(&mut self.steps, engine)?,
            _ => {}
        }
        Ok(match no_driver {
            Some(unavailable) => self.built_without_driver(program, device, &unavailable.reason),
            None => {
                let ready = match device.family().as_str() {
                    _ if device.is_cpu() => "is ready".into(),
                    family if engine.manifest.devices.contains_key(family) => format!("is ready on {family}"),
                    family => {
                        format!(
                            "is ready; only a run shows whether it supports {family}{}",
                            own_programs(engine)
                        )
                    }
                };
                format!("`{name}` {ready}\n{}", own_python_note(engine))
            }
        })
    }

    /// The message about a program that this machine has no driver for.
    fn built_without_driver(&self, program: Program, device: &Device, why: &str) -> String {
        let name = &program.engine.manifest.name;
        let built_for = program.only_for.map_or_else(String::new, |family| format!(" for {family}"));
        // The engine's own program runs here, only not on that device.
        let shared = program.only_for.is_none() && !device.is_cpu();
        let there = if shared { format!(" on {}", device.family()) } else { String::new() };
        let path = self.registry.binary(program).unwrap_or_default();
        let path = self.registry.root.as_ref().and_then(|root| path.strip_prefix(root).ok()).unwrap_or(&path);
        let mut said =
            format!("`{name}` is built{built_for} ({});\nit cannot run{there} here: {why}\n", path.display());
        if matches!(self.registry.made(program), State::NoEnvironment) {
            said.push_str("on a machine that can run it, the same command creates its environment\n");
        }
        said
    }

    /// Builds a program. Cargo finds out within a moment whether anything changed.
    fn build(&mut self, program: Program) -> Result<()> {
        let (Some(root), Some(build)) = (&self.registry.root, program.build) else { return Ok(()) };
        let command = match &build.package {
            Some(package) => {
                let mut command: Vec<String> =
                    ["cargo", "build", "--release", "-p", package].map(String::from).into();
                if !build.features.is_empty() {
                    command.extend(["--features".into(), build.features.join(",")]);
                }
                command
            }
            None => in_checkout(root, &build.command),
        };
        let root = root.clone();
        let of_device = program.only_for.map_or_else(String::new, |family| format!(" for {family}"));
        let (what, note) = match self.registry.made(program) {
            State::NotBuilt => (format!("building{of_device}"), build.note.clone()),
            // Cargo keeps its downloads. A command may download again, so its size is stated again.
            _ => {
                let note = build.note.clone().filter(|_| build.package.is_none());
                (format!("bringing its build{of_device} up to date"), note)
            }
        };
        self.steps.step(program.engine, &what, note, &command, &root)
    }
}

/// The key of a program. Devices may share a program, and presets always do.
fn which(program: Program) -> (String, String) {
    (program.engine.manifest.name.clone(), program.binary.to_string())
}

/// Resolves a program of the checkout by its full path, so that the current folder does not matter.
fn in_checkout(root: &Path, command: &[String]) -> Vec<String> {
    let mut command = command.to_vec();
    if let Some(program) = command.first_mut().filter(|program| program.contains('/')) {
        *program = root.join(&*program).to_string_lossy().into_owned();
    }
    command
}

/// A hint to the device families with their own program, for an engine set up for a device that its manifest does not name.
fn own_programs(engine: &Engine) -> String {
    let families: Vec<&str> =
        engine.manifest.devices.keys().filter_map(|family| engine.on_family(family).only_for).collect();
    let command = || {
        format!("\nhint: {} setup {} --device {}", this_program(), engine.manifest.name, families.join(","))
    };
    if families.is_empty() { String::new() } else { command() }
}

/// The note about an engine that runs in the user's own Python.
fn own_python_note(engine: &Engine) -> String {
    let said = own_python::of(engine).map(|own| {
        let interpreter = own.interpreter.display();
        format!(
            "it runs in `{interpreter}` ({}), which was not checked;\nno environment is created for it\n",
            own.variable
        )
    });
    said.unwrap_or_default()
}

fn unavailable(program: Program, what: &str, error: &anyhow::Error) -> Unavailable {
    let text = format!("{error:#}");
    let said = text.split("\nhint:").next().unwrap_or_default();
    let (mut cause, lower) = (cause(said).to_string(), said.to_ascii_lowercase());
    if NO_NETWORK.iter().any(|sign| lower.contains(sign)) {
        cause.push_str(" (is there a network?)");
    }
    Unavailable { reason: format!("{what}: {cause}"), hint: Some(set_up_command(program)) }
}
