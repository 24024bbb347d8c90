//! Tests generation and scoring: both formats, with and without the cache, give the same answer.

use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};
use engine_kit::{Job, Model, Tokens, sampling};
use model_files::{Dtype, Format, Goal, ModelFolder};
use protocol::Sampling;

use super::{ALL, IN_GGUF, LLAMA, QWEN3, Tiny, WIDE};
use super::{
    greedy, job, load, load_safetensors, logits, message, relative_difference, run, sampled, write_tensors,
};
use crate::model::LoadedModel;

const PROMPT: [u32; 5] = [0, 17, 3, 42, 8];

pub fn load_gguf(tiny: Tiny, dtype: GgmlDType) -> LoadedModel {
    let folder = tempfile::tempdir().unwrap();
    load(&tiny.write_gguf(folder.path(), dtype))
}

/// Every tiny model, with a name for messages.
pub fn all_models(context: usize) -> impl Iterator<Item = (String, LoadedModel)> {
    let with_context = move |tiny| Tiny { context, ..tiny };
    let name = |tiny: Tiny, format| format!("{} from {format}", tiny.architecture);
    let folders = ALL.map(with_context).into_iter();
    let folders = folders.map(move |tiny| (name(tiny, "safetensors"), load_safetensors(tiny)));
    let files = IN_GGUF.map(with_context).into_iter();
    folders.chain(files.map(move |tiny| (name(tiny, "GGUF"), load_gguf(tiny, GgmlDType::F32))))
}

fn job_without_cache(prompt: &[u32], max_new_tokens: u32) -> Job {
    Job { use_cache: false, ..job(prompt, max_new_tokens) }
}

#[test]
fn greedy_decoding_is_the_same_with_and_without_the_cache() {
    for (name, mut model) in all_models(48) {
        let cached = greedy(&mut model, &PROMPT, 24);
        assert_eq!(cached.len(), 24);
        assert!(cached.iter().any(|id| *id != cached[0]), "{name}: a single repeated id tests little");
        if !model.network.decoder.keeps_masks() {
            assert_eq!(run(&mut model, &job_without_cache(&PROMPT, 24)), cached, "{name}");
        }
        let mut text = PROMPT.to_vec();
        for &id in &cached {
            assert_eq!(sampling::greedy(&logits(&mut model, &text)), id, "{name} after {text:?}");
            text.push(id);
        }
    }
}

#[test]
fn a_score_is_the_log_probability_of_an_id_after_the_ids_before_it() {
    for (name, mut model) in all_models(48) {
        let ids: Vec<u32> = (0..12).map(|index| index * 7 % LLAMA.vocabulary as u32).collect();
        let scores = model.score(&ids).unwrap();
        assert_eq!(scores.len(), ids.len() - 1);
        for (index, score) in scores.iter().enumerate() {
            let expected = sampling::log_softmax_at(&logits(&mut model, &ids[..=index]), ids[index + 1]);
            assert!((score - expected).abs() < 1e-4, "{name} at {index}: {score} {expected}");
        }
    }
}

#[test]
fn weights_that_are_not_finite_fail_the_request() {
    let folder = tempfile::tempdir().unwrap();
    for value in [f32::NAN, f32::INFINITY] {
        let mut tensors = LLAMA.tensors();
        LLAMA.write_folder(folder.path());
        let mut norm = tensors["model.norm.weight"].to_vec1::<f32>().unwrap();
        norm[3] = value;
        tensors.insert("model.norm.weight".into(), Tensor::new(norm, &Device::Cpu).unwrap());
        write_tensors(folder.path(), &tensors);
        let mut model = load(folder.path());
        for job in [job(&PROMPT, 1), job(&PROMPT, 4), job_without_cache(&PROMPT, 4)] {
            let mut tokens = Tokens::collecting(&job.prompts, job.max_new_tokens, &[]);
            let failure = message(model.generate(&job, &mut tokens));
            assert_eq!(failure, "model: the model's weights lead to logits that are NaN or infinite");
        }
    }
}

