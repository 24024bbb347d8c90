//! `orchestrate model synth` makes models of the requested shape, the same on every machine. A failure leaves no files.

use std::collections::{BTreeMap, BTreeSet};

use model_files::{Architecture, Config, Format, ModelFacts, ModelFolder, SHAPES, Shape, TensorSpec};
use rustix::process::Signal;
use serde_json::json;

use crate::support::models::{
    ARCHITECTURES, assert_refused, contents, edit_json, large_config, sha256, weight_values,
};
use crate::support::snapshot::assert_snapshot;
use crate::support::{Running, Scratch, finish, wait_until};

/// The config and the tensors of a shape.
fn config_of(shape: &Shape) -> (Config, Vec<TensorSpec>) {
    let generation = Some(shape.generation.to_string()).filter(|_| !shape.generation.is_null());
    let config = shape.config.to_string();
    let config = Config::parse(config.as_bytes(), generation.as_ref().map(String::as_bytes)).unwrap();
    let specs = Architecture::of(&config, Format::Safetensors).unwrap().tensor_specs(&config).unwrap();
    (config, specs)
}

fn parameters(specs: &[TensorSpec]) -> u64 {
    specs.iter().map(TensorSpec::elements).sum()
}

// Shapes.

#[test]
fn every_shape_has_unique_tensor_names_in_both_formats() {
    for (name, _) in SHAPES {
        let shape = Shape::named(name).unwrap();
        let (config, specs) = config_of(&shape);
        for names in [|spec: &TensorSpec| spec.name.clone(), |spec: &TensorSpec| spec.gguf.clone()] {
            let distinct: BTreeSet<_> = specs.iter().map(names).collect();
            assert_eq!(distinct.len(), specs.len(), "{name}");
        }
        assert!(shape.tokenizer.tokens <= config.vocabulary_size, "{name}");
        let special_ids = config.bos_id.iter().chain(&config.eos_ids);
        assert!(special_ids.into_iter().all(|id| *id < shape.tokenizer.tokens), "{name}");
        assert!(!config.eos_ids.is_empty() && config.context_tokens.is_some(), "{name}");
    }
}

#[test]
fn named_shapes_have_the_parameter_counts_of_their_models() {
    let published: [(&str, u64); 11] = [
        ("llama-3-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3-8b", 8_030_261_248),
        ("llama-2-7b", 6_738_415_616),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen3-0.6b", 596_049_920),
        ("phi-3-mini", 3_821_079_552),
        ("gpt2", 124_439_808),
        ("mistral-7b", 7_248_023_552),
        ("gemma-2b", 2_506_172_416),
    ];
    for (name, expected) in published {
        let (_, specs) = config_of(&Shape::named(name).unwrap());
        assert_eq!(parameters(&specs), expected, "{name}");
    }
    let small = SHAPES.iter().filter(|(name, _)| name.starts_with("tiny-")).count();
    assert_eq!((published.len() + small, small), (SHAPES.len(), ARCHITECTURES.len()));
}

// Models.

