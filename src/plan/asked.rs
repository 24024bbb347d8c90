//! What the command line names, found: engines, scenarios, models, the reference. A name that stands for nothing is the
//! user's error, told with what there is.

use std::path::Path;

use anyhow::{Context, Result};
use model_files::{ModelFolder, size};

use crate::engines::Candidate;
use crate::engines::registry::{Found, Registry};
use crate::engines::setup::SetUpEvent;
use crate::machine::Device;
use crate::machine::cpu;
use crate::plan::scenario::{self, SCENARIOS, SUITES, Scenario};
use crate::plan::{Asked, Extent, Mode, Model, Order, Plan, Proof, Sizes};
use crate::shell::Usage;
use serde_json::Value;

/// The names on the command line, before any of them is resolved.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Every engine in the tree.
    pub all: bool,
    /// All presets of the engines that are named without one.
    pub presets: bool,
    pub engines: Vec<String>,
    pub scenarios: Vec<String>,
    /// None is the embedded one.
    pub models: Vec<String>,
    pub model_type: Option<String>,
    pub devices: Vec<Device>,
    pub dtypes: Vec<String>,
    pub threads: Vec<u32>,
    pub options: Vec<(String, Value)>,
    pub reference: Option<String>,
    /// The reference engine for output checks.
    pub verifier: Option<String>,
    pub mode: Mode,
    pub order: Order,
    pub extent: Extent,
    pub seed: u64,
    pub prompt: Option<String>,
    pub max_new_tokens: Option<u32>,
    pub rounds: Option<u32>,
    pub warmup: Option<u32>,
    pub temperature: Option<f64>,
}

/// Engines, scenarios and models of a selection, as they were found. Nothing is built yet, and no weights are read.
#[derive(Debug)]
pub struct Resolved<'a> {
    pub engines: Vec<Found<'a>>,
    pub scenarios: Vec<&'static Scenario>,
    pub models: Vec<Model>,
}

pub fn resolve<'a>(registry: &'a Registry, selection: &Selection) -> Result<Resolved<'a>> {
    scenario::check_suites(registry)?;
    // First, because a suite's name may stand for engines too.
    let scenarios = scenarios(registry, &selection.scenarios)?;
    let engines = engines(registry, selection)?;
    let models = models(&selection.models)?;
    if let Some(expected) = &selection.model_type {
        expect_architecture(&models, expected)?;
    }
    Ok(Resolved { engines, scenarios, models })
}

/// The engines that the command line names, `--all` standing for every engine in the tree, `--presets` for all presets of those
/// that are named without one, and the rows of the suites that it names.
fn engines<'a>(registry: &'a Registry, selection: &Selection) -> Result<Vec<Found<'a>>> {
    let mut names = selection.engines.clone();
    for engine in &registry.engines {
        let name = &engine.manifest.name;
        if selection.all {
            add_missing(&mut names, [name.clone()]);
        }
        if selection.presets && names.contains(name) {
            add_missing(&mut names, engine.other_presets().map(|preset| format!("{name}:{preset}")));
        }
    }
    for (suite, engine, _) in registry.suites() {
        if selection.scenarios.iter().any(|name| name == suite) {
            add_missing(&mut names, engine.rows_of(suite));
        }
    }
    let of_the_tree = |name: &String| registry.engines.iter().any(|engine| engine.manifest.name == *name);
    if selection.presets && !names.is_empty() && !names.iter().any(of_the_tree) {
        let hint = "name it without a preset, or `--all`; `orchestrate engines` lists the presets";
        return Err(Usage(format!("--presets: no engine is named that has presets\nhint: {hint}")).into());
    }
    if names.is_empty() {
        let hint = "`--all` for every engine, `-e NAME` or `-e ./a-program` for one; `orchestrate engines` lists them";
        return Err(Usage(format!("no engine to measure\nhint: {hint}")).into());
    }
    let usage = |error: anyhow::Error| anyhow::Error::new(Usage(format!("{error:#}")));
    names.iter().map(|name| registry.find(name).map_err(usage)).collect()
}

/// What is asked for twice is measured once.
fn add_missing(names: &mut Vec<String>, more: impl IntoIterator<Item = String>) {
    for name in more {
        if !names.contains(&name) {
            names.push(name);
        }
    }
}

