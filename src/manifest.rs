//! `engines/NAME/engine.toml`: how an engine comes to be. What it can do, it says itself (`hello`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The engines in the tree when this program was built: for one that is installed away from its checkout.
const EMBEDDED: &[(&str, Option<&str>)] = include!(concat!(env!("OUT_DIR"), "/manifests.rs"));

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
    pub requirements: String,
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

/// Load options under a name.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Preset {
    pub about: String,
    pub options: Map<String, Value>,
}

/// The preset that needs no name.
pub const DEFAULT_PRESET: &str = "default";

#[derive(Debug, Clone)]
pub struct Engine {
    pub manifest: Manifest,
    /// The text of the pinned requirements, where there is an environment.
    pub requirements: Option<String>,
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

/// What `cuda:1` and `cuda` have in common.
pub fn family(device: &str) -> &str {
    device.split(':').next().unwrap_or_default()
}

impl Engine {
    /// What is started on every device of which the manifest says nothing.
    pub fn own_program(&self) -> Program<'_> {
        let Manifest { binary, build, .. } = &self.manifest;
        Program { engine: self, binary, build: build.as_ref(), only_for: None, more_needs: None }
    }

    pub fn on(&self, device: &str) -> Program<'_> {
        let own = self.own_program();
        let Some((family, there)) = self.manifest.devices.get_key_value(family(device)) else { return own };
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
        self.requirements.as_ref().map(|requirements| places::environment(&self.manifest.name, requirements))
    }

    /// What its worker runs in, if it has one.
    pub fn python(&self) -> Option<Result<places::Python>> {
        self.requirements.as_ref().map(|requirements| places::python(&self.manifest.name, requirements))
    }

    /// The presets that are measured beside the default one: what has its settings under another name would be measured twice.
    pub fn other_presets(&self) -> impl Iterator<Item = &String> {
        let presets = &self.manifest.presets;
        let usual = presets.get(DEFAULT_PRESET).map(|preset| preset.options.clone()).unwrap_or_default();
        let others = presets.iter().filter(|(name, _)| *name != DEFAULT_PRESET);
        others.filter(move |(_, preset)| preset.options != usual).map(|(name, _)| name)
    }

    /// A preset by its name, or the default one.
    pub fn preset(&self, name: Option<&str>) -> Result<(String, Preset)> {
        let name = name.unwrap_or(DEFAULT_PRESET);
        let preset = self.manifest.presets.get(name).cloned();
        let preset = preset.or_else(|| (name == DEFAULT_PRESET).then(Preset::default));
        let known: Vec<_> = self.manifest.presets.keys().map(|preset| format!("`{preset}`")).collect();
        let preset = preset.with_context(|| {
            format!(
                "engine `{}` has no preset `{name}`\nhint: its presets are {}",
                self.manifest.name,
                known.join(", ")
            )
        })?;
        Ok((name.to_string(), preset))
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
        let requirements = std::fs::read_to_string(folder.join("requirements.txt")).ok();
        engines.push(
            engine(&manifest, requirements.as_deref()).with_context(|| format!("in `{}`", path.display()))?,
        );
    }
    Ok(engines)
}

pub fn engine(manifest: &str, requirements: Option<&str>) -> Result<Engine> {
    let manifest: Manifest = toml::from_str(manifest)?;
    if let Some(environment) = &manifest.environment
        && environment.requirements != "requirements.txt"
    {
        bail!(
            "`environment.requirements`: expected `requirements.txt`, found `{}`",
            environment.requirements
        );
    }
    check_devices(&manifest)?;
    let requirements = match &manifest.environment {
        Some(_) => {
            Some(requirements.context("`environment` without a `requirements.txt` beside it")?.to_string())
        }
        None => None,
    };
    Ok(Engine { manifest, requirements })
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
    EMBEDDED.iter().map(|(manifest, requirements)| engine(manifest, *requirements)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_with_a_word_that_nobody_knows_is_refused() {
        let manifest = "name = \"toy\"\nabout = \"a toy\"\nbinary = \"toy-engine\"\n";
        assert!(engine(manifest, None).is_ok());
        assert!(engine(&format!("nmae = 1\n{manifest}"), None).is_err());
    }

    const TOY: &str = "name = \"toy\"\nabout = \"a toy\"\nbinary = \"toy-engine\"\n";

    #[test]
    fn a_family_of_devices_has_its_own_program_or_the_engines_own_with_more_needs() {
        let own = format!("{TOY}[needs]\nos = [\"linux\"]\n[devices.cuda]\nbinary = \"toy-cuda\"\n");
        let toy = engine(&format!("{own}[devices.cuda.needs]\ndriver = \"nvidia\"\n"), None).unwrap();
        for device in ["cuda", "cuda:1"] {
            let program = toy.on(device);
            assert_eq!((program.binary, program.only_for), ("toy-cuda", Some("cuda")));
            assert!(program.needs().any(|it| it.driver.is_some()));
            assert!(program.needs().any(|it| !it.os.is_empty()), "the engine's needs hold on every device");
        }
        for device in ["cpu", "metal", "cudax", ""] {
            let program = toy.on(device);
            assert_eq!((program.binary, program.only_for), ("toy-engine", None), "{device}");
            assert!(program.needs().all(|it| it.driver.is_none()));
        }
        let shared = engine(&format!("{TOY}[devices.cuda.needs]\ndriver = \"nvidia\"\n"), None).unwrap();
        let program = shared.on("cuda:0");
        assert_eq!((program.binary, program.only_for), ("toy-engine", None));
        assert!(program.needs().any(|it| it.driver.is_some()));
    }

    #[test]
    fn what_a_manifest_says_of_devices_in_vain_is_refused() {
        let refused = |devices: &str| engine(&format!("{TOY}{devices}"), None).unwrap_err().to_string();
        let said = refused("[devices.\"cuda:1\"]\nbinary = \"x\"\n");
        assert_eq!(said, "`devices.cuda:1`: expected a family of devices such as `cuda`");
        let said = refused("[devices.cuda.build]\npackage = \"toy\"\n");
        assert!(said.starts_with("`devices.cuda.build` without `devices.cuda.binary`"), "{said}");
        let said = refused("[devices.cuda]\nbinary = \"toy-engine\"\n");
        assert!(said.contains("`toy-engine` is another device's program"), "{said}");
        assert!(refused("[devices.cuda.needs]\ndriver = \"other\"\n").contains("unknown variant `other`"));
    }

    #[test]
    fn every_manifest_in_the_tree_reads_and_its_name_is_its_folder() {
        let folder = places::checkout().unwrap().join("engines");
        let engines = read(&folder).unwrap();
        assert_eq!(engines.len(), embedded().unwrap().len());
        for engine in engines {
            let name = &engine.manifest.name;
            assert!(folder.join(name).join("engine.toml").is_file(), "{name}");
        }
    }
}
