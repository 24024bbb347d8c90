//! Corrupt files, through the whole program: one error that names the file, a documented exit code, no files left.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::support::models::{assert_refused, edit_json};
use crate::support::record::Record;
use crate::support::{Outcome, Scratch, command, fake_engine, finish};

/// A change to a model, and the words of the error.
type Corruption = (&'static str, fn(&Path), &'static str);

const FOLDER: &[Corruption] = &[
    ("weights gone", |it| std::fs::remove_file(it.join("model.safetensors")).unwrap(), "`model`"),
    ("weights empty", |it| std::fs::write(it.join("model.safetensors"), "").unwrap(), "model.safetensors`"),
    ("weights of seven bytes", |it| cut(&it.join("model.safetensors"), 7), "model.safetensors`"),
    ("weights cut after the length", |it| cut(&it.join("model.safetensors"), 8), "model.safetensors`"),
    ("weights cut in the header", |it| cut(&it.join("model.safetensors"), 1000), "model.safetensors`"),
    ("weights cut in a tensor", |it| cut(&it.join("model.safetensors"), 100_000), "model.safetensors`"),
    ("weights too long", |it| append(&it.join("model.safetensors"), b"more"), "model.safetensors`"),
    ("weights are a folder", |it| become_folder(&it.join("model.safetensors")), "`model`"),
    ("weights are a pipe", |it| become_pipe(&it.join("model.safetensors")), "`model`"),
    ("weights are a link to nowhere", |it| become_link(&it.join("model.safetensors"), "nowhere"), "`model`"),
    (
        "weights are a link to themselves",
        |it| become_link(&it.join("model.safetensors"), "model.safetensors"),
        "`model`",
    ),
    ("weights that never end", |it| become_link(&it.join("model.safetensors"), "/dev/zero"), "`model`"),
    (
        "weights are text",
        |it| {
            std::fs::write(
                it.join("model.safetensors"),
                "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n",
            )
            .unwrap()
        },
        "model.safetensors`",
    ),
    (
        "header of 2^64 - 1 bytes",
        |it| overwrite(&it.join("model.safetensors"), 0, &[255; 8]),
        "model.safetensors`",
    ),
    ("header of 0 bytes", |it| overwrite(&it.join("model.safetensors"), 0, &[0; 8]), "model.safetensors`"),
    (
        "header is no UTF-8",
        |it| overwrite(&it.join("model.safetensors"), 40, &[0xff, 0xfe]),
        "model.safetensors`",
    ),
    (
        "header nested without end",
        |it| overwrite(&it.join("model.safetensors"), 8, &[b'['; 1500]),
        "model.safetensors`",
    ),
    ("header is a list", |it| header(it, |_| json!([1, 2])), "model.safetensors`"),
    ("header without tensors", |it| header(it, |_| json!({})), "model.safetensors`"),
    (
        "a tensor is missing",
        |it| tensors(it, |all| drop(all.remove("model.norm.weight"))),
        "model.safetensors`",
    ),
    (
        "a tensor has another name",
        |it| rename(it, "model.norm.weight", "model.abnorm.weight"),
        "`model.norm.weight` is missing",
    ),
    ("a tensor has another shape", |it| entry(it, "shape", json!([1, 256])), "`model.norm.weight`"),
    ("a shape with a negative size", |it| entry(it, "shape", json!([-256])), "model.safetensors`"),
    ("a shape that overflows", |it| entry(it, "shape", json!([u64::MAX, u64::MAX])), "`model.norm.weight`"),
    ("offsets that run backwards", |it| entry(it, "data_offsets", json!([512, 0])), "`model.norm.weight`"),
    (
        "offsets beyond the file",
        |it| entry(it, "data_offsets", json!([u64::MAX - 512, u64::MAX])),
        "`model.norm.weight`",
    ),
    ("offsets of another tensor", |it| entry(it, "data_offsets", json!([0, 512])), "model.safetensors`"),
    ("a dtype of nobody", |it| entry(it, "dtype", json!("F12\u{1b}[31m")), "`F12\\u{1b}[31m`"),
    ("a dtype without numbers", |it| entry(it, "dtype", json!("BOOL")), "`model.norm.weight`"),
    ("config gone", |it| std::fs::remove_file(it.join("config.json")).unwrap(), "config.json`"),
    ("config empty", |it| std::fs::write(it.join("config.json"), "").unwrap(), "config.json`"),
    ("config is a list", |it| std::fs::write(it.join("config.json"), "[]").unwrap(), "config.json`"),
    ("config is no JSON", |it| cut(&it.join("config.json"), 100), "config.json`"),
    (
        "config nested without end",
        |it| std::fs::write(it.join("config.json"), "[".repeat(100_000)).unwrap(),
        "config.json`",
    ),
    ("config is a folder", |it| become_folder(&it.join("config.json")), "config.json`"),
    ("config is a pipe", |it| become_pipe(&it.join("config.json")), "config.json`"),
    ("config of too many layers", |it| config(it, "num_hidden_layers", json!(u32::MAX)), "config.json`"),
    ("config of too large a model", |it| config(it, "hidden_size", json!(u32::MAX)), "config.json`"),
    ("config of an odd head", |it| config(it, "head_dim", json!(63)), "config.json`"),
    ("config of heads that do not divide", |it| config(it, "num_key_value_heads", json!(3)), "config.json`"),
    ("config with rope that is no number", |it| config(it, "rope_theta", json!(-1.0)), "config.json`"),
    (
        "generation config is no JSON",
        |it| std::fs::write(it.join("generation_config.json"), "{").unwrap(),
        "generation_config.json`",
    ),
    (
        "generation config with a text for an id",
        |it| std::fs::write(it.join("generation_config.json"), "{\"eos_token_id\":\"</s>\"}").unwrap(),
        "`eos_token_id`",
    ),
    ("tokenizer empty", |it| std::fs::write(it.join("tokenizer.json"), "").unwrap(), "tokenizer.json`"),
    ("tokenizer is a list", |it| std::fs::write(it.join("tokenizer.json"), "[]").unwrap(), "tokenizer.json`"),
    (
        "tokenizer without a model",
        |it| std::fs::write(it.join("tokenizer.json"), "{}").unwrap(),
        "tokenizer.json`",
    ),
    ("tokenizer cut", |it| cut(&it.join("tokenizer.json"), 2000), "tokenizer.json`"),
    ("index is no JSON", |it| index(it, "{"), "index.json`"),
    ("index of nothing", |it| index(it, "{\"weight_map\":{}}"), "index.json`"),
    (
        "index that climbs out",
        |it| index(it, "{\"weight_map\":{\"x\":\"../model.safetensors\"}}"),
        "`../model.safetensors` is no file name",
    ),
    (
        "index that starts at the root",
        |it| index(it, "{\"weight_map\":{\"x\":\"/etc/passwd\"}}"),
        "index.json`",
    ),
    (
        "index of a shard that is missing",
        |it| index(it, "{\"weight_map\":{\"x\":\"model-2.safetensors\"}}"),
        "`model-2.safetensors` is missing",
    ),
    (
        "index of a tensor that is missing",
        |it| index(it, "{\"weight_map\":{\"x\":\"model.safetensors\"}}"),
        "tensor `x` is not in `model.safetensors`",
    ),
    (
        "two files and no index",
        |it| {
            drop(
                std::fs::copy(it.join("model.safetensors"), it.join("more.safetensors")).and_then(|_| {
                    std::fs::rename(it.join("model.safetensors"), it.join("other.safetensors"))
                }),
            )
        },
        "2 safetensors files",
    ),
    ("a tensor in two shards", twice, "is in another file too"),
];

