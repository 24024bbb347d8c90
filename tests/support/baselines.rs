//! Shared parts of the baseline tests: engines with given times, runs with enough blocks for a verdict, a baseline's folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::record::files;
use super::{Outcome, Scratch, fake_engine, finish};

/// Five blocks are enough for a verdict.
pub const RUN: &[&str] =
    &["-s", "decode", "--depth", "0", "--iterations", "2", "--warmup", "1", "--blocks", "5"];
pub const SAVE: &[&str] = &["--save-baseline", "main"];
pub const COMPARE: &[&str] = &["--baseline", "main"];
pub const RERUN: &[&str] = &["--baseline", "main", "--rerun-baseline"];

/// An engine that reports this time between tokens.
pub fn engine(scratch: &Scratch, name: &str, per_token_ns: u32) -> PathBuf {
    scratch.engine(name, &format!("--real-sleep false --per-token-ns {per_token_ns}"))
}

/// An engine that reports another time between tokens in each launch: these, in order.
pub fn unsteady_engine(scratch: &Scratch, name: &str, per_token_ns: &[u32]) -> PathBuf {
    let (count, fake) = (scratch.join("launches"), fake_engine().display());
    let (count, times) =
        (count.display(), per_token_ns.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    let text = format!(
        "echo >> '{count}'\nset -- {times}\nshift $(( $(wc -l < '{count}') - 1 ))\n\
         exec '{fake}' --real-sleep false --per-token-ns \"$1\""
    );
    scratch.script(name, &text)
}

pub fn command(scratch: &Scratch, engine: &Path, words: &[&str]) -> Command {
    let mut command = scratch.orchestrate();
    // A prompt of the user has no depth.
    let has_prompt = words.contains(&"--prompt");
    let run = RUN.iter().filter(|word| !has_prompt || !["--depth", "0"].contains(*word));
    command.args(run).arg("-e").arg(engine).args(words);
    command.arg("--results").arg(scratch.results()).current_dir(&scratch.path);
    command
}

pub fn run(scratch: &Scratch, engine: &Path, words: &[&str]) -> Outcome {
    finish_without_panic(&mut command(scratch, engine, words))
}

pub fn finish_without_panic(command: &mut Command) -> Outcome {
    let outcome = finish(command);
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
    outcome
}

pub fn orchestrate(scratch: &Scratch, words: &[&str]) -> Outcome {
    finish_without_panic(scratch.orchestrate().args(words).current_dir(&scratch.path))
}

/// The folder of a test, an engine with 2000 ns between tokens, and the folder of its baseline `main`. No results are left.
pub fn with_saved_baseline() -> (Scratch, PathBuf, PathBuf) {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let folder = save(&scratch, &engine);
    (scratch, engine, folder)
}

/// Saves the baseline `main` of an engine, removes the results, and returns the baseline's folder.
pub fn save(scratch: &Scratch, engine: &Path) -> PathBuf {
    run(scratch, engine, SAVE).exits_with(0);
    fs::remove_dir_all(scratch.results()).unwrap();
    baseline_folder(scratch, "main")
}

pub fn baseline_folder(scratch: &Scratch, name: &str) -> PathBuf {
    scratch.join("home/baselines").join(name)
}

pub fn description(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("baseline.json")).unwrap()).unwrap()
}

/// Edits the header of a baseline's record.
pub fn edit_header(folder: &Path, edit: impl FnOnce(&mut Value)) {
    let path = folder.join("record.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    let mut header = serde_json::from_str(first).unwrap();
    edit(&mut header);
    fs::write(path, format!("{header}\n{rest}")).unwrap();
}

pub fn edit_description(folder: &Path, edit: impl FnOnce(&mut Value)) {
    let mut changed = description(folder);
    edit(&mut changed);
    fs::write(folder.join("baseline.json"), changed.to_string()).unwrap();
}

/// Checks that a run is refused with these texts before anything is measured.
#[track_caller]
pub fn assert_refused(scratch: &Scratch, command: &mut Command, texts: &[&str]) {
    let outcome = finish_without_panic(command).exits_with(2);
    outcome.assert_stderr(texts);
    assert_eq!(files(&scratch.results()), Vec::<PathBuf>::new(), "{outcome:?}");
}