/// Makes a model in every format and dtype, and reads it as an engine does.
fn assert_opens_in_every_format(architecture: &str) {
    let (scratch, name) = (Scratch::new(), format!("tiny-{architecture}"));
    let (config, specs) = config_of(&Shape::named(&name).unwrap());
    let in_folder = ["f32", "bf16", "f16"].map(|dtype| (dtype, dtype.to_string()));
    let in_file = ["f32", "bf16", "f16", "q8_0", "q4_0", "q4_k", "q6_k"];
    for (dtype, out) in in_folder.into_iter().chain(in_file.map(|dtype| (dtype, format!("{dtype}.gguf")))) {
        let path = scratch.synth(&name, dtype, &out);
        let model = ModelFolder::open(&path).unwrap();
        let facts = ModelFacts::of(&model).unwrap();
        assert_eq!(facts.parameters, parameters(&specs), "{out}");
        let main_dtype = model_files::own_dtype(&model).unwrap().as_str().to_ascii_lowercase();
        assert_eq!(main_dtype, dtype, "{out}: {:?}", facts.dtypes);
        let read_config = &model.config;
        let sizes = |it: &Config| (it.layers, it.hidden_size, it.heads, it.kv_heads, it.head_dim);
        assert_eq!(sizes(read_config), sizes(&config), "{out}");
        let tokens = |it: &Config| (it.vocabulary_size, it.context_tokens, it.bos_id, it.eos_ids.clone());
        assert_eq!(tokens(read_config), tokens(&config), "{out}");
        assert_eq!(read_config.tie_word_embeddings, config.tie_word_embeddings, "{out}");
        let tokenizer = model.tokenizer().unwrap();
        let text = "A lighthouse, 42 steps high: naïve?\n";
        let ids = tokenizer.encode(text).unwrap();
        assert!(tokenizer.decode(&ids) == text && ids.len() > 5, "{out}: {ids:?}");
        // Every weight can be read, and all are in the range of random weights.
        for (tensor, values) in weight_values(&path) {
            assert!(values.iter().all(|value| value.abs() <= 2.0), "{out}: `{tensor}`");
        }
    }
}

