//! Runs and models: the record has the hash of the weights, and an engine gets the model in a format that it reads.

use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::models::{
    assert_refused, edit_json, large_config, write_pulled_model, write_sparse_model,
};
use crate::support::record::{Record, files};
use crate::support::{Outcome, Running, Scratch, fake_engine, finish, wait_until};

const RUN: &[&str] =
    &["-s", "decode", "--depth", "0", "--iterations", "1", "--blocks", "1", "--format", "csv"];

/// A fake engine that claims to read this format. It appends the value of `ORCHESTRATE_MODEL` to the file `started`.
fn reader_of(scratch: &Scratch, format: &str) -> PathBuf {
    let (fake, log) = (fake_engine().display(), scratch.join("started"));
    let text = format!(
        "echo \"$ORCHESTRATE_MODEL\" >> '{}'\nexec '{fake}' --capabilities '{{\"formats\":[\"{format}\"]}}'",
        log.display()
    );
    scratch.script(&format!("reads-{format}"), &text)
}

fn command(scratch: &Scratch, engines: &[&Path], words: &[&str]) -> std::process::Command {
    let mut command = scratch.orchestrate();
    command.args(RUN).args(words).arg("--results").arg(scratch.results()).current_dir(&scratch.path);
    for engine in engines {
        command.arg("-e").arg(engine);
    }
    command
}

fn run(scratch: &Scratch, engines: &[&Path], words: &[&str]) -> Outcome {
    let outcome = finish(&mut command(scratch, engines, words));
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
    scratch.assert_no_processes_left();
    outcome
}

/// Reads the only record and removes it, so that the next record is the only one again.
fn take_record(scratch: &Scratch) -> Record {
    let record = Record::only_one_in(&scratch.results());
    std::fs::remove_dir_all(scratch.results()).unwrap();
    record
}

fn model_in(record: &Record) -> &Value {
    &record.0[0]["plan"]["configurations"][0]["model"]
}

fn conversions(scratch: &Scratch) -> Vec<PathBuf> {
    files(&scratch.join("home/conversions"))
}

/// The models of the engines that were started since the last call of this function.
fn started(scratch: &Scratch) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(scratch.join("started")).unwrap_or_default();
    let _ = std::fs::remove_file(scratch.join("started"));
    text.lines().map(PathBuf::from).collect()
}

// The record.

#[test]
fn every_record_has_format_architecture_dtype_and_identity_of_the_weights() {
    let scratch = Scratch::new();
    let engine = reader_of(&scratch, "safetensors");
    run(&scratch, &[&engine], &[]).exits_with(0);
    let embedded = take_record(&scratch);
    assert_eq!(model_in(&embedded)["name"], "embedded");

    scratch.synth("tiny-qwen2", "q8_0", "mine.gguf");
    let reader = reader_of(&scratch, "gguf");
    run(&scratch, &[&reader], &["-m", "mine.gguf"]).exits_with(0);
    let mine = take_record(&scratch);
    let expected = [("format", "gguf"), ("architecture", "qwen2"), ("dtype", "q8_0"), ("name", "mine")];
    for (field, value) in expected {
        assert_eq!(model_in(&mine)[field], value, "{}", model_in(&mine));
    }
    let info = scratch.model(&["info", "mine.gguf", "--identity", "--json"]);
    let facts: Value = serde_json::from_str(&info.stdout).unwrap();
    assert_eq!(model_in(&mine)["identity"], facts["identity"]);
    let digits = [&embedded, &mine].map(|record| model_in(record)["identity"].as_str().unwrap().len());
    assert_eq!(digits, [32, 32]);
}

#[test]
fn a_model_of_an_unexpected_architecture_is_refused_before_the_run() {
    let scratch = Scratch::new();
    let engine = reader_of(&scratch, "safetensors");
    let outcome = run(&scratch, &[&engine], &["--model-type", "gpt2"]);
    assert_refused(&outcome, 2, &["`embedded`", "model type mismatch: expected `gpt2`, found `llama`"]);
    assert!(started(&scratch).is_empty() && files(&scratch.results()).is_empty());
    run(&scratch, &[&engine], &["--model-type", "llama"]).exits_with(0);
}

