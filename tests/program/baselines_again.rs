//! Programs of a baseline, measured again beside the new ones; and the output of a run with a baseline, on stdout and stderr.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::baselines::{
    RUN, assert_refused_before_measuring, command, engine, exec_fake, finished, folder, orchestrate, page,
    run, saved,
};
use crate::support::record::{Record, files};
use crate::support::{Running, Scratch, copy_program, fake_engine, root};

// Measuring the programs again.

#[test]
fn a_replaced_program_is_measured_again_from_its_copy() {
    let scratch = Scratch::new();
    let folder = saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    fs::remove_dir_all(scratch.results()).unwrap();
    let outcome =
        run(&scratch, &engine(&scratch, "engine", 3000), &["--baseline", "main", "--rerun-baseline"])
            .exits_with(1);
    outcome.assert_stdout(&["slower", "critical"]);
    let record = Record::only_one_in(&scratch.results());
    let stand_in = &record.0[0]["plan"]["configurations"][record.configuration("engine (main)")];
    let kept = page(&folder)["configurations"][0]["program"]["kept"].clone();
    assert_eq!(stand_in["command"][0], json!(folder.join(kept.as_str().unwrap())));
    for label in ["engine", "engine (main)", "engine (main) (twin)"] {
        assert_eq!(record.launches_of(label).len(), 5, "`{label}` in every block");
    }
    assert!(
        record.warnings_of("engine")[0].contains("the stored copy of "),
        "{:?}",
        record.warnings_of("engine")
    );
}

#[test]
fn an_unchanged_program_is_measured_again_at_its_path() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    saved(&scratch, "main", &engine);
    fs::remove_dir_all(scratch.results()).unwrap();
    run(&scratch, &engine, &["--baseline", "main", "--rerun-baseline"]).exits_with(0);
    let record = Record::only_one_in(&scratch.results());
    let stand_in = &record.0[0]["plan"]["configurations"][record.configuration("engine (main)")];
    assert_eq!(stand_in["command"][0], json!(engine));
    assert!(record.warnings_of("engine")[0].contains("is unchanged"));
}

#[test]
fn a_slower_machine_is_no_regression_with_rerun_baseline() {
    let scratch = Scratch::new();
    let engine = scratch.join("engine");
    copy_program(fake_engine(), &engine);
    let on_a_machine = |per_token_ns: u32, words: &[&str]| {
        let speed = format!(r#"{{"real_sleep": false, "per_token_ns": {per_token_ns}}}"#);
        finished(command(&scratch, &engine, words).env("FAKE_ENGINE", speed))
    };
    assert_eq!(on_a_machine(2000, &["--save-baseline", "main"]).code, Some(0));
    assert_eq!(on_a_machine(3000, &["--baseline", "main"]).code, Some(1));
    on_a_machine(3000, &["--baseline", "main", "--rerun-baseline"]).exits_with(0);
}

#[test]
fn an_incomplete_old_engine_is_measured_only_with_force() {
    let scratch = Scratch::new();
    let inner = engine(&scratch, "inner", 2000);
    let door = scratch.script("door", &format!("exec '{}'", inner.display()));
    saved(&scratch, "main", &door);
    fs::remove_dir_all(scratch.results()).unwrap();
    engine(&scratch, "inner", 3000);
    let outcome = run(&scratch, &door, &["--baseline", "main", "--rerun-baseline"]);
    let named = format!("`{}` has changed", inner.display());
    assert_refused_before_measuring(&scratch, &outcome, &[&named, "hint: --force"]);
    run(&scratch, &door, &["--baseline", "main", "--rerun-baseline", "--force"]).exits_with(0);
    let record = Record::only_one_in(&scratch.results());
    let warned = format!("--force: the file {named}");
    assert!(record.warnings_of("door").contains(&&*warned), "{:?}", record.warnings_of("door"));
}

#[test]
fn a_program_of_an_earlier_build_is_a_baseline_by_its_path() {
    let scratch = Scratch::new();
    let (before, now) = (engine(&scratch, "before", 2000), engine(&scratch, "now", 3000));
    let outcome = run(&scratch, &now, &["--baseline", "./before"]);
    assert_refused_before_measuring(
        &scratch,
        &outcome,
        &["`./before` is a program", "hint: --rerun-baseline"],
    );
    let outcome = run(&scratch, &now, &["--baseline", "./nowhere", "--rerun-baseline"]);
    assert_refused_before_measuring(&scratch, &outcome, &["no program at `./nowhere`"]);
    run(&scratch, &now, &["--baseline", "./before", "--rerun-baseline"]).exits_with(1);
    run(&scratch, &before, &["--baseline", "./before", "--rerun-baseline"]).exits_with(0);
    let outcome = finished(
        command(&scratch, &now, &["--baseline", "./before", "--rerun-baseline"]).arg("-e").arg(&before),
    )
    .exits_with(2);
    outcome.assert_stderr(&["can be the baseline of only one row, but the run has `now`, `before`"]);
}

#[test]
fn a_dry_run_lists_the_programs_of_the_baseline() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    saved(&scratch, "main", &engine);
    let outcome =
        run(&scratch, &engine, &["--baseline", "main", "--rerun-baseline", "--dry-run"]).exits_with(0);
    outcome.assert_stdout(&["engine (main) on embedded  (the baseline's program)"]);
    assert_eq!(run(&scratch, &engine, &["--baseline", "main", "--dry-run"]).code, Some(0));
}

// Comparing and saving in one run, and output for pipes.

