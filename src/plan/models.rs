//! The models that the command line names, with facts that are read from their files.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use model_files::{ModelFolder, Problem, size};

use super::context::ContextLimit;
use super::{Model, Sizes};
use crate::engines::setup::SetUpEvent;
use crate::shell::{Unavailable, Usage, access_hint, did_you_mean, pasteable, similar_names};
use crate::text::quoted;

/// Weights up to this size are usually read within a second, so no progress is shown.
const MAX_SILENT_BYTES: u64 = 1_000_000_000;

/// The models with these names. `open` finds one by its name; `None` is the embedded model.
pub fn models(names: &[String], open: &mut dyn FnMut(Option<&str>) -> Result<Model>) -> Result<Vec<Model>> {
    let mut models: Vec<Model> = Vec::new();
    let embedded = names.is_empty().then_some(None);
    for name in embedded.into_iter().chain(names.iter().map(|name| Some(name.as_str()))) {
        let model = open(name)?;
        if !models.contains(&model) {
            models.push(model);
        }
    }
    Ok(models)
}

pub fn model(name: Option<&str>) -> Result<Model> {
    // An empty path would be the current folder.
    ensure!(name != Some(""), Usage("--model: the name is empty\nhint: orchestrate model list".into()));
    let path = match name {
        // If the folder of the embedded model is missing, the user's arguments are not the cause.
        None => model_files::resolve(None)?,
        Some(name) => model_files::resolve(Some(name)).map_err(|error| not_found(name, &error))?,
    };
    // Links are not resolved: a file in the hub's cache has its name only in the link.
    let path =
        std::path::absolute(&path).with_context(|| format!("cannot open the model `{}`", path.display()))?;
    check_access(&path)?;
    check_is_model(&path)?;
    // The embedded model is not named by its folder: an installed orchestrate unpacks it into a folder of another name.
    let embedded = name.is_none_or(|name| name == model_files::embedded::NAME);
    let model_name = match embedded {
        true => model_files::embedded::NAME.to_string(),
        false => model_files::hub::name_of(&path).unwrap_or_else(|| name_from_path(&path)),
    };
    Ok(Model { name: model_name, path: path.to_string_lossy().into_owned(), ..Model::default() })
}

/// The error for a model that cannot be found. A shape is no model: a command makes a model of it.
fn not_found(name: &str, error: &anyhow::Error) -> Usage {
    let shapes = model_files::SHAPES.iter().map(|(shape, _)| *shape);
    if shapes.clone().any(|shape| shape == name) {
        return Usage(format!(
            "no model at `{name}`; it is the name of a shape\nhint: `orchestrate model synth {name} --out {name}` makes a model of it"
        ));
    }
    let known: Vec<&str> = shapes.clone().chain([model_files::embedded::NAME]).collect();
    let is_likely_repository = model_files::hub::Repository::is_likely(name);
    let similar = if is_likely_repository { Vec::new() } else { similar_names(name, &known) };
    let only = if let [only] = similar[..] { Some(only) } else { None };
    match (error.downcast_ref(), only) {
        (Some(Problem { message: cause, hint }), None) if !similar.is_empty() => {
            Usage(format!("{cause}; names of shapes that are similar: {}\nhint: {hint}", quoted(&similar)))
        }
        // A shape is no model until a command has made one of it.
        (Some(Problem { message: cause, .. }), Some(shape))
            if shapes.clone().any(|it| it == shape) && !Path::new(shape).exists() =>
        {
            let make = format!("orchestrate model synth {shape} --out {shape}");
            Usage(format!("{cause}; `{shape}` is the name of a shape\nhint: `{make}` makes a model of it"))
        }
        (Some(Problem { message: cause, .. }), Some(similar)) => {
            let hint = did_you_mean(name, &[similar]).unwrap_or_else(|| format!("-m {similar}"));
            Usage(format!("{cause}\nhint: {hint}"))
        }
        _ => Usage(format!("{error:#}")),
    }
}

/// The endings of files with weights. Engines may read formats that this program cannot.
const WEIGHTS_EXTENSIONS: &[&str] = &[
    "gguf",
    "safetensors",
    "bin",
    "onnx",
    "pt",
    "pth",
    "ckpt",
    "npz",
    "h5",
    "tflite",
    "engine",
    "plan",
    "xml",
    "mlx",
];

/// Refuses a path that no engine can load, before an engine is built: a file or a folder without weights, and a `.gguf` file of
/// another format.
fn check_is_model(path: &Path) -> Result<()> {
    let refusal =
        |why: &str| Usage(format!("model `{}`: {why}\nhint: orchestrate model list", path.display()));
    let has_weights = |path: &Path| {
        path.extension()
            .and_then(|it| it.to_str())
            .is_some_and(|it| WEIGHTS_EXTENSIONS.contains(&&*it.to_ascii_lowercase()))
    };
    if path.is_dir() {
        let files: Vec<_> = std::fs::read_dir(path)?.flatten().map(|it| it.path()).collect();
        ensure!(!files.is_empty(), refusal("the folder is empty"));
        let is_model = path.join("config.json").exists() || files.iter().any(|file| has_weights(file));
        ensure!(is_model, refusal("the folder has no config.json and no weights"));
        if let Ok(config) = std::fs::read(path.join("config.json"))
            && let Err(error) = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&config)
        {
            bail!(refusal(&format!("its config.json is not a JSON object: {error}")));
        }
    } else if path.is_file() {
        let mut magic = [0; 4];
        let is_gguf = File::open(path)?.read_exact(&mut magic).is_ok() && magic == *b"GGUF";
        let names_gguf = path.extension().is_some_and(|it| it.eq_ignore_ascii_case("gguf"));
        ensure!(
            is_gguf || !names_gguf,
            refusal("this is not a GGUF file, because it does not begin with `GGUF`")
        );
        let is_config = path.file_name().is_some_and(|name| name == "config.json");
        ensure!(!is_config, refusal("this is the configuration of a model; name its folder"));
        ensure!(is_gguf || has_weights(path), refusal("the file is not a model: it has no weights"));
    }
    Ok(())
}

