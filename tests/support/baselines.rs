//! Shared parts of the baseline tests: engines with planted times, runs that may have a verdict, a baseline's folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::record::files;
use super::{Outcome, Scratch, fake_engine, finish};

/// Five blocks are enough for a verdict.
pub const RUN: &[&str] = &["-s", "decode", "--iterations", "2", "--warmup", "1", "--blocks", "5"];

/// An engine of that name that states this time between tokens, in ns.
pub fn engine(scratch: &Scratch, name: &str, per_token_ns: u32) -> PathBuf {
    scratch.script(name, &format!("{} --per-token-ns {per_token_ns}", exec_fake()))
}

pub fn exec_fake() -> String {
    format!("exec '{}' --real-sleep false", fake_engine().display())
}

/// An engine whose launches state these times between tokens in turn, in ns.
pub fn unsteady(scratch: &Scratch, name: &str, per_launch_ns: &[u32]) -> PathBuf {
    let (count, fake) = (scratch.join("launches"), exec_fake());
    let (count, times) =
        (count.display(), per_launch_ns.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    scratch.script(
        name,
        &format!("echo >> '{count}'\nset -- {times}\nshift $(( $(wc -l < '{count}') - 1 ))\n{fake} --per-token-ns \"$1\""),
    )
}

pub fn command(scratch: &Scratch, engine: &Path, words: &[&str]) -> Command {
    let mut command = scratch.orchestrate();
    command.args(RUN).arg("-e").arg(engine).args(words);
    command.arg("--results").arg(scratch.results()).current_dir(&scratch.path);
    command
}

pub fn run(scratch: &Scratch, engine: &Path, words: &[&str]) -> Outcome {
    finished(&mut command(scratch, engine, words))
}

pub fn finished(command: &mut Command) -> Outcome {
    let outcome = finish(command);
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
    outcome
}

pub fn orchestrate(scratch: &Scratch, words: &[&str]) -> Outcome {
    finished(scratch.orchestrate().args(words).current_dir(&scratch.path))
}

pub fn saved(scratch: &Scratch, name: &str, engine: &Path) -> PathBuf {
    run(scratch, engine, &["--save-baseline", name]).exits_with(0);
    folder(scratch, name)
}

pub fn folder(scratch: &Scratch, name: &str) -> PathBuf {
    scratch.join("home/baselines").join(name)
}

pub fn page(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("baseline.json")).unwrap()).unwrap()
}

pub fn edit_header(folder: &Path, edit: impl FnOnce(&mut Value)) {
    let path = folder.join("record.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    let mut header = serde_json::from_str(first).unwrap();
    edit(&mut header);
    fs::write(path, format!("{header}\n{rest}")).unwrap();
}

pub fn edit_page(folder: &Path, edit: impl FnOnce(&mut Value)) {
    let mut changed = page(folder);
    edit(&mut changed);
    fs::write(folder.join("baseline.json"), changed.to_string()).unwrap();
}

/// Checks the output of a run that measured nothing.
pub fn assert_refused_before_measuring(scratch: &Scratch, outcome: &Outcome, words: &[&str]) {
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    for word in words {
        assert!(outcome.stderr.contains(word), "expected `{word}` in {}", outcome.stderr);
    }
    assert_eq!(files(&scratch.results()), Vec::<PathBuf>::new(), "{outcome:?}");
}
