//! The engines that exist: those with a manifest, and any program by its path. This file also finds what is missing before an
//! engine can run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use paths::{OwnPython, Python};
use rustix::fs::{Access, access};
use serde_json::{Map, Value};

use crate::engines::load_values::{LoadValue, LoadValues};
use crate::engines::manifest::{
    self, DEFAULT_PRESET, Driver, Engine, OwnSuite, Preset, PresetComparison, Program, SetUp,
};
use crate::machine::{Device, driver};
use crate::shell::{
    Unavailable, Usage, access_hint, corrected_command, did_you_mean_file, listed, megabytes, unknown_name,
    unknown_name_or,
};
use crate::text::{either, quoted};

/// A requested engine, as the registry found it.
#[derive(Debug, Clone, Default)]
pub struct Candidate {
    pub engine: String,
    pub preset: Option<String>,
    pub options: Map<String, Value>,
    /// The dtype to load. The command line may replace that of the default preset.
    pub dtype: Option<String>,
    /// The preset that the preset of this candidate is compared with.
    pub against: Option<PresetComparison>,
    /// The start on every device that is not in `devices`.
    pub default_start: Start,
    /// The starts on the device families that the manifest names.
    pub devices: BTreeMap<String, Start>,
    /// No other engine is resident while this engine is measured.
    pub alone: bool,
    /// The values that the engine's `load` accepts.
    pub load: LoadValues,
    /// The reason if the engine does not support the command line at all.
    pub unsupported: Option<Unavailable>,
}

/// How an engine is started on a device, or why it cannot be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Start {
    pub command: Vec<String>,
    pub unavailable: Option<Unavailable>,
}

impl Start {
    pub fn program(program: impl AsRef<Path>) -> Self {
        Self { command: vec![program.as_ref().to_string_lossy().into_owned()], unavailable: None }
    }

    pub fn unavailable(unavailable: Unavailable) -> Self {
        Self { command: Vec::new(), unavailable: Some(unavailable) }
    }
}

impl Candidate {
    pub fn start_for(&self, device: &Device) -> &Start {
        self.devices.get(&device.family()).unwrap_or(&self.default_start)
    }

    /// The reason why the engine does not support the command line, or else the first of these values that it refuses.
    pub fn unsupported<'a>(&self, values: impl IntoIterator<Item = LoadValue<'a>>) -> Option<Unavailable> {
        let values: Vec<LoadValue> = values.into_iter().collect();
        let refused = || {
            let reason = values.iter().find_map(|value| self.refusal(*value))?;
            Some(Unavailable { reason, hint: None })
        };
        let is_given = |name: &String| {
            let names = |value: &LoadValue| matches!(value, LoadValue::Option(given) | LoadValue::OptionValue(given, _) if given == name);
            self.options.contains_key(name) || values.iter().any(names)
        };
        let needed = &self.load.needs_one_of;
        let lacks_option = || {
            let options: Vec<String> = needed.iter().map(|name| format!("--set {name}=...")).collect();
            (!needed.is_empty() && !needed.iter().any(is_given))
                .then(|| Unavailable { reason: format!("it needs {}", either(&options)), hint: None })
        };
        self.unsupported.clone().or_else(refused).or_else(lacks_option)
    }

    fn refusal(&self, value: LoadValue) -> Option<String> {
        if self.load.accepts(value) {
            return self.value_of_preset(value).map(|own| format!("its preset has the {own}"));
        }
        let accepted = match value {
            LoadValue::OptionValue(name, _) => self.load.option(name).map(ToString::to_string),
            _ => self.load.listed(value).filter(|names| !names.is_empty()).map(|names| quoted(&names)),
        };
        let verb = if matches!(value, LoadValue::OptionValue(..)) { "accepts" } else { "has" };
        let accepted = accepted.unwrap_or_else(|| "none".into());
        Some(format!("no {value}; it {verb} {accepted}"))
    }

    /// The value of the candidate's preset, if the preset sets another one. A row with the name of the preset and another value
    /// would mislead. The default preset is not in the name of a row, so any value may replace its values.
    pub fn value_of_preset<'a>(&'a self, value: LoadValue<'a>) -> Option<LoadValue<'a>> {
        self.preset.as_ref()?;
        match value {
            LoadValue::Dtype(wanted) => {
                self.dtype.as_deref().filter(|own| *own != wanted).map(LoadValue::Dtype)
            }
            LoadValue::OptionValue(name, wanted) => {
                let own = self.options.get(name).filter(|own| text_of(own) != text_of(wanted))?;
                Some(LoadValue::OptionValue(name, own))
            }
            LoadValue::Device(_) | LoadValue::Option(_) => None,
        }
    }

    /// The same candidate with the starts of `other`, which was made after set-up.
    pub fn with_starts_of(self, other: Self) -> Self {
        Self { default_start: other.default_start, devices: other.devices, ..self }
    }

    pub fn replace_start(&mut self, device: &Device, start: Start) {
        *self.devices.get_mut(&device.family()).unwrap_or(&mut self.default_start) = start;
    }
}

