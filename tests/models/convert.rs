//! `orchestrate model convert`: the same model in another format. Without a change of dtype, every bit of the weights stays the
//! same.

use std::path::{Path, PathBuf};

use model_files::{ModelFacts, ModelFolder};
use serde_json::{Map, Value, json};

use crate::support::models::{
    ARCHITECTURES, assert_refused, contents, edit_header, edit_json, large_config, replace_bytes,
    weight_values, with_header, write_pulled_model, write_sparse_model,
};
use crate::support::snapshot::assert_snapshot;
use crate::support::{Running, Scratch, finish, wait_until};

fn convert(scratch: &Scratch, model: &Path, to: &str, dtype: Option<&str>, out: &str) -> PathBuf {
    let mut words = vec!["convert", model.to_str().unwrap(), "--to", to, "--out", out];
    words.extend(dtype.iter().flat_map(|dtype| ["--dtype", dtype]));
    scratch.make_model(&words)
}

/// The hash of a model, from `model info --identity`.
fn identity(scratch: &Scratch, model: &Path) -> String {
    let outcome = scratch.model(&["info", model.to_str().unwrap(), "--identity", "--json"]);
    let facts: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{outcome:?}"));
    let identity = facts["identity"].as_str().unwrap();
    assert!(identity.len() == 32 && identity.chars().all(|digit| digit.is_ascii_hexdigit()), "{identity}");
    identity.into()
}

// Conversion to GGUF and back.

#[test]
fn every_architecture_survives_conversion_to_gguf_and_back_in_f32() {
    ARCHITECTURES.iter().for_each(|architecture| assert_survives_conversion(architecture, "f32"));
}

#[test]
fn every_architecture_survives_conversion_to_gguf_and_back_in_bf16() {
    ARCHITECTURES.iter().for_each(|architecture| assert_survives_conversion(architecture, "bf16"));
}

/// Converts a model to GGUF and back, and checks that weights, config and tokenizer are the same.
fn assert_survives_conversion(architecture: &str, dtype: &str) {
    let scratch = Scratch::new();
    let original = scratch.synth(&format!("tiny-{architecture}"), dtype, "original");
    let gguf = convert(&scratch, &original, "gguf", None, "converted.gguf");
    let back = convert(&scratch, &gguf, "safetensors", None, "back");
    let same = std::fs::read(original.join("model.safetensors")).unwrap()
        == std::fs::read(back.join("model.safetensors")).unwrap();
    assert!(same, "{architecture}: the weights have changed");

    let [before, after] = [&original, &back].map(|path| ModelFolder::open(path).unwrap());
    let mut expected = before.config.clone();
    expected.raw = after.config.raw.clone();
    if architecture == "mistral" {
        // GGUF has one name for llama and mistral, which are the same network.
        expected.architecture = "llama".into();
    }
    // GPT-2's config omits the intermediate size if it is four times the hidden size.
    expected.intermediate_size = expected.intermediate_size.or(Some(4 * expected.hidden_size));
    assert_eq!(after.config, expected);
    // Fields that only some configs have. A missing field equals `null`. GGUF keeps the sliding window only for phi3.
    assert_eq!(
        after.config.raw.get("mlp_bias").is_some(),
        architecture == "llama" || architecture == "mistral"
    );
    let window = (architecture == "phi3").then_some("sliding_window");
    for key in ["rope_scaling", "rms_norm_eps", "layer_norm_epsilon"].into_iter().chain(window) {
        let [value_before, value_after] =
            [&before, &after].map(|model| model.config.raw.get(key).filter(|value| !value.is_null()));
        assert_eq!(value_before, value_after, "{architecture}: `{key}`");
    }
    for text in ["", "The keeper's lamp, 1 234 567 candles — naïve?\n\n  yes", "<s></s><|endoftext|>"] {
        let [ids_before, ids_after] =
            [&before, &after].map(|model| model.tokenizer().unwrap().encode(text).unwrap());
        assert_eq!(ids_before, ids_after, "{architecture}: {text:?}");
    }
    let identities = [&original, &gguf, &back].map(|path| identity(&scratch, path));
    assert!(identities.iter().all(|it| *it == identities[0]), "{architecture}: {identities:?}");
}

