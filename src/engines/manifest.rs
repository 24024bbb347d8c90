//! `engines/NAME/engine.toml`: how an engine is built, set up and started; the values that its `load` accepts; its presets and
//! suites. Other capabilities come from its `hello`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use paths::{OwnPython, Python};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::load_values::{LoadValue, LoadValues};
use crate::machine::Device;
use crate::shell::unknown_name;

/// The manifests in the source tree at build time, each with its files (name, text), for a program outside its checkout.
const EMBEDDED: &[(&str, &[(&str, &str)])] = include!(concat!(env!("OUT_DIR"), "/manifests.rs"));

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub name: String,
    pub about: String,
    pub binary: String,
    /// Whether the engine is the reference and the verifier, unless the user names others.
    #[serde(default)]
    pub reference: bool,
    /// Whether the engine cannot stay paused while others are measured, because it has its own server or holds a device.
    #[serde(default)]
    pub alone: bool,
    /// `auto`: a run may set it up by itself, after stating its size. Otherwise it is set up on request.
    #[serde(default)]
    pub setup: SetUp,
    pub build: Option<Build>,
    pub environment: Option<Environment>,
    #[serde(default)]
    pub needs: Needs,
    /// By device family (`cuda` for `cuda:1` too): the families with another program or further needs.
    #[serde(default)]
    pub devices: BTreeMap<String, DeviceSettings>,
    /// The values that the engine's `load` accepts. Its `hello` lists the same values.
    #[serde(default)]
    pub load: LoadValues,
    #[serde(default)]
    pub presets: BTreeMap<String, Preset>,
    /// The settings for those words of `--quantize` that the engine supports.
    #[serde(default)]
    pub quantize: BTreeMap<String, Precision>,
    /// The engine's own suites for `-s`, besides those that every engine can run.
    #[serde(default)]
    pub suites: BTreeMap<String, OwnSuite>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceSettings {
    /// Absent if the engine's own program serves this device too.
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

/// A cargo package of the workspace, or a command that runs in the checkout.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Build {
    pub package: Option<String>,
    pub features: Vec<String>,
    pub command: Vec<String>,
    /// A note for the user, for example how long the build takes.
    pub note: Option<String>,
}

/// A Python environment with pinned requirements.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    pub python: String,
    /// `requirements.txt` beside the manifest or of another engine (`../ENGINE/requirements.txt`), or
    /// `../environments/NAME/requirements.txt` for an environment that several engines share.
    pub requirements: String,
    /// Files for packages that are built from source, beside the manifest or as `../ENGINE/FILE`. `build-requirements.txt` pins the
    /// build tools, and `build-settings.txt` has the build settings. Settings refer to further files as `{build}/FILE`.
    #[serde(default)]
    pub build: Vec<String>,
    /// A note for the user before set-up, for example how long it takes.
    pub note: Option<String>,
    pub download_mb: u64,
    pub installed_mb: u64,
    /// Another way to get the packages of the environment. It is shown when the environment is missing or cannot be created.
    pub install_hint: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Needs {
    /// Operating systems, as `std::env::consts::OS` spells them. Empty means any.
    pub os: Vec<String>,
    /// The GPU driver that the engine needs to start.
    pub driver: Option<Driver>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    Nvidia,
}

/// The preset of an engine that is named without a preset.
pub const DEFAULT_PRESET: &str = "default";

/// The load option that quantizes weights whatever their dtype.
pub const QUANTIZE_OPTION: &str = "quantize";

/// Load options under a name.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Preset {
    pub about: String,
    pub options: Map<String, Value>,
    /// The dtype to load. Another `--dtype` is refused, except with the default preset.
    pub dtype: Option<String>,
    /// The only families of devices on which the preset runs. Empty: those of `[load]`.
    pub devices: Vec<String>,
    pub against: Option<PresetComparison>,
    /// The only suite that measures this preset, unless the user names the preset.
    pub suite: Option<String>,
}

/// The settings that load an engine in a certain precision.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    Preset(String),
    /// This dtype in the default preset.
    Dtype(String),
}

/// Scenarios and their rows: the presets that name this suite, each after the preset that it is compared with.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnSuite {
    pub about: String,
    pub scenarios: Vec<String>,
}

/// Another preset of the same engine, and a name for the difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PresetComparison {
    pub preset: String,
    #[serde(alias = "says")]
    pub effect: String,
}

/// An engine: its manifest, and the texts of the files that the manifest names.
#[derive(Debug, Clone)]
pub struct Engine {
    pub manifest: Manifest,
    /// The text of the pinned requirements, where there is an environment.
    pub requirements: Option<String>,
    /// The files of `environment.build`: name and text.
    pub build_files: Vec<(String, String)>,
}