pub fn scenarios(registry: &Registry, names: &[String]) -> Result<Vec<&'static Scenario>> {
    let mut found: Vec<&'static Scenario> = Vec::new();
    let of_an_engine = |name: &String| {
        let (.., suite) = registry.suites().find(|(suite, ..)| suite == name)?;
        Some(suite.scenarios.iter().filter_map(|name| scenario::named(name)).flatten().collect())
    };
    for name in names {
        let Some(scenarios) = scenario::named(name).or_else(|| of_an_engine(name)) else {
            let known: Vec<_> = scenario_names(registry).map(|name| format!("`{name}`")).collect();
            return Err(Usage(format!("no scenario `{name}`\nhint: there are {}", known.join(", "))).into());
        };
        for scenario in scenarios {
            if !found.iter().any(|it| it.name == scenario.name) {
                found.push(scenario);
            }
        }
    }
    Ok(found)
}

/// What `-s` takes.
pub fn scenario_names(registry: &Registry) -> impl Iterator<Item = &str> {
    let suites = SUITES.iter().map(|suite| suite.name).chain(registry.suites().map(|(name, ..)| name));
    SCENARIOS.iter().map(|scenario| scenario.name).chain(suites)
}

fn models(names: &[String]) -> Result<Vec<Model>> {
    let names: Vec<Option<&str>> = match names {
        [] => vec![None],
        names => names.iter().map(|name| Some(name.as_str())).collect(),
    };
    let mut models: Vec<Model> = Vec::new();
    for name in names {
        let model = model(name)?;
        if !models.contains(&model) {
            models.push(model);
        }
    }
    Ok(models)
}

pub fn model(name: Option<&str>) -> Result<Model> {
    let path = match name {
        // That there is no place for the embedded one is nobody's typing error.
        None => model_files::resolve(None)?,
        name => model_files::resolve(name).map_err(|error| Usage(format!("{error:#}")))?,
    };
    // Links are kept: a file in the hub's cache has its name in the link alone.
    let path =
        std::path::absolute(&path).with_context(|| format!("cannot open the model `{}`", path.display()))?;
    // Unpacked from an installed program its folder has another name, and it is the same model.
    let embedded = name.is_none_or(|name| name == model_files::embedded::NAME);
    let own = match embedded {
        true => model_files::embedded::NAME.to_string(),
        false => model_files::hub::name_of(&path).unwrap_or_else(|| own_name(&path)),
    };
    Ok(Model { name: own, path: path.to_string_lossy().into_owned(), ..Model::default() })
}

fn own_name(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let name = path.file_stem().filter(|_| path.is_file()).or(full.file_name()).unwrap_or(full.as_os_str());
    name.to_string_lossy().into_owned()
}

/// What the models' files say, and the names of their weights, for which all of them are read the first time. A model
/// that cannot be understood here may yet be one that an engine understands, so it stays, with a warning.
pub fn identify(models: &mut [Model], listener: &mut dyn FnMut(SetUpEvent)) -> Vec<String> {
    let mut warnings = Vec::new();
    for model in models {
        if let Err(error) = identify_one(model, listener) {
            warnings.push(format!("`{}`: no name for its weights: {error:#}", model.name));
        }
    }
    warnings
}

fn identify_one(model: &mut Model, listener: &mut dyn FnMut(SetUpEvent)) -> Result<()> {
    let Ok(folder) = ModelFolder::open(&model.path) else {
        // Each engine's row will say what is wrong with it.
        return Ok(());
    };
    model.format = Some(folder.format.as_str().into());
    model.architecture = Some(folder.config.architecture.clone());
    model.dtype = model_files::own_dtype(&folder).ok().map(|dtype| dtype.as_str().to_ascii_lowercase());
    let bytes = folder.weights_bytes();
    let slow = bytes > SILENT_BYTES && folder.known_identity().is_none();
    if slow {
        let (what, note) = ("reading all weights once, to name them".into(), Some(size(bytes)));
        listener(SetUpEvent::Started { subject: model.name.clone(), what, note });
    }
    let identity = folder.identity();
    if slow {
        listener(SetUpEvent::Finished { subject: model.name.clone(), failed: None });
    }
    model.sizes = model_files::ModelFacts::of(&folder).ok().map(|facts| sizes(&facts));
    model.identity = Some(identity?);
    Ok(())
}

