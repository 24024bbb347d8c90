//! Builds engines and creates their environments. Only this code installs anything, and it states an environment's size first.
//! Each step is one command, and its output goes to the displays line by line.

mod environment;
mod needed;
mod step;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};

use crate::engines::manifest::{Engine, Program, SetUp};
use crate::engines::registry::{self, Registry, State, set_up_command};
use crate::machine::{CPU, Device};
use crate::shell::{Unavailable, Usage};

pub use environment::{free_mb, remove, unused, used_bytes};
pub use needed::Needed;
pub use step::SetUpEvent;
use step::{Steps, cause, without_hint};

/// Words in the errors of pip, uv and cargo when the network is missing.
const NO_NETWORK: [&str; 5] = ["connection", "dns error", "network", "offline", "could not resolve host"];

pub struct SetUpContext<'a> {
    registry: &'a Registry,
    steps: Steps<'a>,
    /// Warnings for the record.
    pub warnings: Vec<String>,
    /// The results of set-up so far, by the names of engine and binary.
    prepared: BTreeMap<(String, String), Result<(), Unavailable>>,
}

impl<'a> SetUpContext<'a> {
    /// `run_mark`: the name and the value of the environment variable that marks every process of the run.
    pub fn new(
        registry: &'a Registry,
        run_mark: (&'static str, &'a str),
        listener: &'a mut dyn FnMut(SetUpEvent),
    ) -> Self {
        Self {
            registry,
            steps: Steps { run_mark, listener },
            warnings: Vec::new(),
            prepared: BTreeMap::new(),
        }
    }

    /// Before a run: builds a program, and sets its engine up if the manifest lets a run do so. Does nothing for a program that
    /// cannot start on this machine; the report's row for it has the reason.
    pub fn prepare(&mut self, program: Program) -> Result<(), Unavailable> {
        if matches!(self.registry.state(program), State::CannotRun(_)) {
            return Ok(());
        }
        if let Some(prepared) = self.prepared.get(&program_key(program)) {
            return prepared.clone();
        }
        let prepared = self.prepare_once(program);
        self.prepared.insert(program_key(program), prepared.clone());
        prepared
    }

    fn prepare_once(&mut self, program: Program) -> Result<(), Unavailable> {
        let engine = program.engine;
        if let Err(error) = self.build(program) {
            let failed = unavailable(program, "it does not build", &error);
            if matches!(self.registry.state_ignoring_driver(program), State::NotBuilt) {
                return Err(failed);
            }
            let (name, reason) = (&engine.manifest.name, failed.reason);
            let on_device = program.only_for.map_or_else(String::new, |family| format!(" on {family}"));
            let message = format!(
                "`{name}`: {reason}; an earlier build is measured{on_device} (`--no-setup` skips the build)"
            );
            (self.steps.listener)(SetUpEvent::Warned(message.clone()));
            self.warnings.push(message);
        }
        match self.registry.state_ignoring_driver(program) {
            State::NoEnvironment if engine.manifest.setup == SetUp::Auto => {
                let created = environment::create(&mut self.steps, engine);
                created.map_err(|error| unavailable(program, "its environment cannot be set up", &error))
            }
            _ => Ok(()),
        }
    }

    /// On request: builds an engine for a device and sets it up. Returns a message for the user.
    pub fn set_up(&mut self, engine: &Engine, device: &Device) -> Result<String> {
        let (name, program) = (&engine.manifest.name, engine.program_for(device));
        if let State::CannotRun(unavailable) = self.registry.state_ignoring_driver(program) {
            bail!("`{name}` cannot run here: {}", unavailable.message());
        }
        if !self.prepared.contains_key(&program_key(program)) {
            self.build(program)?;
            self.prepared.insert(program_key(program), Ok(()));
        }
        let no_driver = registry::missing_driver(program);
        match self.registry.state_ignoring_driver(program) {
            State::NotBuilt => {
                bail!(
                    "`{name}`: its build succeeded, but there is no `{}` in cargo's `release` folder",
                    program.binary
                )
            }
            // Without the driver no environment is created. The program is built, because it can be copied to another machine; an
            // environment cannot.
            State::NoEnvironment if no_driver.is_none() => environment::create(&mut self.steps, engine)?,
            _ => {}
        }
        if let Some(unavailable) = no_driver {
            return Ok(self.built_without_driver(program, device, &unavailable.reason));
        }
        let family = device.family();
        let ready = if device.is_cpu() {
            "is ready".into()
        } else if engine.manifest.devices.contains_key(&family) {
            format!("is ready on {family}")
        } else {
            format!("is ready; only a run shows whether it supports {family}{}", own_programs_hint(engine))
        };
        Ok(format!("`{name}` {ready}\n{}", own_python_note(engine)))
    }

