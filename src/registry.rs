//! Which engines exist: those with a manifest, and any program whose path is given. Says what each needs before it runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::plan::{Candidate, Unavailable};

/// The engines in the tree when this program was built: for one that is installed away from its checkout.
const EMBEDDED: &[(&str, Option<&str>)] = include!(concat!(env!("OUT_DIR"), "/manifests.rs"));

/// `engines/NAME/engine.toml`: how an engine comes to be. What it can do, it says itself (`hello`).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub name: String,
    pub about: String,
    pub binary: String,
    /// Ratios are taken against this engine unless the user names another.
    #[serde(default)]
    pub reference: bool,
    /// `auto`: a run may set it up by itself, saying first how large it is. Else it is set up on request.
    #[serde(default)]
    pub setup: SetUp,
    pub build: Option<Build>,
    pub environment: Option<Environment>,
    #[serde(default)]
    pub needs: Needs,
    #[serde(default)]
    pub presets: BTreeMap<String, Preset>,
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
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Needs {
    /// As `std::env::consts::OS` spells them; empty: any.
    pub os: Vec<String>,
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

/// What stands between an engine and its first launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Ready(PathBuf),
    NotBuilt,
    NoEnvironment,
    /// Nothing that this program can do helps.
    Never(Unavailable),
}

#[derive(Debug)]
pub struct Registry {
    pub engines: Vec<Engine>,
    /// Where engines can be built.
    pub root: Option<PathBuf>,
}

impl Registry {
    /// Reads the manifests of the checkout, else the ones that were there when this program was built.
    pub fn open() -> Result<Self> {
        let root = places::checkout();
        let engines = match &root {
            Some(root) => read_manifests(&root.join("engines"))?,
            None => EMBEDDED
                .iter()
                .map(|(manifest, requirements)| engine(manifest, *requirements))
                .collect::<Result<_>>()?,
        };
        Ok(Self { engines, root })
    }