#[test]
fn a_broken_model_is_a_row_and_the_other_model_is_measured() {
    let scratch = Scratch::new();
    let engine = reader_of(&scratch, "safetensors");
    scratch.synth("tiny-llama", "bf16", "whole");
    let weights = scratch.synth("tiny-llama", "bf16", "broken").join("model.safetensors");
    let half_bytes = weights.metadata().unwrap().len() / 2;
    std::fs::File::options().write(true).open(&weights).unwrap().set_len(half_bytes).unwrap();
    run(&scratch, &[&engine], &["-m", "broken,whole"]).exits_with(4);
    let record = take_record(&scratch);
    let failure = record.failure_of("reads-safetensors broken");
    assert_eq!(failure["kind"], "model");
    assert!(failure["message"].as_str().unwrap().contains("broken/model.safetensors`"), "{failure}");
    assert_eq!(record.samples_of("reads-safetensors whole").len(), 1);
    assert_eq!(record.end(), Some("finished"));
}

// Models in a format that the engine reads.

#[test]
fn a_folder_is_converted_once_for_an_engine_that_reads_gguf() {
    let scratch = Scratch::new();
    let engine = reader_of(&scratch, "gguf");
    let model = scratch.synth("tiny-llama", "bf16", "mine");
    let mut first_file = None;
    for _ in 0..2 {
        let outcome = run(&scratch, &[&engine], &["-m", "mine", "--debug"]).exits_with(0);
        let record = take_record(&scratch);
        let launch = record.only("launch");
        let converted = &launch["converted"];
        assert_eq!((&converted["format"], &converted["dtype"]), (&json!("gguf"), &json!("bf16")));
        let path = PathBuf::from(converted["path"].as_str().unwrap());
        assert!(
            path.starts_with(scratch.join("home/conversions")) && path.ends_with("mine-bf16.gguf"),
            "{path:?}"
        );
        let load = outcome.stderr.lines().find(|line| line.contains("{\"type\":\"load\"")).unwrap();
        assert!(load.contains(&*path.to_string_lossy()), "{load}");
        assert_eq!(started(&scratch).last(), Some(&path));
        assert_eq!(record.samples_of("reads-gguf").len(), 1);
        // The plan names the user's model, not its conversion.
        assert_eq!(model_in(&record)["path"].as_str(), model.to_str());
        assert_eq!(model_in(&record)["format"], "safetensors");
        // The second run uses the file of the first.
        let metadata = path.metadata().unwrap();
        let file = (metadata.ino(), metadata.mtime_nsec());
        assert_eq!(*first_file.get_or_insert(file), file);
    }
    assert_eq!(conversions(&scratch).len(), 1);
}

#[test]
fn a_gguf_is_converted_for_an_engine_that_reads_safetensors() {
    let scratch = Scratch::new();
    let engine = reader_of(&scratch, "safetensors");
    for (dtype, converted_dtype) in [("bf16", "bf16"), ("q8_0", "f32")] {
        scratch.synth("tiny-gpt2", dtype, &format!("{dtype}.gguf"));
        run(&scratch, &[&engine], &["-m", &format!("{dtype}.gguf")]).exits_with(0);
        let record = take_record(&scratch);
        let converted = &record.entries("launch")[0]["converted"];
        assert_eq!(
            (&converted["format"], &converted["dtype"]),
            (&json!("safetensors"), &json!(converted_dtype))
        );
        let folder = PathBuf::from(converted["path"].as_str().unwrap());
        assert!(folder.join("tokenizer.json").is_file() && folder.join("model.safetensors").is_file());
        assert_eq!(started(&scratch).last(), Some(&folder));
    }
}

#[test]
fn an_engine_that_reads_both_formats_gets_the_model_unconverted() {
    let scratch = Scratch::new();
    // With its quotes, this text is two formats in the JSON list.
    let engine = reader_of(&scratch, "safetensors\",\"gguf");
    let model = scratch.synth("tiny-gpt2", "q4_0", "mine.gguf");
    run(&scratch, &[&engine], &["-m", "mine.gguf"]).exits_with(0);
    assert_eq!(started(&scratch), [model]);
    assert!(take_record(&scratch).entries("launch")[0].get("converted").is_none());
    assert!(conversions(&scratch).is_empty());
}

#[test]
fn a_model_is_converted_to_the_requested_dtype() {
    let scratch = Scratch::new();
    let engine = reader_of(&scratch, "gguf");
    scratch.synth("tiny-llama", "f32", "mine");
    let outcome = run(&scratch, &[&engine], &["-m", "mine", "--dtype", "q8_0"]);
    let record = take_record(&scratch);
    assert_eq!(record.entries("launch")[0]["converted"]["dtype"], "q8_0", "{outcome:?}");
}

