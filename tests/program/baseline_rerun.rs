//! Tests of runs that measure a baseline's programs again, together with the new programs, and of the output of runs with a
//! baseline.

use std::fs;

use serde_json::{Value, json};

use crate::support::baselines::{
    COMPARE, RERUN, RUN, SAVE, assert_refused, baseline_folder, command, description, engine,
    finish_without_panic, orchestrate, run, save, with_saved_baseline,
};
use crate::support::record::{Record, files};
use crate::support::{Running, Scratch, copy_program, fake_engine, root};

// Measuring the programs again.

/// The program that was measured as the baseline of `engine`.
fn program(record: &Record) -> &Value {
    &record.0[0]["plan"]["configurations"][record.configuration("engine (main)")]["command"][0]
}

#[test]
fn a_replaced_program_is_measured_again_from_its_copy() {
    let (scratch, _, folder) = with_saved_baseline();
    let outcome = run(&scratch, &engine(&scratch, "engine", 3000), RERUN).exits_with(1);
    outcome.assert_stdout(&["slower", "critical"]);
    let record = Record::only_one_in(&scratch.results());
    let copy = description(&folder)["configurations"][0]["program"]["copy"].clone();
    assert_eq!(program(&record), &json!(folder.join(copy.as_str().unwrap())));
    for label in ["engine", "engine (main)", "engine (main) (twin)"] {
        assert_eq!(record.launches_of(label).len(), 5, "`{label}` in every block");
    }
    let warnings = record.warnings_of("engine");
    assert!(warnings[0].contains("the stored copy of "), "{warnings:?}");
}

#[test]
fn an_unchanged_program_is_measured_again_at_its_path() {
    let (scratch, engine, _) = with_saved_baseline();
    run(&scratch, &engine, RERUN).exits_with(0);
    let record = Record::only_one_in(&scratch.results());
    assert_eq!(program(&record), &json!(engine));
    assert!(record.warnings_of("engine")[0].contains("is unchanged"));
}

