//! What is said of models that cannot be loaded, or not rightly.
#![expect(clippy::unwrap_used, reason = "tests panic")]

use std::path::{Path, PathBuf};

use lmrs::pool::Pool;
use lmrs::shape::Shape;
use lmrs::weights::{Asked, Plan};
use model_files::{Dtype, Format, ModelFolder};
use protocol::{Failed, FailureKind};
use serde_json::{Value, json};

fn synthesised(name: &str) -> (tempfile::TempDir, PathBuf) {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/configs/{name}.json"));
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("model");
    let shape = model_files::Shape::of_config(&config).unwrap();
    let goal = model_files::Goal { format: Format::Safetensors, dtype: Dtype::BF16, out: out.clone() };
    model_files::synthesise(&shape, 7, &goal, &|_, _| Ok(())).unwrap();
    (folder, out)
}

fn load(path: &Path, asked: Asked) -> Result<(), Failed> {
    let model = |error: anyhow::Error| Failed::new(FailureKind::Model, format!("{error:#}"));
    let folder = ModelFolder::open(path).map_err(model)?;
    let shape = Shape::of(&folder)?;
    let plan = Plan::of(&folder, &shape, asked)?;
    let own = plan.read(&Pool::new(2), &|_| ())?;
    plan.weights(&shape, &own).map(|_| ())
}

/// With a field of its config changed.
fn refusal(name: &str, field: &str, value: Value) -> Failed {
    let (_keep, path) = synthesised(name);
    let config = path.join("config.json");
    let mut fields: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    fields[field] = value;
    std::fs::write(&config, fields.to_string()).unwrap();
    load(&path, Asked::Own).unwrap_err()
}

#[test]
fn a_field_that_changes_what_is_computed_and_is_not_known_is_named() {
    let cases = [
        ("llama", "hidden_act", json!("relu")),
        ("llama", "rope_scaling", json!({"rope_type": "dynamic", "factor": 2.0})),
        ("llama", "quantization_config", json!({"bits": 4})),
        ("phi3", "rope_scaling", json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]})),
        ("gpt2", "scale_attn_by_inverse_layer_idx", json!(true)),
        ("gpt2", "activation_function", json!("gelu")),
        ("qwen2", "layer_types", json!(["full_attention", "linear_attention"])),
        ("gemma", "final_logit_softcapping", json!(30.0)),
    ];
    for (name, field, value) in cases {
        let told = refusal(name, field, value);
        assert_eq!(told.kind, FailureKind::Unsupported, "{told:?}");
        assert!(told.message.contains(field) && told.message.contains("not computed here"), "{told:?}");
    }
}

#[test]
fn a_number_that_makes_no_sense_is_told_with_its_file() {
    let cases = [
        ("llama", "rms_norm_eps", json!(-1.0)),
        ("llama", "max_position_embeddings", json!(u32::MAX)),
        ("mistral", "sliding_window", json!("wide")),
        ("llama", "partial_rotary_factor", json!(7)),
        ("llama", "intermediate_size", Value::Null),
    ];
    for (name, field, value) in cases {
        let told = refusal(name, field, value);
        assert_eq!(told.kind, FailureKind::Model, "{field}: {told:?}");
        assert!(told.message.contains("config.json"), "{told:?}");
    }
}

#[test]
fn a_size_of_nothing_is_told_by_its_name() {
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
        let told = refusal("llama", field, json!(0));
        assert_eq!(told.kind, FailureKind::Model, "{field}: {told:?}");
        assert!(told.message.contains(&format!("`{field}` is 0")), "{told:?}");
    }
    let told = refusal("gpt2", "n_inner", json!(0));
    assert!(told.message.contains("`n_inner` is 0"), "{told:?}");
    let told = refusal("llama", "max_position_embeddings", json!(0));
    assert!(told.message.contains("`max_position_embeddings`"), "{told:?}");
}