#[test]
fn a_long_prompt_gives_the_same_logits_in_one_call_and_id_by_id() {
    let ids: Vec<u32> = (0..400_u32).map(|index| index * index % LLAMA.vocabulary as u32).collect();
    for (name, mut model) in all_models(512) {
        let in_one_call = logits(&mut model, &ids);
        let mut batch = model.network.start(true);
        let feed = |id: &u32| batch.feed(&[&[*id]]).unwrap().flatten_all().unwrap();
        let all_logits: Vec<_> = ids.iter().map(feed).collect();
        let id_by_id = all_logits.last().unwrap().to_vec1().unwrap();
        let difference = relative_difference(&id_by_id, &in_one_call);
        assert!(difference < 1e-4, "{name} is off by {difference}");
    }
}

#[test]
fn a_request_does_not_change_the_next_answer() {
    for (name, mut model) in all_models(48) {
        let first = greedy(&mut model, &PROMPT, 16);
        greedy(&mut model, &[9, 9, 4, 31, 7, 7, 2], 9);
        model.score(&[5, 6, 7]).unwrap();
        assert_eq!(greedy(&mut model, &PROMPT, 16), first, "{name}");
    }
}

#[test]
fn a_gguf_gives_the_logits_of_its_safetensors_source() {
    for tiny in IN_GGUF {
        let expected = logits(&mut load_safetensors(tiny), &PROMPT);
        let exact = relative_difference(&logits(&mut load_gguf(tiny, GgmlDType::F32), &PROMPT), &expected);
        assert!(exact < 1e-5, "{}: F32 is off by {exact}", tiny.architecture);
        let rounded = relative_difference(&logits(&mut load_gguf(tiny, GgmlDType::Q8_0), &PROMPT), &expected);
        assert!(rounded < 0.05, "{}: Q8_0 is off by {rounded}", tiny.architecture);
        assert!(rounded > 1e-5, "{}: Q8_0 rounds, but is off by only {rounded}", tiny.architecture);
    }
}

#[test]
fn a_converted_model_gives_the_logits_of_its_source() {
    for tiny in IN_GGUF {
        let folder = tempfile::tempdir().unwrap();
        let original = folder.path().join("original");
        std::fs::create_dir(&original).unwrap();
        tiny.write_folder(&original);
        let gguf_file = tiny.write_gguf(folder.path(), GgmlDType::F32);
        let expected = logits(&mut load(&original), &PROMPT);
        for (source, format, name) in
            [(&original, Format::Gguf, "converted.gguf"), (&gguf_file, Format::Safetensors, "converted")]
        {
            let goal = Goal { format, dtype: Dtype::F32, out: folder.path().join(name) };
            let model = ModelFolder::open(source).unwrap();
            model_files::convert(&model, &goal, &|_, _| Ok(())).unwrap();
            let difference = relative_difference(&logits(&mut load(&goal.out), &PROMPT), &expected);
            assert!(difference < 1e-5, "{} to {format:?} is off by {difference}", tiny.architecture);
        }
    }
}

#[test]
fn positions_beyond_2048_are_as_exact_in_a_gguf_as_in_safetensors() {
    // f16 cannot hold 2049.
    let ids: Vec<u32> = (0..2100_u32).map(|index| index * index % LLAMA.vocabulary as u32).collect();
    for tiny in IN_GGUF.map(|tiny| Tiny { context: 2100, layers: 1, ..tiny }) {
        let expected = logits(&mut load_safetensors(tiny), &ids);
        let difference = relative_difference(&logits(&mut load_gguf(tiny, GgmlDType::F32), &ids), &expected);
        assert!(difference < 1e-5, "{} is off by {difference}", tiny.architecture);
    }
}

#[test]
fn candles_fused_attention_works_for_one_two_and_four_key_value_heads() {
    for kv_heads in [1, 2, 4] {
        let tiny = Tiny { kv_heads, ..QWEN3 };
        let (mut from_safetensors, mut from_gguf) = (load_safetensors(tiny), load_gguf(tiny, GgmlDType::F32));
        let ids = greedy(&mut from_safetensors, &PROMPT, 24);
        assert_eq!(greedy(&mut from_gguf, &PROMPT, 24), ids, "{kv_heads}");
        assert_eq!(run(&mut from_safetensors, &job_without_cache(&PROMPT, 24)), ids, "{kv_heads}");
    }
}

