//! Tests how the program behaves when memory is too small. The models are sparse files of zeros, which take almost no disk space.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests panic")]

use std::path::Path;

use engine_kit::protocol::{Failed, FailureKind, Loaded, Message, parse_message};
use serde_json::{Value, json};

/// Runs the program with a load of this folder and these requests. Returns its answers, and the progress messages that have a
/// note. `limits` is shell code that runs before the program.
fn answers_to(limits: &str, folder: &Path, load_fields: Value, requests: &[&str]) -> Vec<Message> {
    let mut load = json!({"type": "load", "model": folder, "threads": 1});
    load.as_object_mut().unwrap().extend(load_fields.as_object().cloned().unwrap_or_default());
    let input = [&[load.to_string().as_str()], requests].concat().join("\n");
    let script = format!("{limits} exec '{}'", env!("CARGO_BIN_EXE_lmrs"));
    let output = duct::cmd!("sh", "-c", script).stdin_bytes(input).stdout_capture().stderr_null();
    let output = output.unchecked().run().unwrap();
    assert!(output.status.success());
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let messages = lines.map(|line| parse_message(line).unwrap());
    let is_answer = |message: &Message| match message {
        Message::Progress(progress) => progress.note.is_some(),
        message => !matches!(message, Message::Token(_) | Message::Hello(_)),
    };
    messages.filter(is_answer).collect()
}

fn expect_loaded(message: &Message) -> &Loaded {
    match message {
        Message::Loaded(loaded) => loaded,
        other => panic!("not loaded: {other:?}"),
    }
}

fn expect_failed(message: &Message) -> &Failed {
    match message {
        Message::Failed(failed) => failed,
        other => panic!("not failed: {other:?}"),
    }
}

/// Writes a llama in bf16 with these numbers in its config. Returns the bytes of its weights.
fn write_llama(folder: &Path, numbers: &Value) -> u64 {
    let mut config = json!({
        "model_type": "llama", "num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 128, "vocab_size": 320,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "torch_dtype": "bfloat16"
    });
    config.as_object_mut().unwrap().extend(numbers.as_object().cloned().unwrap());
    let number = |name: &str| config[name].as_u64().unwrap();
    let (hidden, inner, head) = (number("hidden_size"), number("intermediate_size"), number("head_dim"));
    let queries = head * number("num_attention_heads");
    let keys = head * number("num_key_value_heads");
    let mut tensors = Vec::new();
    let mut tensor =
        |name: String, shape: &[u64]| tensors.push((format!("model.{name}.weight"), shape.to_vec()));
    tensor("embed_tokens".into(), &[number("vocab_size"), hidden]);
    tensor("norm".into(), &[hidden]);
    for layer in 0..number("num_hidden_layers") {
        let mut layer_tensor = |name: &str, shape: &[u64]| tensor(format!("layers.{layer}.{name}"), shape);
        layer_tensor("input_layernorm", &[hidden]);
        layer_tensor("post_attention_layernorm", &[hidden]);
        layer_tensor("self_attn.q_proj", &[queries, hidden]);
        layer_tensor("self_attn.k_proj", &[keys, hidden]);
        layer_tensor("self_attn.v_proj", &[keys, hidden]);
        layer_tensor("self_attn.o_proj", &[hidden, queries]);
        layer_tensor("mlp.gate_proj", &[inner, hidden]);
        layer_tensor("mlp.up_proj", &[inner, hidden]);
        layer_tensor("mlp.down_proj", &[hidden, inner]);
    }
    write_model(folder, &config, &tensors)
}

/// Writes a sparse file with all of these tensors in bf16. Returns the bytes of the tensors.
fn write_model(folder: &Path, config: &Value, tensors: &[(String, Vec<u64>)]) -> u64 {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let (mut header, mut at) = (json!({}), 0);
    for (name, shape) in tensors {
        let bytes = 2 * shape.iter().product::<u64>();
        let offsets = [at, at + bytes];
        header[name] = json!({"dtype": "BF16", "shape": shape, "data_offsets": offsets});
        at += bytes;
    }
    let header = header.to_string();
    let path = folder.join("model.safetensors");
    std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(8 + header.len() as u64 + at).unwrap();
    at
}

const SHORT_REQUEST: &str = r#"{"prompt_ids":[1,2,3],"max_new_tokens":4,"ignore_eos":true}"#;