macro_rules! opens_in_every_format {
    ($($test:ident $architecture:literal),* $(,)?) => {
        $(#[test] fn $test() { assert_opens_in_every_format($architecture); })*

        #[test]
        fn every_architecture_is_synthesised_in_every_format() {
            assert_eq!([$($architecture),*], ARCHITECTURES);
        }
    };
}

opens_in_every_format! {
    a_llama_opens_in_every_format "llama",
    a_mistral_opens_in_every_format "mistral",
    a_qwen2_opens_in_every_format "qwen2",
    a_qwen3_opens_in_every_format "qwen3",
    a_phi3_opens_in_every_format "phi3",
    a_gpt2_opens_in_every_format "gpt2",
    a_gemma_opens_in_every_format "gemma",
}

/// The hashes of synthesised files. They must not change by accident: the identity of weights in records depends on these bytes.
const EXPECTED_SHA256: &[(&str, &str, &str)] = &[
    ("tiny-gpt2.gguf", "", "e9d0c6867d279191d3561f52950c783822f81d119d76f3de84c0017cf9e17ed2"),
    ("tiny-llama", "config.json", "eae394d0f44c697e9151a41f08b399f6bc9d2668004e2d122ca8702e0c9ce764"),
    (
        "tiny-llama",
        "generation_config.json",
        "5d1ec5cead41d3f706140730065a8a422954c11c51f70f69d038bb26ec660def",
    ),
    ("tiny-llama", "model.safetensors", "4942e4eb8b30de79536f2a2584186c4be9efef0e0a4b516193ea3c38fe4ccc4c"),
    ("tiny-llama", "tokenizer.json", "fb8e308ec18ac0bd9fb90e038863ca15bcc064e6b295aab6317e7600b45283c5"),
    (
        "tiny-llama",
        "tokenizer_config.json",
        "4ab212f097a6fd0df274c7f678227e84fab58d39593732b1deddbaa71942f7e7",
    ),
];

#[test]
fn the_same_seed_gives_the_same_bytes_on_every_machine() {
    let scratch = Scratch::new();
    let mut hashes = BTreeMap::new();
    for out in ["tiny-llama", "tiny-gpt2.gguf"] {
        let dtype = if out.ends_with(".gguf") { "q4_k" } else { "bf16" };
        let path = scratch.synth(out.trim_end_matches(".gguf"), dtype, out);
        let files = contents(&path).into_iter();
        hashes.extend(files.map(|(name, bytes)| ((out.to_string(), name), sha256(&bytes))));
    }
    let expected = EXPECTED_SHA256
        .iter()
        .map(|(model, file, hash)| ((model.to_string(), file.to_string()), hash.to_string()));
    let expected: BTreeMap<_, _> = expected.collect();
    let lines: String = hashes
        .iter()
        .map(|((model, file), hash)| format!("    ({model:?}, {file:?}, {hash:?}),\n"))
        .collect();
    assert!(hashes == expected, "found:\n{lines}");
}

#[test]
fn another_seed_gives_other_weights_of_the_same_model() {
    let scratch = Scratch::new();
    let with_default_seed = contents(&scratch.synth("tiny-qwen2", "bf16", "one"));
    let with_seed_1 =
        contents(&scratch.make_model(&["synth", "tiny-qwen2", "--seed", "1", "--out", "other"]));
    let differing: Vec<_> = with_default_seed
        .keys()
        .filter(|name| with_default_seed.get(*name) != with_seed_1.get(*name))
        .collect();
    assert_eq!(differing, ["model.safetensors"]);
    assert_eq!(with_default_seed.len(), with_seed_1.len());
}

#[test]
fn f32_bf16_and_f16_hold_equal_numbers() {
    let scratch = Scratch::new();
    for shape in ["tiny-llama", "tiny-gpt2", "tiny-gemma"] {
        let models = ["f32", "bf16", "f16"].map(|dtype| {
            let folder = weight_values(&scratch.synth(shape, dtype, &format!("{shape}-{dtype}")));
            let file = weight_values(&scratch.synth(shape, dtype, &format!("{shape}-{dtype}.gguf")));
            (folder, file)
        });
        let [(f32s, in_file), rest @ ..] = &models;
        assert!(rest.iter().all(|(folder, file)| folder == f32s && file == in_file), "{shape}");
    }
}

#[test]
fn random_weights_are_scaled_by_the_number_of_inputs() {
    let scratch = Scratch::new();
    let weights = weight_values(&scratch.synth("tiny-llama", "f32", "tiny-llama"));
    for (name, values) in weights {
        let mean_square =
            values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / values.len() as f64;
        let expected = match name.as_str() {
            norm if norm.ends_with("norm.weight") => 1.0,
            down if down.contains("down_proj") => 1.0 / 512.0,
            _ => 1.0 / 256.0,
        };
        assert!((mean_square / expected - 1.0).abs() < 0.02, "{name}: {mean_square} for {expected}");
    }
}

#[test]
fn a_synthesised_gguf_equals_a_gguf_converted_from_safetensors() {
    for architecture in ARCHITECTURES {
        let (scratch, shape) = (Scratch::new(), format!("tiny-{architecture}"));
        let folder = scratch.synth(&shape, "f32", &shape);
        std::fs::create_dir(scratch.join("bf16")).unwrap();
        let narrow = scratch.synth(&shape, "bf16", &format!("bf16/{shape}"));
        for (dtype, from) in [("f32", &folder), ("bf16", &narrow), ("q8_0", &folder), ("q4_k", &narrow)] {
            let synthesised = scratch.synth(&shape, dtype, &format!("{dtype}-synth.gguf"));
            let out = format!("{dtype}-convert.gguf");
            let from = from.to_str().unwrap();
            let converted =
                scratch.make_model(&["convert", from, "--to", "gguf", "--dtype", dtype, "--out", &out]);
            let same = std::fs::read(&synthesised).unwrap() == std::fs::read(&converted).unwrap();
            assert!(same, "{shape} in {dtype}");
        }
    }
}

#[test]
fn a_shape_can_be_given_as_a_config_file() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.join("my-model")).unwrap();
    let config = json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 1, "intermediate_size": 256, "vocab_size": 600, "max_position_embeddings": 128,
        "bos_token_id": 1, "eos_token_id": [2, 5], "tie_word_embeddings": true, "unknown_field": "kept"
    });
    std::fs::write(scratch.join("my-model/config.json"), config.to_string()).unwrap();
    let folder = scratch.make_model(&["synth", "--config", "my-model/config.json", "--out", "folder"]);
    let model = ModelFolder::open(&folder).unwrap();
    assert_eq!(
        (&model.config.eos_ids[..], model.config.raw["unknown_field"].as_str()),
        (&[2, 5][..], Some("kept"))
    );
    assert_eq!(model.tokenizer().unwrap().encode("").unwrap(), [1]);
    let as_gguf = ["--format", "gguf", "--dtype", "q4_k", "--out", "."];
    let file = scratch.make_model(&[&["synth", "--config", "my-model/config.json"], &as_gguf[..]].concat());
    assert_eq!(file.file_name().unwrap(), "my-model-q4_k.gguf");
    let facts = ModelFacts::of(&ModelFolder::open(&file).unwrap()).unwrap();
    // Rows of 64 numbers do not divide into quantization blocks of 256. Only the rows of `down_proj` have 256 numbers, so all
    // other matrices are Q8_0.
    let dtypes: Vec<_> = facts.dtypes.keys().map(ToString::to_string).collect();
    assert_eq!(dtypes, ["F32", "Q4_K", "Q8_0"]);
}

