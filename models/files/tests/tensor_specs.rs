//! Tests the required tensors of a model, and the messages for missing tensors.
#![expect(clippy::unwrap_used, reason = "tests panic and print")]

mod gguf_file;
mod tiny;

use std::path::{Path, PathBuf};

use gguf_file::{Gguf, with_tokenizer};
use model_files::gguf::ValueToWrite;
use model_files::{Architecture, Config, Dtype, Format, ModelFolder};
use serde_json::{Value, json};
use tiny::{folder, safetensors, write_json};

/// The tensors in a model's files: name and shape.
type Tensors = Vec<(String, Vec<u64>)>;

fn tensors_of(config: &Value) -> Tensors {
    let config = Config::parse(config.to_string().as_bytes(), None).unwrap();
    let specs = Architecture::named(&config.architecture).unwrap().tensor_specs(&config).unwrap();
    specs.into_iter().map(|spec| (spec.name, spec.shape)).collect()
}

fn write(name: &str, config: &Value, tensors: &Tensors) -> PathBuf {
    let path = folder(&format!("specs-{name}"));
    write_json(&path.join("config.json"), config);
    let bytes = |shape: &[u64]| 4 * shape.iter().product::<u64>();
    let tensors: Vec<_> =
        tensors.iter().map(|(name, shape)| (name.as_str(), "F32", shape.clone(), bytes(shape))).collect();
    std::fs::write(path.join("model.safetensors"), safetensors(&tensors)).unwrap();
    path
}

/// The message, with fixed words for the folder and the name of the model.
fn error_of(path: &Path) -> String {
    let model = ModelFolder::open(path).unwrap();
    let error = format!("{:#}", model.tensor_specs().unwrap_err());
    error.replace(&model.folder().display().to_string(), "FOLDER").replace(&model.name, "NAME")
}

fn gpt2() -> Value {
    json!({
        "model_type": "gpt2", "n_embd": 4, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": 64
    })
}

#[test]
fn the_order_of_parts_does_not_depend_on_the_order_in_the_file() {
    for (name, config) in [("llama", tiny::config()), ("gpt2", gpt2())] {
        let tensors = tensors_of(&config);
        let reversed = tensors.iter().rev().cloned().collect();
        let specs = ModelFolder::open(write(name, &config, &reversed)).unwrap().tensor_specs().unwrap();
        let found: Tensors = specs.into_iter().map(|spec| (spec.name, spec.shape)).collect();
        assert_eq!(found, tensors);
    }
}

#[test]
fn gpt2_heads_that_do_not_add_up_to_the_hidden_size_are_refused() {
    let tensors = tensors_of(&gpt2());
    for (field, value, expected) in [
        ("n_head", 3, "`n_head` is 3: 3 heads of 1 do not add up to `n_embd`, 4"),
        ("head_dim", 4, "`n_head` is 2: 2 heads of 4 do not add up to `n_embd`, 4"),
        (
            "num_key_value_heads",
            1,
            "1 heads of keys and values, and `n_head` is 2: GPT-2 needs equal numbers",
        ),
    ] {
        let mut config = gpt2();
        config[field] = json!(value);
        let error = error_of(&write("gpt2-heads", &config, &tensors));
        assert!(error.contains(expected) && error.contains("config.json"), "{error}");
    }
}

#[test]
fn only_models_with_rotation_need_an_even_head_size() {
    let mut odd_gpt2 = gpt2();
    odd_gpt2["n_embd"] = json!(6);
    let tensors = tensors_of(&odd_gpt2);
    let specs = ModelFolder::open(write("odd-gpt2", &odd_gpt2, &tensors)).unwrap().tensor_specs();
    assert_eq!(specs.unwrap().len(), tensors.len());
    let mut odd_llama = tiny::config();
    odd_llama["head_dim"] = json!(3);
    let error = error_of(&write("odd-llama", &odd_llama, &tensors_of(&tiny::config())));
    assert!(error.contains("rotation requires an even head size, found 3"), "{error}");
}

#[test]
fn a_missing_tensor_is_reported_with_the_config_that_requires_it() {
    let mut tensors = tensors_of(&tiny::config());
    tensors.retain(|(name, _)| name != "model.layers.1.mlp.up_proj.weight");
    assert_eq!(
        error_of(&write("lost", &tiny::config(), &tensors)),
        "model `NAME`: tensor `model.layers.1.mlp.up_proj.weight` is missing, and `FOLDER/config.json` requires it"
    );
}

#[test]
fn an_error_about_a_wrong_shape_names_the_file_and_the_config() {
    let mut config = tiny::config();
    let tensors = tensors_of(&config);
    config["vocab_size"] = json!(65);
    assert_eq!(
        error_of(&write("shape", &config, &tensors)),
        "model `NAME`: tensor `model.embed_tokens.weight` has the shape [64, 4] in `FOLDER/model.safetensors`, \
         and `FOLDER/config.json` requires [65, 4]"
    );
    // A GGUF file has both the tensor and the number that requires another shape.
    let values = [("llama.vocab_size", 65), ("llama.attention.key_length", 2)];
    let values = values.map(|(key, value)| (key.to_string(), ValueToWrite::U32(value)));
    assert_eq!(
        error_of(&with_tokenizer(&values, 64).write("shape")),
        "model `NAME`: tensor `token_embd.weight` has the shape [64, 1] in `FOLDER/NAME.gguf`, \
         and the metadata of `FOLDER/NAME.gguf` requires [65, 1]"
    );
}

#[test]
fn more_layers_than_tensors_are_refused_before_an_allocation() {
    let mut config = tiny::config();
    let tensors = tensors_of(&config);
    config["num_hidden_layers"] = json!(u32::MAX);
    assert_eq!(
        error_of(&write("layers", &config, &tensors)),
        format!("`FOLDER/config.json`: {} layers cannot consist of {} tensors", u32::MAX, tensors.len())
    );
}

