//! Converts a model to another format or dtype. With the same dtype the result is exact: names, orders and metadata are
//! translated, numbers stay.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::architecture::{Architecture, Layout, Part, rope};
use crate::text::shown;
use crate::weights::FileWeights;
use crate::write::model::{self, Content, Goal, Written};
use crate::write::{Watch, dtype_of};
use crate::{Config, Dtype, Format, ModelFolder, blocks, gguf};

/// Writes `model` in the format and dtype of `goal`. Without a requested dtype, callers use `own_dtype`, the dtype of most
/// bytes.
pub fn convert(model: &ModelFolder, goal: &Goal, watch: Watch) -> Result<Written> {
    model::check(goal.format, goal.dtype)?;
    let parts = model.parts()?;
    let weights = FileWeights::open(model)?;
    let dtypes = parts.iter().map(|part| dtype_in(part, &weights, goal)).collect::<Result<Vec<_>>>()?;
    let content = content(model, &weights, goal.format)?;
    let mut written = model::write(&content, &parts, &dtypes, &weights, goal, watch)?;
    written.notes.extend(left_out(model, &parts));
    Ok(written)
}

/// Lists the tensors that are not part of the network: the formats have no place for them.
fn left_out(model: &ModelFolder, parts: &[Part]) -> Option<String> {
    let unasked = model.unasked(parts);
    let first = unasked.first()?;
    let count = match unasked.len() {
        1 => "1 tensor".to_string(),
        several => format!("{several} tensors"),
    };
    Some(format!("left out: {count} that the config does not ask for, such as `{}`", shown(&first.name)))
}

/// The dtype of most bytes of the model.
pub fn own_dtype(model: &ModelFolder) -> Result<Dtype> {
    let most = model.dtypes().into_iter().max_by_key(|(_, bytes)| *bytes);
    let (name, _) = most.with_context(|| format!("model `{}` has no tensors", model.name))?;
    Dtype::named(name).with_context(|| {
        let tensor = model.tensors.iter().find(|tensor| tensor.dtype == name);
        tensor.map_or_else(String::new, |tensor| model.unreadable(tensor))
    })
}

fn dtype_in(part: &Part, weights: &FileWeights, goal: &Goal) -> Result<Dtype> {
    let asked = dtype_of(part, goal.dtype, goal.format);
    // GGUF stores these parts in f32 only, so the original may have been f32 too: narrow them only without loss.
    if goal.format == Format::Safetensors && part.is_f32_in_gguf() && weights.dtype(part)? == Dtype::F32 {
        let values = weights.values(part)?;
        let (mut bytes, mut again) = (vec![0; values.len() * asked.block().1], vec![0.0; values.len()]);
        let kept = blocks::narrow(asked, &values, &mut bytes)
            .and_then(|()| blocks::widen(asked, &bytes, &mut again))
            .is_ok_and(|()| again == values);
        return Ok(if kept { asked } else { Dtype::F32 });
    }
    Ok(asked)
}

fn content(model: &ModelFolder, weights: &FileWeights, to: Format) -> Result<Content> {
    let architecture = model.architecture()?;
    let named = |name: &str| Some(model.folder().join(name)).filter(|path| path.is_file());
    let (config, generation) = match model.format {
        Format::Safetensors => {
            let generation = named("generation_config.json").map(|path| crate::config::read_json(&path));
            (model.config.clone(), generation.transpose()?)
        }
        Format::Gguf => {
            let config = config_of_gguf(model, architecture, weights)?;
            let ends = json!({ "bos_token_id": model.config.bos_id, "eos_token_id": model.config.eos_ids });
            (config, Some(ends))
        }
    };
    // Between folders the tokenizer is copied; everything else is read and written again.
    let copied = model.format == Format::Safetensors && to == Format::Safetensors;
    let beside = match copied {
        true => ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]
            .iter()
            .filter_map(|name| named(name))
            .collect(),
        false => Vec::new(),
    };
    crate::facts::tokenizer_facts(model)?;
    let read = !copied && model.has_tokenizer();
    let tokenizer = read.then(|| model.tokenizer_tables()).transpose()?;
    Ok(Content { name: model.name.clone(), architecture, config, generation, tokenizer, beside })
}

/// The config.json equivalent to this file, parsed again so that both agree.
fn config_of_gguf(model: &ModelFolder, architecture: &Architecture, weights: &FileWeights) -> Result<Config> {
    let path = model.weights.first().context("a GGUF file without a file")?;
    let header = gguf::read_header(path, 0)?;
    // One factor for each pair of a head's dimensions.
    let factors = weights.values_of(rope::FACTORS, u64::from(model.config.head_dim / 2));
    let factors = factors.with_context(|| format!("`{}`", path.display()))?;
    let scaling = rope::to_config_json(&model.config, &header, factors.as_deref())?;
    let raw = architecture.to_config_json(&model.config, &header, scaling)?;
    let config = Config::from_json(raw, &Value::Null)?;
    let same = architecture.parts(&config)? == architecture.parts(&model.config)?;
    ensure!(same, "`{}`: its metadata does not describe its tensors", path.display());
    Ok(config)
}

impl ModelFolder {
    /// The name without its owner, for a file name: `tiny` of `someone/tiny`.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    pub fn architecture(&self) -> Result<&'static Architecture> {
        Architecture::of(&self.config, Layout::of(self.format))
            .with_context(|| format!("model `{}`", self.name))
    }
}
