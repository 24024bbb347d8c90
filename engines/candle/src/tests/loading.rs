//! Tests the facts of a load, and its settings.

use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value as Metadata;
use candle_core::{DType, Tensor};
use protocol::Load;
use serde_json::{Value, json};

use super::{ALL, GEMMA, IN_GGUF, LLAMA, MISTRAL, PHI3, QWEN2, QWEN3, Tiny};
use super::{greedy, load, load_safetensors, load_with, logits, message, relative_difference};
use super::{rounded, write_config, write_gguf, write_tensors};
use crate::engine;

#[test]
fn hello_states_the_versions_of_the_lock_file() {
    let lock = include_str!("../../../../Cargo.lock");
    let release = |package: &str| {
        let (_, after_name) = lock.split_once(&format!("name = \"{package}\"\nversion = \"")).unwrap();
        after_name.split('"').next().unwrap()
    };
    for package in ["candle-core", "candle-nn", "candle-transformers"] {
        assert_eq!(release(package), engine::CANDLE_VERSION, "{package}");
    }
    assert_eq!(release("gemm"), engine::GEMM_VERSION);
    assert_eq!(engine::hello().version, engine::CANDLE_VERSION);
}

#[test]
fn hello_names_the_cpu_that_it_was_compiled_for() {
    let build = engine::hello().build.unwrap();
    assert!(build.target_cpu.is_some(), "{build:?}");
    assert_eq!(build.features.contains(&"gemm/x86-v4".to_string()), cfg!(target_arch = "x86_64"));
}

#[test]
fn hello_names_the_architectures_that_are_tested_here() {
    assert_eq!(engine::hello().capabilities.architectures, ALL.map(|tiny| tiny.architecture));
}

#[test]
fn facts_state_the_bytes_that_a_load_leaves_in_memory() {
    for tiny in ALL {
        let elements: usize = tiny.tensors().values().map(Tensor::elem_count).sum();
        let facts = load_safetensors(tiny).facts;
        assert_eq!(facts.parameters, Some(elements as u64), "{}", tiny.architecture);
        assert_eq!(facts.weights_bytes, Some(elements as u64 * 4), "{}", tiny.architecture);
        assert_eq!(facts.context_tokens, Some(tiny.context as u32));
        assert_eq!(facts.weights_dtype.as_deref(), Some("f32"));
    }
    for tiny in IN_GGUF {
        let folder = tempfile::tempdir().unwrap();
        let facts = load(&tiny.write_gguf(folder.path(), GgmlDType::Q8_0)).facts;
        let (widened, kept): (Vec<_>, Vec<_>) = tiny
            .tensors()
            .into_iter()
            .partition(|(name, tensor)| tensor.rank() == 1 || name.contains("embed"));
        let count = |tensors: &[(String, Tensor)]| {
            tensors.iter().map(|(_, tensor)| tensor.elem_count()).sum::<usize>()
        };
        // A q8_0 quantization block has 32 weights in 34 bytes. A tied embedding is kept a second time, as the output matrix.
        let output_matrix = if tiny.tied { tiny.vocabulary * tiny.hidden } else { 0 };
        let bytes = count(&widened) * 4 + (count(&kept) + output_matrix) / 32 * 34;
        assert_eq!(facts.weights_bytes, Some(bytes as u64), "{}", tiny.architecture);
        assert_eq!(facts.parameters, Some((count(&widened) + count(&kept)) as u64));
        assert_eq!(facts.weights_dtype.as_deref(), Some("q8_0"));
    }
}

#[test]
fn half_precision_stays_near_f32() {
    // The prompt is long enough for positions that bf16 cannot hold.
    let prompt: Vec<u32> = (0..300_u32).map(|index| index * index % LLAMA.vocabulary as u32).collect();
    for tiny in [LLAMA, QWEN3, MISTRAL].map(|tiny| Tiny { context: 512, ..tiny }) {
        for (name, dtype, bound) in [("bf16", DType::BF16, 0.1), ("f16", DType::F16, 0.02)] {
            let folder = tempfile::tempdir().unwrap();
            write_config(folder.path(), &tiny.config());
            write_tensors(folder.path(), &rounded(tiny.tensors(), dtype));
            let request = Load { dtype: Some(name.into()), ..Load::default() };
            let mut narrow = load_with(folder.path(), &request).unwrap();
            assert_eq!(narrow.facts.weights_dtype.as_deref(), Some(name));
            assert_eq!(narrow.facts.weights_bytes, Some(narrow.facts.parameters.unwrap() * 2));
            let difference = relative_difference(
                &logits(&mut narrow, &prompt),
                &logits(&mut load(folder.path()), &prompt),
            );
            let architecture = tiny.architecture;
            assert!(difference > 0.0 && difference < bound, "{architecture} {name} is off by {difference}");
        }
    }
}