// Refusals, which leave no files.

#[test]
fn an_existing_output_path_is_refused_and_unchanged() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.join("taken")).unwrap();
    std::fs::write(scratch.join("taken/mine.txt"), "mine").unwrap();
    std::fs::write(scratch.join("taken.gguf"), "mine").unwrap();
    let before = contents(&scratch.path);
    for (format, out) in [("safetensors", "taken"), ("gguf", "taken.gguf")] {
        let outcome = scratch.model(&["synth", "tiny-gpt2", "--format", format, "--out", out]);
        assert_refused(&outcome, 5, &[&format!("`{out}` exists already"), "hint: "]);
    }
    assert!(contents(&scratch.path) == before);
}

#[test]
fn a_model_can_be_written_into_an_empty_folder() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.join("empty")).unwrap();
    ModelFolder::open(scratch.synth("tiny-gpt2", "bf16", "empty")).unwrap();
    assert!(scratch.all_paths().iter().all(|name| name.starts_with("empty")), "{:?}", scratch.all_paths());
}

#[test]
fn an_interrupted_synthesis_leaves_no_files() {
    for (format, signal) in [("safetensors", Signal::INT), ("gguf", Signal::TERM)] {
        let scratch = Scratch::new();
        std::fs::write(scratch.join("config.json"), large_config().to_string()).unwrap();
        let before = scratch.all_paths();
        let mut command = scratch.orchestrate();
        let out = if format == "gguf" { "new/folder/model.gguf" } else { "new/folder/model" };
        command.args(["model", "synth", "--config", "config.json", "--dtype", "f32"]);
        command.args(["--format", format, "--out", out]);
        let running = Running::start(command.current_dir(&scratch.path));
        let is_weights = |name: &String| name.contains("/model.");
        wait_until("the weights are written", || scratch.all_paths().iter().any(is_weights));
        running.signal(signal);
        let outcome = running.finish();
        assert_refused(&outcome, 130, &["interrupted"]);
        assert_eq!(scratch.all_paths(), before);
        scratch.assert_no_processes_left();
    }
}

#[test]
fn a_too_small_disk_is_reported_before_writing() {
    let scratch = Scratch::new();
    let config = json!({
        "model_type": "llama", "hidden_size": 65536, "num_hidden_layers": 1000, "num_attention_heads": 64,
        "intermediate_size": 262_144, "vocab_size": 1024, "max_position_embeddings": 128
    });
    std::fs::write(scratch.join("config.json"), config.to_string()).unwrap();
    for (format, out) in [("safetensors", "huge"), ("gguf", "huge.gguf")] {
        let outcome = scratch.model(&["synth", "--config", "config.json", "--format", format, "--out", out]);
        assert_refused(&outcome, 5, &["not enough space in `.`: ", " TB needed, ", " free", "hint: "]);
        assert_eq!(scratch.all_paths(), ["config.json"]);
    }
}

