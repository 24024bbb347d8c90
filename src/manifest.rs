//! `engines/NAME/engine.toml`: how an engine comes to be. What it can do, it says itself (`hello`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
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
    /// `requirements.txt` beside the manifest, or `../environments/NAME/requirements.txt`, which engines share with all
    /// that it makes.
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
    /// What is loaded where the user names no dtype.
    pub dtype: Option<String>,
    pub against: Option<Against>,
}

/// Another preset of the same engine, and what the difference from that one to this is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Against {
    pub preset: String,
    pub says: String,
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
        let requirements = self.requirements.as_ref()?;
        Some(places::environment(self.environment_name(), requirements))
    }

    /// What its worker runs in, if it has one.
    pub fn python(&self) -> Option<Result<places::Python>> {
        let requirements = self.requirements.as_ref()?;
        Some(places::python(&self.manifest.name, self.environment_name(), requirements))
    }

    /// Its own name, or that of the environment that it shares.
    pub fn environment_name(&self) -> &str {
        let environment = self.manifest.environment.as_ref();
        environment.and_then(Environment::shared).unwrap_or(&self.manifest.name)
    }

    /// The presets that are measured beside the default one: what has its settings under another name would be measured twice.
    pub fn other_presets(&self) -> impl Iterator<Item = &String> {
        let presets = &self.manifest.presets;
        let usual = presets.get(DEFAULT_PRESET).cloned().unwrap_or_default();
        let settings = |preset: &Preset| (preset.options.clone(), preset.dtype.clone());
        let others = presets.iter().filter(|(name, _)| *name != DEFAULT_PRESET);
        others.filter(move |(_, preset)| settings(preset) != settings(&usual)).map(|(name, _)| name)
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
        let beside = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
        engines.push(engine(&manifest, beside).with_context(|| format!("in `{}`", path.display()))?);
    }
    Ok(engines)
}

/// `read` gives the content of a file by its path from the manifest's folder.
pub fn engine(manifest: &str, read: impl Fn(&str) -> Option<String>) -> Result<Engine> {
    let manifest: Manifest = toml::from_str(manifest)?;
    check_devices(&manifest)?;
    check_presets(&manifest)?;
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
    Ok(Engine { manifest, requirements })
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

/// A comparison with a preset that nobody can ask for would never be made.
fn check_presets(manifest: &Manifest) -> Result<()> {
    for (name, preset) in &manifest.presets {
        let Some(against) = &preset.against else { continue };
        let known = against.preset == DEFAULT_PRESET || manifest.presets.contains_key(&against.preset);
        if !known || against.preset == *name {
            bail!("`presets.{name}.against`: `{}` is no other preset of this engine", against.preset);
        }
    }
    Ok(())
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
        .map(|(manifest, requirements)| engine(manifest, |_| requirements.map(str::to_string)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_with_a_word_that_nobody_knows_is_refused() {
        let manifest = "name = \"toy\"\nabout = \"a toy\"\nbinary = \"toy-engine\"\n";
        assert!(engine(manifest, |_| None).is_ok());
        assert!(engine(&format!("nmae = 1\n{manifest}"), |_| None).is_err());
    }

    const TOY: &str = "name = \"toy\"\nabout = \"a toy\"\nbinary = \"toy-engine\"\n";

    #[test]
    fn a_family_of_devices_has_its_own_program_or_the_engines_own_with_more_needs() {
        let own = format!("{TOY}[needs]\nos = [\"linux\"]\n[devices.cuda]\nbinary = \"toy-cuda\"\n");
        let toy = engine(&format!("{own}[devices.cuda.needs]\ndriver = \"nvidia\"\n"), |_| None).unwrap();
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
        let shared = engine(&format!("{TOY}[devices.cuda.needs]\ndriver = \"nvidia\"\n"), |_| None).unwrap();
        let program = shared.on("cuda:0");
        assert_eq!((program.binary, program.only_for), ("toy-engine", None));
        assert!(program.needs().any(|it| it.driver.is_some()));
    }

    #[test]
    fn what_a_manifest_says_of_devices_in_vain_is_refused() {
        let refused = |devices: &str| engine(&format!("{TOY}{devices}"), |_| None).unwrap_err().to_string();
        let said = refused("[devices.\"cuda:1\"]\nbinary = \"x\"\n");
        assert_eq!(said, "`devices.cuda:1`: expected a family of devices such as `cuda`");
        let said = refused("[devices.cuda.build]\npackage = \"toy\"\n");
        assert!(said.starts_with("`devices.cuda.build` without `devices.cuda.binary`"), "{said}");
        let said = refused("[devices.cuda]\nbinary = \"toy-engine\"\n");
        assert!(said.contains("`toy-engine` is another device's program"), "{said}");
        assert!(refused("[devices.cuda.needs]\ndriver = \"other\"\n").contains("unknown variant `other`"));
    }

    #[test]
    fn an_environment_is_the_engines_own_or_one_that_engines_share_by_its_name() {
        let environment = |path: &str| {
            let rest = "python = \"3.11\"\ndownload_mb = 1\ninstalled_mb = 1\n";
            engine(&format!("{TOY}[environment]\nrequirements = \"{path}\"\n{rest}"), |path| {
                Some(path.into())
            })
        };
        let own = environment("requirements.txt").unwrap();
        assert_eq!((own.environment_name(), own.requirements.as_deref()), ("toy", Some("requirements.txt")));
        let shared = environment("../environments/snake/requirements.txt").unwrap();
        assert_eq!(shared.environment_name(), "snake");
        for path in
            ["pins.txt", "../environments/requirements.txt", "../environments/a/b/requirements.txt", "/x"]
        {
            let error = environment(path).unwrap_err().to_string();
            assert!(error.contains("expected `requirements.txt` or"), "{error}");
        }
    }

    #[test]
    fn a_preset_is_held_against_another_one_that_there_is() {
        let preset = |against: &str| {
            let against = format!("against = {{ preset = \"{against}\", says = \"cost of haste\" }}\n");
            engine(&format!("{TOY}[presets.fast]\n{against}[presets.slow]\ndtype = \"f64\"\n"), |_| None)
        };
        assert!(preset("default").is_ok());
        assert_eq!(preset("slow").unwrap().manifest.presets["slow"].dtype.as_deref(), Some("f64"));
        for nobody in ["fast", "quick"] {
            let error = preset(nobody).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("`presets.fast.against`: `{nobody}` is no other preset of this engine")
            );
        }
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
