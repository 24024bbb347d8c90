//! Tests that a load refuses what candle does not compute, and that the message gives the reason.

use std::path::Path;

use candle_core::quantized::gguf_file::Value as Metadata;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use protocol::Load;
use serde_json::{Value, json};

use super::{ALL, GEMMA, IN_GGUF, LLAMA, MISTRAL, PHI3, QWEN2, QWEN3, Tiny};
use super::{load_with, message};
use super::{write_config, write_gguf, write_tensors};

/// The failure of a load of `tiny` from safetensors, with this value of a field of its config.
fn failure_with(tiny: Tiny, field: &str, value: Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    tiny.write_folder(folder.path());
    let mut config = tiny.config();
    config.as_object_mut().unwrap().insert(field.into(), value);
    write_config(folder.path(), &config);
    failure_of(folder.path())
}

/// The failure of a load of `tiny` from a GGUF, with this value of a metadata field. `field` lacks the architecture's prefix.
fn failure_of_gguf(tiny: Tiny, field: &str, value: Metadata) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("NAME.gguf");
    let mut metadata = tiny.metadata();
    let key = format!("{}.{field}", tiny.architecture);
    metadata.retain(|(name, _)| *name != key);
    metadata.push((key, value));
    write_gguf(&path, &metadata, &tiny.quantized(GgmlDType::F32));
    failure_of(&path)
}

/// The failure of a load of this path, with FOLDER and NAME in place of the temporary names.
fn failure_of(path: &Path) -> String {
    let failure = message(load_with(path, &Load::default()));
    let name = path.file_stem().unwrap().to_string_lossy();
    let folder = if path.is_dir() { path } else { path.parent().unwrap() };
    failure.replace(&folder.display().to_string(), "FOLDER").replace(&*name, "NAME")
}

/// The message for a field that candle would ignore.
fn ignored_field(field: &str, found: &str) -> String {
    format!("unsupported: `NAME` has `{field}` `{found}`, which candle would ignore")
}

/// The message of `model_files` for a missing tensor.
fn missing_tensor(tensor: &str) -> String {
    format!("model: model `NAME`: tensor `{tensor}` is missing, and `FOLDER/config.json` requires it")
}

#[test]
fn an_invalid_config_is_refused_with_the_reason() {
    let config_failure = |message: &str| format!("model: `FOLDER/config.json`: {message}");
    let cases = [
        ("rms_norm_eps", Value::Null, config_failure("`rms_norm_eps` is missing")),
        ("intermediate_size", Value::Null, config_failure("`intermediate_size` is missing")),
        ("max_position_embeddings", Value::Null, config_failure("`max_position_embeddings` is missing")),
        (
            "model_type",
            json!("gpt2"),
            "model: architecture `gpt2` of `NAME` is not one of `llama`, `qwen2`, `qwen3`, `mistral`, `phi3`, `gemma`"
                .into(),
        ),
        ("intermediate_size", json!(0), config_failure("intermediate size: expected 1 to 16777216, found 0")),
        (
            "head_dim",
            json!(32),
            "unsupported: `NAME` has 4 heads of size 32: candle requires that they add up to the hidden size, 64".into(),
        ),
        (
            "max_position_embeddings",
            json!(4_000_000_000_u32),
            config_failure("a context of 4000000000 tokens is more than the default limit of 16777216"),
        ),
        (
            "num_hidden_layers",
            json!(4_000_000_000_u32),
            config_failure("4000000000 layers cannot consist of 21 tensors"),
        ),
        (
            "vocab_size",
            json!(98),
            "model: model `NAME`: tensor `model.embed_tokens.weight` has the shape [97, 64] in \
             `FOLDER/model.safetensors`, and `FOLDER/config.json` requires [98, 64]"
                .into(),
        ),
        (
            "rope_scaling",
            json!({"rope_type": "llama3", "factor": 4.0}),
            config_failure("`rope_scaling.low_freq_factor` is missing"),
        ),
        ("rope_scaling", json!("dynamic"), config_failure("`rope_scaling`: expected an object, found `\"dynamic\"`")),
        ("rope_scaling", json!({"rope_type": null, "type": "ntk"}), ignored_field("rope_scaling", "ntk")),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0}), ignored_field("rope_scaling", "yarn")),
    ];
    for (field, value, expected) in cases {
        assert_eq!(failure_with(LLAMA, field, value), expected);
    }
    let failure = failure_with(QWEN3, "head_dim", json!(15));
    assert_eq!(failure, config_failure("rotation requires an even head size, found 15"));
    let failure = failure_with(QWEN2, "tie_word_embeddings", json!(false));
    assert_eq!(failure, missing_tensor("lm_head.weight"));
}

