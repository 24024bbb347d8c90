//! `orchestrate model info`, `list` and `cache`: the facts of a model, and the errors for a broken model.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::models::{ARCHITECTURES, assert_refused, edit_json};
use crate::support::snapshot::assert_snapshot;
use crate::support::{Outcome, Scratch};

fn info(scratch: &Scratch, words: &[&str]) -> Outcome {
    scratch.model(&[&["info"], words].concat())
}

fn facts(scratch: &Scratch, model: &str) -> Value {
    let outcome = info(scratch, &[model, "--json"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    serde_json::from_str(&outcome.stdout).unwrap()
}

#[test]
fn info_prints_the_facts_of_a_model() {
    let scratch = Scratch::new();
    scratch.synth("tiny-llama", "bf16", "tiny-llama");
    let mut command = scratch.orchestrate();
    command.args(["model", "info", "tiny-llama", "--identity"]);
    assert_snapshot("model-info", &scratch, command.current_dir(&scratch.path));
    scratch.synth("tiny-gpt2", "q4_k", "tiny-gpt2.gguf");
    let mut command = scratch.orchestrate();
    command.args(["model", "info", "tiny-gpt2.gguf"]);
    assert_snapshot("model-info-gguf", &scratch, command.current_dir(&scratch.path));
}

#[test]
fn every_page_of_info_fits_eighty_columns() {
    let scratch = Scratch::new();
    for architecture in ARCHITECTURES {
        for (dtype, end) in [("bf16", ""), ("q4_k", ".gguf")] {
            let name = format!("tiny-{architecture}{end}");
            scratch.synth(&format!("tiny-{architecture}"), dtype, &name);
            let page = info(&scratch, &[&name, "--identity"]).stdout;
            // A path stays in one piece, so that it can be copied.
            let wide = page.lines().find(|line| line.chars().count() > 80 && !line.starts_with("path "));
            assert!(wide.is_none() && page.lines().count() > 15, "{name}: {wide:?}\n{page}");
        }
    }
}

#[test]
fn both_formats_give_equal_facts_of_one_model() {
    let scratch = Scratch::new();
    for architecture in ARCHITECTURES {
        let shape = format!("tiny-{architecture}");
        scratch.synth(&shape, "f32", "folder");
        scratch.synth(&shape, "f32", "file.gguf");
        let (mut folder, mut file) = (facts(&scratch, "folder"), facts(&scratch, "file.gguf"));
        for field in ["name", "path", "format", "architecture_from"] {
            assert_ne!(folder[field].take(), file[field].take(), "{architecture}: {field}");
        }
        assert_ne!(folder["tokenizer"]["source"].take(), file["tokenizer"]["source"].take());
        if architecture == "mistral" {
            assert_eq!(file["architecture"], "llama");
            file["architecture"] = "mistral".into();
        }
        // The RoPE factors of a llama are a tensor of 32 f32 numbers in GGUF and a rule in config.json.
        let weights_bytes = |facts: &mut Value| facts["weights_bytes"].take().as_u64().unwrap();
        let (in_folder, in_file) = (weights_bytes(&mut folder), weights_bytes(&mut file));
        assert!(
            in_file - in_folder == if architecture == "llama" { 128 } else { 0 },
            "{architecture}: {in_folder} and {in_file}"
        );
        for dtypes in [folder["dtypes"].take(), file["dtypes"].take()] {
            assert_eq!(dtypes.as_object().unwrap().len(), 1, "{architecture}: {dtypes}");
        }
        assert_eq!(folder, file, "{architecture}");
        std::fs::remove_dir_all(scratch.join("folder")).unwrap();
        std::fs::remove_file(scratch.join("file.gguf")).unwrap();
    }
}

#[test]
fn components_add_up_and_a_token_reads_all_weights_except_embedding_rows() {
    let scratch = Scratch::new();
    scratch.synth("tiny-llama", "bf16", "untied");
    scratch.synth("tiny-gemma", "bf16", "tied");
    // A token reads one of the 2048 rows of a separate embedding. A row has 256 bf16 numbers.
    for (name, unread_bytes) in [("untied", 2047 * 256 * 2), ("tied", 0)] {
        let facts = facts(&scratch, name);
        let sum = |field: &str| {
            facts["components"]
                .as_array()
                .unwrap()
                .iter()
                .map(|component| component[field].as_u64().unwrap())
                .sum::<u64>()
        };
        assert_eq!(sum("parameters"), facts["parameters"].as_u64().unwrap(), "{name}");
        assert_eq!(sum("bytes"), facts["weights_bytes"].as_u64().unwrap(), "{name}");
        assert_eq!(facts["weight_bytes_per_token"].as_u64().unwrap(), sum("bytes") - unread_bytes, "{name}");
    }
    // Two layers, two KV heads of 64 numbers, keys and values, two bytes a number.
    assert_eq!(facts(&scratch, "untied")["kv_bytes_per_position"], 2 * 2 * 64 * 2 * 2);
}

#[test]
fn the_default_model_is_the_embedded_one() {
    let scratch = Scratch::new();
    let outcome = info(&scratch, &["--json"]);
    let facts: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert!(facts["parameters"].as_u64().unwrap() > 1_000_000, "{outcome:?}");
    assert_eq!(facts["architecture"], "llama");
}

#[test]
fn escape_sequences_in_names_are_removed() {
    let scratch = Scratch::new();
    let model = scratch.synth("tiny-llama", "bf16", "a\u{1b}[31mred\nname");
    let outcome = info(&scratch, &[model.file_name().unwrap().to_str().unwrap()]).exits_with(0);
    assert!(!outcome.stdout.contains('\u{1b}'), "{outcome:?}");
    assert_eq!(outcome.stdout.lines().next().unwrap().split_whitespace().next(), Some("model"));
}

#[test]
fn model_list_has_the_shapes_of_synth() {
    let outcome = Scratch::new().model(&["list"]).exits_with(0);
    for (name, _) in model_files::SHAPES {
        assert!(
            outcome.stdout.lines().any(|line| line.starts_with(&format!("  {name} "))),
            "{name}: {outcome:?}"
        );
    }
    assert!(outcome.stdout.lines().all(|line| line.chars().count() <= 80), "{}", outcome.stdout);
}

// Shapes without weights.

#[test]
fn info_has_the_sizes_of_a_shape_and_writes_nothing() {
    let scratch = Scratch::new();
    for (shape, parameters, kv_bytes) in [
        ("llama-3-70b", 70_553_706_496_u64, 80 * 8 * 128 * 4),
        ("llama-3.1-405b", 405_853_388_800, 126 * 8 * 128 * 4),
    ] {
        let facts = facts(&scratch, shape);
        assert_eq!(facts["parameters"], parameters);
        assert_eq!(facts["weights_bytes"], 2 * parameters, "{shape} in bf16");
        assert_eq!(facts["kv_bytes_per_position"], kv_bytes);
        let page = info(&scratch, &[shape]).exits_with(0).stdout;
        assert!(page.contains("none: a shape, which `orchestrate model synth` can write"), "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    }
    assert_eq!(scratch.all_paths(), [""; 0]);
    let hint = "hint: orchestrate model synth llama-3-70b --out DIR";
    assert_refused(&info(&scratch, &["llama-3-70b", "--identity"]), 2, &["a shape without weights", hint]);
    let mismatch = "model type mismatch: expected `gpt2`, found `llama`";
    assert_refused(&info(&scratch, &["llama-3-70b", "--model-type", "gpt2"]), 2, &[mismatch]);
}

#[test]
fn a_shape_and_its_synthesised_model_have_the_same_sizes() {
    for (name, _) in model_files::SHAPES.iter().filter(|(name, _)| name.starts_with("tiny-")) {
        let scratch = Scratch::new();
        let mut of_shape = facts(&scratch, name);
        scratch.synth(name, "bf16", name);
        // A path takes precedence over a shape.
        let mut of_model = facts(&scratch, name);
        for field in ["path", "files", "architecture_from", "tokenizer"] {
            assert_ne!(of_shape[field].take(), of_model[field].take(), "{name}: {field}");
        }
        assert_eq!(of_shape, of_model, "{name}");
    }
}

// The expected and the actual architecture.

#[test]
fn a_model_of_an_unexpected_architecture_is_refused() {
    let scratch = Scratch::new();
    scratch.synth("tiny-llama", "bf16", "folder");
    scratch.synth("tiny-mistral", "bf16", "file.gguf");
    let outcome = info(&scratch, &["folder", "--model-type", "gpt2"]);
    assert_refused(&outcome, 2, &["model type mismatch: expected `gpt2`, found `llama`"]);
    let outcome = info(&scratch, &["file.gguf", "--model-type", "qwen2"]);
    assert_refused(&outcome, 2, &["model type mismatch: expected `qwen2`, found `llama`"]);
    for (model, architecture) in [("folder", "llama"), ("file.gguf", "llama"), ("file.gguf", "mistral")] {
        assert_eq!(
            info(&scratch, &[model, "--model-type", architecture]).code,
            Some(0),
            "{model} {architecture}"
        );
    }
}

/// Writes a folder `model` with a model whose config is changed.
fn with_config(architecture: &str, edit: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Scratch {
    let scratch = Scratch::new();
    let model = scratch.synth(&format!("tiny-{architecture}"), "bf16", "model");
    edit_json(&model.join("config.json"), edit);
    scratch
}

#[test]
fn a_config_that_contradicts_the_tensors_is_refused() {
    for (tensors, named) in [("llama", "gpt2"), ("qwen2", "phi3")] {
        let scratch = with_config(tensors, |config| drop(config.insert("model_type".into(), named.into())));
        let config = format!("model type mismatch: `model/config.json` names `{named}`");
        let expected = format!("{config}, and its tensors are those of `{tensors}`");
        assert_refused(&info(&scratch, &["model"]), 5, &[&expected]);
    }
}

#[test]
fn an_architecture_missing_in_the_config_is_found_by_class_or_tensors() {
    for architecture in ARCHITECTURES {
        let scratch = with_config(architecture, |config| drop(config.remove("model_type")));
        let by_class = facts(&scratch, "model");
        assert_eq!(by_class["architecture"], architecture);
        assert_eq!(by_class["architecture_from"], "`architectures` of config.json");
        edit_json(&scratch.join("model/config.json"), |config| drop(config.remove("architectures")));
        std::fs::rename(scratch.join("model"), scratch.join(&format!("some-{architecture}-1b"))).unwrap();
        let by_names = facts(&scratch, &format!("some-{architecture}-1b"));
        assert_eq!(by_names["architecture"], architecture);
        assert!(
            by_names["architecture_from"].as_str().unwrap().contains("the names of its tensors"),
            "{by_names}"
        );
    }
}

// Broken models.

#[test]
fn a_missing_or_invalid_config_key_is_reported_with_file_and_key() {
    let keys = ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"];
    let invalid_values =
        [json!(null), json!(0), json!(-1), json!(1.5), json!("x"), json!([1]), json!({}), json!(1e300)];
    let scratch = with_config("llama", |_| ());
    let path = scratch.join("model/config.json");
    let whole = std::fs::read(&path).unwrap();
    for key in keys {
        for value in &invalid_values {
            std::fs::write(&path, &whole).unwrap();
            edit_json(&path, |config| drop(config.insert(key.into(), value.clone())));
            assert_refused(&info(&scratch, &["model"]), 5, &["`model/config.json`", &format!("`{key}`")]);
        }
    }
    // Valid sizes that differ from those of the tensors.
    for (key, value, tensor) in [
        ("hidden_size", 128, "model.embed_tokens.weight"),
        ("vocab_size", 4096, "model.embed_tokens.weight"),
        ("intermediate_size", 513, "model.layers.0.mlp.gate_proj.weight"),
        ("num_key_value_heads", 1, "model.layers.0.self_attn.k_proj.weight"),
        ("num_hidden_layers", 3, "model.layers.2.input_layernorm.weight"),
        ("num_hidden_layers", 1_000_000_000, "1000000000 layers"),
    ] {
        std::fs::write(&path, &whole).unwrap();
        edit_json(&path, |config| drop(config.insert(key.into(), value.into())));
        assert_refused(&info(&scratch, &["model"]), 5, &["model/config.json`", tensor]);
    }
}

#[test]
fn a_tokenizer_of_another_vocabulary_is_refused_with_its_file() {
    let scratch = Scratch::new();
    scratch.synth("tiny-gpt2", "bf16", "model");
    edit_json(&scratch.join("model/tokenizer.json"), |tokenizer| {
        let mut more = tokenizer["added_tokens"][0].clone();
        (more["id"], more["content"]) = (2048.into(), "<one-too-many>".into());
        tokenizer["added_tokens"].as_array_mut().unwrap().push(more);
    });
    let expected = ["`model/tokenizer.json`", "another vocabulary"];
    assert_refused(&info(&scratch, &["model"]), 5, &expected);
    assert_refused(&scratch.model(&["convert", "model", "--to", "gguf"]), 5, &expected);
    assert!(!scratch.join("model-bf16.gguf").exists());
}

#[test]
fn a_model_without_a_tokenizer_is_accepted() {
    let scratch = Scratch::new();
    scratch.synth("tiny-gpt2", "bf16", "model");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::remove_file(scratch.join("model").join(name)).unwrap();
    }
    let page = info(&scratch, &["model"]).stdout;
    assert!(page.contains("tokenizer      none"), "{page}");
    let converted = scratch.make_model(&["convert", "model", "--to", "gguf", "--out", "model.gguf"]);
    assert!(facts(&scratch, converted.to_str().unwrap())["tokenizer"].is_null());
}

#[test]
fn a_path_without_a_model_is_refused_with_a_hint() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.join("empty")).unwrap();
    std::fs::write(scratch.join("notes.txt"), "x").unwrap();
    for (path, code, words) in [
        ("empty", 5, "model `empty`: neither `*.safetensors` nor a `.gguf` file"),
        ("notes.txt", 5, "model `notes.txt`: expected a folder or a `.gguf` file"),
        ("nowhere", 2, "no model and no shape named `nowhere`\nhint: "),
        ("meta-llama/Llama-3.2-1B", 2, "orchestrate model pull meta-llama/Llama-3.2-1B"),
    ] {
        assert_refused(&info(&scratch, &[path]), code, &[words]);
    }
    for name in ["a.gguf", "b.gguf"] {
        scratch.synth("tiny-gpt2", "q8_0", &format!("both/{name}"));
    }
    assert_refused(
        &info(&scratch, &["both"]),
        5,
        &["2 `.gguf` files", "hint: name one of them: `both/a.gguf`"],
    );
}

#[test]
fn an_empty_cache_is_reported_and_an_invalid_size_is_refused() {
    let scratch = Scratch::new();
    let cache = |words: &[&str]| scratch.model(&[&["cache"], words].concat());
    assert_eq!(cache(&[]).stdout, "0 B in 0 conversions, limit 20.0 GB\n");
    assert_eq!(cache(&["--clear"]).stdout, "removed 0 B\n");
    for size in ["", "much", "-1GB", "20 apples"] {
        assert_refused(
            &cache(&[&format!("--limit={size}")]),
            2,
            &["hint: orchestrate model cache --limit=20GB"],
        );
    }
    assert_eq!(cache(&["--limit", "1.5GB"]).stdout, "the limit of conversions is 1.50 GB; removed 0 B\n");
    assert_eq!(cache(&["--list"]).stdout, "0 B in 0 conversions, limit 1.50 GB\n");
    cache(&["--list", "--clear"]).exits_with(2);
    assert!(Path::new(&scratch.join("home/conversions/limit")).is_file());
}
