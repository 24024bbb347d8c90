//! Generation and scoring: the same answer by every way that leads to it.

use engine_kit::{Model, sampling};
use protocol::Sampling;

use candle_core::quantized::GgmlDType;

use super::tiny::{LLAMA, QWEN2, Tiny, WIDE};
use super::{greedy, job, load, loaded, logits, message, relative_difference, run, sampled};

const PROMPT: [u32; 5] = [0, 17, 3, 42, 8];

fn of_gguf(tiny: Tiny, dtype: GgmlDType) -> crate::model::LoadedModel {
    let folder = tempfile::tempdir().unwrap();
    load(&tiny.write_gguf(folder.path(), dtype))
}

#[test]
fn greedy_decoding_is_the_same_with_the_cache_without_it_and_teacher_forced() {
    for tiny in [LLAMA, QWEN2] {
        let mut model = loaded(tiny);
        let cached = greedy(&mut model, &PROMPT, 24);
        assert_eq!(cached.len(), 24);
        assert!(cached.iter().any(|id| *id != cached[0]), "{}: one id only proves little", tiny.architecture);
        let uncached = run(&mut model, &engine_kit::Job { use_cache: false, ..job(&PROMPT, 24) });
        assert_eq!(cached, uncached, "{}", tiny.architecture);
        let mut text = PROMPT.to_vec();
        for &id in &cached {
            assert_eq!(
                sampling::greedy(&logits(&mut model, &text)),
                id,
                "{} after {text:?}",
                tiny.architecture
            );
            text.push(id);
        }
    }
}

#[test]
fn a_score_is_the_log_probability_that_whole_prompts_give() {
    for tiny in [LLAMA, QWEN2] {
        let mut model = loaded(tiny);
        let ids: Vec<u32> = (0..12).map(|index| index * 7 % tiny.vocabulary as u32).collect();
        let scores = model.score(&ids).unwrap();
        assert_eq!(scores.len(), ids.len() - 1);
        for (index, score) in scores.iter().enumerate() {
            let whole = sampling::log_softmax_at(&logits(&mut model, &ids[..=index]), ids[index + 1]);
            assert!((score - whole).abs() < 1e-4, "{} at {index}: {score} {whole}", tiny.architecture);
        }
    }
}

#[test]
fn a_request_leaves_nothing_behind_for_the_next() {
    let models =
        [loaded(LLAMA), loaded(QWEN2), of_gguf(LLAMA, GgmlDType::F32), of_gguf(QWEN2, GgmlDType::F32)];
    for mut model in models {
        let first = greedy(&mut model, &PROMPT, 16);
        greedy(&mut model, &[9, 9, 4, 31, 7, 7, 2], 9);
        model.score(&[5, 6, 7]).unwrap();
        assert_eq!(greedy(&mut model, &PROMPT, 16), first);
    }
}

#[test]
fn a_gguf_answers_as_the_safetensors_it_was_made_of() {
    for tiny in [LLAMA, QWEN2] {
        let expected = logits(&mut loaded(tiny), &PROMPT);
        let exact = relative_difference(&logits(&mut of_gguf(tiny, GgmlDType::F32), &PROMPT), &expected);
        assert!(exact < 1e-5, "{}: F32 is off by {exact}", tiny.architecture);
        let rounded = relative_difference(&logits(&mut of_gguf(tiny, GgmlDType::Q8_0), &PROMPT), &expected);
        assert!(rounded < 0.05, "{}: Q8_0 is off by {rounded}", tiny.architecture);
        assert!(rounded > 1e-5, "{}: Q8_0 cannot be this exact: {rounded}", tiny.architecture);
    }
}

#[test]
fn candles_repacked_kernels_answer_as_the_weights_they_were_made_of() {
    let expected = logits(&mut loaded(WIDE), &PROMPT);
    for (dtype, bound) in [(GgmlDType::Q8_0, 0.05), (GgmlDType::Q4K, 0.3)] {
        let difference = relative_difference(&logits(&mut of_gguf(WIDE, dtype), &PROMPT), &expected);
        assert!(difference > 1e-5 && difference < bound, "{dtype:?} is off by {difference}");
    }
}

#[test]
fn sampling_is_decided_by_its_seed() {
    let mut model = loaded(LLAMA);
    let warm = |seed| Sampling { temperature: 2.0, top_k: 0, top_p: None, seed };
    let first = sampled(&mut model, warm(1));
    assert_eq!(sampled(&mut model, warm(1)), first);
    assert_ne!(sampled(&mut model, warm(2)), first);
    let greedy = greedy(&mut model, &[0, 5, 9], 16);
    assert_eq!(sampled(&mut model, Sampling { top_k: 1, ..warm(3) }), greedy);
    assert_eq!(sampled(&mut model, Sampling { top_p: Some(1e-9), ..warm(3) }), greedy);
    assert_eq!(sampled(&mut model, Sampling { temperature: 0.0, ..warm(3) }), greedy);
    for temperature in [5e-324, 1e-300, 1e-40, sampling::GREEDY_BELOW] {
        for top_k in [0, 5] {
            let cold = Sampling { temperature, top_k, ..warm(3) };
            assert_eq!(sampled(&mut model, cold), greedy, "{temperature}");
        }
    }
    let nucleus = Sampling { top_k: 20, top_p: Some(0.9), ..warm(4) };
    assert_eq!(sampled(&mut model, nucleus), sampled(&mut model, nucleus));
}

#[test]
fn a_gguf_without_its_cache_is_refused() {
    let mut model = of_gguf(LLAMA, GgmlDType::F32);
    let without = engine_kit::Job { use_cache: false, ..job(&PROMPT, 2) };
    let mut tokens = engine_kit::Tokens::collecting(&without.prompts, 2, &[]);
    let refusal = message(model.generate(&without, &mut tokens));
    assert!(refusal.starts_with("unsupported: `use_cache: false` on a GGUF"), "{refusal}");
}

#[test]
fn the_whole_context_can_be_used() {
    for tiny in [LLAMA, QWEN2] {
        let prompt: Vec<u32> = (0..tiny.context as u32 - 4).map(|index| index % 90).collect();
        assert_eq!(greedy(&mut loaded(tiny), &prompt, 4).len(), 4);
    }
}

#[test]
fn inside_candles_own_pool_the_answer_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    LLAMA.write_folder(folder.path());
    let options = serde_json::json!({ "own_pool": true }).as_object().unwrap().clone();
    let mut inside =
        super::load_with(folder.path(), &protocol::Load { options, ..Default::default() }).unwrap();
    assert!(inside.network.own_pool);
    assert_eq!(greedy(&mut inside, &PROMPT, 12), greedy(&mut loaded(LLAMA), &PROMPT, 12));
}

#[test]
fn the_embedded_model_writes_the_same_text_with_and_without_cache_and_finds_its_own_text_likely() {
    let path = model_files::resolve(None).unwrap();
    let tokenizer = model_files::ModelFolder::open(&path).unwrap().tokenizer().unwrap();
    let mut model = load(&path);
    let prompt = tokenizer.encode("Hello").unwrap();
    let cached = greedy(&mut model, &prompt, 12);
    let uncached = run(&mut model, &engine_kit::Job { use_cache: false, ..job(&prompt, 12) });
    assert_eq!(cached, uncached);

    let text = [prompt, cached].concat();
    let scores = model.score(&text).unwrap();
    // Each of the twelve was the likeliest of two thousand, so each is far above an even share.
    let even_share = -(f64::from(model.facts.vocabulary_size.unwrap())).ln();
    assert!(scores[scores.len() - 12..].iter().all(|score| *score > even_share + 2.0), "{scores:?}");
}