#[test]
fn the_embedded_model_survives_conversion_to_gguf_and_back() {
    let scratch = Scratch::new();
    let original = model_files::resolve(None).unwrap();
    let gguf = scratch.make_model(&["convert", "embedded", "--to", "gguf", "--out", "converted.gguf"]);
    let back = convert(&scratch, &gguf, "safetensors", None, "back");
    assert!(weight_values(&original) == weight_values(&back));
    let tokenizer = |path: &Path| ModelFolder::open(path).unwrap().tokenizer().unwrap();
    let text = model_files::embedded::heldout_text().unwrap();
    assert_eq!(tokenizer(&original).encode(&text).unwrap(), tokenizer(&back).encode(&text).unwrap());
    assert_eq!(identity(&scratch, &original), identity(&scratch, &gguf));
}

// The identity: the hash of the weights.

#[test]
fn the_identity_depends_only_on_the_weights() {
    let scratch = Scratch::new();
    let model = scratch.synth("tiny-qwen2", "bf16", "model");
    let original = identity(&scratch, &model);
    assert_eq!(original, identity(&scratch, &scratch.synth("tiny-qwen2", "bf16", "elsewhere")));
    // The same numbers in another dtype are other weights to an engine.
    assert_ne!(original, identity(&scratch, &scratch.synth("tiny-qwen2", "f32", "wider")));
    let seeded = scratch.make_model(&["synth", "tiny-qwen2", "--seed", "7", "--out", "seeded"]);
    assert_ne!(original, identity(&scratch, &seeded));
    // One changed bit of the weights changes the identity.
    let weights = model.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let position = bytes.len() - 4096;
    bytes[position] ^= 1;
    std::fs::write(&weights, &bytes).unwrap();
    assert_ne!(original, identity(&scratch, &model));
}

#[test]
fn the_identity_is_stored_after_its_first_computation() {
    let scratch = Scratch::new();
    let model = scratch.synth("tiny-qwen2", "bf16", "model");
    let info = |words: &[&str]| scratch.model(&[&["info", model.to_str().unwrap()], words].concat()).stdout;
    assert!(info(&[]).contains("identity       not computed yet"), "{}", info(&[]));
    let identity = identity(&scratch, &model);
    assert!(info(&[]).contains(&format!("identity       {identity}")), "{}", info(&[]));
}

// Other dtypes.

#[test]
fn quantized_weights_differ_only_by_their_rounding() {
    let scratch = Scratch::new();
    let exact = scratch.synth("tiny-llama", "f32", "exact");
    let exact_numbers = weight_values(&exact);
    // The relative error of a tensor is the root mean square of the rounding errors, divided by that of the weights. It must
    // lie between a quarter of the bound and the bound; norms are not rounded.
    for (dtype, bound) in [("q8_0", 0.007), ("q6_k", 0.025), ("q4_k", 0.085), ("q4_0", 0.1)] {
        let narrowed = convert(&scratch, &exact, "gguf", Some(dtype), &format!("{dtype}.gguf"));
        let widened = convert(&scratch, &narrowed, "safetensors", Some("f32"), &format!("{dtype}-again"));
        let again = convert(&scratch, &widened, "gguf", Some("f32"), &format!("{dtype}-again.gguf"));
        assert!(
            weight_values(&again) == weight_values(&narrowed),
            "{dtype}: f32 must represent every quantized weight exactly"
        );
        for (name, values) in &weight_values(&widened) {
            let exact = &exact_numbers[name];
            let sum_of_squares =
                |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
            let differences = values.iter().zip(exact).map(|(a, b)| f64::from(a - b));
            let relative_error = (sum_of_squares(&mut differences.into_iter())
                / sum_of_squares(&mut exact.iter().map(|value| f64::from(*value))))
            .sqrt();
            let is_norm = name.ends_with("norm.weight");
            assert!(
                relative_error <= if is_norm { 0.0 } else { bound },
                "{dtype}, `{name}`: {relative_error}"
            );
            assert!(
                is_norm || relative_error > bound / 4.0,
                "{dtype}, `{name}`: {relative_error} is too small"
            );
        }
    }
}

#[test]
fn the_same_format_in_another_dtype_is_a_conversion_too() {
    let scratch = Scratch::new();
    let wide = scratch.synth("tiny-phi3", "f32", "wide");
    let narrow = convert(&scratch, &wide, "safetensors", Some("bf16"), "narrow");
    let synthesised = scratch.synth("tiny-phi3", "bf16", "synthesised");
    assert!(contents(&narrow) == contents(&synthesised));
    let q8_0 = scratch.synth("tiny-phi3", "q8_0", "q8_0.gguf");
    let q4_0 = convert(&scratch, &q8_0, "gguf", Some("q4_0"), "q4_0.gguf");
    // Weights take 4.5 bits in q4_0, and 8.5 bits in q8_0.
    assert!(q4_0.metadata().unwrap().len() < q8_0.metadata().unwrap().len() * 6 / 10);
}