#[test]
fn unsupported_features_are_refused_for_every_architecture() {
    for tiny in ALL {
        for (field, value, found) in [
            ("hidden_act", json!("relu"), "relu"),
            ("mlp_bias", json!(true), "true"),
            ("use_sliding_window", json!(true), "true"),
            ("use_bidirectional_attention", json!("all"), "all"),
            ("layer_types", json!(["full_attention", "sliding_attention"]), "sliding_attention"),
            ("layer_types", json!("chunked_attention"), "chunked_attention"),
        ] {
            assert_eq!(
                failure_with(tiny, field, value),
                ignored_field(field, found),
                "{}",
                tiny.architecture
            );
        }
        let scaling = failure_with(tiny, "rope_scaling", json!({"type": "linear", "factor": 2.0}));
        assert_eq!(scaling, ignored_field("rope_scaling", "linear"), "{}", tiny.architecture);
        let quantized = failure_with(tiny, "quantization_config", json!({"quant_method": "fp8"}));
        assert!(quantized.contains("has a `quantization_config`"), "{quantized}");
    }
}

#[test]
fn features_of_one_architecture_are_refused_for_the_others() {
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    });
    for tiny in [QWEN2, QWEN3, MISTRAL, PHI3, GEMMA] {
        let failure = failure_with(tiny, "rope_scaling", llama3.clone());
        assert_eq!(failure, ignored_field("rope_scaling", "llama3"), "{}", tiny.architecture);
    }
    for tiny in [LLAMA, QWEN2, QWEN3, MISTRAL, GEMMA] {
        let expected = ignored_field("partial_rotary_factor", "0.5");
        assert_eq!(failure_with(tiny, "partial_rotary_factor", json!(0.5)), expected);
        // Newer configs keep this field in `rope_parameters`, together with the base frequency.
        let rope = json!({"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5});
        assert_eq!(failure_with(tiny, "rope_parameters", rope), expected);
    }
    for tiny in [LLAMA, MISTRAL, PHI3] {
        assert_eq!(
            failure_with(tiny, "attention_bias", json!(true)),
            ignored_field("attention_bias", "true")
        );
    }
    for tiny in [QWEN3, GEMMA] {
        let failure = failure_with(tiny, "attention_bias", json!("on"));
        assert!(failure.ends_with("`attention_bias`: expected true or false, found `\"on\"`"), "{failure}");
        let failure = failure_with(tiny, "attention_bias", json!(true));
        assert_eq!(failure, missing_tensor("model.layers.0.self_attn.q_proj.bias"));
    }
}

#[test]
fn unsupported_tied_or_separate_output_matrices_are_refused() {
    let failure = failure_with(MISTRAL, "tie_word_embeddings", json!(true));
    assert_eq!(failure, ignored_field("tie_word_embeddings", "true"));
    let failure = failure_with(GEMMA, "tie_word_embeddings", json!(false));
    assert_eq!(failure, ignored_field("tie_word_embeddings", "false"));
}

#[test]
fn an_unsupported_rotation_is_refused_for_phi3() {
    let factors = json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]});
    let failure = failure_with(PHI3, "rope_scaling", factors);
    assert_eq!(
        failure,
        "unsupported: `NAME` has `rope_scaling` `longrope`, which candle computes differently"
    );
    let failure = failure_with(PHI3, "partial_rotary_factor", json!(0.2));
    assert_eq!(
        failure,
        "model: `FOLDER/config.json`: `partial_rotary_factor`: expected an even number of dimensions, found 3 of 16"
    );
    let failure = failure_with(PHI3, "partial_rotary_factor", json!(1.5));
    assert_eq!(
        failure,
        "model: `FOLDER/config.json`: `partial_rotary_factor`: expected a number from 0 to 1, found `1.5`"
    );
}

