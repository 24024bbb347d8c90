//! Tests that a load refuses what the network does not compute, and that the message gives the reason.

use protocol::Load;
use serde_json::{Value, json};

use super::{Tiny, load_with, message};
use crate::engine::{BURN_VERSION, GEMM_VERSION, set_threads};

#[test]
fn a_field_that_would_be_ignored_is_refused_by_its_name() {
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0 });
    let cases: [(&str, &str, Value, &str); 8] = [
        ("tiny-llama", "rope_scaling", yarn, "`yarn`"),
        (
            "tiny-llama",
            "rope_scaling",
            json!({ "full_attention": { "rope_type": "default" } }),
            "`several rules`",
        ),
        ("tiny-llama", "hidden_act", json!("gelu"), "`gelu`"),
        ("tiny-llama", "partial_rotary_factor", json!(0.5), "`0.5`"),
        ("tiny-llama", "quantization_config", json!({ "bits": 4 }), "`a quantization`"),
        ("tiny-qwen2", "use_sliding_window", json!(true), "`true`"),
        ("tiny-qwen3", "layer_types", json!(["full_attention", "sliding_attention"]), "`sliding_attention`"),
        ("tiny-qwen3", "use_bidirectional_attention", json!(true), "`true`"),
    ];
    for (shape, field, value, found) in cases {
        let tiny = Tiny::new(shape);
        tiny.set(field, value);
        let failure = message(tiny.load_with(&Load::default()));
        let expected =
            format!("unsupported: `model` has `{field}` {found}, which this engine does not compute");
        assert_eq!(failure, expected, "{shape}");
    }
}

#[test]
fn an_invalid_field_is_refused_with_the_reason() {
    let llama3 = json!({ "rope_type": "llama3", "factor": 8.0 });
    for (field, value, reason) in [
        ("rope_scaling", llama3, "`rope_scaling.low_freq_factor`: expected a number above 0, found `null`"),
        ("rope_scaling", json!(2), "`rope_scaling`: expected an object, found `2`"),
        ("rms_norm_eps", json!("small"), "`rms_norm_eps`: expected a number, found `\"small\"`"),
    ] {
        let tiny = Tiny::new("tiny-llama");
        tiny.set(field, value);
        let failure = message(tiny.load_with(&Load::default()));
        assert!(failure.ends_with(reason), "{failure}");
    }
}

#[test]
fn a_sliding_window_is_the_longest_context() {
    let tiny = Tiny::new("tiny-mistral");
    tiny.set("sliding_window", json!(96));
    assert_eq!(tiny.load().facts.context_tokens, Some(96));
    let load = Load { context_tokens: Some(97), ..Load::default() };
    assert_eq!(message(tiny.load_with(&load)), "context: a context of 97 tokens: `model` has at most 96");
    let load = Load { context_tokens: Some(40), ..Load::default() };
    assert_eq!(tiny.load_with(&load).unwrap().facts.context_tokens, Some(40));
}

#[test]
fn other_dtypes_quantizations_options_and_devices_are_refused() {
    let tiny = Tiny::new("tiny-llama");
    let options = |value: Value| value.as_object().unwrap().clone();
    let failure = |load: Load| message(tiny.load_with(&load));
    let dtype = |name: &str| Load { dtype: Some(name.into()), ..Load::default() };
    assert_eq!(failure(dtype("f64")), "unsupported: dtype `f64`: expected one of `f32`, `bf16`, `f16`");
    let both = Load { options: options(json!({ "quantize": "int8" })), ..dtype("bf16") };
    assert_eq!(failure(both), "unsupported: dtype `bf16`: quantized matrices are multiplied in f32");
    let int3 = Load { options: options(json!({ "quantize": "int3" })), ..Load::default() };
    assert_eq!(failure(int3), "unsupported: `quantize`: expected `none` or `int8`, found `int3`");
    let unknown = Load { options: options(json!({ "fast": true })), ..Load::default() };
    assert_eq!(failure(unknown), "bad_request: unknown option `fast`");
    let device = Load { device: Some("metal".into()), ..Load::default() };
    assert!(failure(device).starts_with("unsupported: no device `metal`: this build has `"));
}

#[test]
fn a_missing_tensor_is_refused_by_its_name() {
    let tiny = Tiny::new("tiny-llama");
    tiny.set("num_hidden_layers", json!(3));
    let failure = message(load_with(&tiny.folder().path, &Load::default()));
    assert!(failure.contains("tensor `model.layers.2."), "{failure}");
}

#[test]
fn a_later_load_with_another_number_of_threads_is_refused() {
    let in_effect = set_threads(None).unwrap();
    assert_eq!(set_threads(Some(in_effect)), Ok(in_effect));
    let failure = message(set_threads(Some(in_effect + 1)));
    assert!(
        failure.starts_with(&format!("unsupported: {} threads: this process has", in_effect + 1)),
        "{failure}"
    );
}

#[test]
fn the_reported_versions_are_those_of_the_lock_file() {
    let lock = include_str!("../../Cargo.lock");
    for (name, version) in [("burn", BURN_VERSION), ("burn-flex", BURN_VERSION), ("gemm", GEMM_VERSION)] {
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        assert!(lock.contains(&entry), "{name} {version}");
    }
}