#[test]
fn half_precision_is_refused_for_architectures_whose_positions_candle_rounds() {
    for tiny in [QWEN2, PHI3, GEMMA] {
        let folder = tempfile::tempdir().unwrap();
        tiny.write_folder(folder.path());
        for name in ["bf16", "f16"] {
            let request = Load { dtype: Some(name.into()), ..Load::default() };
            let failure = message(load_with(folder.path(), &request));
            let architecture = tiny.architecture;
            let expected = format!(
                "unsupported: dtype `{name}`: candle rounds the positions of {architecture} in this dtype"
            );
            assert_eq!(failure, expected);
        }
    }
}

#[test]
fn a_gguf_keeps_its_own_dtype() {
    let folder = tempfile::tempdir().unwrap();
    let path = LLAMA.write_gguf(folder.path(), GgmlDType::Q8_0);
    let request = |dtype: &str| Load { dtype: Some(dtype.into()), ..Load::default() };
    assert!(load_with(&path, &request("q8_0")).is_ok());
    let computes_in = |path: &Path| load(path).facts.compute_dtype.unwrap();
    assert_eq!(computes_in(&path), "q8_0", "candle rounds the activations to 8 bits");
    let plain_path = LLAMA.write_gguf(folder.path(), GgmlDType::F16);
    assert_eq!(computes_in(&plain_path), "f32");
    let failure = message(load_with(&path, &request("f32")));
    assert_eq!(failure, "unsupported: dtype `f32`: a GGUF keeps its own dtype, `q8_0`");
}

#[test]
fn the_requested_context_is_in_effect_and_must_not_exceed_that_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    LLAMA.write_folder(folder.path());
    let request = |tokens| Load { context_tokens: Some(tokens), ..Load::default() };
    // The model has more key-value heads than this context has positions. candle would then truncate keys, so the engine passes
    // it a longer context.
    let mut short = load_with(folder.path(), &request(1)).unwrap();
    assert_eq!(short.facts.context_tokens, Some(1));
    assert_eq!(logits(&mut short, &[5]), logits(&mut load(folder.path()), &[5]));
    let failure = message(load_with(folder.path(), &request(49)));
    assert!(failure.starts_with("context: a context of 49 tokens: "), "the model has 48: {failure}");
}

#[test]
fn candles_quantized_llama_has_at_most_4096_positions() {
    let folder = tempfile::tempdir().unwrap();
    let path = Tiny { context: 100_000, ..LLAMA }.write_gguf(folder.path(), GgmlDType::F32);
    assert_eq!(load(&path).facts.context_tokens, Some(4096));
    let failure = message(load_with(&path, &Load { context_tokens: Some(4097), ..Load::default() }));
    assert!(failure.ends_with("has at most 4096, because of candle's position tables"), "{failure}");
}

#[test]
fn a_sliding_window_is_the_longest_context() {
    let limit = "has at most 32, because of its sliding window, which candle does not compute";
    let request = Load { context_tokens: Some(33), ..Load::default() };
    let folder = tempfile::tempdir().unwrap();
    for tiny in [MISTRAL, PHI3] {
        tiny.write_folder(folder.path());
        let mut config = tiny.config();
        config["sliding_window"] = json!(32);
        write_config(folder.path(), &config);
        assert_eq!(load(folder.path()).facts.context_tokens, Some(32));
        let failure = message(load_with(folder.path(), &request));
        assert!(failure.starts_with("context: a context of 33 tokens: "), "{failure}");
        assert!(failure.ends_with(limit), "{failure}");
        config["sliding_window"] = json!(-1);
        write_config(folder.path(), &config);
        let failure = message(load_with(folder.path(), &request));
        assert!(failure.ends_with("`sliding_window`: expected a number of tokens, found `-1`"), "{failure}");
        // A window longer than the context hides no token.
        config["sliding_window"] = json!(4096);
        write_config(folder.path(), &config);
        assert_eq!(load(folder.path()).facts.context_tokens, Some(48));
    }
    // A mistral config without the field means the window of the first release.
    let mistral = Tiny { context: 8192, ..MISTRAL };
    mistral.write_folder(folder.path());
    assert_eq!(load(folder.path()).facts.context_tokens, Some(4096));
    let mut config = mistral.config();
    config["sliding_window"] = Value::Null;
    write_config(folder.path(), &config);
    assert_eq!(load(folder.path()).facts.context_tokens, Some(8192));

    let path = folder.path().join("windowed.gguf");
    let mut metadata = PHI3.metadata();
    metadata.push(("phi3.attention.sliding_window".into(), Metadata::U32(32)));
    write_gguf(&path, &metadata, &PHI3.quantized(GgmlDType::F32));
    assert_eq!(load(&path).facts.context_tokens, Some(32));
}

#[test]
fn a_requested_context_replaces_the_context_of_a_gguf() {
    for tiny in IN_GGUF {
        let folder = tempfile::tempdir().unwrap();
        // Position tables for 4,000,000,000 tokens would not fit into memory.
        let path = Tiny { context: 4_000_000_000, ..tiny }.write_gguf(folder.path(), GgmlDType::F32);
        let mut short = load_with(&path, &Load { context_tokens: Some(16), ..Load::default() }).unwrap();
        assert_eq!(short.facts.context_tokens, Some(16));
        // The prompt of 3 and 13 new tokens fill the context.
        assert_eq!(greedy(&mut short, &[3, 4, 5], 13).len(), 13, "{}", tiny.architecture);
    }
}

