//! Tests the engine on small models with known weights, and on the embedded one.

mod loading;
mod refusals;
mod running;
mod tiny;

use std::path::Path;

use engine_kit::{Engine, Job, Model, OrFail, Phases, Tokens};
use model_files::ModelFolder;
use protocol::{Failed, FailureKind, Load, Padding, Sampling};

use crate::engine::CandleEngine;
use crate::model::LoadedModel;
use tiny::Tiny;

fn load_with(path: &Path, load: &Load) -> Result<LoadedModel, Failed> {
    let folder = ModelFolder::open(path).or_fail(FailureKind::Model)?;
    CandleEngine.load(&folder, load, &mut Phases::new(None))
}

fn load(path: &Path) -> LoadedModel {
    load_with(path, &Load::default()).unwrap()
}

/// A loaded folder of safetensors; the files are deleted, because a loaded model does not need them.
fn loaded(tiny: Tiny) -> LoadedModel {
    let folder = tempfile::tempdir().unwrap();
    tiny.write_folder(folder.path());
    load(folder.path())
}

fn job(prompt: &[u32], max_new_tokens: u32) -> Job {
    Job {
        prompts: vec![prompt.to_vec()],
        max_new_tokens,
        sampling: None,
        ignore_eos: true,
        use_cache: true,
        padding: Padding::Left,
    }
}

fn run(model: &mut LoadedModel, job: &Job) -> Vec<u32> {
    let mut tokens = Tokens::collecting(&job.prompts, job.max_new_tokens, &[]);
    model.generate(job, &mut tokens).unwrap();
    tokens.ids(0).to_vec()
}

fn greedy(model: &mut LoadedModel, prompt: &[u32], max_new_tokens: u32) -> Vec<u32> {
    run(model, &job(prompt, max_new_tokens))
}

fn sampled(model: &mut LoadedModel, sampling: Sampling) -> Vec<u32> {
    run(model, &Job { sampling: Some(sampling), ..job(&[0, 5, 9], 16) })
}

/// The logits after a prompt in one call.
fn logits(model: &mut LoadedModel, prompt: &[u32]) -> Vec<f32> {
    model.network.start(true).feed(prompt).unwrap().to_vec1().unwrap()
}

/// The largest difference, relative to the spread of the expected logits.
fn relative_difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let spread = expected.iter().fold(0_f32, |most, logit| most.max(logit.abs()));
    let pairs = found.iter().zip(expected);
    pairs.fold(0_f32, |most, (found, expected)| most.max((found - expected).abs())) / spread
}

fn message<T>(result: Result<T, Failed>) -> String {
    let failed = result.err().unwrap();
    format!("{}: {}", failed.kind.as_str(), failed.message)
}
