//! Tests the refusals of models that lmrs cannot load or cannot compute correctly, and the defaults of missing config fields.
#![expect(clippy::unwrap_used, reason = "tests panic")]

use std::path::{Path, PathBuf};

use lmrs::formats::F32;
use lmrs::formats::q4_0::Q4_0;
use lmrs::formats::q8_0::Q8_0;
use lmrs::pool::Pool;
use lmrs::shape::Shape;
use lmrs::weights::{Plan, RequestedFormat};
use model_files::{Dtype, Format, ModelFolder};
use protocol::{Failed, FailureKind};
use serde_json::{Value, json};

fn synthesise_model(name: &str) -> (tempfile::TempDir, PathBuf) {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/configs/{name}.json"));
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("model");
    let shape = model_files::Shape::of_config(&config).unwrap();
    let goal = model_files::Goal { format: Format::Safetensors, dtype: Dtype::BF16, out: out.clone() };
    model_files::synthesise(&shape, 7, &goal, &|_, _| Ok(())).unwrap();
    (folder, out)
}

fn load(path: &Path, requested: RequestedFormat) -> Result<(), Failed> {
    let to_failed = |error: anyhow::Error| Failed::new(FailureKind::Model, format!("{error:#}"));
    let folder = ModelFolder::open(path).map_err(to_failed)?;
    let shape = Shape::of(&folder)?;
    let plan = Plan::of(&folder, &shape, requested)?;
    let owned = plan.read(&Pool::new(2), &|_| ())?;
    plan.weights(&shape, &owned).map(|_| ())
}

/// Returns the refusal of a model after a change of one config field.
fn failure_with_field(name: &str, field: &str, value: Value) -> Failed {
    let (_folder, path) = synthesise_model(name);
    set_field(&path, field, value);
    load(&path, RequestedFormat::File).unwrap_err()
}

fn set_field(path: &Path, field: &str, value: Value) {
    let config = path.join("config.json");
    let mut fields: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    fields[field] = value;
    std::fs::write(&config, fields.to_string()).unwrap();
}

#[test]
fn the_refusal_of_an_unknown_computation_names_its_config_field() {
    let cases = [
        ("llama", "hidden_act", json!("relu")),
        ("llama", "rope_scaling", json!({"rope_type": "dynamic", "factor": 2.0})),
        ("llama", "quantization_config", json!({"bits": 4})),
        ("phi3", "rope_scaling", json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]})),
        ("gpt2", "scale_attn_by_inverse_layer_idx", json!(true)),
        ("gpt2", "activation_function", json!("gelu")),
        ("qwen2", "layer_types", json!(["full_attention", "linear_attention"])),
        ("llama", "layer_types", json!(["full_attention", "sliding_attention"])),
        ("mistral-window", "layer_types", json!(["full_attention", "sliding_attention"])),
        ("gemma", "final_logit_softcapping", json!(30.0)),
        ("llama", "partial_rotary_factor", json!(0.5)),
        ("qwen3", "partial_rotary_factor", json!(0.5)),
    ];
    for (name, field, value) in cases {
        let failed = failure_with_field(name, field, value);
        assert_eq!(failed.kind, FailureKind::Unsupported, "{failed:?}");
        assert!(failed.message.contains(field) && failed.message.contains("does not compute"), "{failed:?}");
    }
}