    /// What `name`, `name:preset`, a path or a program on PATH stands for. `Err` when it stands for nothing.
    pub fn find(&self, asked: &str) -> Result<Found<'_>> {
        let (name, preset) =
            asked.split_once(':').map_or((asked, None), |(name, preset)| (name, Some(preset)));
        if let Some(engine) = self.engines.iter().find(|engine| engine.manifest.name == name) {
            return Ok(Found::Engine(engine, engine.preset(preset)?));
        }
        if asked.contains('/') {
            // Not through links: a program may look at the name that it was started by.
            let path = std::path::absolute(asked).with_context(|| format!("no engine at `{asked}`"))?;
            if !path.exists() {
                bail!("no engine at `{asked}`");
            }
            if path.is_dir() {
                bail!("`{asked}` is a folder, an engine is a program");
            }
            return Ok(Found::Program(path));
        }
        if let Ok(path) = which::which(asked) {
            return Ok(Found::Program(path));
        }
        let names: Vec<_> = self.engines.iter().map(|engine| format!("`{}`", engine.manifest.name)).collect();
        let hint = match Path::new(asked).exists() {
            true => format!("-e ./{asked}"),
            false => format!("engines here: {}; a program's path works too", names.join(", ")),
        };
        bail!("no engine `{asked}`, and no such program on PATH\nhint: {hint}")
    }

    /// The name of the engine that ratios are taken against.
    pub fn reference(&self) -> Option<&str> {
        self.engines
            .iter()
            .find(|engine| engine.manifest.reference)
            .map(|engine| engine.manifest.name.as_str())
    }

    pub fn state(&self, engine: &Engine) -> State {
        let manifest = &engine.manifest;
        let os = std::env::consts::OS;
        if !manifest.needs.os.is_empty() && !manifest.needs.os.iter().any(|needed| needed == os) {
            return never(format!("needs {}, this is {os}", manifest.needs.os.join(" or ")), None);
        }
        let Some(binary) = self.binary(engine) else {
            return match &self.root {
                Some(_) => State::NotBuilt,
                None => {
                    let reason = format!(
                        "no `{}` beside this program or on PATH; a checkout of the source installs it",
                        manifest.binary
                    );
                    never(reason, Some(format!("cargo install --locked --path engines/{}", manifest.name)))
                }
            };
        };
        match engine.environment() {
            Some(Ok(environment)) if places::interpreter(&environment).is_none() => State::NoEnvironment,
            Some(Err(error)) => never(format!("{error:#}"), None),
            _ => State::Ready(binary),
        }
    }

    /// Where cargo put it, beside this program, or on PATH.
    fn binary(&self, engine: &Engine) -> Option<PathBuf> {
        let name = &engine.manifest.binary;
        let built = self.root.as_ref().map(|root| target_dir(root).join("release").join(name));
        let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(name)));
        let found = built.into_iter().chain(beside).find(|path| path.is_file());
        found.or_else(|| which::which(name).ok())
    }

    /// An engine as the plan wants it: ready to be started, or with the reason why not.
    pub fn candidate(&self, found: &Found, trouble: Option<Unavailable>) -> Candidate {
        match found {
            Found::Program(path) => Candidate {
                engine: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
                command: vec![path.to_string_lossy().into_owned()],
                ..Candidate::default()
            },
            Found::Engine(engine, (preset, settings)) => {
                let (command, unavailable) = match (trouble, self.state(engine)) {
                    (Some(trouble), _) => (Vec::new(), Some(trouble)),
                    (None, State::Ready(path)) => (vec![path.to_string_lossy().into_owned()], None),
                    (None, state) => (Vec::new(), Some(self.missing(engine, &state))),
                };
                Candidate {
                    engine: engine.manifest.name.clone(),
                    preset: (preset != DEFAULT_PRESET).then(|| preset.clone()),
                    options: settings.options.clone(),
                    command,
                    unavailable,
                }
            }
        }
    }

    /// Why an engine in this state cannot be started, and the command that changes it.
    pub fn missing(&self, engine: &Engine, state: &State) -> Unavailable {
        let hint = Some(format!("{} setup {}", this_program(), engine.manifest.name));
        match state {
            State::Never(unavailable) => unavailable.clone(),
            State::NotBuilt | State::Ready(_) => Unavailable { reason: "not built".into(), hint },
            State::NoEnvironment => {
                let size =
                    engine.manifest.environment.as_ref().map_or(0, |environment| environment.download_mb);
                Unavailable {
                    reason: format!("its environment is not set up ({} to download)", megabytes(size)),
                    hint,
                }
            }
        }
    }
}

/// What a name on the command line stands for.
#[derive(Debug)]
pub enum Found<'a> {
    Engine(&'a Engine, (String, Preset)),
    Program(PathBuf),
}

impl Engine {
    /// The folder of its Python environment, if it has one.
    pub fn environment(&self) -> Option<Result<PathBuf>> {
        self.requirements.as_ref().map(|requirements| places::environment(&self.manifest.name, requirements))
    }

