//! What a load states, and what it refuses by name.

use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::{QTensor, gguf_file};
use candle_core::{DType, Tensor};
use protocol::Load;
use serde_json::{Value, json};

use super::tiny::{LLAMA, QWEN2, Tiny, rounded, write_config, write_tensors};
use super::{load, load_with, loaded, logits, message, relative_difference};
use crate::{about, threads};

/// What a load of this folder answers after a field of its config was changed.
fn refusal_with(tiny: Tiny, field: &str, value: Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    tiny.write_folder(folder.path());
    let mut config = tiny.config();
    config.as_object_mut().unwrap().insert(field.into(), value);
    write_config(folder.path(), &config);
    let refusal = refusal_of(folder.path());
    refusal.replace(&folder.path().display().to_string(), "FOLDER").replace(&name(folder.path()), "NAME")
}

fn refusal_of(path: &Path) -> String {
    message(load_with(path, &Load::default()))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn the_versions_that_hello_states_are_those_of_the_lock_file() {
    let lock = include_str!("../../../../Cargo.lock");
    let release = |package: &str| {
        let (_, rest) = lock.split_once(&format!("name = \"{package}\"\nversion = \"")).unwrap();
        rest.split('"').next().unwrap()
    };
    for package in ["candle-core", "candle-nn", "candle-transformers"] {
        assert_eq!(release(package), about::CANDLE, "{package}");
    }
    assert_eq!(release("gemm"), about::GEMM);
    assert_eq!(about::hello().version, about::CANDLE);
}

#[test]
fn hello_names_the_cpu_that_it_was_compiled_for() {
    let build = about::hello().build.unwrap();
    assert!(build.target_cpu.is_some(), "{build:?}");
    assert_eq!(build.features.contains(&"gemm/x86-v4".to_string()), cfg!(target_arch = "x86_64"));
}

#[test]
fn facts_count_what_a_load_leaves_in_memory() {
    let elements: usize = LLAMA.tensors().values().map(Tensor::elem_count).sum();
    let facts = loaded(LLAMA).facts;
    assert_eq!(facts.parameters, Some(elements as u64));
    assert_eq!(facts.weights_bytes, Some(elements as u64 * 4));
    assert_eq!(facts.context_tokens, Some(LLAMA.context as u32));
    assert_eq!(facts.weights_dtype.as_deref(), Some("f32"));

    let folder = tempfile::tempdir().unwrap();
    let facts = load(&LLAMA.write_gguf(folder.path(), GgmlDType::Q8_0)).facts;
    let (widened, kept): (Vec<_>, Vec<_>) =
        LLAMA.tensors().into_iter().partition(|(name, _)| name.contains("norm") || name.contains("embed"));
    let count = |part: &[(String, Tensor)]| part.iter().map(|(_, tensor)| tensor.elem_count()).sum::<usize>();
    assert_eq!(facts.weights_bytes, Some((count(&widened) * 4 + count(&kept) / 32 * 34) as u64));
    assert_eq!(facts.parameters, Some(elements as u64));
    assert_eq!(facts.weights_dtype.as_deref(), Some("q8_0"));
}

#[test]
fn llama_in_half_precision_stays_near_its_f32() {
    for (name, dtype, bound) in [("bf16", DType::BF16, 0.1), ("f16", DType::F16, 0.02)] {
        let folder = tempfile::tempdir().unwrap();
        write_config(folder.path(), &LLAMA.config());
        write_tensors(folder.path(), &rounded(LLAMA.tensors(), dtype));
        let mut narrow =
            load_with(folder.path(), &Load { dtype: Some(name.into()), ..Load::default() }).unwrap();
        assert_eq!(narrow.facts.weights_dtype.as_deref(), Some(name));
        assert_eq!(narrow.facts.weights_bytes, Some(narrow.facts.parameters.unwrap() * 2));
        let prompt = [0, 17, 3, 42, 8];
        let difference =
            relative_difference(&logits(&mut narrow, &prompt), &logits(&mut load(folder.path()), &prompt));
        assert!(difference > 0.0 && difference < bound, "{name} is off by {difference}");
    }
}

#[test]
fn qwen2_in_half_precision_is_refused_because_candle_rounds_its_positions() {
    let folder = tempfile::tempdir().unwrap();
    QWEN2.write_folder(folder.path());
    let asked = Load { dtype: Some("bf16".into()), ..Load::default() };
    let refusal = message(load_with(folder.path(), &asked));
    assert_eq!(refusal, "unsupported: dtype `bf16`: candle rounds the positions of qwen2 in it");
}

#[test]
fn what_candle_would_ignore_or_panic_on_is_refused_by_its_name() {
    let cases = [
        (
            "attention_bias",
            json!(true),
            "unsupported: `NAME` has `attention_bias` `true`, which candle would ignore",
        ),
        (
            "hidden_act",
            json!("gelu"),
            "unsupported: `NAME` has `hidden_act` `gelu`, which candle would ignore",
        ),
        (
            "rope_scaling",
            json!({"rope_type": "yarn", "factor": 4.0}),
            "unsupported: `NAME` has `rope_scaling` `yarn`, which candle would ignore",
        ),
        (
            "rope_scaling",
            json!({"rope_type": "llama3", "factor": 4.0}),
            "model: `FOLDER/config.json`: `rope_scaling.low_freq_factor` is missing",
        ),
        ("rms_norm_eps", Value::Null, "model: `FOLDER/config.json`: `rms_norm_eps` is missing"),
        ("intermediate_size", Value::Null, "model: `FOLDER/config.json`: `intermediate_size` is missing"),
        (
            "max_position_embeddings",
            Value::Null,
            "model: `FOLDER/config.json`: `max_position_embeddings` is missing",
        ),
        ("model_type", json!("gpt2"), "model: architecture `gpt2` of `NAME` is not one of `llama`, `qwen2`"),
        (
            "num_key_value_heads",
            json!(3),
            "model: `FOLDER/config.json`: 4 heads do not divide into 3 key-value heads",
        ),
        (
            "head_dim",
            json!(32),
            "unsupported: `NAME` has 4 heads of 32 in a hidden size of 64: candle takes them to fill it",
        ),
        (
            "max_position_embeddings",
            json!(4_000_000_000_u32),
            "model: `FOLDER/config.json`: a context of 4000000000 tokens is not believed",
        ),
        (
            "num_hidden_layers",
            json!(4_000_000_000_u32),
            "model: `FOLDER/model.safetensors`: no tensor `model.layers.2.input_layernorm.weight`",
        ),
        (
            "vocab_size",
            json!(98),
            "model: `FOLDER/model.safetensors`: tensor `model.embed_tokens.weight` has shape [97, 64], \
             expected [98, 64] from `FOLDER/config.json`",
        ),
    ];
    for (field, value, expected) in cases {
        assert_eq!(refusal_with(LLAMA, field, value), expected);
    }
    let window = refusal_with(QWEN2, "use_sliding_window", json!(true));
    assert_eq!(window, "unsupported: `NAME` has `use_sliding_window` `true`, which candle would ignore");
    let head = refusal_with(QWEN2, "tie_word_embeddings", json!(false));
    assert_eq!(head, "model: `FOLDER/model.safetensors`: no tensor `lm_head.weight`");
}

#[test]
fn a_tensor_that_is_lost_is_named_with_its_file() {
    let folder = tempfile::tempdir().unwrap();
    LLAMA.write_folder(folder.path());
    let mut tensors = LLAMA.tensors();
    tensors.remove("model.layers.1.self_attn.k_proj.weight").unwrap();
    write_tensors(folder.path(), &tensors);
    let refusal = refusal_of(folder.path());
    let file = folder.path().join("model.safetensors");
    let expected = format!("model: `{}`: no tensor `model.layers.1.self_attn.k_proj.weight`", file.display());
    assert_eq!(refusal, expected);
}

#[test]
fn a_gguf_without_its_layers_is_named_with_the_tensor_that_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("torn.gguf");
    let (metadata, tensors) = (LLAMA.metadata(), LLAMA.tensors());
    let metadata: Vec<_> = metadata.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let embedding = QTensor::quantize(&tensors["model.embed_tokens.weight"], GgmlDType::F32).unwrap();
    let mut file = std::fs::File::create(&path).unwrap();
    gguf_file::write(&mut file, &metadata, &[("token_embd.weight", &embedding)]).unwrap();
    assert_eq!(refusal_of(&path), format!("model: `{}`: 2 layers in 1 tensors", path.display()));

    let norm = QTensor::quantize(&tensors["model.layers.0.input_layernorm.weight"], GgmlDType::F32).unwrap();
    let two = [("token_embd.weight", &embedding), ("blk.0.attn_norm.weight", &norm)];
    gguf_file::write(&mut std::fs::File::create(&path).unwrap(), &metadata, &two).unwrap();
    let refusal = refusal_of(&path);
    assert!(refusal.starts_with(&format!("model: `{}`: ", path.display())), "{refusal}");
    assert!(refusal.contains("output_norm.weight"), "{refusal}");
}