/// The value of a load option as text: `true` and `"true"` are equal.
pub fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

/// Whether an engine can be launched, or what is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Ready(PathBuf),
    NotBuilt,
    NoEnvironment,
    /// The engine cannot run here, and no set-up by this program changes that.
    CannotRun(Unavailable),
}

#[derive(Debug)]
pub struct Registry {
    pub engines: Vec<Engine>,
    /// The checkout, in which engines can be built.
    pub root: Option<PathBuf>,
}

/// The command that starts this program as an engine that computes nothing. Empty if the program's own path is unknown.
pub fn null_engine() -> Vec<String> {
    let program = std::env::current_exe().ok();
    program.map_or_else(Vec::new, |path| vec![path.to_string_lossy().into_owned(), "null-engine".into()])
}

impl Registry {
    /// Reads the manifests of the checkout or, without a checkout, the manifests from build time.
    pub fn open() -> Result<Self> {
        let root = paths::checkout();
        let engines = match &root {
            Some(root) => manifest::read(&root.join("engines"))?,
            None => manifest::embedded()?,
        };
        Ok(Self { engines, root })
    }

    /// Resolves `name`, `name:preset`, a path or a program on PATH. `Err` if nothing matches.
    pub fn find(&self, selector: &str) -> Result<FoundEngine<'_>> {
        let (name, preset) =
            selector.split_once(':').map_or((selector, None), |(name, preset)| (name, Some(preset)));
        if let Some(engine) = self.engines.iter().find(|engine| engine.manifest.name == name) {
            return Ok(FoundEngine::Engine(engine, engine.preset(preset)?));
        }
        if selector.contains('/') {
            // Links are not resolved: a program may look at the name by which it was started.
            let path = std::path::absolute(selector)?;
            let metadata = path.metadata().map_err(|error| match error.kind() {
                ErrorKind::PermissionDenied => {
                    let hint = access_hint(&error, path.parent().unwrap_or(&path), "u+x");
                    anyhow!("cannot open the engine `{selector}`: {error}{hint}")
                }
                _ => no_program_at(selector),
            })?;
            if metadata.is_dir() {
                bail!(
                    "`{selector}` is a folder, and an engine is a program\nhint: {}",
                    self.engine_of_folder(selector)
                );
            }
            if let Err(error) = access(&path, Access::EXEC_OK) {
                if !is_program(&path) {
                    bail!(
                        "cannot start the engine `{selector}`: it is not a program\nhint: orchestrate engines"
                    );
                }
                let hint = access_hint(&error.into(), Path::new(selector), "+x");
                bail!("cannot start the engine `{selector}`: it is not executable{hint}");
            }
            return Ok(FoundEngine::Program(path));
        }
        if let Ok(path) = which::which(selector) {
            return Ok(FoundEngine::Program(path));
        }
        if Path::new(selector).is_file() {
            let path = format!("./{selector}");
            if let Err(error) = access(selector, Access::EXEC_OK) {
                if !is_program(Path::new(selector)) {
                    bail!(
                        "no engine named `{selector}`, and the file of this name is not a program\nhint: orchestrate engines"
                    );
                }
                let hint = access_hint(&error.into(), Path::new(selector), "+x");
                bail!("no engine named `{selector}`, and the file of this name is not executable{hint}");
            }
            let hint = corrected_command(selector, &path).unwrap_or_else(|| path.clone());
            bail!("no engine named `{selector}`, and no such program on PATH\nhint: {hint}");
        }
        let known = self.names();
        let hint = || {
            let needs_url = |it: &&Engine| it.manifest.load.needs_one_of.iter().any(|option| option == "url");
            let client = self.engines.iter().find(needs_url).map(|it| &it.manifest.name);
            let server = client.map(|name| format!(", and a server with `-e {name} --set url=URL`"));
            format!("{}; a program's path works too{}", listed(&known), server.unwrap_or_default())
        };
        Err(unknown_name_or("engine", name, &known, hint).into())
    }

    /// The hint for a folder in place of an engine: the command with the engine of this name, or with a program in the folder.
    fn engine_of_folder(&self, selector: &str) -> String {
        let name = Path::new(selector).file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let engine = match self.names().contains(&name) {
            true => name.to_string(),
            false => format!("{}/PROGRAM", selector.trim_end_matches('/')),
        };
        corrected_command(selector, &engine).unwrap_or_else(|| "orchestrate engines".into())
    }

    /// The engine with this name, for a command that needs a manifest.
    pub fn with_manifest(&self, name: &str) -> Result<&Engine, Usage> {
        let engine = self.engines.iter().find(|engine| engine.manifest.name == name);
        engine.ok_or_else(|| unknown_name("engine", name, &self.names()))
    }

    fn names(&self) -> Vec<&str> {
        self.engines.iter().map(|engine| engine.manifest.name.as_str()).collect()
    }

    /// The suites that manifests declare, each with its name and its engine. Such a suite measures presets of this engine.
    pub fn suites(&self) -> impl Iterator<Item = (&str, &Engine, &OwnSuite)> {
        self.engines.iter().flat_map(|engine| {
            engine.manifest.suites.iter().map(move |(name, suite)| (name.as_str(), engine, suite))
        })
    }

    /// The words that `--quantize` takes, sorted.
    pub fn precisions(&self) -> Vec<&str> {
        let words = self.engines.iter().flat_map(|engine| engine.manifest.quantize.keys());
        words.map(String::as_str).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Whether a selector names a preset: `NAME:PRESET` of an engine with a manifest.
    pub fn names_preset(&self, selector: &str) -> bool {
        let name = selector.split_once(':').map(|(name, _)| name);
        name.is_some_and(|name| self.engines.iter().any(|engine| engine.manifest.name == name))
    }

    /// The name of the engine that is the reference, unless the user names another.
    pub fn reference(&self) -> Option<&str> {
        let engine = self.engines.iter().find(|engine| engine.manifest.reference);
        engine.map(|engine| engine.manifest.name.as_str())
    }

    /// The engine with this name. An engine that the user gave as a path is found by its program's name.
    pub fn named(&self, name: &str) -> Option<&Engine> {
        self.engines.iter().find(|it| it.manifest.name == name || it.manifest.binary == name)
    }

    /// A notice for each of these engines whose worker runs in another Python than the one of its pinned environment.
    pub fn own_python_notices<'a>(&self, names: impl Iterator<Item = &'a str>) -> Vec<String> {
        let engines = names.filter_map(|name| self.named(name));
        let engines: BTreeMap<&str, &Engine> = engines.map(|it| (it.manifest.name.as_str(), it)).collect();
        let notice = |(name, engine): (&str, &Engine)| {
            let OwnPython { variable, interpreter } = engine.own_python()?;
            let interpreter = interpreter.display();
            Some(format!(
                "`{name}` runs in `{interpreter}` ({variable}), not in its pinned environment, so its versions are not the pinned ones"
            ))
        };
        engines.into_iter().filter_map(notice).collect()
    }

    /// The default verifier, if it is ready to run on this device: the engine whose manifest says `reference`. Nothing is set up for it.
    pub fn verifier(&self, device: &Device) -> Option<Candidate> {
        let engine_or_program = self.find(self.reference()?).ok()?;
        Some(self.candidate(&engine_or_program)).filter(|it| it.start_for(device).unavailable.is_none())
    }

    /// The state for a run. A wrong system or a missing driver comes first.
    pub fn state(&self, program: Program) -> State {
        if let Some(unavailable) = wrong_system(program) {
            return State::CannotRun(unavailable);
        }
        match missing_driver(program) {
            Some(no_driver) => State::CannotRun(with_missing_python(no_driver, program)),
            None => self.state_ignoring_driver(program),
        }
    }

    /// Whether the program is built and set up. The driver may be missing: a program can be built here and run elsewhere.
    pub fn state_ignoring_driver(&self, program: Program) -> State {
        let engine = program.engine;
        let python = engine.python();
        match (wrong_system(program), &python) {
            (Some(unavailable), _) => return State::CannotRun(unavailable),
            (None, Some(Err(error))) => {
                let hint = error.downcast_ref().map(paths::NoProgram::hint);
                return cannot_run(format!("{error:#}"), hint);
            }
            _ => {}
        }
        match (self.binary(program), python) {
            (Some(_), Some(Ok(Python::NotSetUp))) => State::NoEnvironment,
            (Some(binary), _) => State::Ready(binary),
            (None, _) if self.root.is_some() => State::NotBuilt,
            (None, _) => {
                let (binary, name) = (program.binary, &engine.manifest.name);
                let command = match program.only_for {
                    None => format!("cargo install --locked --path engines/{name}"),
                    Some(family) => format!("cargo run --release -- setup {name} --device {family}"),
                };
                let hint = format!("{command} # in a checkout of the source");
                cannot_run(format!("no `{binary}` beside this program or on PATH"), Some(hint))
            }
        }
    }

    /// Whether a run builds this program, or creates its environment, before it measures.
    pub fn is_prepared_by_run(&self, program: Program) -> bool {
        match self.state(program) {
            State::NotBuilt => self.root.is_some() && program.build.is_some(),
            State::NoEnvironment => program.engine.manifest.setup == SetUp::Auto,
            State::Ready(_) | State::CannotRun(_) => false,
        }
    }

    /// The program's path: in cargo's target folder, beside this program, or on PATH.
    pub fn binary(&self, program: Program) -> Option<PathBuf> {
        let name = program.binary;
        let built = self.root.as_ref().map(|root| target_dir(root).join("release").join(name));
        let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(name)));
        let in_folders = built.into_iter().chain(beside).find(|path| path.is_file());
        in_folders.or_else(|| which::which(name).ok())
    }

    /// An engine for the plan, with its start on each device or the reason why it cannot start.
    pub fn candidate(&self, engine_or_program: &FoundEngine) -> Candidate {
        match engine_or_program {
            FoundEngine::Program(path) => Candidate {
                engine: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
                default_start: Start::program(path),
                ..Candidate::default()
            },
            FoundEngine::Engine(engine, (preset, settings)) => {
                let start = |family: &String| (family.clone(), self.start(engine.program_for_family(family)));
                Candidate {
                    engine: engine.manifest.name.clone(),
                    preset: (preset != DEFAULT_PRESET).then(|| preset.clone()),
                    options: settings.options.clone(),
                    dtype: settings.dtype.clone(),
                    against: settings.against.clone(),
                    default_start: self.start(engine.own_program()),
                    devices: engine.manifest.devices.keys().map(start).collect(),
                    alone: engine.manifest.alone,
                    load: load_values(engine, settings),
                    unsupported: None,
                }
            }
        }
    }

    fn start(&self, program: Program) -> Start {
        match self.state(program) {
            State::Ready(path) => Start::program(path),
            state => Start::unavailable(obstacle(program, &state)),
        }
    }
}