    fn preset(&self, name: Option<&str>) -> Result<(String, Preset)> {
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

fn read_manifests(folder: &Path) -> Result<Vec<Engine>> {
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

fn engine(manifest: &str, requirements: Option<&str>) -> Result<Engine> {
    let manifest: Manifest = toml::from_str(manifest)?;
    if let Some(environment) = &manifest.environment
        && environment.requirements != "requirements.txt"
    {
        bail!(
            "`environment.requirements`: expected `requirements.txt`, found `{}`",
            environment.requirements
        );
    }
    let requirements = match &manifest.environment {
        Some(_) => {
            Some(requirements.context("`environment` without a `requirements.txt` beside it")?.to_string())
        }
        None => None,
    };
    Ok(Engine { manifest, requirements })
}

fn never(reason: String, hint: Option<String>) -> State {
    State::Never(Unavailable { reason, hint })
}

pub fn target_dir(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// How the user starts this program from where she stands, for hints that can be pasted.
pub fn this_program() -> String {
    let exe = std::env::current_exe().ok();
    let on_path = which::which("orchestrate").ok().and_then(|path| path.canonicalize().ok());
    if on_path.is_some() && on_path == exe {
        return "orchestrate".into();
    }
    let here = std::env::current_dir().ok();
    let relative = exe.as_deref().zip(here.as_deref()).and_then(|(exe, here)| exe.strip_prefix(here).ok());
    match (relative, &exe) {
        (Some(relative), _) => pasteable(&[format!("./{}", relative.display())]),
        (None, Some(exe)) => pasteable(&[exe.display().to_string()]),
        (None, None) => "orchestrate".into(),
    }
}

/// A command as a shell takes it.
pub fn pasteable(command: &[String]) -> String {
    let plain = |it: char| it.is_alphanumeric() || "-_./=:,+@%".contains(it);
    let word = |word: &String| match word.is_empty() || !word.chars().all(plain) {
        true => format!("'{}'", word.replace('\'', r"'\''")),
        false => word.clone(),
    };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// `2.9 GB`, `111 MB`.
pub fn megabytes(megabytes: u64) -> String {
    match megabytes {
        1000.. => format!("{:.1} GB", megabytes as f64 / 1000.0),
        _ => format!("{megabytes} MB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = r#"
        name = "toy"
        about = "a toy"
        binary = "toy-engine"
        [build]
        package = "toy"
        [presets.default]
        about = "as it comes"
        [presets.fast]
        about = "faster"
        options = { quick = true }
    "#;

    fn registry() -> Registry {
        Registry { engines: vec![engine(MANIFEST, None).unwrap()], root: Some("/nowhere".into()) }
    }

    #[test]
    fn a_preset_is_named_after_a_colon_and_brings_its_options() {
        let registry = registry();
        let Found::Engine(_, (name, preset)) = registry.find("toy:fast").unwrap() else {
            panic!("no engine")
        };
        assert_eq!((name.as_str(), preset.options["quick"].as_bool()), ("fast", Some(true)));
        assert!(registry.find("toy").is_ok());
        assert!(
            registry.find("toy:slow").unwrap_err().to_string().contains("its presets are `default`, `fast`")
        );
    }

    #[test]
    fn a_name_that_stands_for_nothing_is_refused_with_what_there_is() {
        let error = registry().find("no-such-engine").unwrap_err().to_string();
        assert!(error.contains("`toy`") && error.contains("hint:"), "{error}");
        assert!(registry().find("./no/such/path").unwrap_err().to_string().contains("no engine at"));
    }

    #[test]
    fn a_program_on_path_or_by_path_is_an_engine() {
        assert!(matches!(registry().find("sh").unwrap(), Found::Program(_)));
        assert!(matches!(registry().find("/bin/sh").unwrap(), Found::Program(_)));
    }

    #[test]
    fn an_engine_that_is_not_built_is_a_candidate_with_its_reason_and_a_hint() {
        let registry = registry();
        let candidate = registry.candidate(&registry.find("toy").unwrap(), None);
        let unavailable = candidate.unavailable.unwrap();
        assert_eq!(unavailable.reason, "not built");
        assert!(unavailable.hint.unwrap().ends_with("setup toy"));
    }

    #[test]
    fn a_manifest_with_a_word_that_nobody_knows_is_refused() {
        assert!(engine(&format!("nmae = 1\n{MANIFEST}"), None).is_err());
    }

    #[test]
    fn every_manifest_in_the_tree_reads_and_its_name_is_its_folder() {
        let folder = places::checkout().unwrap().join("engines");
        for engine in read_manifests(&folder).unwrap() {
            assert!(
                folder.join(&engine.manifest.name).join("engine.toml").is_file(),
                "{}",
                engine.manifest.name
            );
        }
    }
}
