//! Writes a whole model, its weights and the other files of a format, and converts a model to another format or dtype. With
//! the same dtype a conversion is exact: names, row orders and metadata are translated, and the numbers stay the same.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::architecture::{Architecture, TensorSpec, rope};
use crate::gguf::ValueToWrite;
use crate::text::printable;
use crate::tokenizer::TokenizerTables;
use crate::weights::{FileWeights, Weights};
use crate::write::{FilePlan, OnProgress, Staged, dtype_of, write_files};
use crate::{Config, Dtype, Format, ModelFolder, blocks, gguf, safetensors};

/// Writes `model` in the format and dtype of `goal`. Without a requested dtype, callers use `own_dtype`.
pub fn convert(model: &ModelFolder, goal: &Goal, on_progress: OnProgress) -> Result<Written> {
    check(goal.format, goal.dtype)?;
    let specs = model.tensor_specs()?;
    model.refuse_second_output_matrix()?;
    let weights = FileWeights::open(model)?;
    let dtypes = specs.iter().map(|spec| dtype_to_write(spec, &weights, goal)).collect::<Result<Vec<_>>>()?;
    let content = content(model, &weights, goal.format)?;
    check_fits_some_matrix(&specs, &dtypes, goal.dtype)?;
    let mut written = write(&content, &specs, &dtypes, &weights, goal, on_progress)?;
    written.notes.extend(unused_tensors(model, &specs));
    Ok(written)
}

/// The note on tensors that are not part of the network: they are not written.
fn unused_tensors(model: &ModelFolder, specs: &[TensorSpec]) -> Option<String> {
    let unused = model.unused_tensors(specs);
    let first = unused.first()?;
    let count = match unused.len() {
        1 => "1 tensor".to_string(),
        several => format!("{several} tensors"),
    };
    Some(format!("left out: {count} that the config does not use, such as `{}`", printable(&first.name)))
}

/// The dtype that has the most bytes of the model.
pub fn own_dtype(model: &ModelFolder) -> Result<Dtype> {
    let most = model.dtypes().into_iter().max_by_key(|(_, bytes)| *bytes);
    let (name, _) = most.with_context(|| format!("model `{}` has no tensors", model.name))?;
    Dtype::named(name).with_context(|| {
        let tensor = model.tensors.iter().find(|tensor| tensor.dtype == name);
        tensor.map_or_else(String::new, |tensor| model.unreadable_message(tensor))
    })
}

fn dtype_to_write(spec: &TensorSpec, weights: &FileWeights, goal: &Goal) -> Result<Dtype> {
    let requested = dtype_of(spec, goal.dtype, goal.format);
    // A GGUF stores these tensors in f32, so their original dtype is unknown. They are narrowed only if no number changes.
    if goal.format == Format::Safetensors && spec.is_f32_in_gguf() && weights.dtype(spec)? == Dtype::F32 {
        let values = weights.values(spec)?;
        let (mut bytes, mut restored) =
            (vec![0; values.len() * requested.block().1], vec![0.0; values.len()]);
        let is_exact = blocks::narrow(requested, &values, &mut bytes)
            .and_then(|()| blocks::widen(requested, &bytes, &mut restored))
            .is_ok_and(|()| restored == values);
        return Ok(if is_exact { requested } else { Dtype::F32 });
    }
    Ok(requested)
}

