//! Models of real shapes with random weights: the same work for an engine as with real weights, without a download. The
//! named shapes are files of `models/shapes`: configs of real models, and of tiny ones for tests.
//!
//! The weights are the same on every machine, in any order of access, and in every float dtype. A number depends only on the
//! seed, its tensor's name and its index. So threads need no coordination, and a row needs no rows before it. The code uses
//! only integers and exactly defined operations, not the system's math library.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::architecture::{Architecture, GgufLayout, Kind, TensorSpec};
use crate::config::read_json;
use crate::convert::{self, Content, Goal, Written};
use crate::text::printable;
use crate::tokenizer::{self, PreTokenizer, Special};
use crate::weights::{Weights, transpose};
use crate::write::OnProgress;
use crate::{Config, Dtype, Format, Problem, blocks};

pub fn synthesise(shape: &Shape, seed: u64, goal: &Goal, on_progress: OnProgress) -> Result<Written> {
    convert::check(goal.format, goal.dtype)?;
    // From here on, errors come from the shape and name its file.
    let source = || format!("`{}`", shape.source.display());
    let config = Config::from_json(shape.config.clone(), &shape.generation).with_context(source)?;
    let architecture = Architecture::of(&config, Format::Safetensors).with_context(source)?;
    let specs = architecture.tensor_specs(&config).with_context(source)?;
    let dtypes = convert::dtypes(&specs, goal).with_context(source)?;
    let vocabulary = &shape.tokenizer;
    let tables = tokenizer::synthesise(vocabulary.tokens, vocabulary.pre, &vocabulary.specials);
    let mut tables = tables.with_context(source)?;
    (tables.bos, tables.eos) = (config.bos_id, config.eos_ids.first().copied());
    tables.add_bos = config.bos_id.filter(|_| vocabulary.add_bos);
    let content = Content {
        name: shape.name.clone(),
        architecture,
        config,
        generation: Some(shape.generation.clone()).filter(|generation| !generation.is_null()),
        tokenizer: Some(tables),
        copied: Vec::new(),
    };
    convert::write(&content, &specs, &dtypes, &RandomWeights { seed }, goal, on_progress)
}

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
    /// The number of ids with a text; the model may have more ids.
    pub tokens: u32,
    pub specials: Vec<Special>,
    pub add_bos: bool,
    /// The pre-tokenizer: it cuts a text into pieces before bytes are merged.
    pub pre: &'static PreTokenizer,
}

/// Name and content of every file in `models/shapes`.
pub static SHAPES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/shapes.rs"));

impl Shape {
    pub fn named(name: &str) -> Result<Self> {
        let shape = SHAPES.iter().find(|(known, _)| *known == name);
        let (name, text) = shape.ok_or_else(|| {
            let known: Vec<_> = SHAPES.iter().map(|(name, _)| format!("`{name}`")).collect();
            let hint = format!("choose one of {}", known.join(", "));
            Problem::new(format!("no shape `{}`", printable(name)), hint)
        })?;
        Self::read(name, text).with_context(|| format!("shape `{name}`"))
    }

