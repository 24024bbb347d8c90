//! Tests which folders count as a model, and the messages for others.
#![expect(clippy::unwrap_used, reason = "tests panic and print")]

mod tiny;

use model_files::{Format, ModelFolder, resolve};
use serde_json::json;
use tiny::{folder, model, safetensors, write_json};

fn error_of(path: &std::path::Path) -> String {
    format!("{:#}", ModelFolder::open(path).unwrap_err())
}

#[test]
fn a_complete_folder_has_the_facts_of_its_config_and_headers() {
    let path = model("complete");
    let opened = ModelFolder::open(&path).unwrap();
    assert_eq!(opened.format, Format::Safetensors);
    assert!(opened.name.starts_with("complete-"), "{}", opened.name);
    assert_eq!((opened.parameters(), opened.weights_bytes()), (64 * 4 + 3, 512 + 12));
    assert_eq!(opened.dtypes().into_iter().collect::<Vec<_>>(), [("BF16", 512), ("F32", 12)]);
    let config = &opened.config;
    assert_eq!(
        (config.architecture.as_str(), config.layers, config.kv_heads, config.head_dim),
        ("llama", 2, 1, 2)
    );
    assert_eq!((config.bos_id, config.eos_ids.as_slice()), (Some(0), [1].as_slice()));
    assert_eq!(config.raw["torch_dtype"], "bfloat16");
}

#[test]
fn a_tokenizer_without_template_adds_no_special_token_and_its_truncation_is_ignored() {
    let tokenizer = ModelFolder::open(model("tokenizer")).unwrap().tokenizer().unwrap();
    assert_eq!(tokenizer.encode("w3 w4 w5 nonsense").unwrap(), [3, 4, 5, 2]);
    assert_eq!(tokenizer.encode("").unwrap(), [0; 0]);
    assert_eq!(tokenizer.decode(&[0, 7, 8, 1]), "w7 w8");
    assert_eq!(tokenizer.vocabulary_size(), 64);
}

#[test]
fn eos_ids_in_the_generation_config_take_precedence() {
    let path = model("generation");
    write_json(&path.join("generation_config.json"), &json!({"eos_token_id": [1, 9]}));
    assert_eq!(ModelFolder::open(&path).unwrap().config.eos_ids, [1, 9]);
}

#[test]
fn shards_come_from_the_index_and_other_files_are_ignored() {
    let path = model("sharded");
    std::fs::remove_file(path.join("model.safetensors")).unwrap();
    std::fs::write(path.join("one.safetensors"), safetensors(&[("a", "F32", vec![2], 8)])).unwrap();
    std::fs::write(path.join("two.safetensors"), safetensors(&[("b", "F32", vec![3], 12)])).unwrap();
    std::fs::write(path.join("other.safetensors"), b"not even a header").unwrap();
    assert!(error_of(&path).contains("3 safetensors files and no `model.safetensors.index.json`"));
    let index = path.join("model.safetensors.index.json");
    write_json(&index, &json!({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}));
    let opened = ModelFolder::open(&path).unwrap();
    assert_eq!((opened.weights.len(), opened.parameters()), (2, 5));
    assert_eq!(opened.tensors[1].file, 1);

    write_json(&index, &json!({"weight_map": {"a": "one.safetensors", "c": "two.safetensors"}}));
    assert!(error_of(&path).contains("tensor `c` is not in `two.safetensors`"));
    write_json(&index, &json!({"weight_map": {"a": "three.safetensors"}}));
    assert!(error_of(&path).contains("shard `three.safetensors` is missing"));
    write_json(&index, &json!({"weight_map": {"a": "../one.safetensors"}}));
    assert!(error_of(&path).contains("`../one.safetensors` is not a file name"));
}

#[test]
fn the_same_tensor_in_two_shards_is_refused() {
    let path = model("twice");
    std::fs::write(
        path.join("two.safetensors"),
        safetensors(&[("a", "F32", vec![2], 8), ("c", "F32", vec![1], 4)]),
    )
    .unwrap();
    let index = json!({"weight_map": {"a": "model.safetensors", "c": "two.safetensors"}});
    write_json(&path.join("model.safetensors.index.json"), &index);
    assert!(error_of(&path).contains("tensor `a` is in another file too"));
}

#[test]
fn a_missing_or_invalid_number_of_a_config_is_reported_with_its_file() {
    let path = model("config");
    for (value, expected) in [
        (json!(null), "`hidden_size` is missing"),
        (json!("four"), "`hidden_size`: expected a whole number of 32 bits, found `\"four\"`"),
        (json!(-4), "`hidden_size`: expected a whole number of 32 bits, found `-4`"),
        (json!(1e300), "`hidden_size`: expected a whole number"),
    ] {
        let mut config = tiny::config();
        config["hidden_size"] = value;
        write_json(&path.join("config.json"), &config);
        let error = error_of(&path);
        assert!(error.contains(expected) && error.contains("config.json"), "{error}");
    }
    std::fs::remove_file(path.join("config.json")).unwrap();
    assert!(error_of(&path).contains("config.json"));
}