/// The program to start for an engine on a device, and its needs.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    pub engine: &'a Engine,
    pub binary: &'a str,
    pub build: Option<&'a Build>,
    /// The device family of this program. `None` for the engine's own program, which serves all other devices.
    pub only_for: Option<&'a str>,
    /// The device's needs, in addition to those of the engine.
    more_needs: Option<&'a Needs>,
}

impl<'a> Program<'a> {
    pub fn needs(&self) -> impl Iterator<Item = &'a Needs> {
        std::iter::once(&self.engine.manifest.needs).chain(self.more_needs)
    }
}

impl Engine {
    /// The program for every device without a program of its own.
    pub fn own_program(&self) -> Program<'_> {
        let Manifest { binary, build, .. } = &self.manifest;
        Program { engine: self, binary, build: build.as_ref(), only_for: None, more_needs: None }
    }

    pub fn program_for(&self, device: &Device) -> Program<'_> {
        self.program_for_family(&device.family())
    }

    pub fn program_for_family(&self, family: &str) -> Program<'_> {
        let own_program = self.own_program();
        let Some((family, settings)) = self.manifest.devices.get_key_value(family) else {
            return own_program;
        };
        let more_needs = Some(&settings.needs);
        match &settings.binary {
            Some(binary) => Program {
                binary,
                build: settings.build.as_ref(),
                only_for: Some(family),
                more_needs,
                ..own_program
            },
            None => Program { more_needs, ..own_program },
        }
    }

    /// The folder of the engine's Python environment, if the engine has one.
    pub fn environment(&self) -> Option<Result<PathBuf>> {
        Some(paths::environment(self.environment_name(), &self.definition()?))
    }

    /// The Python of the engine's worker, if the engine has one.
    pub fn python(&self) -> Option<Result<Python>> {
        Some(paths::python(&self.manifest.name, self.environment_name(), &self.definition()?))
    }

    /// The user's own Python, if the engine's worker runs in it.
    pub fn own_python(&self) -> Option<OwnPython> {
        match self.python() {
            Some(Ok(Python::Own(own))) => Some(own),
            _ => None,
        }
    }

    /// All texts that define the engine's environment, joined. Another definition makes another environment.
    fn definition(&self) -> Option<String> {
        let build_files = self.build_files.iter().map(|(_, text)| text.as_str());
        Some(std::iter::once(self.requirements.as_deref()?).chain(build_files).collect())
    }

    /// The name of the environment: the name of the engine, or the name of a shared environment.
    pub fn environment_name(&self) -> &str {
        let environment = self.manifest.environment.as_ref();
        environment.and_then(Environment::shared).unwrap_or(&self.manifest.name)
    }

    /// The presets to measure besides the default preset. Presets of a suite are left out, and presets with the settings of the
    /// default.
    pub fn other_presets(&self) -> impl Iterator<Item = &String> {
        let presets = &self.manifest.presets;
        let default = presets.get(DEFAULT_PRESET).cloned().unwrap_or_default();
        let settings = |preset: &Preset| (preset.options.clone(), preset.dtype.clone());
        let others = presets.iter().filter(|(name, it)| *name != DEFAULT_PRESET && it.suite.is_none());
        others.filter(move |(_, preset)| settings(preset) != settings(&default)).map(|(name, _)| name)
    }

    /// The presets that change the precision of the weights: those with a dtype or the load option `quantize`, and those that
    /// `--quantize` selects. Those of a suite are left out.
    pub fn precision_presets(&self) -> impl Iterator<Item = &String> {
        let Manifest { presets, quantize, .. } = &self.manifest;
        let is_selected = |name: &String| {
            quantize.values().any(|it| matches!(it, Precision::Preset(preset) if preset == name))
        };
        let has_precision =
            |preset: &Preset| preset.dtype.is_some() || preset.options.contains_key(QUANTIZE_OPTION);
        self.other_presets()
            .filter(move |name| is_selected(name) || presets.get(*name).is_some_and(has_precision))
    }

    /// The rows of all precisions on these devices: the presets that change nothing but the precision, and the default preset in
    /// each dtype that none of them loads. Other presets cannot be compared as precisions.
    pub fn precisions(&self, devices: &[Device]) -> Vec<(String, Preset)> {
        let runs_here = |preset: &Preset| {
            let is_listed = |it: &Device| {
                preset.devices.iter().any(|name| Device::from(name.as_str()).family() == it.family())
            };
            preset.devices.is_empty() || devices.iter().any(is_listed)
        };
        let default = self.preset(None).map(|(_, preset)| preset).unwrap_or_default();
        let differs_in_precision = |preset: &Preset| {
            options_beside_precision(&preset.options) == options_beside_precision(&default.options)
        };
        let presets = self.precision_presets().filter_map(|name| self.preset(Some(name)).ok());
        let presets = presets.filter(|(_, preset)| runs_here(preset) && differs_in_precision(preset));
        let mut rows: Vec<(String, Preset)> = presets.collect();
        let is_loaded = |dtype: &String| {
            rows.iter()
                .any(|(_, it)| it.dtype.as_ref() == Some(dtype) && !it.options.contains_key(QUANTIZE_OPTION))
        };
        let dtypes: Vec<String> =
            self.manifest.load.dtypes.iter().filter(|dtype| !is_loaded(dtype)).cloned().collect();
        let in_dtype = |dtype| (DEFAULT_PRESET.to_string(), Preset { dtype: Some(dtype), ..default.clone() });
        rows.extend(dtypes.into_iter().map(in_dtype));
        rows
    }

    /// A preset by its name, or the default one.
    pub fn preset(&self, name: Option<&str>) -> Result<(String, Preset)> {
        let Manifest { name: engine, presets, .. } = &self.manifest;
        let name = name.unwrap_or(DEFAULT_PRESET);
        let preset = presets.get(name).cloned();
        let preset = preset.or_else(|| (name == DEFAULT_PRESET).then(Preset::default));
        let known: Vec<&str> = presets.keys().map(String::as_str).collect();
        let unknown = || unknown_name(&format!("preset of `{engine}`"), name, &known);
        Ok((name.to_string(), preset.ok_or_else(unknown)?))
    }

    /// The preset for a word of `--quantize`. `None` if the engine has none.
    pub fn quantized(&self, word: &str) -> Result<Option<(String, Preset)>> {
        Ok(match self.manifest.quantize.get(word) {
            None => None,
            Some(Precision::Preset(name)) => Some(self.preset(Some(name))?),
            Some(Precision::Dtype(dtype)) => {
                let (name, preset) = self.preset(None)?;
                Some((name, Preset { dtype: Some(dtype.clone()), ..preset }))
            }
        })
    }

    /// The rows of one of the engine's suites, as `-e` takes them. Compared rows are next to each other.
    pub fn rows_of(&self, suite: &str) -> Vec<String> {
        let name = &self.manifest.name;
        let row = |preset: &String| match preset == DEFAULT_PRESET {
            true => name.clone(),
            false => format!("{name}:{preset}"),
        };
        let suite_presets =
            || self.manifest.presets.iter().filter(|(_, it)| it.suite.as_deref() == Some(suite));
        let mut rows: Vec<String> = Vec::new();
        for (preset, settings) in suite_presets() {
            let against = settings.against.as_ref().map(|it| &it.preset);
            let siblings =
                suite_presets().filter(|(_, it)| it.against.as_ref().map(|it| &it.preset) == against);
            for row in against.into_iter().chain([preset]).chain(siblings.map(|(name, _)| name)).map(row) {
                if !rows.contains(&row) {
                    rows.push(row);
                }
            }
        }
        rows
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
        let read_file = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
        engines.push(engine(&manifest, read_file).with_context(|| format!("in `{}`", path.display()))?);
    }
    Ok(engines)
}

