//! Tests generation and scoring, with and without the cache, and in every dtype.

use engine_kit::{Job, Model, Tokens, sampling};
use model_files::ModelFolder;
use protocol::{Load, Sampling};
use serde_json::json;

use super::{SHAPES, Tiny, job, largest_difference, load_with, logits, message, prompt, run};
use crate::model::LoadedModel;

fn greedy(model: &mut LoadedModel, ids: &[u32], count: u32) -> Vec<u32> {
    run(model, &job(&[ids.to_vec()], count)).remove(0)
}

#[test]
fn greedy_decoding_takes_the_largest_logit_with_and_without_the_cache() {
    for shape in SHAPES {
        let mut model = Tiny::new(shape).load();
        let mut text = prompt(5);
        let cached = greedy(&mut model, &text, 16);
        assert!(cached.iter().any(|id| *id != cached[0]), "{shape}: a single repeated id tests little");
        let without_cache = Job { use_cache: false, ..job(std::slice::from_ref(&text), 16) };
        assert_eq!(run(&mut model, &without_cache).remove(0), cached, "{shape}");
        for &id in &cached {
            assert_eq!(sampling::greedy(&logits(&model, &text)), id, "{shape} after {text:?}");
            text.push(id);
        }
    }
}

#[test]
fn a_score_is_the_log_probability_of_an_id_after_the_ids_before_it() {
    for shape in SHAPES {
        let mut model = Tiny::new(shape).load();
        // More ids than have their logits in memory at once.
        let ids = prompt(140);
        let scores = model.score(&ids).unwrap();
        assert_eq!(scores.len(), ids.len() - 1);
        for index in [0, 1, 60, 127, 128, 138] {
            let expected = sampling::log_softmax_at(&logits(&model, &ids[..=index]), ids[index + 1]);
            assert!(
                (scores[index] - expected).abs() < 1e-4,
                "{shape} at {index}: {} {expected}",
                scores[index]
            );
        }
        assert_eq!(model.score(&ids[..1]), Ok(Vec::new()));
    }
}

#[test]
fn a_request_does_not_change_the_next_answer() {
    let mut model = Tiny::new("tiny-qwen2").load();
    let first = greedy(&mut model, &prompt(5), 12);
    greedy(&mut model, &[9, 9, 4, 31, 7, 7, 2], 9);
    model.score(&[5, 6, 7]).unwrap();
    assert_eq!(greedy(&mut model, &prompt(5), 12), first);
}

#[test]
fn the_whole_context_can_be_used() {
    let tiny = Tiny::with("tiny-llama", &[("max_position_embeddings", json!(48))]);
    assert_eq!(greedy(&mut tiny.load(), &prompt(44), 4).len(), 4);
}

#[test]
fn narrow_weights_give_nearly_the_same_logits() {
    let tiny = Tiny::new("tiny-llama");
    let expected = logits(&tiny.load(), &prompt(20));
    let int8 = json!({ "quantize": "int8" }).as_object().unwrap().clone();
    let cases = [
        ("bf16", Load { dtype: Some("bf16".into()), ..Load::default() }, "bf16", "bf16", 2, 0.1),
        ("f16", Load { dtype: Some("f16".into()), ..Load::default() }, "f16", "f16", 2, 0.02),
        ("int8", Load { options: int8, ..Load::default() }, "int8", "f32", 1, 0.15),
    ];
    for (name, load, weights, compute, bytes, bound) in cases {
        let mut model = tiny.load_with(&load).unwrap();
        let difference = largest_difference(&logits(&model, &prompt(20)), &expected);
        assert!(difference > 1e-5 && difference < bound, "{name} is off by {difference}");
        let facts = model.facts();
        assert_eq!(facts.weights_dtype.as_deref(), Some(weights), "{name}");
        assert_eq!(facts.compute_dtype.as_deref(), Some(compute), "{name}");
        assert_eq!(facts.kv_dtype.as_deref(), Some(compute), "{name}");
        // Also the scales of the blocks, and the embedding, which is not quantized.
        let (parameters, stored) = (facts.parameters.unwrap(), facts.weights_bytes.unwrap());
        assert!(stored >= bytes * parameters && stored < 4 * parameters, "{name}: {stored} bytes");
        assert_eq!(greedy(&mut model, &prompt(5), 6).len(), 6, "{name}");
    }
}

#[test]
fn weights_that_are_not_finite_fail_the_request() {
    for value in [f32::NAN, f32::INFINITY] {
        let tiny = Tiny::new("tiny-llama");
        tiny.overwrite("model.norm.weight", value);
        let mut model = tiny.load();
        for job in [job(&[prompt(5)], 1), job(&[prompt(5)], 4)] {
            let mut tokens = Tokens::collecting(&job.prompts, job.max_new_tokens, &[]);
            let failure = message(model.generate(&job, &mut tokens));
            assert_eq!(failure, "model: the model's weights lead to logits that are NaN or infinite");
        }
        assert!(model.score(&prompt(5)).is_err());
    }
}

#[test]
fn the_seed_determines_sampling() {
    let mut model = Tiny::new("tiny-llama").load();
    let mut sampled = |seed, top_k, temperature| {
        let sampling = Sampling { temperature, top_k, top_p: None, seed };
        run(&mut model, &Job { sampling: Some(sampling), ..job(&[prompt(5)], 12) }).remove(0)
    };
    let first = sampled(1, 0, 2.0);
    assert_eq!(sampled(1, 0, 2.0), first);
    assert_ne!(sampled(2, 0, 2.0), first);
    let of_one = sampled(3, 1, 2.0);
    assert_eq!(sampled(3, 0, 0.0), of_one);
    assert_eq!(of_one, greedy(&mut model, &prompt(5), 12));
}

#[test]
fn the_embedded_model_writes_the_same_text_with_and_without_cache() {
    let path = model_files::resolve(None).unwrap();
    let tokenizer = ModelFolder::open(&path).unwrap().tokenizer().unwrap();
    let mut model = load_with(&path, &Load::default()).unwrap();
    let prompt = tokenizer.encode("Hello").unwrap();
    let cached = greedy(&mut model, &prompt, 12);
    let without_cache = Job { use_cache: false, ..job(std::slice::from_ref(&prompt), 12) };
    assert_eq!(run(&mut model, &without_cache).remove(0), cached);
    let scores = model.score(&[prompt, cached].concat()).unwrap();
    // Each of the last twelve ids was the most probable of two thousand, far more probable than in a uniform distribution.
    let uniform = -(f64::from(model.facts.vocabulary_size.unwrap_or(2000))).ln();
    assert!(scores[scores.len() - 12..].iter().all(|score| *score > uniform + 2.0), "{scores:?}");
}