#[test]
fn a_full_disk_leaves_no_files() {
    let scratch = Scratch::new();
    // A limit on the file size makes a write fail in the middle, as a full disk does.
    let script = "trap '' XFSZ; ulimit -f 100; exec \"$0\" model synth tiny-llama --out model";
    let mut shell = scratch.command("sh");
    let outcome =
        finish(shell.args(["-c", script, env!("CARGO_BIN_EXE_orchestrate")]).current_dir(&scratch.path));
    assert_refused(&outcome, 5, &["cannot write", "model.safetensors`"]);
    assert_eq!(scratch.all_paths(), [""; 0]);
}

#[test]
fn overflowing_sizes_are_refused() {
    let scratch = Scratch::new();
    let config = json!({
        "model_type": "llama", "hidden_size": 16_777_216, "num_hidden_layers": 4096, "num_attention_heads": 65536,
        "head_dim": 65534, "intermediate_size": 16_777_216, "vocab_size": 65536
    });
    std::fs::write(scratch.join("config.json"), config.to_string()).unwrap();
    let outcome = scratch.model(&["synth", "--config", "config.json", "--out", "model"]);
    assert_refused(&outcome, 5, &["`config.json`", "more weights than any computer can store"]);
    assert_eq!(scratch.all_paths(), ["config.json"]);
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let scratch = Scratch::new();
    let synth = |name: &str, words: &[&str]| {
        let mut command = scratch.orchestrate();
        assert_snapshot(
            name,
            &scratch,
            command.args(["model", "synth"]).args(words).current_dir(&scratch.path),
        );
        assert_eq!(scratch.all_paths(), [""; 0]);
    };
    synth("model-synth-unknown-shape", &["llama-9", "--out", "x"]);
    synth("model-synth-unknown-dtype", &["tiny-llama", "--dtype", "q9", "--out", "x"]);
    synth("model-synth-unknown-format", &["tiny-llama", "--format", "onnx", "--out", "x"]);
    synth("model-synth-quantized-safetensors", &["tiny-llama", "--dtype", "q4_k", "--out", "x"]);
    synth(
        "model-synth-read-only-dtype",
        &["tiny-llama", "--dtype", "q5_k", "--format", "gguf", "--out", "x"],
    );
    synth("model-synth-no-shape", &["--out", "x"]);
}

#[test]
fn a_config_without_a_required_key_is_refused_with_file_and_key() {
    let scratch = Scratch::new();
    let config: serde_json::Value = Shape::named("tiny-qwen3").unwrap().config;
    let sizes = ["hidden_size", "num_hidden_layers", "num_attention_heads"];
    for key in sizes.into_iter().chain(["model_type", "intermediate_size", "vocab_size"]) {
        let path = scratch.join("config.json");
        std::fs::write(&path, config.to_string()).unwrap();
        edit_json(&path, |config| drop((config.remove(key), config.remove("architectures"))));
        let outcome = scratch.model(&["synth", "--config", "config.json", "--out", "x"]);
        assert_refused(&outcome, 5, &["`config.json`", &format!("`{key}` is missing")]);
    }
    for (text, expected) in
        [("", "EOF"), ("[1]", "expected an object"), ("{", "EOF"), ("{\"model_type\":7}", "`model_type`")]
    {
        std::fs::write(scratch.join("config.json"), text).unwrap();
        let outcome = scratch.model(&["synth", "--config", "config.json", "--out", "x"]);
        assert_refused(&outcome, 5, &["`config.json`", expected]);
    }
    let outcome = scratch.model(&["synth", "--config", "nowhere/config.json", "--out", "x"]);
    assert_refused(&outcome, 2, &["`nowhere/config.json`"]);
    assert!(!scratch.join("x").exists());
}