#[test]
fn a_slower_machine_is_no_regression_with_rerun_baseline() {
    let scratch = Scratch::new();
    let engine = scratch.join("engine");
    copy_program(fake_engine(), &engine);
    for (per_token_ns, words, code) in [(2000, SAVE, 0), (3000, COMPARE, 1), (3000, RERUN, 0)] {
        let speed = format!(r#"{{"real_sleep": false, "per_token_ns": {per_token_ns}}}"#);
        finish_without_panic(command(&scratch, &engine, words).env("FAKE_ENGINE", speed)).exits_with(code);
    }
}

#[test]
fn an_engine_with_a_changed_dependency_is_measured_again_only_with_force() {
    let scratch = Scratch::new();
    let inner = engine(&scratch, "inner", 2000);
    let outer = scratch.script("outer", &format!("exec '{}'", inner.display()));
    save(&scratch, &outer);
    engine(&scratch, "inner", 3000);
    let changed = format!("`{}` has changed", inner.display());
    assert_refused(&scratch, &mut command(&scratch, &outer, RERUN), &[&changed, "hint: ", " --force"]);
    run(&scratch, &outer, &[RERUN, &["--force"]].concat()).exits_with(0);
    let record = Record::only_one_in(&scratch.results());
    let warning = format!("--force: the file {changed}");
    assert!(record.warnings_of("outer").contains(&&*warning), "{:?}", record.warnings_of("outer"));
}

#[test]
fn the_path_of_an_earlier_build_can_be_given_as_the_baseline() {
    let scratch = Scratch::new();
    let [old, new] = [("before", 2000), ("now", 3000)].map(|(name, ns)| engine(&scratch, name, ns));
    let run_new = |words: &[&str]| command(&scratch, &new, words);
    let refusal = ["`./before` is a program", "hint: ", " --rerun-baseline\n"];
    assert_refused(&scratch, &mut run_new(&["--baseline", "./before"]), &refusal);
    let nowhere = &["--baseline", "./nowhere", "--rerun-baseline"];
    assert_refused(&scratch, &mut run_new(nowhere), &["no program at `./nowhere`"]);
    let rerun = &["--baseline", "./before", "--rerun-baseline"];
    run(&scratch, &new, rerun).exits_with(1);
    run(&scratch, &old, rerun).exits_with(0);
    let outcome = finish_without_panic(run_new(rerun).arg("-e").arg(&old)).exits_with(2);
    outcome.assert_stderr(&["can be the baseline of only one row, but the run has `now`, `before`"]);
}

#[test]
fn a_dry_run_lists_the_programs_of_the_baseline() {
    let (scratch, engine, _) = with_saved_baseline();
    let outcome = run(&scratch, &engine, &[RERUN, &["--dry-run"]].concat()).exits_with(0);
    outcome.assert_stdout(&["engine (main) on embedded  (the baseline's program)"]);
    run(&scratch, &engine, &[COMPARE, &["--dry-run"]].concat()).exits_with(0);
}

// Comparing and saving in one run, and output for pipes.

#[test]
fn a_run_that_fails_against_a_baseline_does_not_replace_it() {
    let (scratch, _, main) = with_saved_baseline();
    let before = description(&main);
    let slower = engine(&scratch, "engine", 3000);
    let outcome = run(&scratch, &slower, &[COMPARE, SAVE].concat()).exits_with(1);
    outcome.assert_stderr(&["baseline `main` is unchanged"]);
    assert_eq!(description(&main), before);
    run(&scratch, &slower, &[COMPARE, &["--save-baseline", "other"]].concat()).exits_with(1);
    assert!(baseline_folder(&scratch, "other").exists());
}

#[test]
fn a_judgement_is_printed_on_stderr_if_the_format_has_no_place_for_it() {
    let (scratch, engine, _) = with_saved_baseline();
    let judgement = |formats: &[&str], reason: &str| {
        let outcome = run(&scratch, &engine, &[COMPARE, formats].concat());
        outcome
            .assert_stderr(&[&format!("the judgement, as a table ({reason}):\n\nnote: baseline `main`, ")]);
        outcome
    };
    let csv = judgement(&["--format", "csv"], "--format csv contains only the run");
    assert!(!csv.stdout.contains("baseline"), "{csv:?}");
    judgement(&["--format", "csv", "--json", "-"], "the JSON on stdout contains it too");
}

#[test]
fn the_json_of_a_run_has_the_judgement_of_compare() {
    let (scratch, _, folder) = with_saved_baseline();
    let slower = engine(&scratch, "engine", 3000);
    let file = scratch.join("run.json");
    let outcome = run(&scratch, &slower, &[COMPARE, &["--json", file.to_str().unwrap()]].concat());
    // On stdout, the judgement follows the table.
    outcome.exits_with(1).assert_stdout(&["critical"]);
    let written: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let records = [&folder.join("record.jsonl"), &files(&scratch.results())[0]];
    let [base, new] = records.map(|path| path.to_str().unwrap());
    let compared = orchestrate(&scratch, &["compare", base, new, "--format", "json"]).json();
    assert_eq!(written["judgement"]["changes"], compared["changes"]);
    assert!(written["cases"].is_array(), "{written}");

    for words in [COMPARE, RERUN] {
        for to_stdout in [["--json", "-"], ["--format", "json"]] {
            let outcome = run(&scratch, &slower, &[words, &to_stdout].concat()).exits_with(1);
            if words == COMPARE {
                outcome.assert_stderr(&["baseline `main`, "]);
            }
            let judgement = &outcome.json()["judgement"];
            assert_eq!(judgement["base"]["name"], "main");
            assert_eq!(judgement["side_by_side"], words == RERUN);
            let mut changes = judgement["changes"].as_array().unwrap().iter();
            let gating = changes.find(|it| it["gating"] == true).unwrap();
            assert_eq!((&gating["verdict"], &gating["severity"]), (&json!("worse"), &json!("critical")));
        }
    }
    assert_eq!(run(&scratch, &slower, &["--json", "-"]).json().get("judgement"), None);
}

#[test]
fn the_ci_script_prints_markdown_and_exits_with_the_judgement() {
    let scratch = Scratch::new();
    let (old, new) = (engine(&scratch, "before", 2000), engine(&scratch, "now", 3000));
    let summary = scratch.join("summary.md");
    let script = |words: &[&str]| {
        let mut command = scratch.command(root().join("scripts/compare-in-ci"));
        command.env("ORCHESTRATE", env!("CARGO_BIN_EXE_orchestrate")).env("GITHUB_STEP_SUMMARY", &summary);
        command.args(words).args(RUN).arg("--results").arg(scratch.results()).current_dir(&scratch.path);
        finish_without_panic(&mut command)
    };
    let outcome = script(&["./now", "./before"]).exits_with(1);
    assert!(outcome.stdout.starts_with("### `./now` against `./before`: worse"), "{outcome:?}");
    outcome.assert_stdout(&["| ", "slower"]);
    assert_eq!(fs::read_to_string(&summary).unwrap(), outcome.stdout);

    script(&["--save", "main", old.to_str().unwrap()]).exits_with(0);
    script(&[new.to_str().unwrap(), "main"]).exits_with(1);
    script(&[old.to_str().unwrap(), "main"]).exits_with(0);
    finish_without_panic(&mut scratch.command(root().join("scripts/compare-in-ci"))).exits_with(2);
}

#[test]
fn an_interrupted_run_is_not_judged_and_prints_the_compare_command() {
    let (scratch, ..) = with_saved_baseline();
    let hangs = scratch.engine("engine", "--real-sleep false --fault hangs_in_generate --at 2");
    let words = [COMPARE, &["--save-baseline", "other", "--debug"]].concat();
    let mut running = Running::start(&mut command(&scratch, &hangs, &words));
    running.wait_for("fake: hangs in generate");
    let outcome = running.interrupt();
    let notices = ["not compared with baseline `main`", " compare main ", "baseline `other` is not saved"];
    outcome.assert_stderr(&notices);
    assert!(!baseline_folder(&scratch, "other").exists());
    scratch.assert_no_processes_left();
}