fn content(model: &ModelFolder, weights: &FileWeights, to: Format) -> Result<Content> {
    let architecture = model.architecture()?;
    let existing = |name: &str| Some(model.folder().join(name)).filter(|path| path.is_file());
    let (config, generation) = match model.format {
        Format::Safetensors => {
            let generation = existing("generation_config.json").map(|path| crate::config::read_json(&path));
            (model.config.clone(), generation.transpose()?)
        }
        Format::Gguf => {
            let config = config_of_gguf(model, architecture, weights)?;
            let generation =
                json!({ "bos_token_id": model.config.bos_id, "eos_token_id": model.config.eos_ids });
            (config, Some(generation))
        }
    };
    // Between folders of safetensors, the tokenizer's files are copied. Everything else is read and written again.
    let is_copied = model.format == Format::Safetensors && to == Format::Safetensors;
    let copied = match is_copied {
        true => ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]
            .iter()
            .filter_map(|name| existing(name))
            .collect(),
        false => Vec::new(),
    };
    crate::facts::tokenizer_facts(model)?; // Refuses the tokenizer of another model.
    let must_convert = !is_copied && model.has_tokenizer();
    let tokenizer = must_convert.then(|| model.tokenizer_tables()).transpose()?;
    Ok(Content { name: model.name.clone(), architecture, config, generation, tokenizer, copied })
}

/// The config for config.json, after a check that the config describes the same tensors as the GGUF file.
fn config_of_gguf(model: &ModelFolder, architecture: &Architecture, weights: &FileWeights) -> Result<Config> {
    let path = model.weights.first().context("a GGUF model without a file")?;
    let header = gguf::read_header(path, 0)?;
    // RoPE has one factor for each pair of a head's dimensions.
    let factors = weights.values_of(rope::FACTORS, u64::from(model.config.head_dim / 2));
    let factors = factors.with_context(|| format!("`{}`", path.display()))?;
    let scaling = rope::to_config_json(&model.config, &header, factors.as_deref())?;
    let raw = architecture.to_config_json(&model.config, &header, scaling)?;
    let config = Config::from_json(raw, &Value::Null)?;
    let same = architecture.tensor_specs(&config)? == architecture.tensor_specs(&model.config)?;
    ensure!(same, "`{}`: its metadata does not describe its tensors", path.display());
    Ok(config)
}

pub(crate) struct Content {
    pub name: String,
    pub architecture: &'static Architecture,
    /// The config as in config.json.
    pub config: Config,
    pub generation: Option<Value>,
    pub tokenizer: Option<TokenizerTables>,
    /// Files to copy unchanged into a folder of safetensors.
    pub copied: Vec<PathBuf>,
}

/// The destination of a model, its format and its dtype.
#[derive(Debug, Clone)]
pub struct Goal {
    pub format: Format,
    /// The dtype of the matrices.
    pub dtype: Dtype,
    /// The output folder; for GGUF the output file, or a folder for this file.
    pub out: PathBuf,
}

/// The result of writing, with notes on differences from the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    pub path: PathBuf,
    pub bytes: u64,
    pub notes: Vec<String>,
}

/// Writes the model; `dtypes` has the output dtype of each tensor.
pub(crate) fn write(
    content: &Content,
    specs: &[TensorSpec],
    dtypes: &[Dtype],
    weights: &dyn Weights,
    goal: &Goal,
    on_progress: OnProgress,
) -> Result<Written> {
    match goal.format {
        Format::Safetensors => write_folder(content, specs, dtypes, weights, goal, on_progress),
        Format::Gguf => write_gguf(content, specs, dtypes, weights, goal, on_progress),
    }
}

fn write_folder(
    content: &Content,
    specs: &[TensorSpec],
    dtypes: &[Dtype],
    weights: &dyn Weights,
    goal: &Goal,
    on_progress: OnProgress,
) -> Result<Written> {
    let staged = Staged::new(&goal.out)?;
    let (files, index) = safetensors::plan(specs, dtypes)?;
    staged.write("config.json", pretty(&with_dtype(&content.config.raw, goal.dtype)))?;
    if let Some(generation) = &content.generation {
        staged.write("generation_config.json", pretty(generation))?;
    }
    for path in &content.copied {
        let name = path.file_name().with_context(|| format!("`{}` is not a file", path.display()))?;
        std::fs::copy(path, staged.folder().join(name)).with_context(|| format!("`{}`", path.display()))?;
    }
    if let Some(tokenizer) = &content.tokenizer {
        staged.write("tokenizer.json", tokenizer.to_json()?)?;
        staged.write("tokenizer_config.json", tokenizer.to_config_json(content.config.context_tokens)?)?;
    }
    if let Some(index) = index {
        staged.write(safetensors::INDEX, index)?;
    }
    write_files(staged.folder(), &files, specs, Format::Safetensors, weights, on_progress)?;
    staged.finish()?;
    Ok(Written { path: goal.out.clone(), bytes: size(&files), notes: Vec::new() })
}