    /// The message about a program that this machine has no driver for.
    fn built_without_driver(&self, program: Program, device: &Device, why: &str) -> String {
        let name = &program.engine.manifest.name;
        let built_for = program.only_for.map_or_else(String::new, |family| format!(" for {family}"));
        // A program for all devices may still run on the CPU here.
        let names_device = program.only_for.is_none() && !device.is_cpu();
        let on_device = if names_device { format!(" on {}", device.family()) } else { String::new() };
        let path = self.registry.binary(program).unwrap_or_default();
        let path = self.registry.root.as_ref().and_then(|root| path.strip_prefix(root).ok()).unwrap_or(&path);
        let environment = match self.registry.state_ignoring_driver(program) {
            State::NoEnvironment => {
                "on a machine that can run it, the same command creates its environment\n"
            }
            _ => "",
        };
        let path = path.display();
        format!("`{name}` is built{built_for} ({path});\nit cannot run{on_device} here: {why}\n{environment}")
    }

    /// Builds a program, even if it is already built: cargo finds quickly whether anything changed.
    fn build(&mut self, program: Program) -> Result<()> {
        let (Some(root), Some(build)) = (&self.registry.root, program.build) else { return Ok(()) };
        let command = match &build.package {
            Some(package) => cargo_command(root, program, package, &build.features),
            None => in_checkout(root, &build.command),
        };
        let root = root.clone();
        let suffix = program.only_for.map_or_else(String::new, |family| format!(" for {family}"));
        let (step, note) = match self.registry.state_ignoring_driver(program) {
            State::NotBuilt => (format!("building{suffix}"), build.note.clone()),
            // Cargo keeps its downloads. A build command other than cargo may download again, so its note with the size is
            // shown again.
            _ => {
                let note = build.note.clone().filter(|_| build.package.is_none());
                (format!("bringing its build{suffix} up to date"), note)
            }
        };
        self.steps.run(program.engine, &step, note, &command, &root)
    }
}

/// The key of a program. Devices may share a program, and presets always do.
fn program_key(program: Program) -> (String, String) {
    (program.engine.manifest.name.clone(), program.binary.to_string())
}

/// The command that builds one program. Cargo unifies the features of a dependency over all selected packages. So an engine
/// among the default members is built with the selection of `cargo run`, and cargo reuses the crates that it has compiled.
/// An engine that the workspace excludes is a workspace of its own.
fn cargo_command(root: &Path, program: Program, package: &str, features: &[String]) -> Vec<String> {
    let mut command: Vec<String> = ["cargo", "build", "--release"].map(String::from).into();
    let engine = &program.engine.manifest.name;
    if features.is_empty() && is_listed(root, "default-members", engine) {
        command.extend(["--bin", program.binary].map(String::from));
        return command;
    }
    if is_listed(root, "exclude", engine) {
        command.extend(["--manifest-path".into(), format!("engines/{engine}/Cargo.toml")]);
    }
    command.extend(["-p", package].map(String::from));
    if !features.is_empty() {
        command.extend(["--features".into(), features.join(",")]);
    }
    command
}

/// Whether a list of the checkout's workspace has the engine's folder.
fn is_listed(root: &Path, list: &str, engine: &str) -> bool {
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap_or_default();
    let manifest: toml::Table = manifest.parse().unwrap_or_default();
    let folders = manifest.get("workspace").and_then(|it| it.get(list)?.as_array());
    let folder = format!("engines/{engine}");
    folders.is_some_and(|folders| folders.iter().any(|it| it.as_str() == Some(&folder)))
}

