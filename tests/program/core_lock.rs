//! Two runs on the same cores: the second one is refused, waits, or measures anyway. The record of a run says whether it held
//! its cores alone.

use std::process::Command;

use rustix::process::Signal;

use crate::support::record::{Record, files};
use crate::support::{DECODE, Running, Scratch, fake_engine, finish};

fn command(scratch: &Scratch, results: &str, engine: &std::path::Path) -> Command {
    let mut command = scratch.orchestrate();
    command.args(DECODE).args(["--blocks", "1", "--iterations", "1", "--warmup", "1", "--debug", "-e"]);
    command.arg(engine).arg("--results").arg(scratch.join(results));
    command.env("ORCHESTRATE_CORE_LOCK", scratch.join("locks"));
    command
}

/// Starts a run that holds its cores until it is interrupted.
fn start_holder(scratch: &Scratch) -> Running {
    let engine = scratch.faulty("hangs_in_generate", &[]);
    let mut holder = Running::start(&mut command(scratch, "held", &engine));
    holder.wait_for("fake: hangs in generate");
    holder
}

fn core_lock(scratch: &Scratch, results: &str) -> String {
    let record = Record::only_one_in(&scratch.join(results));
    record.entries("header")[0]["core_lock"].as_str().unwrap_or_default().into()
}

#[test]
fn a_second_run_on_the_same_cores_is_refused_and_names_the_first() {
    let scratch = Scratch::new();
    let holder = start_holder(&scratch);
    let refused = finish(&mut command(&scratch, "refused", fake_engine())).exits_with(5);
    let process = format!("another run uses the same cores: process {} with `-s decode", holder.pid());
    refused.assert_stderr(&["error: ", &process, ", since 20"]);
    refused.assert_stderr(&["\nhint: ", " --wait # or --anyway"]);
    assert!(files(&scratch.join("refused")).is_empty(), "{refused:?}");
    holder.interrupt();
    finish(&mut command(&scratch, "after", fake_engine())).exits_with(0);
    assert_eq!([core_lock(&scratch, "held"), core_lock(&scratch, "after")], ["held", "held"]);
    assert_eq!(std::fs::read_dir(scratch.join("locks")).unwrap().count(), 1, "only the file `gate` remains");
}

#[test]
fn a_run_waits_until_another_run_is_killed() {
    let scratch = Scratch::new();
    let holder = start_holder(&scratch);
    let mut waiting = Running::start(command(&scratch, "waited", fake_engine()).arg("--wait"));
    waiting.wait_for("waiting: another run uses the same cores: process ");
    assert!(files(&scratch.join("waited")).is_empty());
    holder.signal(Signal::KILL);
    holder.finish();
    waiting.finish().exits_with(0);
    assert_eq!(core_lock(&scratch, "waited"), "held");
    scratch.wait_until_no_processes_left();
}

#[test]
fn a_run_beside_another_one_has_a_warning_and_its_record_says_so() {
    let scratch = Scratch::new();
    let holder = start_holder(&scratch);
    let outcome = finish(command(&scratch, "shared", fake_engine()).arg("--anyway")).exits_with(0);
    outcome.assert_stdout(&["! machine: another run uses the same cores (process "]);
    assert_eq!(core_lock(&scratch, "shared"), "shared");
    // The value `off` turns the lock off.
    finish(command(&scratch, "off", fake_engine()).env("ORCHESTRATE_CORE_LOCK", "off")).exits_with(0);
    assert_eq!(core_lock(&scratch, "off"), "off");
    holder.interrupt();
}

#[test]
fn a_run_does_not_wait_for_a_run_on_other_cores() {
    let scratch = Scratch::new();
    let holder = start_holder(&scratch);
    // Changes the cores in the lock file of the other run, as if that run used other cores.
    let locks = std::fs::read_dir(scratch.join("locks")).unwrap().flatten().map(|entry| entry.path());
    let path = locks.into_iter().find(|path| path.extension().is_some_and(|it| it == "json")).unwrap();
    let mut described: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    described["cores"] = serde_json::json!([100_000]);
    std::fs::write(&path, described.to_string()).unwrap();
    finish(&mut command(&scratch, "beside", fake_engine())).exits_with(0);
    assert_eq!(core_lock(&scratch, "beside"), "held");
    holder.interrupt();
}

#[test]
fn a_folder_of_locks_that_cannot_be_used_is_a_warning() {
    let scratch = Scratch::new();
    std::fs::write(scratch.join("file"), "").unwrap();
    let mut run = command(&scratch, "results", fake_engine());
    let outcome = finish(run.env("ORCHESTRATE_CORE_LOCK", scratch.join("file"))).exits_with(0);
    outcome.assert_stdout(&[
        "machine: other runs were not excluded, because",
        "export ORCHESTRATE_CORE_LOCK=DIR",
    ]);
    assert_eq!(core_lock(&scratch, "results"), "unavailable");
}