fn write_gguf(
    content: &Content,
    specs: &[TensorSpec],
    dtypes: &[Dtype],
    weights: &dyn Weights,
    goal: &Goal,
    on_progress: OnProgress,
) -> Result<Written> {
    let path = gguf_path(content, goal);
    let staged = Staged::new(&path)?;
    let mut extra_tensors = Vec::new();
    if let Some(rule) = rope::llama3(&content.config)? {
        let theta = content.config.rope_theta.unwrap_or(10_000.0);
        extra_tensors.push((rope::FACTORS, rule.factors(theta, content.config.head_dim)));
    }
    let metadata = metadata(content, goal.dtype)?;
    let file = gguf::plan(TEMPORARY_NAME.into(), &metadata, specs, dtypes, &extra_tensors);
    let files = [file];
    write_files(staged.folder(), &files, specs, Format::Gguf, weights, on_progress)?;
    staged.finish_file(TEMPORARY_NAME)?;
    Ok(Written { path, bytes: size(&files), notes: notes(specs, dtypes, goal.dtype) })
}

/// The temporary name of a GGUF file.
const TEMPORARY_NAME: &str = "model.gguf";

fn gguf_path(content: &Content, goal: &Goal) -> PathBuf {
    let is_file = goal.out.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    if is_file {
        return goal.out.clone();
    }
    // The name of a repository begins with its owner.
    let name = content.name.rsplit('/').next().unwrap_or(&content.name);
    goal.out.join(format!("{name}-{}.gguf", goal.dtype.as_str().to_ascii_lowercase()))
}

pub(crate) fn metadata(content: &Content, dtype: Dtype) -> Result<Vec<(String, ValueToWrite)>> {
    let mut metadata = content.architecture.to_gguf(&content.config)?;
    metadata.push(("general.name".into(), ValueToWrite::Text(content.name.clone())));
    metadata.extend(dtype.gguf_file_type().map(|kind| ("general.file_type".into(), ValueToWrite::U32(kind))));
    if !dtype.is_float() {
        // The version of ggml's quantization blocks since 2023.
        metadata.push(("general.quantization_version".into(), ValueToWrite::U32(2)));
    }
    let Config { bos_id, eos_ids, .. } = &content.config;
    let eos_id = match &content.tokenizer {
        Some(tokenizer) => {
            // An EOS that the tokenizer adds to every text stays the EOS of the file. Otherwise the config's EOS takes
            // precedence, because the tokenizer's may be older.
            let eos = tokenizer.add_eos.or(eos_ids.first().copied()).or(tokenizer.eos);
            let tokenizer = TokenizerTables { eos, ..tokenizer.clone() };
            metadata.extend(tokenizer.to_gguf(content.config.vocabulary_size)?);
            eos
        }
        None => {
            let ids = [(gguf::BOS_KEY, *bos_id), (gguf::EOS_KEY, eos_ids.first().copied())];
            metadata
                .extend(ids.into_iter().filter_map(|(key, id)| Some((key.into(), ValueToWrite::U32(id?)))));
            eos_ids.first().copied()
        }
    };
    let other_ids: Vec<u32> = eos_ids.iter().copied().filter(|id| Some(*id) != eos_id).collect();
    let keys = gguf::OTHER_EOS_KEYS;
    ensure!(
        other_ids.len() <= keys.len(),
        "`eos_token_id` has {} ids, and GGUF can express {}",
        eos_ids.len(),
        keys.len() + 1
    );
    metadata.extend(keys.iter().zip(other_ids).map(|(key, id)| (key.to_string(), ValueToWrite::U32(id))));
    Ok(metadata)
}