/// A model that will be downloaded, for a plan that is only shown.
pub fn before_download(name: &str) -> Model {
    Model { name: name.into(), path: name.into(), ..Model::default() }
}

/// The context of a model, from its config, and the tokens of the user's longest prompt, from its tokenizer. A model that cannot be
/// opened has no limit here: its rows will have the error.
pub fn context_limit(model: &Model, prompts: &[String]) -> ContextLimit {
    let Ok(folder) = ModelFolder::open(&model.path) else { return ContextLimit::default() };
    let tokenizer = if prompts.is_empty() { None } else { folder.tokenizer().ok() };
    let tokens = |text: &String| Some(tokenizer.as_ref()?.encode(text).ok()?.len());
    let prompt_tokens = prompts.iter().filter_map(tokens).max();
    ContextLimit { tokens: folder.config.context_tokens, prompt_tokens }
}

/// Refuses a model that this user may not read, before an engine is built for it.
fn check_access(path: &Path) -> Result<()> {
    let opened = match path.metadata() {
        Ok(it) if it.is_dir() => std::fs::read_dir(path).map(drop),
        // To open a pipe would wait for its writer.
        Ok(it) if !it.is_file() => return Ok(()),
        _ => File::open(path).map(drop),
    };
    match opened {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let (path, hint) = (path.display(), access_hint(&error, path, "-R u+rX"));
            Err(Usage(format!("cannot open the model `{path}`: {error}{hint}")).into())
        }
        // Other errors are reported in the row of each engine.
        _ => Ok(()),
    }
}

fn name_from_path(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let name = path.file_stem().filter(|_| path.is_file()).or(full.file_name()).unwrap_or(full.as_os_str());
    name.to_string_lossy().into_owned()
}

/// Adds facts from the models' files and the identity of their weights. The first identification of a model reads all its
/// weights. A model that this program cannot open stays unchanged: an engine might read it. Returns warnings for other
/// failures.
pub fn identify(models: &mut [Model], listener: &mut dyn FnMut(SetUpEvent)) -> Vec<String> {
    let mut warnings = Vec::new();
    for model in models {
        if let Err(error) = identify_one(model, listener) {
            let Unavailable { reason, .. } = Unavailable::of_error(&error);
            warnings.push(format!("`{}`: its weights cannot be identified: {reason}", model.name));
        }
    }
    warnings
}

fn identify_one(model: &mut Model, listener: &mut dyn FnMut(SetUpEvent)) -> Result<()> {
    let Ok(folder) = ModelFolder::open(&model.path) else {
        // The row of each engine will report the error.
        return Ok(());
    };
    model.format = Some(folder.format.as_str().into());
    model.architecture = Some(folder.config.architecture.clone());
    model.dtype = dtype_of(&folder);
    let bytes = folder.weights_bytes();
    let show_progress = bytes > MAX_SILENT_BYTES && folder.known_identity().is_none();
    if show_progress {
        let (step, note) = ("reading all weights once to identify them".into(), Some(size(bytes)));
        listener(SetUpEvent::Started { subject: model.name.clone(), step, note });
    }
    let identity = folder.identity();
    if show_progress {
        listener(SetUpEvent::Finished { subject: model.name.clone(), failed: None });
    }
    model.sizes = model_files::ModelFacts::of(&folder).ok().map(|facts| sizes(&facts));
    model.identity = Some(identity?);
    Ok(())
}

/// The dtype of most bytes of a model's weights, before the weights are read. `None` if it is unknown.
pub fn own_dtype(model: &Model) -> Option<String> {
    dtype_of(&ModelFolder::open(&model.path).ok()?)
}

fn dtype_of(folder: &ModelFolder) -> Option<String> {
    model_files::own_dtype(folder).ok().map(|dtype| dtype.as_str().to_ascii_lowercase())
}

fn sizes(facts: &model_files::ModelFacts) -> Sizes {
    let [layers, heads, kv_heads] = [facts.layers, facts.heads, facts.kv_heads].map(u64::from);
    let head_dim = u64::from(facts.head_dim);
    Sizes {
        parameters: facts.parameters,
        read_per_token: facts.parameters_per_token,
        output: u64::from(facts.vocabulary_size) * u64::from(facts.hidden_size),
        kv_numbers_per_position: 2 * layers * kv_heads * head_dim,
        attended_per_position: 2 * layers * heads * head_dim,
    }
}

/// Refuses a model of another architecture than the user expects.
pub fn expect_architecture(models: &[Model], expected: &str) -> Result<()> {
    // Before its download a model has no files.
    for model in models.iter().filter(|model| Path::new(&model.path).exists()) {
        let checked = ModelFolder::open(&model.path).and_then(|folder| folder.expect_architecture(expected));
        checked.map_err(|error| {
            let is_embedded = model.name == model_files::embedded::NAME;
            let argument = if is_embedded { &model.name } else { &model.path };
            let hint = format!("orchestrate model info {}", pasteable(std::slice::from_ref(argument)));
            Usage(format!("model `{}`: {error:#}\nhint: {hint}", model.name))
        })?;
    }
    Ok(())
}