#[test]
fn info_and_convert_refuse_every_broken_folder_with_its_fault() {
    let scratch = Scratch::new();
    let whole = scratch.synth("tiny-llama", "bf16", "whole");
    for (what, deed, named) in FOLDER {
        let model = copy_of(&whole, &scratch.join("model"));
        deed(&model);
        let before = scratch.everything();
        for words in [&["info", "model"][..], &["convert", "model", "--to", "gguf", "--out", "out.gguf"]] {
            let outcome = bounded(&scratch, &[&["model"], words].concat());
            refused(what, &outcome, named);
            assert_eq!(scratch.everything(), before, "{what}: {outcome:?}");
        }
    }
}

#[test]
fn a_broken_folder_is_a_row_of_a_run() {
    let scratch = Scratch::new();
    let whole = scratch.synth("tiny-llama", "bf16", "whole");
    // Changes that would stop an engine too; without a prompt no request is sent.
    let some =
        FOLDER.iter().filter(|(what, ..)| what.starts_with("weights") || what.starts_with("tokenizer"));
    for (what, deed, _) in some.step_by(4) {
        let model = copy_of(&whole, &scratch.join("model"));
        deed(&model);
        let mut command = scratch.orchestrate();
        command
            .args(["-s", "decode", "--iterations", "1", "--blocks", "1", "-m", "model", "-e"])
            .arg(fake_engine());
        let outcome = finish(command.arg("--results").arg(scratch.results()).current_dir(&scratch.path));
        assert!(outcome.code == Some(4) && !outcome.stderr.contains("panicked"), "{what}: {outcome:?}");
        let record = Record::only_one_in(&scratch.results());
        let [failure] = &record.failures_of("fake-engine")[..] else { panic!("{what}: {record:?}") };
        assert!(
            failure["kind"] == "model" && failure["message"].as_str().unwrap().contains("model"),
            "{failure}"
        );
        assert_eq!(record.end(), Some("finished"), "{what}");
        std::fs::remove_dir_all(scratch.results()).unwrap();
    }
}

