//! A user's own Python instead of an engine's pinned environment. The fake engine does not use Python: these tests check
//! the orchestrator, and the tests of `engines/kit` check how an engine starts its Python.

use std::process::Command;

use serde_json::Value;

use crate::support::record::Record;
use crate::support::snapshot::assert_snapshot;
use crate::support::{DECODE, Outcome, Scratch, build_command, finish, root, without_line_breaks};

/// A tree of two engines: `snake-charmer` needs an environment, which is never set up; `stone` needs none.
fn tree() -> Scratch {
    let scratch = Scratch::outside_checkout();
    let engine = |name: &str| {
        let build = build_command(&format!("{name}-engine"));
        format!("about = \"a test\"\nbinary = \"{name}-engine\"\n[build]\n{build}")
    };
    let environment = "[environment]\npython = \"3.12\"\nrequirements = \"requirements.txt\"\ndownload_mb = 4000\ninstalled_mb = 9000\n";
    scratch.write_tree(&[
        ("snake-charmer", &format!("{}{environment}", engine("snake-charmer"))),
        ("stone", &engine("stone")),
    ]);
    scratch
}

fn with_python(scratch: &Scratch, variable: &str, python: &str, arguments: &[&str]) -> Command {
    let mut command = scratch.orchestrate_without_checkout();
    command.env(variable, python).args(arguments);
    command
}

fn measure(command: &mut Command, scratch: &Scratch) -> (Outcome, Record) {
    command
        .args(DECODE)
        .args(["--iterations", "1", "--warmup", "1", "-m"])
        .arg(root().join("models/embedded"));
    let outcome = finish(command.arg("--results").arg(scratch.results()));
    (outcome, Record::only_one_in(&scratch.results()))
}

const BOTH: &[&str] = &["-e", "snake-charmer", "-e", "stone", "--blocks", "1"];

#[test]
fn an_own_python_replaces_an_environment_and_is_in_record_and_report() {
    let scratch = tree();
    let mut command = with_python(&scratch, "ORCHESTRATE_PYTHON", "/bin/sh", BOTH);
    let (outcome, record) = measure(&mut command, &scratch);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(record.samples_of("snake-charmer").len(), 1);
    let expected = "`snake-charmer` runs in `/bin/sh` (ORCHESTRATE_PYTHON), not in its pinned environment, so its \
                versions are not the pinned ones";
    let names_variable = |it: &&&Value| it["message"].to_string().contains("ORCHESTRATE_PYTHON");
    let warnings = record.entries("warning");
    let messages: Vec<_> = warnings.iter().filter(names_variable).map(|it| &it["message"]).collect();
    assert_eq!(messages, [expected], "one warning, and none about the engine without Python");
    assert!(without_line_breaks(&outcome.stdout).contains(expected), "{}", outcome.stdout);
    outcome.assert_stderr(&[expected]);
    assert!(!scratch.join("home/environments").exists());
}

#[test]
fn an_engines_own_variable_applies_to_that_engine_alone() {
    let scratch = tree();
    let variable = "ORCHESTRATE_PYTHON_SNAKE_CHARMER";
    let mut command = with_python(&scratch, variable, "/bin/sh", BOTH);
    let (_, record) = measure(command.env("ORCHESTRATE_PYTHON", "/no/such/python"), &scratch);
    assert_eq!(record.samples_of("snake-charmer").len(), 1);
    assert!(
        record.entries("warning").iter().any(|it| it["message"].to_string().contains(variable)),
        "{record:?}"
    );
}

#[test]
fn an_own_python_that_is_no_program_gives_a_failure_that_names_its_variable() {
    let scratch = tree();
    let mut command = with_python(&scratch, "ORCHESTRATE_PYTHON", "/no/such/python", BOTH);
    let (outcome, record) = measure(&mut command, &scratch);
    assert_eq!((outcome.code, record.samples_of("stone").len()), (Some(4), 1), "{outcome:?}");
    let [failure] = record.failures_of("snake-charmer")[..] else { panic!("{record:?}") };
    let expected = "`ORCHESTRATE_PYTHON` names no program: `/no/such/python`";
    assert_eq!((&failure["kind"], &failure["message"]), (&"unavailable".into(), &expected.into()));
    assert!(
        failure["hint"].as_str().unwrap().starts_with("unset ORCHESTRATE_PYTHON, or: export "),
        "{failure}"
    );
    assert!(!scratch.join("target/release/snake-charmer-engine").exists());
}

#[test]
fn an_own_python_needs_no_environment_and_set_up_creates_none() {
    let scratch = tree();
    for (name, arguments) in [
        ("own-python-setup", &["setup", "snake-charmer", "--yes"][..]),
        ("own-python-list", &["setup", "--list"]),
        ("own-python-engines", &["engines"]),
    ] {
        let mut command = with_python(&scratch, "ORCHESTRATE_PYTHON", "/bin/sh", arguments);
        assert_snapshot(name, &scratch, &mut command);
    }
    for arguments in [&["engines"][..], &["setup", "--list"]] {
        let listed = finish(&mut with_python(&scratch, "ORCHESTRATE_PYTHON", "/bin/sh", arguments));
        listed.assert_stdout(&["`/bin/sh` (ORCHESTRATE_PYTHON; not checked)"]);
    }
    assert!(!scratch.join("home/environments").exists());
    let mut command =
        with_python(&scratch, "ORCHESTRATE_PYTHON", "/no/such/python", &["setup", "snake-charmer", "--yes"]);
    assert_snapshot("own-python-no-program", &scratch, &mut command);
}

#[test]
fn a_baseline_is_not_measured_again_in_another_python() {
    let scratch = tree();
    let save = ["-e", "snake-charmer", "--blocks", "2", "--save-baseline", "mine"];
    let mut command = with_python(&scratch, "ORCHESTRATE_PYTHON", "/bin/sh", &save);
    let (outcome, _) = measure(&mut command, &scratch);
    let text = std::fs::read_to_string(scratch.join("home/baselines/mine/baseline.json"));
    let baseline: Value = serde_json::from_str(&text.unwrap_or_else(|_| panic!("{outcome:?}"))).unwrap();
    let dependency = &baseline["configurations"][0]["program"]["dependencies"][0];
    assert_eq!((&dependency["kind"], &dependency["path"]), (&"python".into(), &"/bin/sh".into()));
    let again = [
        "-e",
        "snake-charmer",
        "--blocks",
        "2",
        "--baseline",
        "mine",
        "--rerun-baseline",
        "-s",
        "decode",
        "--depth",
        "0",
    ];
    let mut command = with_python(&scratch, "ORCHESTRATE_PYTHON", "/bin/cat", &again);
    let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(2);
    outcome.assert_stderr(&["it ran in `/bin/sh` and would now run in `/bin/cat`"]);
}