#[test]
fn a_run_that_fails_against_a_baseline_does_not_replace_it() {
    let scratch = Scratch::new();
    let folder = saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    let before = page(&folder);
    let slower = engine(&scratch, "engine", 3000);
    let outcome = run(&scratch, &slower, &["--baseline", "main", "--save-baseline", "main"]);
    assert_eq!((outcome.code, page(&folder)), (Some(1), before), "{outcome:?}");
    outcome.assert_stderr(&["baseline `main` is unchanged"]);
    let outcome = run(&scratch, &slower, &["--baseline", "main", "--save-baseline", "other"]);
    assert!(outcome.code == Some(1) && self::folder(&scratch, "other").exists(), "{outcome:?}");
}

#[test]
fn stdout_stays_one_document_for_programs() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    saved(&scratch, "main", &engine);
    for words in [&["--json", "-"][..], &["--format", "json"]] {
        let outcome = run(&scratch, &engine, &[&["--baseline", "main"], words].concat());
        assert!(serde_json::from_str::<Value>(&outcome.stdout).is_ok(), "{outcome:?}");
        outcome.assert_stderr(&["baseline `main`, "]);
    }
}

#[test]
fn a_judgement_outside_the_format_is_printed_on_stderr() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    saved(&scratch, "main", &engine);
    let csv = run(&scratch, &engine, &["--baseline", "main", "--format", "csv"]);
    let introduced =
        "the judgement, as a table (--format csv contains only the run):\n\nnote: baseline `main`, ";
    assert!(csv.stderr.contains(introduced) && !csv.stdout.contains("baseline"), "{csv:?}");
    let json = run(&scratch, &engine, &["--baseline", "main", "--format", "csv", "--json", "-"]);
    let introduced = "the judgement, as a table (the JSON on stdout has it too):\n\nnote: baseline `main`, ";
    json.assert_stderr(&[introduced]);
}

#[test]
fn the_json_of_a_run_has_the_judgement_of_compare() {
    let scratch = Scratch::new();
    let base = saved(&scratch, "main", &engine(&scratch, "engine", 2000)).join("record.jsonl");
    let slower = engine(&scratch, "engine", 3000);
    fs::remove_dir_all(scratch.results()).unwrap();
    let file = scratch.join("judged.json");
    let outcome =
        run(&scratch, &slower, &["--baseline", "main", "--json", file.to_str().unwrap()]).exits_with(1);
    // The table on stdout is for people, and the judgement follows it.
    outcome.assert_stdout(&["critical"]);
    let written: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let record = &files(&scratch.results())[0];
    let words = ["compare", base.to_str().unwrap(), record.to_str().unwrap(), "--format", "json"];
    let compared: Value = serde_json::from_str(&orchestrate(&scratch, &words).stdout).unwrap();
    assert_eq!(written["judgement"]["changes"], compared["changes"]);
    assert!(written["cases"].is_array(), "the report itself is there as ever");

    for words in [
        &["--baseline", "main", "--json", "-"][..],
        &["--baseline", "main", "--format", "json"],
        &["--baseline", "main", "--rerun-baseline", "--json", "-"],
        &["--baseline", "main", "--rerun-baseline", "--format", "json"],
    ] {
        let outcome = run(&scratch, &slower, words).exits_with(1);
        let printed: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let judgement = &printed["judgement"];
        assert_eq!(judgement["base"]["name"], "main");
        assert_eq!(judgement["side_by_side"], words.contains(&"--rerun-baseline"));
        let gating = judgement["changes"].as_array().unwrap().iter().find(|it| it["gating"] == true).unwrap();
        assert_eq!((&gating["verdict"], &gating["class"]), (&json!("worse"), &json!("critical")));
    }
    let alone: Value = serde_json::from_str(&run(&scratch, &slower, &["--json", "-"]).stdout).unwrap();
    assert_eq!(alone.get("judgement"), None);
}

#[test]
fn the_ci_script_prints_markdown_and_exits_with_the_judgement() {
    let scratch = Scratch::new();
    let (before, now) = (engine(&scratch, "before", 2000), engine(&scratch, "now", 3000));
    let summary = scratch.join("summary.md");
    let script = |words: &[&str]| {
        let mut command = scratch.marked(root().join("scripts/compare-in-ci"));
        command.env("ORCHESTRATE", env!("CARGO_BIN_EXE_orchestrate")).env("GITHUB_STEP_SUMMARY", &summary);
        command.args(words).args(RUN).arg("--results").arg(scratch.results()).current_dir(&scratch.path);
        finished(&mut command)
    };
    let outcome = script(&["./now", "./before"]).exits_with(1);
    assert!(outcome.stdout.starts_with("### `./now` against `./before`: worse"), "{outcome:?}");
    outcome.assert_stdout(&["| ", "slower"]);
    assert_eq!(fs::read_to_string(&summary).unwrap(), outcome.stdout);

    assert_eq!(script(&["--save", "main", before.to_str().unwrap()]).code, Some(0));
    assert_eq!(script(&[now.to_str().unwrap(), "main"]).code, Some(1));
    assert_eq!(script(&[before.to_str().unwrap(), "main"]).code, Some(0));
    assert_eq!(finished(&mut scratch.marked(root().join("scripts/compare-in-ci"))).code, Some(2));
}

#[test]
fn an_interrupted_run_is_not_judged_and_prints_the_compare_command() {
    let scratch = Scratch::new();
    saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    let hangs = scratch.script("engine", &format!("{} --fault hangs_in_generate --at 2", exec_fake()));
    let words = &["--baseline", "main", "--save-baseline", "other", "--debug"];
    let mut running = Running::start(&mut command(&scratch, &hangs, words));
    running.wait_for("fake: hangs in generate");
    running.signal(Signal::INT);
    let outcome = running.finish().exits_with(130);
    outcome.assert_stderr(&[
        "not compared with baseline `main`",
        " compare main ",
        "baseline `other` is not saved",
    ]);
    assert!(!folder(&scratch, "other").exists());
    scratch.assert_nothing_lives();
}