#[test]
fn without_out_the_conversion_is_written_next_to_the_model() {
    let scratch = Scratch::new();
    scratch.synth("tiny-gpt2", "bf16", "models/mine");
    let converted = scratch.make_model(&["convert", "models/mine", "--to", "gguf", "--dtype", "q8_0"]);
    assert_eq!(
        converted.canonicalize().unwrap(),
        scratch.join("models/mine-q8_0.gguf").canonicalize().unwrap()
    );
    let back =
        scratch.make_model(&["convert", "models/mine-q8_0.gguf", "--to", "safetensors", "--dtype", "f16"]);
    assert_eq!(back.canonicalize().unwrap(), scratch.join("models/mine-q8_0-f16").canonicalize().unwrap());
}

#[test]
fn a_model_given_by_name_is_converted_into_the_working_directory() {
    let scratch = Scratch::new();
    write_pulled_model(&scratch, "someone/tiny");
    for (named, file) in [("embedded", "embedded-q8_0.gguf"), ("someone/tiny", "tiny-q8_0.gguf")] {
        let mut command = scratch.orchestrate();
        command.env("HF_HOME", scratch.join("home/hf")).env_remove("HF_HUB_CACHE").current_dir(&scratch.path);
        let outcome = finish(command.args(["model", "convert", named, "--to", "gguf", "--dtype", "q8_0"]));
        assert_eq!((outcome.code, outcome.stdout), (Some(0), format!("{file}\n")), "{}", outcome.stderr);
    }
    assert_eq!(scratch.all_paths(), ["embedded-q8_0.gguf", "tiny-q8_0.gguf"]);
}

// Folders as other programs write them.

/// Copies a model, with its weights in three files and an index, as large models are stored.
fn write_sharded(whole: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for (name, bytes) in contents(whole).into_iter().filter(|(name, _)| name != "model.safetensors") {
        std::fs::write(to.join(name), bytes).unwrap();
    }
    let model = ModelFolder::open(whole).unwrap();
    let bytes = std::fs::read(whole.join("model.safetensors")).unwrap();
    let mut map = Map::new();
    for shard in 0..3 {
        let name = format!("model-0000{}-of-00003.safetensors", shard + 1);
        let (mut header, mut data) = (Map::new(), Vec::new());
        // A shard has every third tensor, in reverse order, because readers must not assume an order.
        for tensor in model.tensors.iter().rev().skip(shard).step_by(3) {
            let (from, length) = (tensor.offset as usize, tensor.bytes as usize);
            let offsets = [data.len(), data.len() + length];
            data.extend(&bytes[from..from + length]);
            header.insert(
                tensor.name.clone(),
                json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets }),
            );
            map.insert(tensor.name.clone(), name.clone().into());
        }
        std::fs::write(to.join(name), with_header(&Value::Object(header), &data)).unwrap();
    }
    let index = json!({ "metadata": {}, "weight_map": map });
    std::fs::write(to.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

#[test]
fn a_sharded_model_converts_like_a_single_file() {
    let scratch = Scratch::new();
    let whole = scratch.synth("tiny-gemma", "bf16", "one/model");
    std::fs::create_dir(scratch.join("other")).unwrap();
    write_sharded(&whole, &scratch.join("other/model"));
    let shards = scratch.join("other/model");
    assert_eq!(ModelFolder::open(&shards).unwrap().weights.len(), 3);
    assert_eq!(identity(&scratch, &whole), identity(&scratch, &shards));
    for (to, dtype) in [("gguf", "q8_0"), ("safetensors", "f32")] {
        let from_file = convert(&scratch, &whole, to, Some(dtype), &format!("one.{to}"));
        let from_shards = convert(&scratch, &shards, to, Some(dtype), &format!("other.{to}"));
        assert!(contents(&from_file) == contents(&from_shards), "{to}");
    }
}

#[test]
fn a_gpt2_checkpoint_with_prefixed_names_is_the_same_model() {
    let scratch = Scratch::new();
    let plain = scratch.synth("tiny-gpt2", "f32", "one/model");
    let prefixed = scratch.synth("tiny-gpt2", "f32", "other/model");
    let renamed = |(name, entry): (String, Value)| match name.starts_with("__") {
        true => (name, entry),
        false => (format!("transformer.{name}"), entry),
    };
    edit_header(&prefixed.join("model.safetensors"), |header| header.into_iter().map(renamed).collect());
    assert_eq!(identity(&scratch, &plain), identity(&scratch, &prefixed));
    let [from_plain, from_prefixed] = [(&plain, "plain.gguf"), (&prefixed, "prefixed.gguf")]
        .map(|(model, out)| std::fs::read(convert(&scratch, model, "gguf", None, out)).unwrap());
    assert!(from_plain == from_prefixed);
}

#[test]
fn unused_tensors_are_named_in_a_note() {
    let scratch = Scratch::new();
    let model = scratch.synth("tiny-llama", "bf16", "model");
    let path = model.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let end = bytes.len() - 8 - length;
    for (index, name) in ["adapter.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"].iter().enumerate()
    {
        let begin = end + 8 * index;
        header.insert(
            (*name).into(),
            json!({ "dtype": "F32", "shape": [2], "data_offsets": [begin, begin + 8] }),
        );
    }
    let header = Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[8 + length..], &[0; 16]]
        .concat();
    std::fs::write(&path, file).unwrap();
    let outcome = scratch.model(&["convert", "model", "--to", "gguf"]).exits_with(0);
    let note = "note: left out: 1 tensor that the config does not use, such as `adapter.weight`";
    assert!(outcome.stderr.lines().any(|line| line == note), "{}", outcome.stderr);
}