/// Notes on the matrices that are not in the requested dtype.
fn notes(specs: &[TensorSpec], dtypes: &[Dtype], requested: Dtype) -> Vec<String> {
    let differing =
        specs.iter().zip(dtypes).filter(|(spec, dtype)| **dtype != requested && !spec.is_f32_in_gguf());
    let differing: Vec<_> = differing.map(|(spec, dtype)| (spec.rows_in(Format::Gguf).1, *dtype)).collect();
    let Some((columns, dtype)) = differing.first() else { return Vec::new() };
    vec![format!(
        "{} of {} matrices are {} and not {}: rows of {columns} numbers do not divide into blocks of {}",
        differing.len(),
        specs.iter().filter(|spec| !spec.is_f32_in_gguf()).count(),
        dtype.as_str(),
        requested.as_str(),
        requested.block().0
    )]
}

/// Refuses a dtype of quantization blocks if it fits no matrix: the model would have the dtype in its name alone.
pub(crate) fn check_fits_some_matrix(specs: &[TensorSpec], dtypes: &[Dtype], requested: Dtype) -> Result<()> {
    let matrices = specs.iter().zip(dtypes).filter(|(spec, _)| !spec.is_f32_in_gguf());
    let fits = matrices.clone().any(|(_, dtype)| *dtype == requested);
    let mut lengths: Vec<_> = matrices.map(|(spec, _)| spec.rows_in(Format::Gguf).1).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let lengths: Vec<_> = lengths.iter().map(u64::to_string).collect();
    ensure!(
        fits || requested.is_float(),
        "`{}` fits no matrix: rows of {} numbers do not divide into blocks of {}",
        requested.as_str().to_ascii_lowercase(),
        lengths.join(" and "),
        requested.block().0
    );
    Ok(())
}

/// The dtype of each tensor for this goal.
pub(crate) fn dtypes(specs: &[TensorSpec], goal: &Goal) -> Result<Vec<Dtype>> {
    check(goal.format, goal.dtype)?;
    let numbers = specs.iter().try_fold(0_u64, |sum, spec| sum.checked_add(spec.elements()));
    ensure!(
        numbers.is_some_and(|numbers| numbers <= MAX_NUMBERS),
        "its sizes give more weights than any computer can store"
    );
    let dtypes: Vec<_> = specs.iter().map(|spec| dtype_of(spec, goal.dtype, goal.format)).collect();
    check_fits_some_matrix(specs, &dtypes, goal.dtype)?;
    Ok(dtypes)
}

/// The most numbers of a model, so that no sum of bytes overflows.
const MAX_NUMBERS: u64 = 1 << 56;

/// Checks that this crate can write the dtype in the format.
pub fn check(format: Format, dtype: Dtype) -> Result<()> {
    let name = dtype.as_str().to_ascii_lowercase();
    if format == Format::Safetensors && !dtype.is_float() {
        bail!(
            "`{name}` cannot be stored in safetensors: the format has no name for quantization blocks, and each library packs them differently"
        );
    }
    ensure!(crate::blocks::can_narrow(dtype), "`{name}` can be read but not written");
    Ok(())
}

fn with_dtype(config: &Value, dtype: Dtype) -> Value {
    let mut config = config.clone();
    if let Some(fields) = config.as_object_mut() {
        // `dtype` is the newer name of the same field, and the two must not disagree.
        fields.remove("dtype");
        fields.insert("torch_dtype".into(), json!(dtype.torch().unwrap_or("float32")));
    }
    config
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn size(files: &[FilePlan]) -> u64 {
    files.iter().map(|file| file.bytes).sum()
}