#[test]
fn a_file_that_was_cut_short_or_lacks_a_tensor_is_an_error() {
    let (_keep, path) = synthesised("llama");
    let weights = path.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &whole[..whole.len() - 100]).unwrap();
    let told = load(&path, Asked::Own).unwrap_err();
    assert!(told.message.contains("model.safetensors"), "{told:?}");
    // One layer more than the file has.
    std::fs::write(&weights, &whole).unwrap();
    let config = path.join("config.json");
    let mut fields: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    fields["num_hidden_layers"] = json!(3);
    std::fs::write(&config, fields.to_string()).unwrap();
    let told = load(&path, Asked::Own).unwrap_err();
    assert!(told.message.contains("model.layers.2."), "{told:?}");
}

#[test]
fn a_file_that_shrinks_after_its_header_was_read_is_an_error_and_no_wild_read() {
    let (_keep, path) = synthesised("llama");
    let folder = ModelFolder::open(&path).unwrap();
    let shape = Shape::of(&folder).unwrap();
    let weights = std::fs::OpenOptions::new().write(true).open(path.join("model.safetensors")).unwrap();
    weights.set_len(5000).unwrap();
    let told = Plan::of(&folder, &shape, Asked::Own).err().unwrap();
    assert!(told.message.contains("of 5000 bytes"), "{told:?}");
}

/// The least number that is enough.
fn least_room(is_enough: impl Fn(u64) -> bool) -> u64 {
    let (mut less, mut enough) = (0, 1 << 40);
    while enough - less > 1 {
        let middle = (less + enough) / 2;
        if is_enough(middle) { enough = middle } else { less = middle }
    }
    enough
}

#[test]
fn a_model_larger_than_memory_says_so_before_anything_is_read_mapped_or_not() {
    let (_keep, path) = synthesised("llama");
    let folder = ModelFolder::open(&path).unwrap();
    let shape = Shape::of(&folder).unwrap();
    let mut of_dtype = [Asked::Own, Asked::Float(Dtype::F32), Asked::Q8_0].into_iter().map(|asked| {
        let plan = Plan::of(&folder, &shape, asked).unwrap();
        let least = |cache: u64| least_room(|room| plan.expect_room(cache, Some(room)).is_ok());
        assert_eq!(plan.expect_room(0, None), Ok(()));
        assert_eq!(least(1000), least(0) + 1000, "keys and values count");
        let told = plan.expect_room(5, Some(4)).unwrap_err();
        assert_eq!(told.kind, FailureKind::OutOfMemory);
        assert!(told.message.ends_with("5 keys and values), and 4 are available"), "{told:?}");
        assert!(told.hint.unwrap().contains("`dtype`"));
        least(0)
    });
    let [mapped, wide, narrow] = [(); 3].map(|()| of_dtype.next().unwrap());
    assert_eq!(wide, 2 * mapped, "bf16 is mapped");
    assert!(narrow > mapped / 2 && narrow < mapped, "{narrow} of {mapped}");
}

#[test]
fn dtypes_are_known_by_their_names_and_blocks_are_not_rounded_twice() {
    assert_eq!(Asked::named(None, "bf16").unwrap(), Asked::Own);
    assert_eq!(Asked::named(Some("bf16"), "bf16").unwrap(), Asked::Own);
    assert_eq!(Asked::named(Some("q4_0"), "bf16").unwrap(), Asked::Q4_0);
    assert_eq!(Asked::named(Some("int3"), "bf16").unwrap_err().kind, FailureKind::Unsupported);
    let (_keep, path) = synthesised("llama");
    let out = path.with_extension("gguf");
    let goal = model_files::Goal { format: Format::Gguf, dtype: Dtype::Q8_0, out: out.clone() };
    model_files::convert(&ModelFolder::open(&path).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    let told = load(&out, Asked::Q4_0).unwrap_err();
    assert!(told.message.contains("a second time"), "{told:?}");
    assert!(load(&out, Asked::Float(Dtype::F32)).is_ok());
}