/// The values that an engine's `load` accepts with a preset, which may run on fewer devices than the engine.
fn load_values(engine: &Engine, preset: &Preset) -> LoadValues {
    let mut values = engine.manifest.load.clone();
    if !preset.devices.is_empty() {
        values.devices.clone_from(&preset.devices);
    }
    values
}

/// The error for a path without a program. A path with a preset names a program that has no presets.
fn no_program_at(selector: &str) -> anyhow::Error {
    let with_preset = selector.rsplit_once(':').filter(|(path, _)| Path::new(path).is_file());
    let Some((path, preset)) = with_preset else {
        let hint = did_you_mean_file(Path::new(selector)).unwrap_or_else(|| "orchestrate engines".into());
        return anyhow!("no engine at `{selector}`\nhint: {hint}");
    };
    let command = corrected_command(selector, path).unwrap_or_else(|| path.into());
    anyhow!(
        "no engine at `{selector}`: only a known engine has presets, such as `{preset}`\nhint: {command} # options of its load: --set KEY=VALUE"
    )
}

/// The reason why a program in this state cannot start, and the command that helps. Not for `State::Ready`.
pub fn obstacle(program: Program, state: &State) -> Unavailable {
    match state {
        State::CannotRun(unavailable) => unavailable.clone(),
        State::NotBuilt | State::Ready(_) => {
            Unavailable { reason: "not built".into(), hint: Some(set_up_command(program)) }
        }
        State::NoEnvironment => no_environment(program),
    }
}