#[test]
fn one_shot_requests_use_the_converted_model() {
    let scratch = Scratch::new();
    let engine = reader_of(&scratch, "gguf");
    scratch.synth("tiny-llama", "bf16", "mine");
    run(&scratch, &[&engine], &["-m", "mine", "--mode", "one-shot"]).exits_with(0);
    let record = take_record(&scratch);
    assert!(!record.entries("launch").is_empty());
    assert!(record.entries("launch").iter().all(|launch| launch["converted"]["format"] == "gguf"));
    let models = started(&scratch);
    // The first process only reports the formats of the engine, so its model need not be converted.
    assert!(
        models.len() > 1 && models[1..].iter().all(|model| model.extension().unwrap() == "gguf"),
        "{models:?}"
    );
}

#[test]
fn an_impossible_conversion_is_a_row_with_its_reason() {
    let scratch = Scratch::new();
    let model = scratch.synth("tiny-llama", "bf16", "mine");
    edit_json(&model.join("config.json"), |config| drop(config.insert("model_type".into(), "falcon".into())));
    let [gguf, onnx, safetensors] = ["gguf", "onnx", "safetensors"].map(|format| reader_of(&scratch, format));
    run(&scratch, &[&gguf, &onnx, &safetensors], &["-m", "mine"]).exits_with(4);
    let record = take_record(&scratch);
    for (label, words) in [
        ("reads-gguf", &["reads `gguf`", "cannot be converted", "architecture `falcon` is not one of"][..]),
        ("reads-onnx", &["reads `onnx`", "the model is `safetensors`"]),
    ] {
        let failure = record.failure_of(label);
        assert_eq!((&failure["kind"], &failure["when"]), (&json!("unsupported"), &json!("load")));
        let message = failure["message"].as_str().unwrap();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
        assert!(record.samples_of(label).is_empty());
    }
    assert_eq!(record.samples_of("reads-safetensors").len(), 1);
    assert!(conversions(&scratch).is_empty(), "{:?}", conversions(&scratch));
}

#[test]
fn the_conversion_cache_is_listed_limited_and_cleared() {
    let scratch = Scratch::new();
    let engine = reader_of(&scratch, "gguf");
    let cache = |words: &[&str]| {
        let outcome = scratch.model(&[&["cache"], words].concat());
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
        outcome.stdout
    };
    for model in ["tiny-llama", "tiny-gpt2"] {
        scratch.synth(model, "bf16", model);
        run(&scratch, &[&engine], &["-m", model]).exits_with(0);
    }
    let list = cache(&["--list"]);
    let rows: Vec<_> = list.lines().filter(|line| line.contains(" as gguf bf16: ")).collect();
    // The most recently used conversion comes first.
    assert!(rows[0].starts_with("tiny-gpt2 ") && rows[1].starts_with("tiny-llama "), "{list}");
    assert!(list.ends_with(" in 2 conversions, limit 20.0 GB\n"), "{list}");
    // The limit has room for one conversion, so the older one is removed.
    cache(&["--limit", "6MB"]);
    let list = cache(&[]);
    assert!(
        list.contains("tiny-gpt2 ") && !list.contains("tiny-llama ") && list.contains("limit 6.00 MB"),
        "{list}"
    );
    assert_eq!(conversions(&scratch).iter().filter(|path| path.is_dir()).count(), 1);
    // The limit applies to later runs; a conversion in use stays.
    run(&scratch, &[&engine], &["-m", "tiny-llama"]).exits_with(0);
    let list = cache(&[]);
    assert!(list.contains("tiny-llama ") && !list.contains("tiny-gpt2 "), "{list}");
    let evicted = cache(&["--limit", "1MB"]);
    assert!(evicted.starts_with("the limit of conversions is 1.00 MB; removed "), "{evicted}");
    assert!(cache(&[]).starts_with("0 B in 0 conversions"), "{}", cache(&[]));
    run(&scratch, &[&engine], &["-m", "tiny-llama"]).exits_with(0);
    assert!(cache(&["--clear"]).starts_with("removed 4."), "a tiny-llama takes 4 MB: {}", cache(&[]));
    assert!(conversions(&scratch).iter().all(|path| !path.is_dir()));
}

#[test]
fn an_incomplete_conversion_is_repeated() {
    let scratch = Scratch::new();
    let engine = reader_of(&scratch, "gguf");
    scratch.synth("tiny-llama", "bf16", "mine");
    run(&scratch, &[&engine], &["-m", "mine"]).exits_with(0);
    // A power cut may leave a conversion without `conversion.json`, which is written last.
    let folder = conversions(&scratch).into_iter().find(|path| path.is_dir()).unwrap();
    std::fs::remove_file(folder.join("conversion.json")).unwrap();
    std::fs::write(folder.join("mine-bf16.gguf"), "half").unwrap();
    run(&scratch, &[&engine], &["-m", "mine"]).exits_with(0);
    assert!(folder.join("mine-bf16.gguf").metadata().unwrap().len() > 1_000_000);
}