#[test]
fn an_invalid_config_value_is_reported_with_its_field() {
    let cases = [
        ("llama", "rms_norm_eps", json!(-1.0)),
        ("llama", "max_position_embeddings", json!(u32::MAX)),
        ("mistral", "sliding_window", json!("wide")),
        ("qwen2-window", "max_window_layers", json!(1.5)),
        ("qwen2-window", "max_window_layers", json!(-5)),
        ("qwen2-window", "layer_types", json!("x")),
        ("qwen2-window", "layer_types", json!(["full_attention"])),
        ("phi3", "partial_rotary_factor", json!(7)),
        ("llama", "intermediate_size", Value::Null),
        ("llama", "rms_norm_eps", json!(1e300)),
        ("llama", "rope_theta", json!("500000")),
        ("llama", "rope_theta", json!([])),
        ("llama", "rope_theta", json!(1e-300)),
        ("llama", "rope_scaling", json!({"rope_type": "linear", "factor": 1e-40})),
        ("llama", "rope_scaling", json!({"rope_type": "linear", "factor": 1e300})),
        ("llama", "rope_scaling", json!({"rope_type": "linear", "factor": 0})),
        ("llama", "rope_scaling", json!("x")),
        ("llama", "eos_token_id", json!(1_000_000)),
        ("llama", "attention_bias", json!("true")),
        ("llama", "tie_word_embeddings", json!(1)),
        ("gpt2", "n_positions", json!(u32::MAX)),
    ];
    for (name, field, value) in cases {
        let failed = failure_with_field(name, field, value);
        assert_eq!(failed.kind, FailureKind::Model, "{field}: {failed:?}");
        assert!(failed.message.contains("config.json") && failed.message.contains(field), "{failed:?}");
    }
}

/// The model has two layers, and a window of 17 tokens in its config. The defaults of qwen2 are 4096 tokens, from layer 28 on.
#[test]
fn missing_config_fields_of_windows_have_the_defaults_of_transformers() {
    let (_folder, path) = synthesise_model("qwen2-window");
    let windows = |field, value| {
        set_field(&path, field, value);
        Shape::of(&ModelFolder::open(&path).unwrap()).unwrap().windows
    };
    assert_eq!(windows("max_window_layers", Value::Null), [None, None]);
    assert_eq!(windows("max_window_layers", json!(0)), [Some(17), Some(17)]);
    assert_eq!(windows("max_window_layers", json!(1)), [None, Some(17)]);
    let config = path.join("config.json");
    let mut fields: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    fields.as_object_mut().unwrap().remove("sliding_window");
    std::fs::write(&config, fields.to_string()).unwrap();
    assert_eq!(windows("max_window_layers", json!(1)), [None, Some(4096)]);
    assert_eq!(windows("layer_types", json!(["sliding_attention", "full_attention"])), [Some(4096), None]);
}

/// Since version 5 of transformers, `rope_theta` in `rope_parameters` takes precedence. An empty `rope_scaling` counts as
/// absent.
#[test]
fn rope_theta_is_read_from_rope_parameters_first() {
    let (_folder, path) = synthesise_model("llama");
    let rotation = |field, value| {
        set_field(&path, field, value);
        Shape::of(&ModelFolder::open(&path).unwrap()).unwrap().rotation.unwrap()
    };
    let original = rotation("rope_parameters", Value::Null);
    let other = rotation("rope_parameters", json!({"rope_type": "default", "rope_theta": 5e5}));
    assert_ne!(other, original);
    assert_eq!(rotation("rope_scaling", json!({})), other);
    assert_eq!(rotation("rope_theta", Value::Null), other);
    assert_eq!(rotation("rope_parameters", json!({"rope_theta": 1e4})), original);
}

#[test]
fn biases_in_a_file_whose_config_denies_them_are_refused() {
    let (_folder, path) = synthesise_model("llama-linear-biased");
    set_field(&path, "attention_bias", json!(false));
    let failed = load(&path, RequestedFormat::File).unwrap_err();
    assert_eq!(failed.kind, FailureKind::Unsupported, "{failed:?}");
    assert!(failed.message.contains("_proj.bias"), "{failed:?}");
}