// Refusals.

#[test]
fn a_part_of_a_split_gguf_is_refused_with_the_command_that_merges_it() {
    let scratch = Scratch::new();
    let path = scratch.synth("tiny-gpt2", "q8_0", "model-00001-of-00003.gguf");
    let mut bytes = std::fs::read(&path).unwrap();
    let values = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) + 2;
    bytes[16..24].copy_from_slice(&values.to_le_bytes());
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    // The two values have 64 bytes together, so the tensors keep their alignment.
    let count = [&text("split.count")[..], &2_u32.to_le_bytes(), &3_u16.to_le_bytes()].concat();
    let filler = [&text("a.key.of.twenty.six.bytes.")[..], &0_u32.to_le_bytes(), &[0]].concat();
    bytes.splice(24..24, [count, filler].concat());
    std::fs::write(&path, bytes).unwrap();
    for words in [&["info"][..], &["convert", "--to", "safetensors", "--dtype", "f32"]] {
        let outcome = scratch.model(&[words, &["model-00001-of-00003.gguf"]].concat());
        assert_refused(&outcome, 5, &["one of 3 files", "hint: `llama-gguf-split --merge`"]);
    }
}

#[test]
fn a_dtype_of_blocks_that_fits_no_matrix_is_refused() {
    let scratch = Scratch::new();
    let text = model_files::SHAPES.iter().find(|(name, _)| *name == "tiny-llama").unwrap().1;
    let mut config: Value = serde_json::from_str::<Value>(text).unwrap()["config"].take();
    for (field, size) in [("hidden_size", 48), ("head_dim", 12), ("intermediate_size", 100)] {
        config[field] = size.into();
    }
    std::fs::write(scratch.join("odd.json"), config.to_string()).unwrap();
    scratch.make_model(&["synth", "--config", "odd.json", "--dtype", "bf16", "--out", "odd"]);
    let problem = "`q4_0` fits no matrix: rows of 48 and 100 numbers do not divide into blocks of 32";
    let synth = ["synth", "--config", "odd.json", "--format", "gguf", "--dtype", "q4_0", "--out", "odd.gguf"];
    for words in [&["convert", "odd", "--to", "gguf", "--dtype", "q4_0"][..], &synth] {
        let outcome = scratch.model(words);
        assert_refused(&outcome, outcome.code.unwrap(), &[problem]);
    }
    // It is accepted if it fits one kind of matrix, and a note names the others.
    config["intermediate_size"] = 96.into();
    std::fs::write(scratch.join("odd.json"), config.to_string()).unwrap();
    let note = "14 of 16 matrices are F16 and not Q4_0: rows of 48 numbers do not divide into blocks of 32";
    scratch.model(&synth).exits_with(0).assert_stderr(&[note]);
}

#[test]
fn an_output_matrix_other_than_the_tied_embedding_is_refused() {
    let scratch = Scratch::new();
    let model = scratch.synth("tiny-llama", "bf16", "model");
    let set_tied = |tied: bool| {
        edit_json(&model.join("config.json"), |config| {
            drop(config.insert("tie_word_embeddings".into(), tied.into()))
        });
    };
    set_tied(true);
    for to in ["gguf", "safetensors"] {
        let outcome = scratch.model(&["convert", "model", "--to", to, "--dtype", "f32", "--out", "out.gguf"]);
        let difference =
            "`tie_word_embeddings` is true, and `lm_head.weight` differs from `model.embed_tokens.weight`";
        assert_refused(&outcome, 5, &[difference, "hint: set `tie_word_embeddings` to false in `"]);
    }
    // No identity is computed, because it would be the same whatever the output matrix is.
    assert_refused(&scratch.model(&["info", "model", "--identity"]), 5, &["`lm_head.weight` differs from"]);
    set_tied(false);
    convert(&scratch, &model, "gguf", None, "out.gguf");
}