#[test]
fn a_hub_model_is_converted_under_its_own_name() {
    let scratch = Scratch::new();
    let engine = reader_of(&scratch, "gguf");
    write_pulled_model(&scratch, "someone/tiny");
    for _ in 0..2 {
        let mut command = command(&scratch, &[&engine], &["-m", "someone/tiny"]);
        finish(command.env("HF_HOME", scratch.join("home/hf")).env_remove("HF_HUB_CACHE")).exits_with(0);
        let record = take_record(&scratch);
        let path = PathBuf::from(record.entries("launch")[0]["converted"]["path"].as_str().unwrap());
        assert!(path.is_file() && path.ends_with("tiny-bf16.gguf"), "{path:?}");
        assert_eq!(model_in(&record)["name"], "someone/tiny");
    }
}

#[test]
fn a_run_removes_incomplete_conversions_of_a_killed_run() {
    let scratch = Scratch::new();
    let engine = reader_of(&scratch, "gguf");
    scratch.synth("tiny-llama", "bf16", "mine");
    // No process has this number, because it is above the kernel's maximum.
    let abandoned = scratch.join("home/conversions/.0123-gguf-bf16.part-4194305");
    std::fs::create_dir_all(&abandoned).unwrap();
    std::fs::write(abandoned.join("half.gguf"), "half").unwrap();
    run(&scratch, &[&engine], &["-m", "mine"]).exits_with(0);
    assert!(!abandoned.exists() && conversions(&scratch).len() == 1, "{:?}", conversions(&scratch));
}

#[test]
fn an_interrupted_conversion_leaves_no_cache_entry() {
    let scratch = Scratch::new();
    let engine = reader_of(&scratch, "gguf");
    write_sparse_model(&scratch.join("slow"), &large_config());
    let small = scratch.synth("tiny-llama", "bf16", "small");
    std::fs::copy(small.join("tokenizer.json"), scratch.join("slow/tokenizer.json")).unwrap();
    let running = Running::start(&mut command(&scratch, &[&engine], &["-m", "slow", "--dtype", "q4_k"]));
    let is_half_made = |folder: &PathBuf| files(folder).iter().any(|path| path.join("model.gguf").exists());
    wait_until("the conversion writes a file", || conversions(&scratch).iter().any(is_half_made));
    running.interrupt();
    assert_eq!(take_record(&scratch).end(), Some("interrupted"));
    assert!(conversions(&scratch).is_empty(), "{:?}", conversions(&scratch));
    scratch.assert_no_processes_left();
}

/// Waits until a process reads this pipe, and returns the end for writing.
fn writer_of(pipe: &Path) -> std::fs::File {
    // Without blocking, a pipe can be opened for writing only while a process reads it.
    let writer = || {
        let is_pipe = std::os::unix::fs::FileTypeExt::is_fifo(&pipe.metadata().ok()?.file_type());
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        is_pipe.then(|| std::fs::File::options().write(true).custom_flags(nonblocking).open(pipe).ok())?
    };
    let mut open = None;
    wait_until("a process reads the pipe", || {
        open = writer();
        open.is_some()
    });
    open.unwrap()
}

#[test]
fn an_interrupt_ends_a_conversion_that_waits_for_the_disk() {
    let scratch = Scratch::new();
    let template = scratch.synth("tiny-llama", "bf16", "mine").join("chat_template.jinja");
    // The engine makes this file of the model a pipe, so a conversion that reads it waits.
    let (fake, file) = (fake_engine().display(), template.display());
    let text = format!(
        "[ -p '{file}' ] || mkfifo '{file}'\nexec '{fake}' --capabilities '{{\"formats\":[\"gguf\"]}}'"
    );
    let engine = scratch.script("reads-gguf", &text);
    let running = Running::start(&mut command(&scratch, &[&engine], &["-m", "mine"]));
    let _open = writer_of(&template);
    running.interrupt();
    assert_eq!(take_record(&scratch).end(), Some("interrupted"));
    scratch.assert_no_processes_left();
}

#[test]
fn an_interrupt_ends_a_run_that_waits_for_reference_answers() {
    let scratch = Scratch::new();
    let pipe = scratch.synth("tiny-llama", "bf16", "mine").join("reference-answers.json");
    finish(scratch.command("mkfifo").arg(&pipe)).exits_with(0);
    let mut command = command(&scratch, &[fake_engine()], &["-m", "mine"]);
    let running = Running::start(command.env_remove("ORCHESTRATE_VERIFIER"));
    let _open = writer_of(&pipe);
    running.interrupt();
    assert_eq!(take_record(&scratch).end(), Some("interrupted"));
    scratch.assert_no_processes_left();
}