const FILE: &[Corruption] = &[
    ("empty", |it| cut(it, 0), "model.gguf`"),
    ("of another kind", |it| overwrite(it, 0, b"GGML"), "not a GGUF file"),
    ("of version 99", |it| overwrite(it, 4, &99_u32.to_le_bytes()), "version 99"),
    ("of the other byte order", |it| overwrite(it, 4, &3_u32.to_be_bytes()), "big-endian"),
    ("of 2^64 - 1 tensors", |it| overwrite(it, 8, &[255; 8]), "tensors"),
    ("of 2^64 - 1 values", |it| overwrite(it, 16, &[255; 8]), "metadata values"),
    ("of one tensor more", |it| overwrite(it, 8, &23_u64.to_le_bytes()), "model.gguf`"),
    ("of no tensors", |it| overwrite(it, 8, &[0; 8]), "model.gguf`"),
    ("of no values", |it| overwrite(it, 16, &[0; 8]), "model.gguf`"),
    ("of a key of 2^63 bytes", |it| overwrite(it, 24, &(1_u64 << 63).to_le_bytes()), "model.gguf`"),
    ("that is a folder", become_folder, "model.gguf`"),
    ("that is a pipe", become_pipe, "model.gguf`"),
    ("that never ends", |it| become_link(it, "/dev/zero"), "model.gguf`"),
];

#[test]
fn info_and_convert_refuse_every_broken_file_with_its_fault() {
    let scratch = Scratch::new();
    let whole = scratch.synth("tiny-llama", "q8_0", "whole.gguf");
    for (what, deed, named) in FILE {
        let model = scratch.join("model.gguf");
        clear(&model);
        std::fs::copy(&whole, &model).unwrap();
        deed(&model);
        let before = scratch.everything();
        for words in [
            &["info", "model.gguf"][..],
            &["convert", "model.gguf", "--to", "safetensors", "--dtype", "f32", "--out", "out"],
        ] {
            let outcome = bounded(&scratch, &[&["model"], words].concat());
            refused(what, &outcome, named);
            assert_eq!(scratch.everything(), before, "{what}: {outcome:?}");
        }
    }
}

#[test]
fn a_truncated_file_is_refused() {
    let scratch = Scratch::new();
    let folder = scratch.synth("tiny-gpt2", "bf16", "model").join("model.safetensors");
    let file = scratch.synth("tiny-gpt2", "q4_0", "model.gguf");
    for (path, name) in [(folder, "model"), (file, "model.gguf")] {
        let whole = std::fs::read(&path).unwrap();
        // Through the header in small steps, through the rest in large ones, and the last byte.
        let cuts = (0..12).map(|step| step * 7).chain((1..20).map(|step| whole.len() * step / 20));
        for bytes in cuts.chain([whole.len() - 1]) {
            std::fs::write(&path, &whole[..bytes]).unwrap();
            refused(&format!("{bytes} bytes of {name}"), &bounded(&scratch, &["model", "info", name]), name);
        }
    }
}

