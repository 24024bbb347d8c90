//! The named shapes: one file each under `models/shapes`, with the config fields of the real model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::Config;
use crate::architecture::Architecture;
use crate::config::read_json;
use crate::text::shown;
use crate::tokenizer::{Pre, Special};

/// A model without its weights.
#[derive(Debug, Clone)]
pub struct Shape {
    pub name: String,
    pub about: String,
    /// The source file, of this project or the user's.
    pub source: PathBuf,
    /// config.json.
    pub config: Value,
    /// generation_config.json, or null.
    pub generation: Value,
    pub tokenizer: Vocabulary,
}

#[derive(Debug, Clone)]
pub struct Vocabulary {
    /// The number of ids with a text; the model may have more.
    pub tokens: u32,
    pub specials: Vec<Special>,
    pub add_bos: bool,
    /// The pre-tokenizer: the cuts of text before bytes are merged.
    pub pre: &'static Pre,
}

/// Name and content of every file in `models/shapes`.
pub static SHAPES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/shapes.rs"));

impl Shape {
    pub fn named(name: &str) -> Result<Self> {
        let found = SHAPES.iter().find(|(known, _)| *known == name);
        let (name, text) = found.with_context(|| {
            let known: Vec<_> = SHAPES.iter().map(|(name, _)| format!("`{name}`")).collect();
            format!("no shape `{}`\nhint: there are {}", shown(name), known.join(", "))
        })?;
        Self::read(name, text).with_context(|| format!("shape `{name}`"))
    }

    fn read(name: &str, text: &str) -> Result<Self> {
        let file: File = serde_json::from_str(text)?;
        let mut specials = BTreeMap::new();
        if let Some(reserved) = &file.tokenizer.reserved {
            let free = (reserved.from..=reserved.to).filter(|id| !file.tokenizer.specials.contains_key(id));
            for (number, id) in free.enumerate() {
                specials.insert(id, reserved.name.replace("{}", &number.to_string()));
            }
        }
        specials.extend(file.tokenizer.specials);
        let specials = specials.into_iter().map(|(id, content)| Special { id, content }).collect();
        Ok(Self {
            name: name.into(),
            about: file.about,
            source: Path::new("models/shapes").join(format!("{name}.json")),
            config: file.config,
            generation: file.generation,
            tokenizer: Vocabulary {
                tokens: file.tokenizer.tokens,
                specials,
                add_bos: file.tokenizer.add_bos,
                pre: pre(&file.tokenizer.pre)?,
            },
        })
    }

    /// The shape of a user's config.json: every id of the vocabulary gets a text, and BOS and EOS ids get those names.
    pub fn of_config(path: &Path) -> Result<Self> {
        let raw = read_json(path)?;
        ensure!(raw.is_object(), "`{}`: expected an object", path.display());
        let config =
            Config::from_json(raw.clone(), &Value::Null).with_context(|| format!("`{}`", path.display()))?;
        let mut specials = BTreeMap::new();
        for (number, id) in config.eos_ids.iter().enumerate() {
            specials.insert(*id, if number == 0 { "</s>".into() } else { format!("</s{number}>") });
        }
        specials.extend(config.bos_id.map(|id| (id, "<s>".to_string())));
        let outside = specials.keys().find(|id| **id >= config.vocabulary_size);
        ensure!(
            outside.is_none(),
            "`{}`: id {} is outside of the vocabulary of {}",
            path.display(),
            outside.copied().unwrap_or_default(),
            config.vocabulary_size
        );
        let folder =
            path.canonicalize().ok().and_then(|path| path.parent()?.file_name().map(|name| name.to_owned()));
        Ok(Self {
            name: folder.map_or("model".into(), |name| name.to_string_lossy().into_owned()),
            about: String::new(),
            source: path.into(),
            config: raw,
            generation: Value::Null,
            tokenizer: Vocabulary {
                tokens: config.vocabulary_size,
                specials: specials.into_iter().map(|(id, content)| Special { id, content }).collect(),
                add_bos: config.bos_id.is_some(),
                pre: pre(Architecture::named(&config.architecture).map_or("gpt-2", |known| known.pre))?,
            },
        })
    }
}

fn pre(name: &str) -> Result<&'static Pre> {
    Pre::named(name).with_context(|| format!("no way of cutting text is called `{name}`"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    about: String,
    config: Value,
    generation: Value,
    tokenizer: TokenizerFile,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenizerFile {
    tokens: u32,
    add_bos: bool,
    pre: String,
    specials: BTreeMap<u32, String>,
    reserved: Option<Reserved>,
}

/// A range of ids that a vocabulary reserves, with numbered names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reserved {
    from: u32,
    to: u32,
    name: String,
}