/// The weights have four layers of 825 GB.
#[test]
fn a_model_larger_than_this_machine_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let (layers, hidden) = (4, 8192);
    let weights = write_llama(
        folder.path(),
        &json!({
            "hidden_size": hidden, "intermediate_size": 1 << 24, "num_hidden_layers": layers, "num_key_value_heads": 8
        }),
    );
    let answers = answers_to("", folder.path(), json!({}), &[]);
    let failure = expect_failed(&answers[0]);
    assert_eq!(failure.kind, FailureKind::OutOfMemory, "{failure:?}");
    let uncounted_norm_bytes = 2 * hidden * (1 + 2 * layers);
    assert!(
        failure.message.contains(&format!("({} for weights", weights - uncounted_norm_bytes)),
        "{failure:?}"
    );
}

/// The positions would take 2.2 TB in f32, the type in memory.
#[test]
fn learned_positions_larger_than_memory_are_refused_before_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let (hidden, inner, vocabulary, context) = (1_u64 << 15, 64, 320, 1_u64 << 24);
    let config = json!({
        "model_type": "gpt2", "n_embd": hidden, "n_layer": 1, "n_head": 256, "n_positions": context,
        "n_inner": inner, "vocab_size": vocabulary, "torch_dtype": "bfloat16"
    });
    let mut tensors = vec![("wte.weight".into(), vec![vocabulary, hidden])];
    tensors.push(("wpe.weight".into(), vec![context, hidden]));
    let linears = [("attn.c_attn", hidden, 3 * hidden), ("attn.c_proj", hidden, hidden)];
    let mut matrices = vocabulary * hidden;
    for (name, inputs, outputs) in
        linears.into_iter().chain([("mlp.c_fc", hidden, inner), ("mlp.c_proj", inner, hidden)])
    {
        tensors.push((format!("h.0.{name}.weight"), vec![inputs, outputs]));
        tensors.push((format!("h.0.{name}.bias"), vec![outputs]));
        matrices += inputs * outputs;
    }
    for norm in ["h.0.ln_1", "h.0.ln_2", "ln_f"] {
        tensors.extend(["weight", "bias"].map(|end| (format!("{norm}.{end}"), vec![hidden])));
    }
    write_model(folder.path(), &config, &tensors);
    // If the program read the positions, this limit would end the program before it fills the machine's memory.
    let answers = answers_to("ulimit -d 4000000;", folder.path(), json!({}), &[]);
    let failure = expect_failed(&answers[0]);
    assert_eq!(failure.kind, FailureKind::OutOfMemory, "{failure:?}");
    let weights = 2 * matrices + 4 * context * hidden;
    assert!(
        failure.message.contains(&format!("({weights} for weights, 0 for keys and values)")),
        "{failure:?}"
    );
}

/// The keys and values would take 8.8 TB.
#[test]
fn a_context_beyond_memory_is_shortened_by_default_and_refused_if_requested() {
    let folder = tempfile::tempdir().unwrap();
    let limit = 1_u64 << 24;
    let numbers = json!({
        "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 16, "max_position_embeddings": limit
    });
    write_llama(folder.path(), &numbers);
    let long = json!({"prompt_ids": [1], "max_new_tokens": limit - 1, "ignore_eos": true}).to_string();
    let answers = answers_to("", folder.path(), json!({}), &[SHORT_REQUEST, &long]);
    let [Message::Progress(progress), answer, short, long] = answers.as_slice() else {
        panic!("{answers:?}");
    };
    let context = expect_loaded(answer).facts.context_tokens.unwrap();
    assert!(context.is_power_of_two() && u64::from(context) < limit, "{context}");
    let note = progress.note.as_deref().unwrap();
    assert!(note.starts_with(&format!("context limited to {context} of {limit} tokens: ")), "{note}");
    assert!(matches!(short, Message::Generated(_)), "{short:?}");
    assert_eq!(expect_failed(long).kind, FailureKind::Context);
    assert!(expect_failed(long).message.ends_with(&format!("exceed the context of {context}")), "{long:?}");
    let answers = answers_to("", folder.path(), json!({"context_tokens": limit}), &[]);
    let failure = expect_failed(&answers[0]);
    assert_eq!(failure.kind, FailureKind::OutOfMemory, "{failure:?}");
    assert!(
        failure.message.contains(&format!(" {} for keys and values)", 16 * 64 * 128 * 2 * 2 * limit)),
        "{failure:?}"
    );
}

/// With 512 bytes for each of 7.9 million tokens, the keys and values of the full context exceed the `ulimit`.
#[test]
fn a_request_takes_memory_for_its_own_tokens_and_not_for_the_full_context() {
    let folder = tempfile::tempdir().unwrap();
    let numbers = json!({
        "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "max_position_embeddings": 7_900_000
    });
    write_llama(folder.path(), &numbers);
    let answers = answers_to("ulimit -v 3000000;", folder.path(), json!({}), &[SHORT_REQUEST, SHORT_REQUEST]);
    let generated = answers.iter().filter(|answer| matches!(answer, Message::Generated(_))).count();
    assert_eq!(generated, 2, "{answers:?}");
}