#[test]
fn an_output_matrix_other_than_the_tied_embedding_is_refused() {
    let (_folder, path) = synthesise_model("llama");
    set_field(&path, "tie_word_embeddings", json!(false));
    let shape = model_files::Shape::of_config(&path.join("config.json")).unwrap();
    let out = path.with_file_name("untied");
    let goal = model_files::Goal { format: Format::Safetensors, dtype: Dtype::BF16, out: out.clone() };
    model_files::synthesise(&shape, 7, &goal, &|_, _| Ok(())).unwrap();
    assert_eq!(load(&out, RequestedFormat::File), Ok(()));
    set_field(&out, "tie_word_embeddings", json!(true));
    let failed = load(&out, RequestedFormat::File).unwrap_err();
    let difference = "`lm_head.weight` differs from `model.embed_tokens.weight`";
    assert_eq!(failed.kind, FailureKind::Model);
    assert_eq!(failed.message, format!("model `untied`: `tie_word_embeddings` is true, and {difference}"));
    assert!(failed.hint.unwrap().starts_with("set `tie_word_embeddings` to false in `"));
    // A copy of the embedding is accepted.
    let folder = ModelFolder::open(&out).unwrap();
    let bytes_of = |name: &str| {
        let tensor = folder.tensors.iter().find(|tensor| tensor.name == name).unwrap();
        tensor.offset as usize..(tensor.offset + tensor.bytes) as usize
    };
    let mut bytes = std::fs::read(out.join("model.safetensors")).unwrap();
    bytes.copy_within(bytes_of("model.embed_tokens.weight"), bytes_of("lm_head.weight").start);
    std::fs::write(out.join("model.safetensors"), bytes).unwrap();
    assert_eq!(load(&out, RequestedFormat::File), Ok(()));
}

#[test]
fn tensors_of_other_networks_are_ignored_and_unknown_tensors_of_this_one_refused() {
    let (_folder, path) = synthesise_model("llama");
    let weights = path.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    let header_end = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let load_with_tensor = |name: &str| {
        let mut tensors: Value = serde_json::from_slice(&whole[8..header_end]).unwrap();
        let at = whole.len() - header_end;
        tensors[name] = json!({"dtype": "F32", "shape": [1], "data_offsets": [at, at + 4]});
        let tensors = tensors.to_string();
        let length = (tensors.len() as u64).to_le_bytes();
        let bytes = [&length, tensors.as_bytes(), &whole[header_end..], &[0; 4]].concat();
        std::fs::write(&weights, bytes).unwrap();
        load(&path, RequestedFormat::File)
    };
    let frequencies = "model.layers.0.self_attn.rotary_emb.inv_freq";
    for name in ["vision.layers.0.weight", "model.layers.7.mlp.weight", frequencies] {
        assert_eq!(load_with_tensor(name), Ok(()), "{name}");
    }
    let unknown = ["model.layers.0.something.weight", "model.layers.0.attn.bias", "lm_head.bias"];
    for name in ["model.layers.0.self_attn.q_norm.weight", "model.norm.bias"].into_iter().chain(unknown) {
        let failed = load_with_tensor(name).unwrap_err();
        assert!(failed.message.contains(name), "{failed:?}");
    }
}

/// Makes a GGUF of this model. Returns its folder, which the caller must keep, its path and its bytes.
fn gguf(name: &str) -> (tempfile::TempDir, PathBuf, Vec<u8>) {
    let (folder, path) = synthesise_model(name);
    let out = path.with_extension("gguf");
    let goal = model_files::Goal { format: Format::Gguf, dtype: Dtype::BF16, out: out.clone() };
    model_files::convert(&ModelFolder::open(&path).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    let bytes = std::fs::read(&out).unwrap();
    (folder, out, bytes)
}

fn offset_of(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).position(|window| window == part).unwrap()
}