    fn read(name: &str, text: &str) -> Result<Self> {
        let file: ShapeFile = serde_json::from_str(text)?;
        let mut specials = BTreeMap::new();
        if let Some(reserved) = &file.tokenizer.reserved {
            let free_ids =
                (reserved.from..=reserved.to).filter(|id| !file.tokenizer.specials.contains_key(id));
            for (number, id) in free_ids.enumerate() {
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

    /// The shape of a user's config.json: every id of the vocabulary gets a text. The BOS id gets the name `<s>`, and the EOS
    /// ids get `</s>`, `</s1>` and so on.
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
        let invalid = specials.keys().find(|id| **id >= config.vocabulary_size);
        ensure!(
            invalid.is_none(),
            "`{}`: id {} is outside of the vocabulary of {} ids",
            path.display(),
            invalid.copied().unwrap_or_default(),
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

fn pre(name: &str) -> Result<&'static PreTokenizer> {
    PreTokenizer::named(name).with_context(|| format!("unknown pre-tokenizer `{name}`"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShapeFile {
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

/// The ids that a vocabulary reserves, `to` included. In their `name`, `{}` stands for a number from 0.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reserved {
    from: u32,
    to: u32,
    name: String,
}

struct RandomWeights {
    seed: u64,
}

impl Weights for RandomWeights {
    fn encode(
        &self,
        spec: &TensorSpec,
        format: Format,
        rows: Range<u64>,
        dtype: Dtype,
        bytes: &mut [u8],
    ) -> Result<()> {
        let (_, columns) = spec.rows_in(format);
        let mut values = vec![0.0; usize::try_from((rows.end - rows.start) * columns)?];
        let normal = Normal::of(self.seed, spec);
        match (spec.kind, spec.gguf_layout) {
            (Kind::Norm, gguf_layout) => {
                // The factor in the network is 1; the stored value depends on the format.
                let stored = if gguf_layout == GgufLayout::PlusOne && format == Format::Safetensors {
                    0.0
                } else {
                    1.0
                };
                values.fill(stored);
            }
            (Kind::NormBias, _) => {}
            (Kind::Bias, GgufLayout::Pairs { .. }) if format == Format::Gguf => {
                for (index, value) in values.iter_mut().enumerate() {
                    *value = normal.at(spec.row_in_other_format(index as u64, format));
                }
            }
            (_, GgufLayout::Pairs { .. }) if format == Format::Gguf => {
                let width = usize::try_from(columns)?;
                for (row, values) in rows.zip(values.chunks_exact_mut(width)) {
                    normal.fill(spec.row_in_other_format(row, format) * columns, values);
                }
            }
            (_, GgufLayout::Transposed) if format == Format::Gguf => {
                normal.fill(0, &mut values);
                values = transpose(&values, spec.rows_in(Format::Safetensors))?;
            }
            _ => normal.fill(rows.start * columns, &mut values),
        }
        blocks::narrow(dtype, &values, bytes).with_context(|| format!("tensor `{}`", spec.name))
    }
}

/// Nearly normal numbers of standard deviation 1/sqrt(fan in): sums of four uniform numbers.
struct Normal {
    key: u64,
    scale: f32,
}

/// Standard deviation of the sum of four uniform numbers of 16 bits: sqrt(4 * (65536^2 - 1) / 12).
const SUM_DEVIATION: f64 = 37_837.226_7;
const SUM_MEAN: i32 = 2 * 65535;

/// The smallest magnitude of a number that is not 0. Below it f16 is less precise than bf16, and the two would differ.
const MIN_MAGNITUDE: f32 = 1.0 / 131_072.0;

impl Normal {
    fn of(seed: u64, spec: &TensorSpec) -> Self {
        let name_hash = spec.name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let scale = (1.0 / ((spec.fan_in as f64).sqrt() * SUM_DEVIATION)) as f32;
        Self { key: mix(mix(seed) ^ name_hash), scale }
    }

    fn fill(&self, first: u64, values: &mut [f32]) {
        for (index, value) in values.iter_mut().enumerate() {
            *value = self.at(first + index as u64);
        }
    }

    /// The number at `index`, rounded to bf16, and to zero below f16's precision, so that f32, bf16 and f16 hold the same
    /// weights.
    #[inline]
    fn at(&self, index: u64) -> f32 {
        let bits = mix(self.key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        let value = (sum as i32 - SUM_MEAN) as f32 * self.scale;
        let rounded = value.to_bits() + 0x7fff + (value.to_bits() >> 16 & 1);
        let value = f32::from_bits(rounded & 0xffff_0000);
        if value.abs() < MIN_MAGNITUDE { 0.0 } else { value }
    }
}

/// Mixes bits: each input bit changes about half of the output bits (the finaliser of SplitMix64).
#[inline]
fn mix(bits: u64) -> u64 {
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_have_the_requested_deviation_and_a_mean_of_zero() {
        let normal = Normal { key: 1, scale: (1.0 / (64.0_f64.sqrt() * SUM_DEVIATION)) as f32 };
        let mut values = vec![0.0; 1 << 20];
        normal.fill(0, &mut values);
        let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 5e-4, "{mean}");
        assert!((square.sqrt() * 8.0 - 1.0).abs() < 2e-3, "{}", square.sqrt());
    }

    #[test]
    fn every_number_is_the_same_in_bf16_and_f16() {
        let normal = Normal { key: 3, scale: (1.0 / (4096.0_f64.sqrt() * SUM_DEVIATION)) as f32 };
        let mut values = vec![0.0; 1 << 16];
        normal.fill(7, &mut values);
        for dtype in [Dtype::BF16, Dtype::F16] {
            let (mut bytes, mut restored) = (vec![0; values.len() * 2], vec![1.0; values.len()]);
            blocks::narrow(dtype, &values, &mut bytes).unwrap();
            blocks::widen(dtype, &bytes, &mut restored).unwrap();
            assert_eq!(values, restored, "{dtype:?}");
        }
    }
}
