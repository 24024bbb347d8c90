//! Saving, listing and removing baselines. The fake engine reports its times without waiting, so each difference is as the
//! test sets it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::support::baselines::{
    COMPARE, RERUN, SAVE, assert_refused, baseline_folder, command, description, edit_description, engine,
    finish_without_panic, orchestrate, run, unsteady_engine, with_saved_baseline,
};
use crate::support::record::files;
use crate::support::{DECODE, Scratch, copy_program, fake_engine, finish};

// Saving.

#[test]
fn a_baseline_has_the_record_the_programs_and_a_description() {
    let scratch = Scratch::new();
    let engine = scratch.join("engine");
    copy_program(fake_engine(), &engine);
    let mut command = command(&scratch, &engine, SAVE);
    let outcome = finish_without_panic(command.env("FAKE_ENGINE", r#"{"real_sleep": false}"#)).exits_with(0);
    outcome.assert_stderr(&["baseline `main` is saved: 1 row, in `"]);

    let (folder, records) = (baseline_folder(&scratch, "main"), files(&scratch.results()));
    assert_eq!(fs::read(folder.join("record.jsonl")).unwrap(), fs::read(&records[0]).unwrap());
    let description = description(&folder);
    let (label, program) =
        (&description["configurations"][0]["label"], &description["configurations"][0]["program"]);
    assert_eq!((label, &program["path"]), (&json!("engine"), &json!(engine)));
    let copy = folder.join(program["copy"].as_str().unwrap());
    // The copy keeps the program's name, because a program may read its own name.
    assert_eq!(copy.file_name().unwrap(), "engine");
    assert_eq!(fs::read(&copy).unwrap(), fs::read(&engine).unwrap());
    let sum = finish(scratch.command("sha256sum").arg(&engine)).stdout;
    assert!(sum.starts_with(program["digest"].as_str().unwrap()), "{sum} {program}");
    assert!(!outcome.stderr.contains("is incomplete"), "{outcome:?}");
    assert_eq!(files(&scratch.join("home/baselines")), [folder], "the folder must have only the baseline");
}

#[test]
fn a_run_that_scores_a_text_once_can_be_a_baseline_and_gates_the_next_run() {
    let scratch = Scratch::new();
    let run = |settings: &str, words: &[&str]| {
        let mut command = scratch.orchestrate();
        command.arg("-e").arg(scratch.engine("one", settings)).args([
            "-s",
            "perplexity",
            "--iterations",
            "2",
        ]);
        command.args(words).arg("--results").arg(scratch.results()).current_dir(&scratch.path);
        finish_without_panic(&mut command)
    };
    run("", SAVE).exits_with(0).assert_stderr(&["baseline `main` is saved: 1 row, in `"]);
    run("", COMPARE).exits_with(0);
    run("--score-offset -0.03", COMPARE).exits_with(1);
    run("--fault impossible_tokens", COMPARE).exits_with(1);
}

#[test]
fn a_script_is_stored_with_a_warning_about_its_dependencies() {
    let scratch = Scratch::new();
    let outcome = run(&scratch, &engine(&scratch, "script", 2000), SAVE).exits_with(0);
    let warning = format!("it is a script; not stored: the file `{}`", fake_engine().display());
    outcome.assert_stderr(&[&warning]);
}

#[test]
fn saving_replaces_a_baseline_and_reports_its_age() {
    let (scratch, engine, folder) = with_saved_baseline();
    edit_description(&folder, |description| description["measured"] = "2020-01-01T00:00:00Z".into());
    let outcome = run(&scratch, &engine, SAVE);
    outcome.assert_stderr(&["baseline `main` is saved, replacing one that was "]);
    assert_ne!(description(&folder)["measured"], "2020-01-01T00:00:00Z");
    assert_eq!(files(&scratch.join("home/baselines")), [folder], "the folder must have only the baseline");
}

#[test]
fn a_run_without_agreeing_blocks_is_recorded_and_not_saved_as_baseline() {
    let scratch = Scratch::new();
    let engine = unsteady_engine(&scratch, "engine", &[1000, 2000, 1000, 2000, 1000]);
    let outcome = run(&scratch, &engine, SAVE).exits_with(3);
    // The hint has more blocks than the run had.
    outcome.assert_stderr(&["baseline `main` is not saved, and the run is in `", "`engine` `decode`"]);
    outcome.assert_stderr(&["100 % apart", " --blocks 8"]);
    assert_eq!(files(&scratch.results()).len(), 1);
    assert!(!baseline_folder(&scratch, "main").exists());
}

#[test]
fn a_refused_baseline_leaves_the_old_one_unchanged() {
    let (scratch, _, folder) = with_saved_baseline();
    let before = description(&folder);
    let engine = unsteady_engine(&scratch, "engine", &[1000, 2000, 1000, 2000, 1000]);
    run(&scratch, &engine, SAVE).exits_with(3);
    assert_eq!(description(&folder), before);
}

#[test]
fn a_failed_case_is_left_out_of_the_baseline_with_a_warning() {
    let scratch = Scratch::new();
    let broken = scratch.faulty("exits_in_load", &[]);
    let engine = engine(&scratch, "engine", 2000);
    let outcome = finish_without_panic(command(&scratch, &engine, SAVE).arg("-e").arg(broken)).exits_with(4);
    outcome.assert_stderr(&["`exits_in_load` `decode`: not in the baseline, because it failed"]);
    assert_eq!(
        description(&baseline_folder(&scratch, "main"))["configurations"].as_array().unwrap().len(),
        1
    );
}

#[test]
fn a_run_that_cannot_be_a_baseline_is_refused_before_measuring() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let refusal = ["invalid baseline name `../main`", "hint: at most"];
    assert_refused(&scratch, &mut command(&scratch, &engine, &["--save-baseline", "../main"]), &refusal);
    let mut quick = scratch.orchestrate();
    quick.args(DECODE).args(["--quick"]).args(SAVE).arg("--results").arg(scratch.results());
    assert_refused(&scratch, quick.arg("-e").arg(&engine), &["two blocks that agree", " --blocks 5"]);
}

#[test]
fn a_program_changed_during_the_run_is_not_stored() {
    let scratch = Scratch::new();
    // The engine changes the modification time of its own file, as a build during the run does.
    let (path, fake) = (scratch.join("engine"), fake_engine().display());
    let text = format!("touch -d 2099-01-01 '{}'\nexec '{fake}' --real-sleep false", path.display());
    let engine = scratch.script("engine", &text);
    run(&scratch, &engine, SAVE).assert_stderr(&["changed after the start of the run"]);
    assert_eq!(
        description(&baseline_folder(&scratch, "main"))["configurations"][0]["program"].get("copy"),
        None
    );
    run(&scratch, &engine, RERUN).exits_with(2).assert_stderr(&["cannot be measured again"]);
}

// Listing and removing.

#[test]
fn a_saved_baseline_is_listed_shown_and_removed() {
    let empty = Scratch::new();
    assert!(orchestrate(&empty, &["baseline", "list"]).stdout.starts_with("no baselines"));
    let (scratch, _, folder) = with_saved_baseline();
    edit_description(&folder, |description| description["commit"] = "abc".into());
    let version = format!(" old, orchestrate {} at commit abc", env!("CARGO_PKG_VERSION"));
    orchestrate(&scratch, &["baseline", "list"]).assert_stdout(&["baseline `main`, ", &version]);
    orchestrate(&scratch, &["baseline", "show", "main"]).assert_stdout(&["sha256", "it is a script"]);
    orchestrate(&scratch, &["baseline", "remove", "main"]).exits_with(0);
    assert!(!folder.exists());
    let again = orchestrate(&scratch, &["baseline", "remove", "main"]).exits_with(2);
    again.assert_stderr(&[
        "no baseline named `main`\nhint: a run with `--save-baseline main` stores this baseline",
    ]);
}

/// Checks that a run against a damaged baseline is refused before measuring, with the command that removes it.
fn assert_damaged(scratch: &Scratch, engine: &Path) {
    let outcome = run(scratch, engine, COMPARE).exits_with(5);
    assert!(outcome.stderr.ends_with("\nhint: orchestrate baseline remove main\n"), "{outcome:?}");
    assert_eq!(files(&scratch.results()), Vec::<PathBuf>::new(), "{outcome:?}");
}

#[test]
fn a_baseline_without_a_readable_description_is_listed_refused_and_removable() {
    for (text, reason) in [(Some("{"), ""), (None, ": the file is missing")] {
        let (scratch, engine, folder) = with_saved_baseline();
        let description = folder.join("baseline.json");
        match text {
            Some(text) => fs::write(description, text).unwrap(),
            None => fs::remove_file(description).unwrap(),
        }
        assert_damaged(&scratch, &engine);
        let listed = orchestrate(&scratch, &["baseline", "list"]);
        listed.assert_stdout(&[&format!("its description cannot be read{reason}")]);
        orchestrate(&scratch, &["baseline", "remove", "main"]).exits_with(0);
        assert!(!folder.exists());
    }
}

#[test]
fn a_baseline_with_a_damaged_record_is_refused_before_measuring() {
    let (scratch, engine, folder) = with_saved_baseline();
    let record = folder.join("record.jsonl");
    let text = fs::read_to_string(&record).unwrap();
    let (first, _) = text.split_once('\n').unwrap();
    for damaged in ["", "{", &text[..text.len() / 2], &format!("{first}\n{{\n{{\n")] {
        fs::write(&record, damaged).unwrap();
        assert_damaged(&scratch, &engine);
    }
}