#[test]
fn all_eos_ids_survive_a_conversion_also_if_the_tokenizer_has_another() {
    let scratch = Scratch::new();
    let model = scratch.synth("tiny-llama", "bf16", "model");
    let eos_ids_of = |path: &Path| ModelFolder::open(path).unwrap().config.eos_ids;
    // The tokenizer's own EOS is 2.
    for (case, ids) in [[7, 2, 9], [2, 7, 9], [9, 8, 7]].into_iter().enumerate() {
        std::fs::write(model.join("generation_config.json"), json!({ "eos_token_id": ids }).to_string())
            .unwrap();
        assert_eq!(eos_ids_of(&convert(&scratch, &model, "gguf", None, &format!("{case}.gguf"))), ids);
    }
    // Without a tokenizer too.
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::remove_file(model.join(name)).unwrap();
    }
    assert_eq!(eos_ids_of(&convert(&scratch, &model, "gguf", None, "plain.gguf")), [9, 8, 7]);
}

#[test]
fn invalid_conversions_are_refused_with_a_valid_command() {
    let scratch = Scratch::new();
    scratch.synth("tiny-llama", "bf16", "model");
    let before = scratch.all_paths();
    let convert = |name: &str, words: &[&str]| {
        let mut command = scratch.orchestrate();
        assert_snapshot(
            name,
            &scratch,
            command.args(["model", "convert"]).args(words).current_dir(&scratch.path),
        );
        assert_eq!(scratch.all_paths(), before);
    };
    convert("model-convert-same", &["model", "--to", "safetensors"]);
    convert("model-convert-quantized-safetensors", &["model", "--to", "safetensors", "--dtype", "q8_0"]);
    convert("model-convert-unknown-format", &["model", "--to", "onnx"]);
    convert("model-convert-no-model", &["no-such-model", "--to", "gguf"]);
    convert("model-convert-taken", &["model", "--to", "safetensors", "--dtype", "f32", "--out", "model"]);
}

#[test]
fn quantized_weights_become_safetensors_only_with_an_explicit_dtype() {
    let scratch = Scratch::new();
    scratch.synth("tiny-llama", "q4_0", "model.gguf");
    let outcome = scratch.model(&["convert", "model.gguf", "--to", "safetensors"]);
    assert_refused(&outcome, 2, &["`q4_0` cannot be stored in safetensors", "hint: ", "--dtype bf16"]);
}

#[test]
fn a_gguf_of_an_unknown_architecture_is_refused_by_name() {
    let scratch = Scratch::new();
    let known = scratch.synth("tiny-llama", "bf16", "model.gguf");
    let bytes = std::fs::read(&known).unwrap();
    // A text in GGUF's metadata: 8 is the number of this type, and 5 the length.
    let value = |name: &[u8]| [&8_u32.to_le_bytes()[..], &5_u64.to_le_bytes(), name].concat();
    let bytes =
        replace_bytes(&replace_bytes(&bytes, b"llama.", b"falco."), &value(b"llama"), &value(b"falco"));
    std::fs::write(&known, bytes).unwrap();
    let outcome = scratch.model(&["convert", "model.gguf", "--to", "safetensors"]);
    assert_refused(&outcome, 5, &["model `model`", "architecture `falco` is not one of `llama`"]);
    let info = scratch.model(&["info", "model.gguf"]);
    assert!(info.code == Some(0) && info.stdout.contains("architecture   falco"), "{info:?}");
    let facts = ModelFacts::of(&ModelFolder::open(&known).unwrap()).unwrap();
    assert!(facts.components.is_empty() && facts.parameters > 2_000_000, "{facts:?}");
}

#[test]
fn an_interrupted_conversion_leaves_no_files() {
    let scratch = Scratch::new();
    write_sparse_model(&scratch.join("model"), &large_config());
    let before = scratch.all_paths();
    let mut command = scratch.orchestrate();
    command.args(["model", "convert", "model", "--to", "gguf", "--dtype", "q4_k", "--out", "new/model.gguf"]);
    let running = Running::start(command.current_dir(&scratch.path));
    wait_until("the conversion writes a file", || {
        scratch.all_paths().iter().any(|name| name.ends_with("/model.gguf"))
    });
    assert_refused(&running.interrupt(), 130, &["interrupted"]);
    assert_eq!(scratch.all_paths(), before);
}
