//! `engines/NAME/engine.toml`: how an engine comes to be. What it can do, it says itself (`hello`).

mod presets;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::machine::Device;

pub use presets::{Against, DEFAULT_PRESET, OwnSuite, Preset};

/// The engines in the tree when this program was built: for one that is installed away from its checkout.
const EMBEDDED: &[(&str, &[(&str, &str)])] = include!(concat!(env!("OUT_DIR"), "/manifests.rs"));

/// The file's content.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub name: String,
    pub about: String,
    pub binary: String,
    /// Ratios are taken against this engine unless the user names another.
    #[serde(default)]
    pub reference: bool,
    /// It cannot be kept, stopped, while other engines are measured: a server of its own, a device that it holds.
    #[serde(default)]
    pub alone: bool,
    /// `auto`: a run may set it up by itself, saying first how large it is. Else it is set up on request.
    #[serde(default)]
    pub setup: SetUp,
    pub build: Option<Build>,
    pub environment: Option<Environment>,
    #[serde(default)]
    pub needs: Needs,
    /// By a device's family (`cuda`, which is `cuda:1`'s too): where it is another program, or needs more of the machine.
    #[serde(default)]
    pub devices: BTreeMap<String, OnDevice>,
    #[serde(default)]
    pub presets: BTreeMap<String, Preset>,
    /// What `-s` takes beside the suites that every engine can run.
    #[serde(default)]
    pub suites: BTreeMap<String, OwnSuite>,
}

/// What differs on one family of devices.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OnDevice {
    /// Absent where the engine's own program serves this device as well.
    pub binary: Option<String>,
    pub build: Option<Build>,
    pub needs: Needs,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SetUp {
    Auto,
    #[default]
    Request,
}

/// A cargo package of the workspace, or a command that is run in the checkout.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Build {
    pub package: Option<String>,
    pub features: Vec<String>,
    pub command: Vec<String>,
    /// How long it takes, say.
    pub note: Option<String>,
}

/// A Python environment with pinned requirements.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    pub python: String,
    /// `requirements.txt` beside the manifest, or `../environments/NAME/requirements.txt`, which engines share with all
    /// that it makes.
    pub requirements: String,
    /// Files beside the manifest, for packages that come as source. `build-requirements.txt` pins what they are built with,
    /// `build-settings.txt` says how; others are for settings that name them, as `{build}/FILE`.
    #[serde(default)]
    pub build: Vec<String>,
    /// What else there is to know before it is made: how long that takes, say.
    pub note: Option<String>,
    pub download_mb: u64,
    pub installed_mb: u64,
    /// How else what it holds is to be had: told where it is not there or cannot be created.
    pub otherwise: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Needs {
    /// As `std::env::consts::OS` spells them; empty: any.
    pub os: Vec<String>,
    /// Whose driver of GPUs it cannot start without.
    pub driver: Option<Driver>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    Nvidia,
}

#[derive(Debug, Clone)]
pub struct Engine {
    pub manifest: Manifest,
    /// The text of the pinned requirements, where there is an environment.
    pub requirements: Option<String>,
    /// The files of `environment.build`: name and text.
    pub build_files: Vec<(String, String)>,
}

/// What is started for an engine on a device, and what that needs.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    pub engine: &'a Engine,
    pub binary: &'a str,
    pub build: Option<&'a Build>,
    /// The family of devices that it is for; `None` of the engine's own, which serves all others.
    pub only_for: Option<&'a str>,
    /// The device's, beside those of the engine.
    more_needs: Option<&'a Needs>,
}

impl<'a> Program<'a> {
    pub fn needs(&self) -> impl Iterator<Item = &'a Needs> {
        std::iter::once(&self.engine.manifest.needs).chain(self.more_needs)
    }
}

impl Engine {
    /// What is started on every device of which the manifest says nothing.
    pub fn own_program(&self) -> Program<'_> {
        let Manifest { binary, build, .. } = &self.manifest;
        Program { engine: self, binary, build: build.as_ref(), only_for: None, more_needs: None }
    }

    pub fn on(&self, device: &Device) -> Program<'_> {
        self.on_family(&device.family())
    }

    pub fn on_family(&self, family: &str) -> Program<'_> {
        let own = self.own_program();
        let Some((family, there)) = self.manifest.devices.get_key_value(family) else { return own };
        let more_needs = Some(&there.needs);
        match &there.binary {
            Some(binary) => {
                Program { binary, build: there.build.as_ref(), only_for: Some(family), more_needs, ..own }
            }
            None => Program { more_needs, ..own },
        }
    }

    /// The folder of its Python environment, if it has one.
    pub fn environment(&self) -> Option<Result<PathBuf>> {
        Some(places::environment(self.environment_name(), &self.made_from()?))
    }

    /// What its worker runs in, if it has one.
    pub fn python(&self) -> Option<Result<places::Python>> {
        Some(places::python(&self.manifest.name, self.environment_name(), &self.made_from()?))
    }

    /// All that its environment is made from, one text after the other: another text, another environment.
    fn made_from(&self) -> Option<String> {
        let requirements = self.requirements.as_deref()?;
        Some(
            std::iter::once(requirements)
                .chain(self.build_files.iter().map(|(_, text)| text.as_str()))
                .collect(),
        )
    }

    /// Its own name, or that of the environment that it shares.
    pub fn environment_name(&self) -> &str {
        let environment = self.manifest.environment.as_ref();
        environment.and_then(Environment::shared).unwrap_or(&self.manifest.name)
    }
}