#[test]
fn an_error_about_an_invalid_value_of_a_config_names_the_field() {
    let path = model("zeros");
    for (name, value, expected) in [
        ("num_attention_heads", json!(0), "`num_attention_heads` is 0"),
        ("hidden_size", json!(0), "`hidden_size` is 0"),
        ("vocab_size", json!(0), "`vocab_size` is 0"),
        ("head_dim", json!(0), "`head_dim` is 0"),
        ("num_key_value_heads", json!(0), "`num_key_value_heads` is 0 and does not divide 2 attention heads"),
        ("num_key_value_heads", json!(3), "`num_key_value_heads` is 3 and does not divide 2 attention heads"),
        ("num_attention_heads", json!(5), "5 attention heads cannot share a hidden size of 4"),
        (
            "rope_theta",
            json!(-1.5),
            "`rope_theta`: expected a number above 0 in the range of f32, found `-1.5`",
        ),
        (
            "rope_theta",
            json!(1e300),
            "`rope_theta`: expected a number above 0 in the range of f32, found `1e300`",
        ),
        ("rope_theta", json!("500000"), "`rope_theta`: expected a number, found `\"500000\"`"),
        ("rope_theta", json!([]), "`rope_theta`: expected a number, found a list"),
        ("rope_parameters", json!({"rope_theta": "1"}), "`rope_theta`: expected a number, found `\"1\"`"),
        ("attention_bias", json!("true"), "`attention_bias`: expected true or false, found `\"true\"`"),
        ("mlp_bias", json!(0), "`mlp_bias`: expected true or false, found `0`"),
        ("tie_word_embeddings", json!({}), "`tie_word_embeddings`: expected true or false, found an object"),
        ("vocab_size", json!([1, 2]), "`vocab_size`: expected a whole number of 32 bits, found a list"),
    ] {
        let mut config = tiny::config();
        config["num_key_value_heads"] = json!(null);
        config[name] = value;
        write_json(&path.join("config.json"), &config);
        let error = error_of(&path);
        assert!(error.contains(expected) && error.contains("config.json"), "{error}");
    }
}

#[test]
fn an_error_about_invalid_json_names_the_field() {
    let path = model("no-json");
    let config = tiny::config().to_string();
    for (text, expected) in [
        (config.replace("10000.0", "1e999"), "`rope_theta`: number out of range"),
        (config.replace("10000.0", "Infinity"), "`rope_theta`: expected value"),
        (config.replace("10000.0", "\n -NaN"), "`rope_theta`: invalid number"),
        (config.replace("10000.0", "[1, 1e999]"), "`rope_theta`: number out of range"),
        (config[..config.find("10000.0").unwrap()].to_string(), "`rope_theta`: EOF"),
        ("1e999".into(), "config.json`: number out of range"),
        (String::new(), "config.json`: EOF"),
    ] {
        std::fs::write(path.join("config.json"), text).unwrap();
        let error = error_of(&path);
        assert!(error.contains(expected) && error.contains("config.json"), "{error}");
    }
}

/// The library transformers does the same since version 5.
#[test]
fn rope_theta_of_the_rope_object_takes_precedence_over_the_top_level() {
    let path = model("theta");
    for (name, rope_object, theta) in [
        ("rope_parameters", json!({"rope_theta": 5e5}), 5e5),
        ("rope_scaling", json!({"rope_theta": 5e5}), 5e5),
        ("rope_parameters", json!({"rope_type": "default"}), 1e4),
        ("rope_scaling", json!({}), 1e4),
    ] {
        let mut config = tiny::config();
        config[name] = rope_object;
        write_json(&path.join("config.json"), &config);
        assert_eq!(ModelFolder::open(&path).unwrap().config.rope_theta, Some(theta), "{config}");
    }
}

#[test]
fn the_name_of_a_shard_is_escaped_for_a_terminal() {
    let path = model("escape");
    let index = json!({"weight_map": {"a": "\u{1b}[2J.safetensors"}});
    write_json(&path.join("model.safetensors.index.json"), &index);
    assert!(error_of(&path).contains("shard `\\u{1b}[2J.safetensors` is missing"));
}

#[test]
fn an_error_about_a_path_without_a_model_names_the_expected_files() {
    let empty = folder("empty");
    assert!(error_of(&empty).contains("neither `*.safetensors` nor a `.gguf` file"));
    std::fs::write(empty.join("a.gguf"), b"").unwrap();
    std::fs::write(empty.join("b.gguf"), b"").unwrap();
    assert!(error_of(&empty).contains("2 `.gguf` files in the folder\nhint: name one of them"));
    std::fs::write(empty.join("notes.txt"), b"").unwrap();
    assert!(error_of(&empty.join("notes.txt")).contains("expected a folder or a `.gguf` file"));
}

#[test]
fn a_name_resolves_to_an_existing_path_or_fails_with_a_hint() {
    let path = model("resolve");
    assert_eq!(resolve(path.to_str()).unwrap(), path);
    let error = format!("{:#}", resolve(Some("/no/such/model")).unwrap_err());
    assert!(error.contains("no model at `/no/such/model`\nhint: "), "{error}");
}

#[test]
fn the_embedded_model_opens_and_has_a_tokenizer_and_a_text() {
    for name in [None, Some("embedded")] {
        let opened = ModelFolder::open(resolve(name).unwrap()).unwrap();
        let text = opened.heldout_text().unwrap();
        let ids = opened.tokenizer().unwrap().encode(&text[..text.floor_char_boundary(4000)]).unwrap();
        assert!(ids.len() > 100 && ids.iter().all(|&id| id < opened.config.vocabulary_size));
        assert!(opened.parameters() > 1_000_000);
    }
}