/// Parses a manifest. `read` gives the content of a file by its path from the manifest's folder.
pub fn engine(manifest: &str, read: impl Fn(&str) -> Option<String>) -> Result<Engine> {
    let manifest: Manifest = toml::from_str(manifest)?;
    check_devices(&manifest)?;
    check_presets(&manifest)?;
    check_precisions(&manifest)?;
    let requirements = match &manifest.environment {
        Some(environment) => {
            let path = &environment.requirements;
            ensure!(
                file_of_engine(path) == Some(OWN_REQUIREMENTS) || environment.shared().is_some(),
                "`environment.requirements`: expected `{OWN_REQUIREMENTS}`, `../ENGINE/{OWN_REQUIREMENTS}` or \
                 `../environments/NAME/{OWN_REQUIREMENTS}`, found `{path}`"
            );
            Some(read(path).with_context(|| format!("`environment.requirements`: no file `{path}`"))?)
        }
        None => None,
    };
    let build_files = build_files(&manifest, &read)?;
    Ok(Engine { manifest, requirements, build_files })
}

/// The files of `environment.build`. A shared environment has none, because it is built in one way for all its engines.
fn build_files(manifest: &Manifest, read: impl Fn(&str) -> Option<String>) -> Result<Vec<(String, String)>> {
    let Some(environment) = &manifest.environment else { return Ok(Vec::new()) };
    if environment.shared().is_some() && !environment.build.is_empty() {
        bail!("`environment.build`: `{}` is shared, so it takes no build files", environment.requirements);
    }
    let file = |path: &String| {
        let name = file_of_engine(path).with_context(|| {
            format!(
                "`environment.build`: expected a file beside the manifest or `../ENGINE/FILE`, found `{path}`"
            )
        })?;
        let text = read(path).with_context(|| format!("`environment.build`: no file `{path}`"))?;
        Ok((name.to_string(), text))
    };
    environment.build.iter().map(file).collect()
}