/// The engines that have a manifest in a folder of `engines/`.
pub fn read(folder: &Path) -> Result<Vec<Engine>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read `{}`", folder.display()))?;
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    let mut engines = Vec::new();
    for folder in folders {
        let path = folder.join("engine.toml");
        let Ok(manifest) = std::fs::read_to_string(&path) else { continue };
        let beside = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
        engines.push(engine(&manifest, beside).with_context(|| format!("in `{}`", path.display()))?);
    }
    Ok(engines)
}

/// `read` gives the content of a file by its path from the manifest's folder.
pub fn engine(manifest: &str, read: impl Fn(&str) -> Option<String>) -> Result<Engine> {
    let manifest: Manifest = toml::from_str(manifest)?;
    check_devices(&manifest)?;
    presets::check(&manifest)?;
    let requirements = match &manifest.environment {
        Some(environment) => {
            let path = &environment.requirements;
            if path != OWN_REQUIREMENTS && environment.shared().is_none() {
                bail!(
                    "`environment.requirements`: expected `{OWN_REQUIREMENTS}` or `../environments/NAME/{OWN_REQUIREMENTS}`, found `{path}`"
                );
            }
            Some(read(path).with_context(|| format!("`environment.requirements`: no file `{path}`"))?)
        }
        None => None,
    };
    let build_files = build_files(&manifest, &read)?;
    Ok(Engine { manifest, requirements, build_files })
}

/// An environment that engines share has one way of being built, which is none of theirs.
fn build_files(manifest: &Manifest, read: impl Fn(&str) -> Option<String>) -> Result<Vec<(String, String)>> {
    let Some(environment) = &manifest.environment else { return Ok(Vec::new()) };
    if environment.shared().is_some() && !environment.build.is_empty() {
        bail!("`environment.build`: `{}` is shared, and is built in one way", environment.requirements);
    }
    let file = |name: &String| {
        if name.contains('/') || name.starts_with('.') {
            bail!("`environment.build`: expected a file beside the manifest, found `{name}`");
        }
        let text = read(name).with_context(|| format!("`environment.build`: no file `{name}`"))?;
        Ok((name.clone(), text))
    };
    environment.build.iter().map(file).collect()
}

/// What an environment is made from that belongs to one engine.
const OWN_REQUIREMENTS: &str = "requirements.txt";

impl Environment {
    /// The name of an environment that several engines may share.
    fn shared(&self) -> Option<&str> {
        let name = self.requirements.strip_prefix("../environments/")?.strip_suffix("/requirements.txt")?;
        let plain = |it: u8| it.is_ascii_alphanumeric() || it == b'-' || it == b'_';
        (!name.is_empty() && name.bytes().all(plain)).then_some(name)
    }
}

/// What would be passed over in silence, or would build one program over another, is refused.
fn check_devices(manifest: &Manifest) -> Result<()> {
    let mut binaries = vec![&manifest.binary];
    for (name, device) in &manifest.devices {
        let is_family =
            !name.is_empty() && name.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit());
        if !is_family {
            bail!("`devices.{name}`: expected a family of devices such as `cuda`");
        }
        match &device.binary {
            None if device.build.is_some() => {
                bail!(
                    "`devices.{name}.build` without `devices.{name}.binary`: nothing is started that it builds"
                );
            }
            Some(binary) if binaries.contains(&binary) => {
                bail!(
                    "`devices.{name}.binary`: `{binary}` is another device's program: expected a name of its own"
                );
            }
            binary => binaries.extend(binary),
        }
    }
    Ok(())
}

/// The engines that were in the tree when this program was built.
pub fn embedded() -> Result<Vec<Engine>> {
    EMBEDDED
        .iter()
        .map(|(manifest, files)| {
            engine(manifest, |path| files.iter().find(|it| it.0 == path).map(|it| it.1.to_string()))
        })
        .collect()
}

#[cfg(test)]
mod tests;