#[test]
fn an_output_matrix_that_differs_from_the_tied_embedding_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for tiny in [LLAMA, QWEN2, QWEN3, PHI3, GEMMA].map(|tiny| Tiny { tied: true, ..tiny }) {
        tiny.write_folder(folder.path());
        let expected = logits(&mut load(folder.path()), &[3, 4, 5]);
        let mut tensors = tiny.tensors();
        let embedding = tensors["model.embed_tokens.weight"].clone();
        tensors.insert("lm_head.weight".into(), embedding.affine(-1.0, 0.5).unwrap());
        write_tensors(folder.path(), &tensors);
        let failure = message(load_with(folder.path(), &Load::default()));
        let difference =
            "`tie_word_embeddings` is true, and `lm_head.weight` differs from `model.embed_tokens.weight`";
        assert!(failure.starts_with("model: ") && failure.ends_with(difference), "{failure}");
        tensors.insert("lm_head.weight".into(), embedding.copy().unwrap());
        write_tensors(folder.path(), &tensors);
        let mut model = load(folder.path());
        assert_eq!(logits(&mut model, &[3, 4, 5]), expected, "{}", tiny.architecture);
        let elements: usize = tiny.tensors().values().map(Tensor::elem_count).sum();
        assert_eq!(model.facts.parameters, Some(elements as u64));
    }
}

#[test]
fn rotation_settings_change_the_logits() {
    let folder = tempfile::tempdir().unwrap();
    for (tiny, field, value) in [
        (PHI3, "partial_rotary_factor", json!(0.5)),
        (PHI3, "rope_theta", json!(100.0)),
        (MISTRAL, "rope_theta", json!(100.0)),
        (QWEN3, "rope_theta", json!(100.0)),
        (GEMMA, "rope_parameters", json!({"rope_theta": 100.0, "rope_type": "default"})),
    ] {
        tiny.write_folder(folder.path());
        let original = logits(&mut load(folder.path()), &[3, 4, 5]);
        let mut config = tiny.config();
        config.as_object_mut().unwrap().remove("rope_theta").unwrap();
        config[field] = value;
        write_config(folder.path(), &config);
        let difference = relative_difference(&logits(&mut load(folder.path()), &[3, 4, 5]), &original);
        assert!(difference > 1e-3, "{}: `{field}` changes the logits by {difference}", tiny.architecture);
    }
}

#[test]
fn both_config_names_of_gemmas_activation_give_the_same_logits() {
    let folder = tempfile::tempdir().unwrap();
    GEMMA.write_folder(folder.path());
    let expected = logits(&mut load(folder.path()), &[3, 4, 5]);
    for (hidden_act, hidden_activation) in [
        (json!("gelu_pytorch_tanh"), Value::Null),
        (json!("gelu"), json!("gelu_pytorch_tanh")),
        (Value::Null, json!("gelu_pytorch_tanh")),
    ] {
        let mut config = GEMMA.config();
        (config["hidden_act"], config["hidden_activation"]) = (hidden_act, hidden_activation);
        write_config(folder.path(), &config);
        assert_eq!(logits(&mut load(folder.path()), &[3, 4, 5]), expected);
    }
}

#[test]
fn unknown_options_unknown_devices_and_another_number_of_threads_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    LLAMA.write_folder(folder.path());
    let options = json!({ "speed": 11 }).as_object().unwrap().clone();
    let failure = message(load_with(folder.path(), &Load { options, ..Load::default() }));
    assert_eq!(failure, "bad_request: unknown option `speed`");
    let failure = message(load_with(folder.path(), &Load { device: Some("tpu".into()), ..Load::default() }));
    assert!(failure.starts_with("unsupported: no device `tpu`"), "{failure}");
    let in_effect = engine::set_threads(None).unwrap();
    assert_eq!(in_effect as usize, rayon::current_num_threads());
    assert_eq!(candle_core::utils::get_num_threads(), in_effect as usize);
    let request = Load { threads: Some(in_effect + 1), ..Load::default() };
    let failure = message(load_with(folder.path(), &request));
    let expected =
        format!("unsupported: {} threads: this process has {in_effect} since its first load", in_effect + 1);
    assert_eq!(failure, expected);
}

#[test]
fn llama_3_frequencies_change_the_logits() {
    let folder = tempfile::tempdir().unwrap();
    LLAMA.write_folder(folder.path());
    let original = logits(&mut load(folder.path()), &[3, 4, 5]);
    let mut config = LLAMA.config();
    config["rope_scaling"] = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    });
    write_config(folder.path(), &config);
    assert!(relative_difference(&logits(&mut load(folder.path()), &[3, 4, 5]), &original) > 1e-4);
}