#[test]
fn a_gguf_keeps_its_own_dtype() {
    let folder = tempfile::tempdir().unwrap();
    let path = LLAMA.write_gguf(folder.path(), GgmlDType::Q8_0);
    let asked = |dtype: &str| Load { dtype: Some(dtype.into()), ..Load::default() };
    assert!(load_with(&path, &asked("q8_0")).is_ok());
    let refusal = message(load_with(&path, &asked("f32")));
    assert_eq!(refusal, "unsupported: dtype `f32`: a GGUF keeps its own, here `q8_0`");
}

#[test]
fn a_context_is_in_effect_as_asked_and_refused_beyond_the_models() {
    let folder = tempfile::tempdir().unwrap();
    LLAMA.write_folder(folder.path());
    let asked = |tokens| Load { context_tokens: Some(tokens), ..Load::default() };
    // One token is fewer than the model has key-value heads, which candle compares with the context.
    let mut short = load_with(folder.path(), &asked(1)).unwrap();
    assert_eq!(short.facts.context_tokens, Some(1));
    assert_eq!(logits(&mut short, &[5]), logits(&mut load(folder.path()), &[5]));
    let refusal = message(load_with(folder.path(), &asked(49)));
    assert!(refusal.starts_with("context: a context of 49 tokens: "), "{refusal}");
}