#[test]
fn an_activation_other_than_gemmas_is_refused() {
    let failure = failure_with(GEMMA, "hidden_activation", json!("gelu"));
    assert_eq!(failure, ignored_field("hidden_activation", "gelu"));
    let failure = failure_with(GEMMA, "hidden_act", json!("silu"));
    assert_eq!(failure, ignored_field("hidden_act", "silu"));
}

#[test]
fn the_fields_of_a_multimodal_models_text_config_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let mut text_config = LLAMA.config();
    text_config["mlp_bias"] = json!(true);
    LLAMA.write_folder(folder.path());
    write_config(folder.path(), &json!({"text_config": text_config}));
    assert_eq!(failure_of(folder.path()), ignored_field("mlp_bias", "true"));
}

#[test]
fn a_missing_tensor_is_named() {
    for (tiny, removed) in [
        (LLAMA, "self_attn.k_proj.weight"),
        (QWEN2, "self_attn.v_proj.bias"),
        (QWEN3, "self_attn.q_norm.weight"),
        (MISTRAL, "mlp.up_proj.weight"),
        (PHI3, "self_attn.qkv_proj.weight"),
        (GEMMA, "post_attention_layernorm.weight"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        tiny.write_folder(folder.path());
        let (mut tensors, removed) = (tiny.tensors(), format!("model.layers.1.{removed}"));
        tensors.remove(&removed).unwrap();
        write_tensors(folder.path(), &tensors);
        assert_eq!(failure_of(folder.path()), missing_tensor(&removed));
    }
}

/// The failure of a load of a GGUF with the metadata of `tiny` and these tensors.
fn failure_of_tensors(tiny: Tiny, tensors: &[(String, QTensor)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("NAME.gguf");
    write_gguf(&path, &tiny.metadata(), tensors);
    failure_of(&path)
}

#[test]
fn a_missing_tensor_of_a_gguf_is_named() {
    for tiny in IN_GGUF {
        let mut tensors = tiny.quantized(GgmlDType::F32);
        tensors.retain(|(name, _)| name != "blk.1.ffn_down.weight");
        let expected = "model: model `NAME`: tensor `blk.1.ffn_down.weight` is missing, \
                        and the metadata of `FOLDER/NAME.gguf` requires it";
        assert_eq!(failure_of_tensors(tiny, &tensors), expected, "{}", tiny.architecture);
    }
    let failure = failure_of_tensors(LLAMA, &[]);
    assert_eq!(failure, "model: the metadata of `FOLDER/NAME.gguf`: 2 layers cannot consist of 0 tensors");
    // candle's quantized phi3 does not use the embedding as output matrix.
    let failure = failure_of_tensors(PHI3, &Tiny { tied: true, ..PHI3 }.quantized(GgmlDType::F32));
    assert_eq!(
        failure,
        "model: `FOLDER/NAME.gguf`: no tensor `output.weight`, and candle does not use the embedding in its place here"
    );
}

#[test]
fn a_gguf_with_a_tensor_of_another_shape_is_refused() {
    for tiny in IN_GGUF {
        let tensors = Tiny { vocabulary: 98, ..tiny }.quantized(GgmlDType::F32);
        let expected = "model: model `NAME`: tensor `token_embd.weight` has the shape [98, 64] in \
                        `FOLDER/NAME.gguf`, and the metadata of `FOLDER/NAME.gguf` requires [97, 64]";
        assert_eq!(failure_of_tensors(tiny, &tensors), expected, "{}", tiny.architecture);
    }
}

#[test]
fn a_gguf_with_an_unused_tensor_is_refused() {
    for (tiny, name) in [
        (LLAMA, "blk.0.attn_q.bias"),
        (QWEN2, "blk.0.attn_output.bias"),
        (QWEN3, "blk.0.attn_q.bias"),
        (PHI3, "rope_factors_long.weight"),
        (QWEN2, "rope_freqs.weight"),
        (LLAMA, "blk.2.attn_q.weight"),
    ] {
        let mut tensors = tiny.quantized(GgmlDType::F32);
        let unused = QTensor::quantize(&tiny.tensors()["model.norm.weight"], GgmlDType::F32).unwrap();
        tensors.push((name.into(), unused));
        let expected = format!("unsupported: `NAME` has a tensor `{name}`, which candle would ignore");
        assert_eq!(failure_of_tensors(tiny, &tensors), expected);
    }
}

#[test]
fn unused_biases_are_refused() {
    for tiny in [LLAMA, QWEN3] {
        let mut tensors = tiny.quantized(GgmlDType::F32);
        for layer in 0..tiny.layers {
            let (q_width, kv_width) = (tiny.heads * tiny.head_dim, tiny.kv_heads * tiny.head_dim);
            for (part, width) in [("q", q_width), ("k", kv_width), ("v", kv_width), ("output", tiny.hidden)] {
                let bias = Tensor::zeros(width, DType::F32, &Device::Cpu).unwrap();
                let bias = QTensor::quantize(&bias, GgmlDType::F32).unwrap();
                tensors.push((format!("blk.{layer}.attn_{part}.bias"), bias));
            }
        }
        let expected = "unsupported: `NAME` has a tensor `blk.0.attn_q.bias`, which candle would ignore";
        assert_eq!(failure_of_tensors(tiny, &tensors), expected, "{}", tiny.architecture);
    }
}

#[test]
fn unsupported_metadata_is_refused() {
    for tiny in IN_GGUF {
        for (field, value, found) in [
            ("rope.dimension_count", Metadata::U32(8), "8"),
            ("rope.scaling.type", Metadata::String("yarn".into()), "yarn"),
            ("rope.scaling.factor", Metadata::F32(4.0), "4"),
            ("expert_count", Metadata::U32(8), "8"),
        ] {
            let expected = ignored_field(&format!("{}.{field}", tiny.architecture), found);
            assert_eq!(failure_of_gguf(tiny, field, value), expected);
        }
    }
    let failure = failure_of_gguf(PHI3, "rope.freq_base", Metadata::F32(5e5));
    assert_eq!(failure, ignored_field("phi3.rope.freq_base", "500000"));
    for tiny in [LLAMA, QWEN2, PHI3] {
        let expected = "4 heads of size 32: candle requires that they add up to the hidden size, 64";
        let folder = tempfile::tempdir().unwrap();
        let failure = failure_of(&Tiny { head_dim: 32, ..tiny }.write_gguf(folder.path(), GgmlDType::F32));
        assert!(failure.ends_with(expected), "{failure}");
    }
}

#[test]
fn an_architecture_that_candle_does_not_load_from_gguf_is_refused() {
    for tiny in [GEMMA, MISTRAL] {
        let folder = tempfile::tempdir().unwrap();
        let failure = failure_of(&tiny.write_gguf(folder.path(), GgmlDType::F32));
        let expected = format!(
            "unsupported: architecture `{}` in a GGUF: candle has no model for it",
            tiny.architecture
        );
        assert_eq!(failure, expected);
    }
}