/// The name of a file beside the manifest, or in the folder of another engine.
fn file_of_engine(path: &str) -> Option<&str> {
    let is_name = |name: &str| !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    let of_another = path.strip_prefix("../").and_then(|path| path.split_once('/'));
    let name = match of_another {
        // `environments` is no engine.
        Some((engine, name)) if is_name(engine) && engine != "environments" => name,
        Some(_) => return None,
        None => path,
    };
    is_name(name).then_some(name)
}

/// The requirements file of an environment that belongs to one engine.
const OWN_REQUIREMENTS: &str = "requirements.txt";

impl Environment {
    /// The name of the environment, if several engines may share it.
    fn shared(&self) -> Option<&str> {
        let name = self.requirements.strip_prefix("../environments/")?.strip_suffix("/requirements.txt")?;
        let is_allowed = |it: u8| it.is_ascii_alphanumeric() || it == b'-' || it == b'_';
        (!name.is_empty() && name.bytes().all(is_allowed)).then_some(name)
    }
}

/// Refuses entries of `devices` that would have no effect, or that name the program of another device.
fn check_devices(manifest: &Manifest) -> Result<()> {
    let mut binaries = vec![&manifest.binary];
    for (name, device) in &manifest.devices {
        let is_family = name.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit());
        ensure!(
            is_family && !name.is_empty(),
            "`devices.{name}`: expected a family of devices such as `cuda`"
        );
        match &device.binary {
            None if device.build.is_some() => {
                bail!(
                    "`devices.{name}.build` without `devices.{name}.binary`: the program that it builds would never start"
                );
            }
            Some(binary) if binaries.contains(&binary) => {
                bail!(
                    "`devices.{name}.binary`: `{binary}` is the program of another device: expected another name"
                );
            }
            binary => binaries.extend(binary),
        }
    }
    Ok(())
}

/// The load options that do not choose the precision. Two rows of an engine are comparable as precisions only if these are equal.
pub fn options_beside_precision(options: &Map<String, Value>) -> Map<String, Value> {
    let mut options = options.clone();
    options.remove(QUANTIZE_OPTION);
    options
}

/// Refuses presets and precisions with values that `load` does not list.
fn check_precisions(Manifest { presets, load, quantize, .. }: &Manifest) -> Result<()> {
    for (name, preset) in presets {
        let dtype = preset.dtype.iter().map(|dtype| LoadValue::Dtype(dtype));
        let options = preset
            .options
            .iter()
            .flat_map(|(name, value)| [LoadValue::Option(name), LoadValue::OptionValue(name, value)]);
        for value in dtype.chain(options) {
            ensure!(load.accepts(value), "`presets.{name}`: `load` lists no {value}");
        }
    }
    for (word, precision) in quantize {
        match precision {
            Precision::Preset(preset) => {
                ensure!(presets.contains_key(preset), "`quantize.{word}`: no preset `{preset}`");
            }
            Precision::Dtype(dtype) => {
                let value = LoadValue::Dtype(dtype);
                ensure!(load.accepts(value), "`quantize.{word}`: `load` lists no {value}");
            }
        }
    }
    Ok(())
}

/// Refuses comparisons with unknown presets, and suites without rows or scenarios.
fn check_presets(Manifest { presets, suites, .. }: &Manifest) -> Result<()> {
    for (name, preset) in presets {
        if let Some(PresetComparison { preset: other, .. }) = &preset.against {
            let known = other == DEFAULT_PRESET || presets.contains_key(other);
            let problem = format!("`presets.{name}.against`: `{other}` is not another preset of this engine");
            ensure!(known && other != name, problem);
        }
        if let Some(suite) = &preset.suite {
            let problem = format!("`presets.{name}.suite`: no `suites.{suite}` in this manifest");
            ensure!(suites.contains_key(suite), problem);
        }
    }
    for (name, suite) in suites {
        let has_rows = presets.values().any(|preset| preset.suite.as_ref() == Some(name));
        ensure!(has_rows, "`suites.{name}`: no preset names this suite");
        ensure!(!suite.scenarios.is_empty(), "`suites.{name}.scenarios`: expected at least one");
    }
    Ok(())
}

/// The engines in the source tree at build time.
pub fn embedded() -> Result<Vec<Engine>> {
    let engines = EMBEDDED.iter().map(|(manifest, files)| {
        engine(manifest, |path| files.iter().find(|it| it.0 == path).map(|it| it.1.to_string()))
    });
    engines.collect()
}

#[cfg(test)]
mod tests;