#[test]
fn candles_quantised_llama_ends_at_4096_whatever_the_file_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = Tiny { context: 100_000, ..LLAMA }.write_gguf(folder.path(), GgmlDType::F32);
    assert_eq!(load(&path).facts.context_tokens, Some(4096));
}

#[test]
fn options_devices_and_another_number_of_threads_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    LLAMA.write_folder(folder.path());
    let options = json!({ "speed": 11 }).as_object().unwrap().clone();
    let refusal = message(load_with(folder.path(), &Load { options, ..Load::default() }));
    assert_eq!(refusal, "bad_request: unknown option `speed`");
    let refusal = message(load_with(folder.path(), &Load { device: Some("tpu".into()), ..Load::default() }));
    assert!(refusal.starts_with("unsupported: no device `tpu`"), "{refusal}");
    let in_effect = threads::settle(None).unwrap();
    assert_eq!(in_effect as usize, rayon::current_num_threads());
    assert_eq!(candle_core::utils::get_num_threads(), in_effect as usize);
    let more = Load { threads: Some(in_effect + 1), ..Load::default() };
    let refusal = message(load_with(folder.path(), &more));
    let expected =
        format!("unsupported: {} threads: this process has {in_effect} since its first load", in_effect + 1);
    assert_eq!(refusal, expected);
}

#[test]
fn llama_3_frequencies_change_what_a_model_says() {
    let folder = tempfile::tempdir().unwrap();
    LLAMA.write_folder(folder.path());
    let plain = logits(&mut load(folder.path()), &[3, 4, 5]);
    let mut config = LLAMA.config();
    config["rope_scaling"] = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    });
    write_config(folder.path(), &config);
    assert!(relative_difference(&logits(&mut load(folder.path()), &[3, 4, 5]), &plain) > 1e-4);
}