fn sizes(facts: &model_files::ModelFacts) -> Sizes {
    let of = |count: u32| u64::from(count);
    Sizes {
        parameters: facts.parameters,
        read_per_token: facts.parameters_per_token,
        output: of(facts.vocabulary_size) * of(facts.hidden_size),
        kv_numbers_per_position: 2 * of(facts.layers) * of(facts.kv_heads) * of(facts.head_dim),
        attended_per_position: of(facts.layers) * of(facts.heads) * of(facts.head_dim) * 2,
    }
}

/// Read in less than a second.
const SILENT_BYTES: u64 = 1_000_000_000;

/// Refuses a model that is not what the user takes it for.
fn expect_architecture(models: &[Model], expected: &str) -> Result<()> {
    for model in models {
        let checked = ModelFolder::open(&model.path).and_then(|folder| folder.expect_architecture(expected));
        checked.map_err(|error| Usage(format!("model `{}`: {error:#}", model.name)))?;
    }
    Ok(())
}

pub fn asked(
    selection: &Selection,
    registry: &Registry,
    candidates: Vec<Candidate>,
    models: Vec<Model>,
    scenarios: Vec<&'static Scenario>,
) -> Result<Asked> {
    let (witness, proof) = witness(registry, selection.verifier.clone())?;
    let mut asked = Asked {
        reference: own_reference(registry, &candidates),
        witness,
        proof,
        candidates,
        models,
        scenarios,
        devices: distinct(&selection.devices),
        dtypes: match selection.dtypes.as_slice() {
            [] => vec![None],
            dtypes => distinct(dtypes).into_iter().map(Some).collect(),
        },
        threads: match selection.threads.as_slice() {
            [] => vec![cpu::all_threads()],
            threads => distinct(threads),
        },
        options: selection.options.iter().cloned().collect(),
        mode: selection.mode,
        order: selection.order,
        extent: selection.extent,
        seed: selection.seed,
        prompt: selection.prompt.clone(),
        max_new_tokens: selection.max_new_tokens,
        rounds: selection.rounds,
        warmup: selection.warmup,
        temperature: selection.temperature,
    };
    if let Some(reference) = &selection.reference {
        asked.reference = self::reference(registry, &asked, reference)?;
    }
    Ok(asked)
}

/// Who says what a model's output should be.
fn witness(registry: &Registry, named: Option<String>) -> Result<(Option<Candidate>, Proof)> {
    let Some(name) = named.filter(|name| !name.is_empty()) else {
        return Ok((registry.witness(), Proof::Usual));
    };
    if name == NO_WITNESS {
        return Ok((None, Proof::Off));
    }
    let found = registry.find(&name).map_err(|error| Usage(format!("--witness: {error:#}")))?;
    let candidate = registry.candidate(&found);
    if let Some(missing) = &candidate.on(&Device::cpu()).unavailable {
        return Err(Usage(format!("--witness: `{name}` cannot run here: {}", missing.said())).into());
    }
    Ok((Some(candidate), Proof::Named))
}

/// What `--witness` takes for nobody.
const NO_WITNESS: &str = "none";

/// The engine whose manifest says so, where it is measured; else the one that was named first.
fn own_reference(registry: &Registry, candidates: &[Candidate]) -> String {
    let of_manifest = registry.reference().unwrap_or_default();
    let measured = candidates.iter().any(|it| it.engine == of_manifest && it.preset.is_none());
    match candidates.first() {
        Some(first) if !measured => name_of(first),
        _ => of_manifest.into(),
    }
}

fn name_of(candidate: &Candidate) -> String {
    candidate.preset.iter().fold(candidate.engine.clone(), |engine, preset| format!("{engine}:{preset}"))
}

/// What `--reference` names: an engine as `-e` takes it, or a row as the table calls it.
fn reference(registry: &Registry, asked: &Asked, name: &str) -> Result<String> {
    if Plan::new(asked).configurations.iter().any(|configuration| configuration.label == name) {
        return Ok(name.into());
    }
    let found = registry.find(name).map_err(|error| Usage(format!("--reference: {error:#}")))?;
    let candidate = registry.candidate(&found);
    Ok(name_of(&candidate))
}

/// What a list names twice is one row.
pub fn distinct<T: Clone + PartialEq>(list: &[T]) -> Vec<T> {
    let mut distinct: Vec<T> = Vec::new();
    for item in list {
        if !distinct.contains(item) {
            distinct.push(item.clone());
        }
    }
    distinct
}
