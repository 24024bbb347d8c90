//! Corrupt model files: each command prints one error that names the file or the fault, has a documented exit code, and leaves
//! no files.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::support::models::{assert_refused, edit_header, edit_json};
use crate::support::record::Record;
use crate::support::{DECODE, Outcome, Scratch, command, copy_folder, fake_engine, finish};

/// A corruption: its name, the change to a file, and the words of the error. Without words, the error names the file.
type Corruption = (&'static str, fn(&Path), &'static str);

/// The files of a model folder, each with its corruptions.
const FOLDER: &[(&str, &[Corruption])] = &[
    ("model.safetensors", WEIGHTS),
    ("model.safetensors", HEADER),
    ("config.json", CONFIG),
    ("generation_config.json", GENERATION_CONFIG),
    ("tokenizer.json", TOKENIZER),
    ("model.safetensors.index.json", INDEX),
];

const WEIGHTS: &[Corruption] = &[
    ("absent", |it| std::fs::remove_file(it).unwrap(), "`model`"),
    ("empty", |it| write(it, ""), ""),
    ("of seven bytes", |it| truncate_to(it, 7), ""),
    ("cut after the header length", |it| truncate_to(it, 8), ""),
    ("cut in the header", |it| truncate_to(it, 1000), ""),
    ("cut in a tensor", |it| truncate_to(it, 100_000), ""),
    ("too long", |it| append(it, b"more"), ""),
    ("a folder", become_folder, "`model`"),
    ("a pipe", become_pipe, "`model`"),
    ("a link to nowhere", |it| become_link(it, "nowhere"), "`model`"),
    ("a link to itself", |it| become_link(it, "model.safetensors"), "`model`"),
    ("without end", |it| become_link(it, "/dev/zero"), "`model`"),
    ("text", |it| write(it, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n"), ""),
];

const HEADER: &[Corruption] = &[
    ("header of 2^64 - 1 bytes", |it| overwrite(it, 0, &[255; 8]), ""),
    ("header of 0 bytes", |it| overwrite(it, 0, &[0; 8]), ""),
    ("header is no UTF-8", |it| overwrite(it, 40, &[0xff, 0xfe]), ""),
    ("header nested without end", |it| overwrite(it, 8, &[b'['; 1500]), ""),
    ("header is a list", |it| edit_header(it, |_| json!([1, 2])), ""),
    ("header without tensors", |it| edit_header(it, |_| json!({})), ""),
    ("a tensor is missing", |it| edit_tensors(it, |all| drop(all.remove(NORM))), ""),
    ("a tensor has another name", |it| edit_tensors(it, rename_norm), "`model.norm.weight` is missing"),
    ("a tensor has another shape", |it| set_norm_field(it, "shape", json!([1, 256])), "`model.norm.weight`"),
    ("a shape with a negative size", |it| set_norm_field(it, "shape", json!([-256])), ""),
    ("a shape that overflows", |it| set_norm_field(it, "shape", json!([MAX, MAX])), "`model.norm.weight`"),
    (
        "offsets that decrease",
        |it| set_norm_field(it, "data_offsets", json!([512, 0])),
        "`model.norm.weight`",
    ),
    (
        "offsets too large",
        |it| set_norm_field(it, "data_offsets", json!([MAX - 512, MAX])),
        "`model.norm.weight`",
    ),
    ("offsets of another tensor", |it| set_norm_field(it, "data_offsets", json!([0, 512])), ""),
    ("an unknown dtype", |it| set_norm_field(it, "dtype", json!("F12\u{1b}[31m")), "`F12\\u{1b}[31m`"),
    ("a dtype without numbers", |it| set_norm_field(it, "dtype", json!("BOOL")), "`model.norm.weight`"),
];

const NORM: &str = "model.norm.weight";
const MAX: u64 = u64::MAX;

const CONFIG: &[Corruption] = &[
    ("absent", |it| std::fs::remove_file(it).unwrap(), ""),
    ("empty", |it| write(it, ""), ""),
    ("a list", |it| write(it, "[]"), ""),
    ("no JSON", |it| truncate_to(it, 100), ""),
    ("nested without end", |it| write(it, &"[".repeat(100_000)), ""),
    ("a folder", become_folder, ""),
    ("a pipe", become_pipe, ""),
    ("too many layers", |it| set_field(it, "num_hidden_layers", json!(u32::MAX)), ""),
    ("too large a model", |it| set_field(it, "hidden_size", json!(u32::MAX)), ""),
    ("an odd head size", |it| set_field(it, "head_dim", json!(63)), ""),
    ("heads that are no multiple of KV heads", |it| set_field(it, "num_key_value_heads", json!(3)), ""),
    ("a negative rope base", |it| set_field(it, "rope_theta", json!(-1.0)), ""),
];

const GENERATION_CONFIG: &[Corruption] = &[
    ("no JSON", |it| write(it, "{"), ""),
    ("a text for an id", |it| write(it, r#"{"eos_token_id":"</s>"}"#), "`eos_token_id`"),
];

const TOKENIZER: &[Corruption] = &[
    ("empty", |it| write(it, ""), ""),
    ("a list", |it| write(it, "[]"), ""),
    ("without a model", |it| write(it, "{}"), ""),
    ("cut", |it| truncate_to(it, 2000), ""),
];

const INDEX: &[Corruption] = &[
    ("no JSON", |it| write(it, "{"), ""),
    ("of nothing", |it| write(it, r#"{"weight_map":{}}"#), ""),
    (
        "of a shard outside the folder",
        |it| write_index(it, "../model.safetensors"),
        "`../model.safetensors` is not a file name",
    ),
    ("of a shard at an absolute path", |it| write_index(it, "/etc/passwd"), ""),
    ("of a missing shard", |it| write_index(it, "model-2.safetensors"), "`model-2.safetensors` is missing"),
    (
        "of a missing tensor",
        |it| write_index(it, "model.safetensors"),
        "tensor `x` is not in `model.safetensors`",
    ),
    ("absent with two files", leave_two_files, "2 safetensors files"),
    ("of a tensor in two shards", write_tensor_in_two_files, "is in another file too"),
];

/// Copies the model, corrupts a file of the copy, and returns the words that the error must have.
fn corrupt(whole: &Path, model: &Path, file: &str, (_, change, words): &Corruption) -> String {
    clear(model);
    copy_folder(whole, model);
    change(&model.join(file));
    if words.is_empty() { format!("{file}`") } else { words.to_string() }
}

#[test]
fn info_and_convert_refuse_every_broken_folder_with_its_fault() {
    let scratch = Scratch::new();
    let whole = scratch.synth("tiny-llama", "bf16", "whole");
    for (file, corruption) in
        FOLDER.iter().flat_map(|(file, list)| list.iter().map(move |corruption| (file, corruption)))
    {
        let words = corrupt(&whole, &scratch.join("model"), file, corruption);
        let convert = &["convert", "model", "--to", "gguf", "--out", "out.gguf"];
        for command in [&["info", "model"][..], convert] {
            assert_refused_unchanged(&scratch, command, &format!("{file}: {}", corruption.0), &words);
        }
    }
}

#[test]
fn a_broken_folder_is_a_row_of_a_run() {
    let scratch = Scratch::new();
    let whole = scratch.synth("tiny-llama", "bf16", "whole");
    // Every fourth of these corruptions. Each makes the model unusable before the first request.
    let weights = WEIGHTS.iter().map(|corruption| ("model.safetensors", corruption));
    let tokenizers = TOKENIZER.iter().map(|corruption| ("tokenizer.json", corruption));
    for (file, corruption) in weights.chain(tokenizers).step_by(4) {
        let case = corruption.0;
        corrupt(&whole, &scratch.join("model"), file, corruption);
        let mut command = scratch.orchestrate();
        command
            .args(DECODE)
            .args(["--iterations", "1", "--blocks", "1", "-m", "model", "-e"])
            .arg(fake_engine());
        let outcome = finish(command.arg("--results").arg(scratch.results()).current_dir(&scratch.path));
        assert!(outcome.code == Some(4) && !outcome.stderr.contains("panicked"), "{case}: {outcome:?}");
        let record = Record::only_one_in(&scratch.results());
        let failure = record.failure_of("fake-engine");
        assert_eq!(failure["kind"], "model", "{case}: {failure}");
        assert!(failure["message"].as_str().unwrap().contains("model"), "{case}: {failure}");
        assert_eq!(record.end(), Some("finished"), "{case}");
        std::fs::remove_dir_all(scratch.results()).unwrap();
    }
}

#[test]
fn the_row_of_a_model_that_cannot_be_opened_has_a_reason_and_a_separate_hint() {
    let scratch = Scratch::new();
    scratch.synth("tiny-llama", "q8_0", "model/a.gguf");
    std::fs::copy(scratch.join("model/a.gguf"), scratch.join("model/b.gguf")).unwrap();
    let failure_of = |model: &str| {
        let mut command = scratch.orchestrate();
        command.args(DECODE).args(["--iterations", "1", "--blocks", "1", "-m", model, "-e"]);
        command.arg(fake_engine()).arg("--results").arg(scratch.results()).current_dir(&scratch.path);
        finish(&mut command).exits_with(4);
        let failure = Record::only_one_in(&scratch.results()).failure_of("fake-engine").clone();
        std::fs::remove_dir_all(scratch.results()).unwrap();
        failure
    };
    let failure = failure_of("model");
    let message = failure["message"].as_str().unwrap();
    assert!(message.ends_with("2 `.gguf` files in the folder"), "{failure}");
    assert!(failure["hint"].as_str().unwrap().starts_with("name one of them: `"), "{failure}");
    // Nothing writes into the pipe, so a program that opens it would wait forever.
    assert!(command("mkfifo").arg(scratch.join("pipe")).status().unwrap().success());
    for (model, kind) in [("pipe", "a pipe"), ("/dev/zero", "a device")] {
        let failure = failure_of(model);
        let message = failure["message"].as_str().unwrap();
        assert!(
            message.ends_with(&format!("expected a folder or a `.gguf` file, found {kind}")),
            "{failure}"
        );
    }
}

const GGUF: &[Corruption] = &[
    ("empty", |it| truncate_to(it, 0), "model.gguf`"),
    ("of another kind", |it| overwrite(it, 0, b"GGML"), "not a GGUF file"),
    ("of version 99", |it| overwrite(it, 4, &99_u32.to_le_bytes()), "version 99"),
    ("of the other byte order", |it| overwrite(it, 4, &3_u32.to_be_bytes()), "big-endian"),
    ("of 2^64 - 1 tensors", |it| overwrite(it, 8, &[255; 8]), "tensors"),
    ("of 2^64 - 1 metadata values", |it| overwrite(it, 16, &[255; 8]), "metadata values"),
    ("of 23 tensors instead of 22", |it| overwrite(it, 8, &23_u64.to_le_bytes()), "model.gguf`"),
    ("of no tensors", |it| overwrite(it, 8, &[0; 8]), "model.gguf`"),
    ("of no metadata values", |it| overwrite(it, 16, &[0; 8]), "model.gguf`"),
    ("of a key of 2^63 bytes", |it| overwrite(it, 24, &(1_u64 << 63).to_le_bytes()), "model.gguf`"),
    ("that is a folder", become_folder, "model.gguf`"),
    ("that is a pipe", become_pipe, "expected a folder or a `.gguf` file, found a pipe"),
    (
        "that never ends",
        |it| become_link(it, "/dev/zero"),
        "expected a folder or a `.gguf` file, found a device",
    ),
];

#[test]
fn info_and_convert_refuse_every_broken_gguf_with_its_fault() {
    let scratch = Scratch::new();
    let whole = scratch.synth("tiny-llama", "q8_0", "whole.gguf");
    for (case, change, words) in GGUF {
        let model = scratch.join("model.gguf");
        clear(&model);
        std::fs::copy(&whole, &model).unwrap();
        change(&model);
        let convert = &["convert", "model.gguf", "--to", "safetensors", "--dtype", "f32", "--out", "out"];
        for command in [&["info", "model.gguf"][..], convert] {
            assert_refused_unchanged(&scratch, command, case, words);
        }
    }
}

#[test]
fn a_truncated_file_is_refused() {
    let scratch = Scratch::new();
    let safetensors = scratch.synth("tiny-gpt2", "bf16", "model").join("model.safetensors");
    let gguf = scratch.synth("tiny-gpt2", "q4_0", "model.gguf");
    for (path, name) in [(safetensors, "model"), (gguf, "model.gguf")] {
        let whole = std::fs::read(&path).unwrap();
        // Cuts inside the header in small steps, cuts of the whole file in large steps, and a cut before the last byte.
        let cuts = (0..12).map(|step| step * 7).chain((1..20).map(|step| whole.len() * step / 20));
        for bytes in cuts.chain([whole.len() - 1]) {
            std::fs::write(&path, &whole[..bytes]).unwrap();
            check_refusal(
                &format!("{bytes} bytes of {name}"),
                &run_with_limits(&scratch, &["model", "info", name]),
                name,
            );
        }
    }
}

#[test]
fn a_flipped_bit_in_a_header_is_refused_or_harmless_and_never_a_panic() {
    let scratch = Scratch::new();
    let safetensors = scratch.synth("tiny-qwen3", "bf16", "model").join("model.safetensors");
    let gguf = scratch.synth("tiny-qwen3", "q8_0", "model.gguf");
    for (path, name, header_bytes) in [(safetensors, "model", 2400), (gguf, "model.gguf", 1200)] {
        let whole = std::fs::read(&path).unwrap();
        for position in (0..header_bytes).step_by(header_bytes / 40 + 1) {
            let mut bytes = whole.clone();
            bytes[position] ^= 1 << (position % 8);
            std::fs::write(&path, bytes).unwrap();
            let to = if name == "model" { "gguf" } else { "safetensors" };
            for arguments in
                [&["info", name][..], &["convert", name, "--to", to, "--dtype", "f32", "--out", "out.gguf"]]
            {
                let case = format!("bit {} of byte {position} of {name}, {arguments:?}", position % 8);
                let outcome = run_with_limits(&scratch, &[&["model"], arguments].concat());
                if outcome.code == Some(0) {
                    clear(&scratch.join("out.gguf"));
                } else {
                    check_refusal(&case, &outcome, "model");
                }
                assert!(!scratch.all_paths().iter().any(|it| it.contains("out.gguf")), "{case}");
            }
        }
    }
}

/// Checks that the command is refused with the `expected` words, and neither adds nor removes a file.
fn assert_refused_unchanged(scratch: &Scratch, arguments: &[&str], case: &str, expected: &str) {
    let before = scratch.all_paths();
    let outcome = run_with_limits(scratch, &[&["model"], arguments].concat());
    check_refusal(case, &outcome, expected);
    assert_eq!(scratch.all_paths(), before, "{case}: {outcome:?}");
}

/// Runs the program with at most 4 GB of memory and 20 s of CPU time. An allocation of a corrupt size then fails the test.
fn run_with_limits(scratch: &Scratch, arguments: &[&str]) -> Outcome {
    let mut shell = scratch.command("sh");
    shell.args([
        "-c",
        "ulimit -v 4000000; ulimit -t 20; exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_orchestrate"),
    ]);
    finish(shell.args(arguments).current_dir(&scratch.path))
}

#[track_caller]
fn check_refusal(case: &str, outcome: &Outcome, expected: &str) {
    assert!(matches!(outcome.code, Some(2 | 5)), "{case}: {outcome:?}");
    assert_refused(outcome, outcome.code.unwrap(), &[expected]);
    let longest_line = outcome.stderr.lines().map(str::len).max().unwrap_or(0);
    assert!(longest_line < 1000 && !outcome.stderr.contains('\u{1b}'), "{case}: {outcome:?}");
}

fn clear(path: &Path) {
    let _ = std::fs::remove_file(path);
    let _ = std::fs::remove_dir_all(path);
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

fn truncate_to(path: &Path, bytes: u64) {
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

/// Writes an index in which the tensor `x` is in this file.
fn write_index(path: &Path, shard: &str) {
    write(path, &json!({ "weight_map": { "x": shard } }).to_string());
}

fn set_field(config: &Path, key: &str, value: Value) {
    edit_json(config, |config| drop(config.insert(key.into(), value)));
}

fn edit_tensors(path: &Path, change: impl FnOnce(&mut Map<String, Value>)) {
    edit_header(path, |mut all| {
        change(&mut all);
        Value::Object(all)
    });
}

fn set_norm_field(path: &Path, field: &str, value: Value) {
    edit_tensors(path, |all| all[NORM][field] = value);
}

fn rename_norm(tensors: &mut Map<String, Value>) {
    let entry = tensors.remove(NORM).unwrap();
    tensors.insert("model.abnorm.weight".into(), entry);
}

fn copy_weights(index: &Path, name: &str) {
    std::fs::copy(index.with_file_name("model.safetensors"), index.with_file_name(name)).unwrap();
}

/// Leaves two complete files without an index.
fn leave_two_files(index: &Path) {
    copy_weights(index, "more.safetensors");
    let weights = index.with_file_name("model.safetensors");
    std::fs::rename(&weights, weights.with_file_name("other.safetensors")).unwrap();
}

/// Writes a second complete file, and an index that takes one tensor from it.
fn write_tensor_in_two_files(index: &Path) {
    copy_weights(index, "more.safetensors");
    let map = json!({ "lm_head.weight": "model.safetensors", NORM: "more.safetensors" });
    write(index, &json!({ "weight_map": map }).to_string());
}