/// Files with a factor and no type are older than the field of the type. llama.cpp reads them in the same way.
#[test]
fn a_rotation_factor_without_a_type_in_a_gguf_is_linear() {
    let (_folder, path, original) = gguf("llama-linear-biased");
    let rotation = || Shape::of(&ModelFolder::open(&path).unwrap()).unwrap().rotation;
    let linear = rotation();
    let mut bytes = original;
    // A misspelt key of the same length removes the field.
    let kind = offset_of(&bytes, b"llama.rope.scaling.type");
    bytes[kind..][..23].copy_from_slice(b"llama.rope.scaling.typo");
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(rotation(), linear);
    let converted = path.with_extension("again");
    let goal = model_files::Goal { format: Format::Safetensors, dtype: Dtype::BF16, out: converted.clone() };
    model_files::convert(&ModelFolder::open(&path).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    assert_eq!(Shape::of(&ModelFolder::open(&converted).unwrap()).unwrap().rotation, linear);
    let factor = offset_of(&bytes, b"llama.rope.scaling.factor");
    bytes[factor..][..25].copy_from_slice(b"llama.rope.scaling.fbctor");
    std::fs::write(&path, &bytes).unwrap();
    assert_ne!(rotation(), linear);
}

#[test]
fn an_invalid_number_in_a_gguf_is_reported_with_its_value() {
    let (_folder, path, original) = gguf("llama-linear-biased");
    for (key, number, expected) in [
        (
            "attention.layer_norm_rms_epsilon",
            -1.0,
            "expected a number not below 0 in the range of f32, found `-1.0`",
        ),
        ("attention.layer_norm_rms_epsilon", f32::INFINITY, "expected a number, found `inf`"),
        ("rope.scaling.factor", 0.0, "expected a number above 0 in the range of f32, found `0.0`"),
        ("rope.scaling.factor", -2.0, "expected a number above 0 in the range of f32, found `-2.0`"),
        ("rope.freq_base", 0.0, "expected a number above 0 in the range of f32, found `0.0`"),
    ] {
        let mut bytes = original.clone();
        // Between a key and its value is the type of the value, in four bytes.
        let at = offset_of(&bytes, key.as_bytes()) + key.len() + 4;
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        let failed = load(&path, RequestedFormat::File).unwrap_err();
        assert!(failed.message.ends_with(&format!("{key}`: {expected}")), "{failed:?}");
    }
}

#[test]
fn invalid_rotation_factors_are_reported_with_their_tensor() {
    let (_folder, path, mut bytes) = gguf("llama3");
    let folder = ModelFolder::open(&path).unwrap();
    let factors = folder.tensors.iter().find(|tensor| tensor.name == "rope_freqs.weight").unwrap();
    bytes[factors.offset as usize..][..4].copy_from_slice(&(-1.0_f32).to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let failed = load(&path, RequestedFormat::File).unwrap_err();
    let message = "`rope_freqs.weight`: expected numbers above 0, found `-1.0`";
    assert!(failed.message.ends_with(message), "{failed:?}");
}

#[test]
fn unknown_quantization_blocks_are_reported_with_their_tensor_and_a_hint() {
    let (_folder, path) = synthesise_model("llama");
    let out = path.with_extension("gguf");
    let goal = model_files::Goal { format: Format::Gguf, dtype: Dtype::Q4_0, out: out.clone() };
    model_files::convert(&ModelFolder::open(&path).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    let mut bytes = std::fs::read(&out).unwrap();
    // Between a matrix's name and its type: the number of dimensions (4 bytes), both dimensions (16). Type 2 is Q4_0; 20 is
    // IQ4_NL, which has as many bytes.
    let name = b"blk.0.attn_q.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap() + name.len() + 4 + 16;
    assert_eq!(bytes[at], 2);
    bytes[at] = 20;
    std::fs::write(&out, bytes).unwrap();
    let failed = load(&out, RequestedFormat::File).unwrap_err();
    assert_eq!(failed.kind, FailureKind::Unsupported, "{failed:?}");
    assert!(failed.message.contains("model.gguf`: tensor `blk.0.attn_q.weight` is IQ4_NL"), "{failed:?}");
    assert!(failed.hint.unwrap().starts_with("llama-quantize "));
}

#[test]
fn a_size_of_zero_is_reported_with_its_field() {
    let sizes = [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
    ];
    for field in sizes {
        let failed = failure_with_field("llama", field, json!(0));
        assert_eq!(failed.kind, FailureKind::Model, "{field}: {failed:?}");
        assert!(failed.message.contains(&format!("`{field}` is 0")), "{failed:?}");
    }
    for (name, field) in [("gpt2", "n_inner"), ("llama", "max_position_embeddings"), ("gpt2", "n_positions")]
    {
        let failed = failure_with_field(name, field, json!(0));
        assert!(failed.message.contains(&format!("`{field}` is 0")), "{failed:?}");
    }
}

#[test]
fn a_truncated_file_or_a_missing_tensor_is_an_error() {
    let (_folder, path) = synthesise_model("llama");
    let weights = path.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &whole[..whole.len() - 100]).unwrap();
    let failed = load(&path, RequestedFormat::File).unwrap_err();
    assert!(failed.message.contains("model.safetensors"), "{failed:?}");
    // The config has one layer more than the file.
    std::fs::write(&weights, &whole).unwrap();
    let config = path.join("config.json");
    let mut fields: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    fields["num_hidden_layers"] = json!(3);
    std::fs::write(&config, fields.to_string()).unwrap();
    let failed = load(&path, RequestedFormat::File).unwrap_err();
    assert!(failed.message.contains("model.layers.2."), "{failed:?}");
}

#[test]
fn a_file_that_shrinks_after_its_header_was_read_is_an_error() {
    let (_folder, path) = synthesise_model("llama");
    let folder = ModelFolder::open(&path).unwrap();
    let shape = Shape::of(&folder).unwrap();
    let weights = std::fs::OpenOptions::new().write(true).open(path.join("model.safetensors")).unwrap();
    weights.set_len(5000).unwrap();
    let failed = Plan::of(&folder, &shape, RequestedFormat::File).err().unwrap();
    assert!(failed.message.contains("has 5000 bytes"), "{failed:?}");
}

/// The smallest number that is enough, up to 2^40.
fn least_sufficient(is_enough: impl Fn(u64) -> bool) -> u64 {
    let (mut less, mut enough) = (0, 1 << 40);
    while enough - less > 1 {
        let tried = (less + enough) / 2;
        if is_enough(tried) { enough = tried } else { less = tried }
    }
    enough
}

#[test]
fn a_model_larger_than_memory_is_refused_before_it_is_read() {
    let (_folder, path) = synthesise_model("llama");
    let folder = ModelFolder::open(&path).unwrap();
    let shape = Shape::of(&folder).unwrap();
    let mut least_bytes =
        [RequestedFormat::File, RequestedFormat::Format(&F32), RequestedFormat::Format(&Q8_0)]
            .into_iter()
            .map(|requested| {
                let plan = Plan::of(&folder, &shape, requested).unwrap();
                let least = |kv_bytes: u64| {
                    least_sufficient(|available| plan.refuse_if_too_large(kv_bytes, Some(available)).is_ok())
                };
                assert_eq!(plan.refuse_if_too_large(0, None), Ok(()));
                assert_eq!(least(1000), least(0) + 1000, "keys and values count too");
                let failed = plan.refuse_if_too_large(5, Some(4)).unwrap_err();
                assert_eq!(failed.kind, FailureKind::OutOfMemory);
                assert!(
                    failed.message.ends_with("5 for keys and values), and 4 are available"),
                    "{failed:?}"
                );
                assert!(failed.hint.unwrap().contains("--dtype"));
                least(0)
            });
    let [bf16, f32, q8_0] = [(); 3].map(|()| least_bytes.next().unwrap());
    assert_eq!(f32, 2 * bf16, "the file's bf16 weights count, although they are mapped");
    assert!(q8_0 > bf16 / 2 && q8_0 < bf16, "{q8_0} of {bf16} bytes");
}

#[test]
fn dtypes_are_found_by_name_and_quantized_weights_are_not_rounded_again() {
    assert_eq!(RequestedFormat::from_name(None, "bf16").unwrap(), RequestedFormat::File);
    assert_eq!(RequestedFormat::from_name(Some("bf16"), "bf16").unwrap(), RequestedFormat::File);
    assert_eq!(RequestedFormat::from_name(Some("q4_0"), "bf16").unwrap(), RequestedFormat::Format(&Q4_0));
    assert_eq!(RequestedFormat::from_name(Some("int3"), "bf16").unwrap_err().kind, FailureKind::Unsupported);
    let (_folder, path) = synthesise_model("llama");
    let out = path.with_extension("gguf");
    let goal = model_files::Goal { format: Format::Gguf, dtype: Dtype::Q8_0, out: out.clone() };
    model_files::convert(&ModelFolder::open(&path).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    let failed = load(&out, RequestedFormat::Format(&Q4_0)).unwrap_err();
    assert!(failed.message.contains("a second time"), "{failed:?}");
    assert!(load(&out, RequestedFormat::Format(&F32)).is_ok());
}