/// The command with its program's path made absolute: a relative path begins at the checkout, not at the current folder.
fn in_checkout(root: &Path, command: &[String]) -> Vec<String> {
    let mut command = command.to_vec();
    if let Some(program) = command.first_mut().filter(|program| program.contains('/')) {
        *program = root.join(&*program).to_string_lossy().into_owned();
    }
    command
}

/// The hint for a device that the manifest does not name: the device families that have their own program.
fn own_programs_hint(engine: &Engine) -> String {
    let families =
        engine.manifest.devices.keys().filter_map(|family| engine.program_for_family(family).only_for);
    let families = families.collect::<Vec<_>>().join(",");
    let command = || format!("\nhint: orchestrate setup {} --device {families}", engine.manifest.name);
    if families.is_empty() { String::new() } else { command() }
}

/// The note about an engine that runs in the user's own Python.
fn own_python_note(engine: &Engine) -> String {
    let note = engine.own_python().map(|python| {
        let (interpreter, variable) = (python.interpreter.display(), python.variable);
        format!("it runs in `{interpreter}` ({variable}), which was not checked;\nno environment is created for it\n")
    });
    note.unwrap_or_default()
}

fn unavailable(program: Program, problem: &str, error: &anyhow::Error) -> Unavailable {
    let text = without_hint(error);
    let (mut cause, lower) = (cause(&text).to_string(), text.to_ascii_lowercase());
    if NO_NETWORK.iter().any(|word| lower.contains(word)) {
        cause.push_str(" (is there a network?)");
    }
    Unavailable { reason: format!("{problem}: {cause}"), hint: Some(set_up_command(program)) }
}

/// The distinct devices, or an error about a mistyped name. Other unknown names are accepted, because the engine may know them.
/// `name` is the engine, or `--all`.
pub fn check_devices(registry: &Registry, name: &str, devices: &[Device]) -> Result<Vec<Device>> {
    let mut distinct: Vec<Device> = Vec::new();
    for device in devices {
        if let Some(known) = intended_device(registry, device) {
            let hint = format!("orchestrate setup {name} --device {known}");
            bail!(Usage(format!("no device `{device}`\nhint: {hint}")));
        }
        if !distinct.contains(device) {
            distinct.push(device.clone());
        }
    }
    Ok(distinct)
}

/// The known device that the user probably meant by a mistyped name.
fn intended_device(registry: &Registry, device: &Device) -> Option<String> {
    // Not `Device::family`, which is in lower case: capitals are a typing error too.
    let family = device.as_str().split(':').next().unwrap_or_default();
    let families = registry.engines.iter().flat_map(|engine| engine.manifest.devices.keys());
    let known: Vec<&str> = families.map(String::as_str).chain([CPU]).collect();
    let intended_device =
        known.iter().find(|known| is_mistyped(family, known)).filter(|_| !known.contains(&family))?;
    Some(format!("{intended_device}{}", &device.as_str()[family.len()..]))
}

/// Whether a name differs from a known one by the order of its letters, by capitals, or by one letter that is missing or too
/// many. A replaced letter is no sign of an error: `xpu`, `npu` and `tpu` are devices too.
fn is_mistyped(name: &str, known: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let sorted = |word: &str| {
        let mut letters: Vec<char> = word.chars().collect();
        letters.sort_unstable();
        letters
    };
    name == known
        || sorted(&name) == sorted(known)
        || lacks_one_letter(&name, known)
        || lacks_one_letter(known, &name)
}

fn lacks_one_letter(shorter: &str, longer: &str) -> bool {
    longer.char_indices().any(|(at, letter)| {
        longer.len() == shorter.len() + letter.len_utf8()
            && shorter.starts_with(&longer[..at])
            && shorter.ends_with(&longer[at + letter.len_utf8()..])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_device_is_distinguished_from_another_device() {
        for slip in ["cdua", "cuad", "cud", "uda", "cuuda", "cudaa", "CUDA", "Cuda"] {
            assert!(is_mistyped(slip, "cuda"), "{slip}");
        }
        for other in ["metal", "rocm", "xpu", "cu", "cuda12x", "", "ċuda"] {
            assert!(!is_mistyped(other, "cuda"), "{other}");
        }
        for other in ["gpu", "xpu", "npu", "tpu", "mps"] {
            assert!(!is_mistyped(other, CPU), "{other}");
        }
    }
}