fn no_environment(program: Program) -> Unavailable {
    let environment = program.engine.manifest.environment.as_ref();
    let size = environment.map_or(0, |environment| environment.download_mb);
    let install_hint = install_hint(program).map_or(String::new(), |hint| format!("\n{hint}"));
    Unavailable {
        reason: format!("its environment is not set up ({} to download)", megabytes(size)),
        hint: Some(format!("{}{install_hint}", set_up_command(program))),
    }
}

/// The manifest's hint for an engine's library that a user can install in another way.
fn install_hint(program: Program) -> Option<String> {
    program.engine.manifest.environment.as_ref()?.install_hint.clone()
}

/// Adds the missing Python of an engine's worker to another obstacle, so that the user sees both at once. The driver's
/// hint comes first. An environment that a run makes by itself is not mentioned.
fn with_missing_python(first: Unavailable, program: Program) -> Unavailable {
    let (reason, other_way) = match program.engine.python() {
        Some(Ok(Python::NotSetUp)) if program.engine.manifest.setup == SetUp::Request => {
            (no_environment(program).reason, install_hint(program))
        }
        Some(Err(error)) => (format!("{error:#}"), error.downcast_ref().map(paths::NoProgram::hint)),
        _ => return first,
    };
    let hints: Vec<String> = first.hint.into_iter().chain(other_way).collect();
    Unavailable {
        reason: format!("{}; {reason}", first.reason),
        hint: (!hints.is_empty()).then(|| hints.join("\n")),
    }
}

