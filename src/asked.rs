//! What the command line names, found: engines, scenarios, models, the reference. A name that stands for nothing is the
//! user's error, told with what there is.

use anyhow::{Context, Result};

use crate::cli::RunArgs;
use crate::exit_code::Usage;
use crate::listing;
use crate::manifest::DEFAULT_PRESET;
use crate::plan::{Asked, Candidate, Model, Plan};
use crate::registry::{Found, Registry};
use crate::scenario::{self, Scenario};

/// The engines that the command line names, `--all` standing for every engine in the tree.
pub fn engines<'a>(registry: &'a Registry, arguments: &RunArgs) -> Result<Vec<Found<'a>>> {
    let mut names = arguments.engines.clone();
    if arguments.all {
        for engine in &registry.engines {
            let others = engine.manifest.presets.keys().filter(|preset| *preset != DEFAULT_PRESET);
            // One that is also asked for by name is measured once.
            if !names.contains(&engine.manifest.name) {
                names.push(engine.manifest.name.clone());
            }
            if arguments.presets {
                names.extend(others.map(|preset| format!("{}:{preset}", engine.manifest.name)));
            }
        }
    }
    if names.is_empty() {
        let hint = "`--all` for every engine, `-e NAME` or `-e ./a-program` for one; `orchestrate engines` lists them";
        return Err(Usage(format!("no engine to measure\nhint: {hint}")).into());
    }
    let usage = |error: anyhow::Error| anyhow::Error::new(Usage(format!("{error:#}")));
    names.iter().map(|name| registry.find(name).map_err(usage)).collect()
}

pub fn scenarios(names: &[String]) -> Result<Vec<&'static Scenario>> {
    let mut found: Vec<&'static Scenario> = Vec::new();
    for name in names {
        let Some(scenarios) = scenario::named(name) else {
            let known: Vec<_> = listing::scenario_names().map(|name| format!("`{name}`")).collect();
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

pub fn models(names: &[String]) -> Result<Vec<Model>> {
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
    let path = path.canonicalize().with_context(|| format!("cannot open the model `{}`", path.display()))?;
    let own = path.file_stem().filter(|_| path.is_file()).or(path.file_name()).unwrap_or(path.as_os_str());
    // Unpacked from an installed program its folder has another name, and it is the same model.
    let embedded = name.is_none_or(|name| name == model_files::embedded::NAME);
    let own = if embedded { model_files::embedded::NAME.into() } else { own.to_string_lossy() };
    Ok(Model { name: own.into_owned(), path: path.to_string_lossy().into_owned() })
}

pub fn asked(
    arguments: &RunArgs,
    registry: &Registry,
    candidates: Vec<Candidate>,
    models: Vec<Model>,
    scenarios: Vec<&'static Scenario>,
) -> Result<Asked> {
    let mut asked = Asked {
        reference: registry.reference().unwrap_or_default().into(),
        candidates,
        models,
        scenarios,
        devices: arguments.device.clone(),
        dtypes: match arguments.dtype.as_slice() {
            [] => vec![None],
            dtypes => dtypes.iter().cloned().map(Some).collect(),
        },
        threads: match arguments.threads.as_slice() {
            [] => vec![all_threads()],
            threads => threads.to_vec(),
        },
        options: arguments.options.iter().cloned().collect(),
        mode: arguments.mode,
        launches: arguments.launches,
        seed: arguments.seed,
        prompt: arguments.prompt.clone(),
        max_new_tokens: arguments.max_new_tokens,
        samples: arguments.iterations,
        warmup: arguments.warmup,
        temperature: arguments.temperature,
    };
    if let Some(reference) = &arguments.reference {
        asked.reference = self::reference(registry, &asked, reference)?;
    }
    Ok(asked)
}

/// What `--reference` names: an engine as `-e` takes it, or a row as the table calls it.
fn reference(registry: &Registry, asked: &Asked, name: &str) -> Result<String> {
    if Plan::new(asked).configurations.iter().any(|configuration| configuration.label == name) {
        return Ok(name.into());
    }
    let found = registry.find(name).map_err(|error| Usage(format!("--reference: {error:#}")))?;
    let candidate = registry.candidate(&found, None);
    Ok(candidate.preset.iter().fold(candidate.engine, |engine, preset| format!("{engine}:{preset}")))
}

/// As many as this process may use: a container's share, not the machine's.
pub fn all_threads() -> u32 {
    std::thread::available_parallelism().map_or(1, |threads| threads.get() as u32)
}
