//! Tests the engine on small models with random weights, and on the embedded model.

mod batches;
mod reference;
mod refusals;
mod running;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use engine_kit::{Engine, Job, Model, OrFail, Phases, Tokens};
use model_files::{Dtype, Format, Goal, ModelFolder, Shape, synthesise};
use protocol::{Failed, FailureKind, Load, Padding, Speculation};
use serde_json::Value;

use crate::engine::BurnEngine;
use crate::model::LoadedModel;
use crate::network::Input;

/// The shapes of the supported architectures.
const SHAPES: [&str; 4] = ["tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"];

/// A synthesised folder, which is deleted with the value.
struct Tiny(PathBuf);

impl Drop for Tiny {
    fn drop(&mut self) {
        // A folder that stays is no failure of the test.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The number of the next folder of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

impl Tiny {
    fn new(shape: &str) -> Self {
        Self::with(shape, &[])
    }

    /// The shape with these fields of its config.json set.
    fn with(shape: &str, fields: &[(&str, Value)]) -> Self {
        let mut shape = Shape::named(shape).unwrap();
        let config = shape.config.as_object_mut().unwrap();
        config.extend(fields.iter().map(|(name, value)| (name.to_string(), value.clone())));
        let name = format!("burn-engine-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let tiny = Self(std::env::temp_dir().join(name));
        // A killed test with the same process number may have left this folder.
        let _ = std::fs::remove_dir_all(&tiny.0);
        std::fs::create_dir_all(&tiny.0).unwrap();
        let goal = Goal { format: Format::Safetensors, dtype: Dtype::F32, out: tiny.path() };
        synthesise(&shape, 7, &goal, &|_, _| Ok(())).unwrap();
        tiny
    }

    fn path(&self) -> PathBuf {
        self.0.join("model")
    }

    fn folder(&self) -> ModelFolder {
        ModelFolder::open(self.path()).unwrap()
    }

    /// Sets a field of config.json after the weights were made.
    fn set(&self, name: &str, value: Value) {
        let path = self.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        config.as_object_mut().unwrap().insert(name.into(), value);
        std::fs::write(&path, config.to_string()).unwrap();
    }

    /// Overwrites the first number of a tensor.
    fn overwrite(&self, tensor: &str, value: f32) {
        let folder = self.folder();
        let tensor = folder.tensors.iter().find(|it| it.name == tensor).unwrap();
        let path = &folder.weights[tensor.file];
        let mut bytes = std::fs::read(path).unwrap();
        let at = tensor.offset as usize;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        std::fs::write(path, bytes).unwrap();
    }

    fn load(&self) -> LoadedModel {
        self.load_with(&Load::default()).unwrap()
    }

    fn load_with(&self, load: &Load) -> Result<LoadedModel, Failed> {
        load_with(&self.path(), load)
    }
}

fn load_with(path: &Path, load: &Load) -> Result<LoadedModel, Failed> {
    let folder = ModelFolder::open(path).or_fail(FailureKind::Model)?;
    BurnEngine.load(&folder, load, &mut Phases::new(None))
}

/// Ids that do not repeat soon.
fn prompt(length: usize) -> Vec<u32> {
    (0..length as u32).map(|index| (index * index * 31 + index * 7) % 2000).collect()
}

fn job(prompts: &[Vec<u32>], max_new_tokens: u32) -> Job {
    Job {
        prompts: prompts.to_vec(),
        max_new_tokens,
        sampling: None,
        ignore_eos: true,
        use_cache: true,
        prefix_cache: false,
        padding: Padding::Left,
        speculation: Speculation::Off,
    }
}

/// The new ids of each sequence.
fn run(model: &mut LoadedModel, job: &Job) -> Vec<Vec<u32>> {
    let mut tokens = Tokens::collecting(&job.prompts, job.max_new_tokens, &[]);
    model.generate(job, &mut tokens).unwrap();
    (0..job.prompts.len()).map(|index| tokens.ids(index).to_vec()).collect()
}

/// The logits after the last id.
fn logits(model: &LoadedModel, ids: &[u32]) -> Vec<f32> {
    let input = Input { ids: ids.to_vec(), rows: 1, pads: &[0] };
    model.network.last_logits(model.network.forward(input, None), 1).into_data().try_into_vec().unwrap()
}

/// The largest difference between two rows of logits.
fn largest_difference(logits: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(logits.len(), expected.len());
    logits.iter().zip(expected).fold(0.0, |largest, (logit, expected)| largest.max((logit - expected).abs()))
}

/// The kind and the message of a failed result.
fn message<T>(result: Result<T, Failed>) -> String {
    let failed = result.err().unwrap();
    format!("{}: {}", failed.kind.as_str(), failed.message)
}