pub fn set_up_command(program: Program) -> String {
    let device = program.only_for.map_or_else(String::new, |family| format!(" --device {family}"));
    format!("orchestrate setup {}{device}", program.engine.manifest.name)
}

/// The obstacle if the program needs another operating system. It cannot be built here either.
fn wrong_system(program: Program) -> Option<Unavailable> {
    let here = std::env::consts::OS;
    let mut needs = program.needs().map(|needs| &needs.os);
    let needed = needs.find(|os| !os.is_empty() && !os.iter().any(|it| it == here))?;
    Some(Unavailable { reason: format!("needs {}, this is {here}", needed.join(" or ")), hint: None })
}

pub fn missing_driver(program: Program) -> Option<Unavailable> {
    match program.needs().find_map(|needs| needs.driver)? {
        Driver::Nvidia => driver::nvidia().err(),
    }
}

/// The engine that a name on the command line stands for.
#[derive(Debug)]
pub enum FoundEngine<'a> {
    Engine(&'a Engine, (String, Preset)),
    Program(PathBuf),
}

fn cannot_run(reason: String, hint: Option<String>) -> State {
    State::CannotRun(Unavailable { reason, hint })
}

pub fn target_dir(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// Whether a file begins as a program does: as a script with an interpreter, or as a binary for Linux. An unreadable file counts
/// as a program.
fn is_program(path: &Path) -> bool {
    let mut magic = [0; 4];
    let start = File::open(path).and_then(|mut file| file.read(&mut magic));
    start.is_err() || magic.starts_with(b"#!") || magic == *b"\x7fELF"
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
        about = "usual"
        [presets.fast]
        about = "faster"
        options = { quick = true }
    "#;

    fn registry() -> Registry {
        let toy = manifest::engine(MANIFEST, |_| None).unwrap();
        Registry { engines: vec![toy], root: Some("/nowhere".into()) }
    }

    #[test]
    fn a_name_after_a_colon_selects_a_preset_with_its_options() {
        let registry = registry();
        let FoundEngine::Engine(_, (name, preset)) = registry.find("toy:fast").unwrap() else {
            panic!("no engine")
        };
        assert_eq!((name.as_str(), preset.options["quick"].as_bool()), ("fast", Some(true)));
        assert!(registry.find("toy").is_ok());
        assert!(
            registry.find("toy:slow").unwrap_err().to_string().contains("choose one of `default`, `fast`")
        );
    }

    #[test]
    fn the_error_for_an_unknown_engine_lists_the_known_engines() {
        let error = registry().find("no-such-engine").unwrap_err().to_string();
        assert!(error.contains("`toy`") && error.contains("hint:"), "{error}");
        assert!(registry().find("./no/such/path").unwrap_err().to_string().contains("no engine at"));
    }

    #[test]
    fn a_program_on_path_or_by_path_is_an_engine() {
        assert!(matches!(registry().find("sh").unwrap(), FoundEngine::Program(_)));
        assert!(matches!(registry().find("/bin/sh").unwrap(), FoundEngine::Program(_)));
    }

    #[test]
    fn an_engine_that_is_not_built_is_a_candidate_with_a_hint() {
        let registry = registry();
        let candidate = registry.candidate(&registry.find("toy").unwrap());
        let unavailable = candidate.default_start.unavailable.unwrap();
        assert_eq!(unavailable.reason, "not built");
        assert!(unavailable.hint.unwrap().ends_with("setup toy"));
    }

    #[test]
    fn a_device_in_capitals_starts_the_program_of_its_family() {
        let devices = BTreeMap::from([("cuda".to_string(), Start::program("on-cuda"))]);
        let mut candidate =
            Candidate { default_start: Start::program("on-cpu"), devices, ..Candidate::default() };
        for name in ["cuda", "CUDA", "Cuda:1"] {
            assert_eq!(candidate.start_for(&name.into()).command, ["on-cuda"], "{name}");
        }
        assert_eq!(candidate.start_for(&"CPU".into()).command, ["on-cpu"]);
        candidate.replace_start(&"CUDA:0".into(), Start::program("replaced"));
        assert_eq!(
            (&*candidate.default_start.command[0], &*candidate.devices["cuda"].command[0]),
            ("on-cpu", "replaced")
        );
    }
}