#[test]
fn a_flipped_bit_in_a_header_is_refused_or_harmless_and_never_a_panic() {
    let scratch = Scratch::new();
    let folder = scratch.synth("tiny-qwen3", "bf16", "model").join("model.safetensors");
    let file = scratch.synth("tiny-qwen3", "q8_0", "model.gguf");
    for (path, name, header_bytes) in [(folder, "model", 2400), (file, "model.gguf", 1200)] {
        let whole = std::fs::read(&path).unwrap();
        for place in (0..header_bytes).step_by(header_bytes / 40 + 1) {
            let mut bytes = whole.clone();
            bytes[place] ^= 1 << (place % 8);
            std::fs::write(&path, bytes).unwrap();
            let to = if name == "model" { "gguf" } else { "safetensors" };
            for words in
                [&["info", name][..], &["convert", name, "--to", to, "--dtype", "f32", "--out", "out.gguf"]]
            {
                let what = format!("bit {} of byte {place} of {name}, {words:?}", place % 8);
                let outcome = bounded(&scratch, &[&["model"], words].concat());
                if outcome.code == Some(0) {
                    clear(&scratch.join("out.gguf"));
                } else {
                    refused(&what, &outcome, "model");
                }
                assert!(!scratch.everything().iter().any(|it| it.contains("out.gguf")), "{what}");
            }
        }
    }
}

/// Runs with little memory and little time: a claimed size must not be allocated.
fn bounded(scratch: &Scratch, words: &[&str]) -> Outcome {
    let mut shell = scratch.marked("sh");
    shell.args([
        "-c",
        "ulimit -v 4000000; ulimit -t 20; exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_orchestrate"),
    ]);
    finish(shell.args(words).current_dir(&scratch.path))
}

#[track_caller]
fn refused(what: &str, outcome: &Outcome, named: &str) {
    assert!(matches!(outcome.code, Some(2 | 5)), "{what}: {outcome:?}");
    assert_refused(outcome, outcome.code.unwrap(), &[]);
    outcome.assert_stderr(&[named]);
    let longest = outcome.stderr.lines().map(str::len).max().unwrap_or(0);
    assert!(longest < 1000 && !outcome.stderr.contains('\u{1b}'), "{what}: {outcome:?}");
}

// Changes to models.

fn copy_of(whole: &Path, to: &Path) -> std::path::PathBuf {
    clear(to);
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(whole).unwrap().flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    to.into()
}

fn clear(path: &Path) {
    let _ = std::fs::remove_file(path);
    let _ = std::fs::remove_dir_all(path);
}

fn cut(path: &Path, bytes: u64) {
    std::fs::File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn append(path: &Path, bytes: &[u8]) {
    std::fs::write(path, [&std::fs::read(path).unwrap(), bytes].concat()).unwrap();
}

fn overwrite(path: &Path, at: usize, bytes: &[u8]) {
    let mut all = std::fs::read(path).unwrap();
    all[at..at + bytes.len()].copy_from_slice(bytes);
    std::fs::write(path, all).unwrap();
}

fn become_folder(path: &Path) {
    std::fs::remove_file(path).unwrap();
    std::fs::create_dir(path).unwrap();
}

fn become_pipe(path: &Path) {
    std::fs::remove_file(path).unwrap();
    assert!(command("mkfifo").arg(path).status().unwrap().success());
}

fn become_link(path: &Path, to: &str) {
    std::fs::remove_file(path).unwrap();
    std::os::unix::fs::symlink(to, path).unwrap();
}

fn index(model: &Path, text: &str) {
    std::fs::write(model.join("model.safetensors.index.json"), text).unwrap();
}

fn config(model: &Path, key: &str, value: Value) {
    edit_json(&model.join("config.json"), |config| drop(config.insert(key.into(), value)));
}

/// Another header before the same tensors.
fn header(model: &Path, change: impl FnOnce(Map<String, Value>) -> Value) {
    let path = model.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = change(serde_json::from_slice(&bytes[8..8 + length]).unwrap()).to_string();
    let head = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&head[..], header.as_bytes(), &bytes[8 + length..]].concat()).unwrap();
}

fn tensors(model: &Path, change: impl FnOnce(&mut Map<String, Value>)) {
    header(model, |mut all| {
        change(&mut all);
        Value::Object(all)
    });
}

fn entry(model: &Path, field: &str, value: Value) {
    tensors(model, |all| all["model.norm.weight"][field] = value);
}

fn rename(model: &Path, old: &str, new: &str) {
    tensors(model, |all| {
        let entry = all.remove(old).unwrap();
        all.insert(new.into(), entry);
    });
}

/// Two complete files, and an index that takes one tensor from the second.
fn twice(model: &Path) {
    std::fs::copy(model.join("model.safetensors"), model.join("more.safetensors")).unwrap();
    index(
        model,
        "{\"weight_map\":{\"lm_head.weight\":\"model.safetensors\",\"model.norm.weight\":\"more.safetensors\"}}",
    );
}