#[test]
fn candles_kernels_for_repacked_weights_give_the_logits_of_the_original_weights_up_to_rounding() {
    let expected = logits(&mut load_safetensors(WIDE), &PROMPT);
    for (dtype, bound) in [(GgmlDType::Q8_0, 0.05), (GgmlDType::Q4K, 0.3)] {
        let difference = relative_difference(&logits(&mut load_gguf(WIDE, dtype), &PROMPT), &expected);
        assert!(difference > 1e-5 && difference < bound, "{dtype:?} is off by {difference}");
    }
}

#[test]
fn the_seed_determines_sampling() {
    let mut model = load_safetensors(LLAMA);
    let sampling_with = |seed| Sampling { temperature: 2.0, top_k: 0, top_p: None, seed };
    let first = sampled(&mut model, sampling_with(1));
    assert_eq!(sampled(&mut model, sampling_with(1)), first);
    assert_ne!(sampled(&mut model, sampling_with(2)), first);
    let greedy = greedy(&mut model, &[0, 5, 9], 16);
    assert_eq!(sampled(&mut model, Sampling { top_k: 1, ..sampling_with(3) }), greedy);
    assert_eq!(sampled(&mut model, Sampling { top_p: Some(1e-9), ..sampling_with(3) }), greedy);
    assert_eq!(sampled(&mut model, Sampling { temperature: 0.0, ..sampling_with(3) }), greedy);
    for temperature in [5e-324, 1e-300, 1e-40, sampling::GREEDY_BELOW] {
        for top_k in [0, 5] {
            let low_temperature = Sampling { temperature, top_k, ..sampling_with(3) };
            assert_eq!(sampled(&mut model, low_temperature), greedy, "{temperature}");
        }
    }
    let nucleus = Sampling { top_k: 20, top_p: Some(0.9), ..sampling_with(4) };
    assert_eq!(sampled(&mut model, nucleus), sampled(&mut model, nucleus));
}

#[test]
fn a_request_without_a_cache_is_refused_for_a_gguf_that_keeps_masks() {
    let mut model = load_gguf(LLAMA, GgmlDType::F32);
    let uncached_job = job_without_cache(&PROMPT, 2);
    let mut tokens = engine_kit::Tokens::collecting(&uncached_job.prompts, 2, &[]);
    let failure = message(model.generate(&uncached_job, &mut tokens));
    assert!(failure.starts_with("unsupported: `use_cache: false` on this GGUF"), "{failure}");
}

#[test]
fn the_whole_context_can_be_used() {
    // The prompt of 44 and 4 new tokens fill the context.
    let prompt: Vec<u32> = (0..44).collect();
    for (name, mut model) in all_models(48) {
        assert_eq!(greedy(&mut model, &prompt, 4).len(), 4, "{name}");
    }
}

#[test]
fn candles_own_thread_pool_gives_the_same_answer() {
    let folder = tempfile::tempdir().unwrap();
    LLAMA.write_folder(folder.path());
    let options = serde_json::json!({ "own_pool": true }).as_object().unwrap().clone();
    let mut model_in_own_pool =
        super::load_with(folder.path(), &protocol::Load { options, ..Default::default() }).unwrap();
    assert!(model_in_own_pool.network.own_pool);
    assert_eq!(
        greedy(&mut model_in_own_pool, &PROMPT, 12),
        greedy(&mut load_safetensors(LLAMA), &PROMPT, 12)
    );
}

#[test]
fn the_embedded_model_writes_the_same_text_with_and_without_cache() {
    let path = model_files::resolve(None).unwrap();
    let tokenizer = ModelFolder::open(&path).unwrap().tokenizer().unwrap();
    let mut model = load(&path);
    let prompt = tokenizer.encode("Hello").unwrap();
    let cached = greedy(&mut model, &prompt, 12);
    let uncached = run(&mut model, &job_without_cache(&prompt, 12));
    assert_eq!(cached, uncached);

    let text = [prompt, cached].concat();
    let scores = model.score(&text).unwrap();
    // Each of the last twelve ids was the most probable of two thousand, far more probable than in a uniform distribution.
    let uniform = -(f64::from(model.facts.vocabulary_size.unwrap())).ln();
    assert!(scores[scores.len() - 12..].iter().all(|score| *score > uniform + 2.0), "{scores:?}");
}