#[test]
fn an_error_about_tensors_of_another_architecture_names_that_architecture() {
    assert_eq!(
        error_of(&write("another", &tiny::config(), &tensors_of(&gpt2()))),
        "model type mismatch: `FOLDER/config.json` names `llama`, and its tensors are those of `gpt2`"
    );
}

#[test]
fn only_gpt2_has_prefixed_tensor_names() {
    for (name, config) in [("prefixed-gpt2", gpt2()), ("prefixed-llama", tiny::config())] {
        let prefixed =
            tensors_of(&config).into_iter().map(|(name, shape)| (format!("transformer.{name}"), shape));
        let found = ModelFolder::open(write(name, &config, &prefixed.collect())).unwrap().tensor_specs();
        assert_eq!(found.is_ok(), name == "prefixed-gpt2", "{name}: {found:?}");
    }
}

#[test]
fn an_error_about_an_invalid_number_of_rope_scaling_has_the_value_found() {
    let tensors = tensors_of(&tiny::config());
    let scaling = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64
    });
    for (field, value, expected) in [
        ("factor", json!(0), "`factor`: expected a number above 0 in the range of f32, found `0`"),
        ("factor", json!(1e300), "`factor`: expected a number above 0 in the range of f32, found `1e+300`"),
        (
            "low_freq_factor",
            json!("x"),
            "`low_freq_factor`: expected a number above 0 in the range of f32, found `\"x\"`",
        ),
        ("high_freq_factor", json!(null), "`high_freq_factor` is missing"),
        ("high_freq_factor", json!(0.5), "`high_freq_factor` is 0.5, below `low_freq_factor`, 1.0"),
        ("original_max_position_embeddings", json!(-5), "`original_max_position_embeddings`: expected"),
    ] {
        let mut config = tiny::config();
        config["rope_scaling"] = scaling.clone();
        config["rope_scaling"][field] = value;
        let error = error_of(&write("llama3", &config, &tensors));
        assert!(error.contains(expected) && error.contains("config.json"), "{error}");
    }
}

/// The unused tensors of a model to which the tensors `more` were added.
fn unused_tensors(config: &Value, more: &[&str]) -> Vec<String> {
    let mut tensors = tensors_of(config);
    tensors.extend(more.iter().map(|name| ((*name).to_string(), vec![1])));
    let model = ModelFolder::open(write("unused", config, &tensors)).unwrap();
    let mut names: Vec<_> = model
        .unused_tensors(&model.tensor_specs().unwrap())
        .into_iter()
        .map(|tensor| tensor.name.clone())
        .collect();
    names.sort();
    names
}

#[test]
fn masks_frequencies_and_a_tied_output_matrix_are_the_only_expected_extra_tensors() {
    let frequencies = "model.layers.0.self_attn.rotary_emb.inv_freq";
    let unexpected = ["model.layers.0.attn.bias", "model.layers.0.something.weight"];
    let all = [frequencies, "model.rotary_emb.inv_freq", "lm_head.weight", unexpected[0], unexpected[1]];
    assert_eq!(unused_tensors(&tiny::config(), &all), unexpected);
    let masks = ["h.0.attn.bias", "transformer.h.0.attn.masked_bias", "h.0.attn.c_attn.scale"];
    assert_eq!(unused_tensors(&gpt2(), &masks), ["h.0.attn.c_attn.scale"]);
}

/// `blk.0.rope_freqs.weight` is unexpected: it ends with the name of the RoPE factors, but is another name.
#[test]
fn rope_factors_are_the_only_expected_extra_tensor_of_a_gguf() {
    let names = ["blk.0.attn.bias", "blk.0.rope_freqs.weight", "lm_head.weight", "rope_freqs.weight"];
    let numbers =
        [("embedding_length", 4), ("block_count", 1), ("attention.head_count", 2), ("vocab_size", 9)];
    let file = Gguf::begin(3, names.len() as u64, 5).text("general.architecture").u32(8).text("llama");
    let file = numbers.iter().fold(file, |file, (key, value)| file.number(&format!("llama.{key}"), *value));
    let offsets = (0..).step_by(32);
    let file = names.iter().zip(offsets).fold(file, |file, (name, at)| file.tensor(name, &[8], 0, at));
    let model = ModelFolder::open(file.data(32 * names.len()).write("unused")).unwrap();
    let unused_tensors: Vec<_> =
        model.unused_tensors(&[]).into_iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(unused_tensors, names[..3]);
}

/// llama.cpp's converter and transformers can both write GPT-2 with a separate output matrix.
#[test]
fn a_separate_output_matrix_is_a_part_of_gpt2() {
    let mut config = gpt2();
    let names = |config: &Value| tensors_of(config).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert!(!names(&config).contains(&"lm_head.weight".to_string()));
    config["tie_word_embeddings"] = json!(false);
    let tensors = tensors_of(&config);
    assert_eq!(tensors.last(), Some(&("lm_head.weight".to_string(), vec![64, 4])));
    let path = write("gpt2-untied", &config, &tensors);
    let gguf = path.with_extension("gguf");
    let goal = model_files::Goal { format: Format::Gguf, dtype: Dtype::F32, out: gguf.clone() };
    model_files::convert(&ModelFolder::open(&path).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    let folder = ModelFolder::open(&gguf).unwrap();
    let specs = folder.tensor_specs().unwrap();
    assert_eq!(specs.last().map(|spec| spec.gguf.as_str()), Some("output.weight"));
    assert!(folder.unused_tensors(&specs).is_empty());
}
