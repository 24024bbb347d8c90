//! Baselines, as a user meets them: a run is kept under a name, later runs are held against it, its programs are measured
//! again. The fake engine states its times without waiting, so that what differs is what was planted and nothing else.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use support::record::{Record, files};
use support::{Outcome, Running, Scratch, fake_engine, finish, root};

/// Five blocks may carry a verdict.
const RUN: &[&str] = &["-s", "decode", "--iterations", "2", "--warmup", "1", "--blocks", "5"];

/// An engine of that name that states so many ns between tokens.
fn engine(scratch: &Scratch, name: &str, per_token_ns: u32) -> PathBuf {
    scratch.script(name, &format!("{} --per-token-ns {per_token_ns}", exec_fake()))
}

fn exec_fake() -> String {
    format!("exec '{}' --real-sleep false", fake_engine().display())
}

/// An engine whose launches state so many ns between tokens, one after the other.
fn unsteady(scratch: &Scratch, name: &str, per_launch_ns: &[u32]) -> PathBuf {
    let (count, fake) = (scratch.join("launches"), exec_fake());
    let (count, times) =
        (count.display(), per_launch_ns.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    scratch.script(
        name,
        &format!("echo >> '{count}'\nset -- {times}\nshift $(( $(wc -l < '{count}') - 1 ))\n{fake} --per-token-ns \"$1\""),
    )
}

fn command(scratch: &Scratch, engine: &Path, words: &[&str]) -> Command {
    let mut command = scratch.orchestrate();
    command.args(RUN).arg("-e").arg(engine).args(words);
    command.arg("--results").arg(scratch.results()).current_dir(&scratch.path);
    command
}

fn run(scratch: &Scratch, engine: &Path, words: &[&str]) -> Outcome {
    finished(&mut command(scratch, engine, words))
}

fn finished(command: &mut Command) -> Outcome {
    let outcome = finish(command);
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
    outcome
}

fn orchestrate(scratch: &Scratch, words: &[&str]) -> Outcome {
    finished(scratch.orchestrate().args(words).current_dir(&scratch.path))
}

fn saved(scratch: &Scratch, name: &str, engine: &Path) -> PathBuf {
    let outcome = run(scratch, engine, &["--save-baseline", name]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    folder(scratch, name)
}

fn folder(scratch: &Scratch, name: &str) -> PathBuf {
    scratch.join("home/baselines").join(name)
}

fn page(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("baseline.json")).unwrap()).unwrap()
}

/// Changes the header of a baseline's record.
fn edit_header(folder: &Path, edit: impl FnOnce(&mut Value)) {
    let path = folder.join("record.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    let mut header = serde_json::from_str(first).unwrap();
    edit(&mut header);
    fs::write(path, format!("{header}\n{rest}")).unwrap();
}

fn edit_page(folder: &Path, edit: impl FnOnce(&mut Value)) {
    let mut changed = page(folder);
    edit(&mut changed);
    fs::write(folder.join("baseline.json"), changed.to_string()).unwrap();
}

/// What a run that measured nothing says.
fn assert_refused_before_measuring(scratch: &Scratch, outcome: &Outcome, words: &[&str]) {
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    for word in words {
        assert!(outcome.stderr.contains(word), "expected `{word}` in {}", outcome.stderr);
    }
    assert_eq!(files(&scratch.results()), Vec::<PathBuf>::new(), "{outcome:?}");
}

// Keeping.

#[test]
fn a_baseline_is_the_record_the_programs_and_a_page_that_says_what_they_are() {
    let scratch = Scratch::new();
    let engine = scratch.join("engine");
    fs::copy(fake_engine(), &engine).unwrap();
    let mut command = command(&scratch, &engine, &["--save-baseline", "main"]);
    let outcome = finished(command.env("FAKE_ENGINE", r#"{"real_sleep": false}"#));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("baseline `main` is saved: 1 row, in `"), "{outcome:?}");

    let (folder, records) = (folder(&scratch, "main"), files(&scratch.results()));
    assert_eq!(fs::read(folder.join("record.jsonl")).unwrap(), fs::read(&records[0]).unwrap());
    let page = page(&folder);
    let kept = &page["configurations"][0];
    assert_eq!((&kept["label"], &kept["program"]["path"]), (&json!("engine"), &json!(engine)));
    let copy = folder.join(kept["program"]["kept"].as_str().unwrap());
    // Under its own name, for a program may look at that.
    assert_eq!(copy.file_name().unwrap(), "engine");
    assert_eq!(fs::read(&copy).unwrap(), fs::read(&engine).unwrap());
    let sum = finish(scratch.marked("sha256sum").arg(&engine)).stdout;
    assert!(sum.starts_with(kept["program"]["digest"].as_str().unwrap()), "{sum} {kept}");
    assert!(!outcome.stderr.contains("not whole"), "{outcome:?}");
    assert_eq!(files(&scratch.join("home/baselines")), [folder], "nothing else is left there");
}

#[test]
fn a_script_is_kept_with_a_warning_that_names_what_is_not() {
    let scratch = Scratch::new();
    let outcome = run(&scratch, &engine(&scratch, "door", 2000), &["--save-baseline", "main"]);
    let warned = format!(
        "it is a script; not kept with it: the file that it starts or reads, `{}`",
        fake_engine().display()
    );
    assert!(outcome.stderr.contains(&warned), "{outcome:?}");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

#[test]
fn saving_over_a_baseline_replaces_it_and_says_how_old_that_was() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let folder = saved(&scratch, "main", &engine);
    edit_page(&folder, |page| page["measured"] = "2020-01-01T00:00:00Z".into());
    let outcome = run(&scratch, &engine, &["--save-baseline", "main"]);
    assert!(outcome.stderr.contains("baseline `main` is saved, in place of one that was "), "{outcome:?}");
    assert_ne!(page(&folder)["measured"], "2020-01-01T00:00:00Z");
    assert_eq!(files(&scratch.join("home/baselines")), [folder], "nothing else is left there");
}

#[test]
fn a_run_of_which_no_two_blocks_agree_is_recorded_and_is_no_baseline() {
    let scratch = Scratch::new();
    let engine = unsteady(&scratch, "engine", &[1000, 2000, 1000, 2000, 1000]);
    let outcome = run(&scratch, &engine, &["--save-baseline", "main"]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    for said in [
        "baseline `main` is not saved, and the run is in `",
        "`engine` `decode`",
        "100 % apart",
        // More than there were.
        "hint: --blocks 8, with nothing else",
    ] {
        assert!(outcome.stderr.contains(said), "expected `{said}` in {}", outcome.stderr);
    }
    assert_eq!(files(&scratch.results()).len(), 1);
    assert!(!folder(&scratch, "main").exists());
}

#[test]
fn a_refused_baseline_leaves_the_one_that_was_there() {
    let scratch = Scratch::new();
    let folder = saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    let before = page(&folder);
    let outcome = run(
        &scratch,
        &unsteady(&scratch, "engine", &[1000, 2000, 1000, 2000, 1000]),
        &["--save-baseline", "main"],
    );
    assert_eq!((outcome.code, page(&folder)), (Some(3), before), "{outcome:?}");
}

#[test]
fn a_case_that_failed_is_left_out_of_the_baseline_and_said() {
    let scratch = Scratch::new();
    let broken = scratch.faulty("exits_in_load", &[]);
    let engine = engine(&scratch, "engine", 2000);
    let outcome = finished(command(&scratch, &engine, &["--save-baseline", "main"]).arg("-e").arg(broken));
    assert_eq!(outcome.code, Some(4), "{outcome:?}");
    assert!(
        outcome.stderr.contains("`exits_in_load` `decode`: not in the baseline, for it failed"),
        "{outcome:?}"
    );
    assert_eq!(page(&folder(&scratch, "main"))["configurations"].as_array().unwrap().len(), 1);
}

#[test]
fn what_cannot_become_a_baseline_is_refused_before_anything_is_measured() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let outcome = run(&scratch, &engine, &["--save-baseline", "../main"]);
    assert_refused_before_measuring(
        &scratch,
        &outcome,
        &["`../main` cannot name a baseline", "hint: letters"],
    );
    let mut quick = scratch.orchestrate();
    quick.args(["-s", "decode", "--quick", "--save-baseline", "main", "-e"]).arg(&engine);
    let outcome = finished(quick.arg("--results").arg(scratch.results()));
    assert_refused_before_measuring(&scratch, &outcome, &["two blocks agree", "hint: --blocks 5"]);
}

#[test]
fn the_program_is_not_kept_when_it_was_changed_while_it_was_measured() {
    let scratch = Scratch::new();
    // It touches itself: whoever builds during a run does the same.
    let path = scratch.join("engine");
    let text = format!("touch -d 2099-01-01 '{}'\n{}", path.display(), exec_fake());
    let engine = scratch.script("engine", &text);
    let outcome = finished(
        scratch
            .orchestrate()
            .args(["-s", "decode", "--iterations", "1", "--warmup", "0", "--blocks", "2"])
            .args(["--save-baseline", "main", "-e"])
            .arg(&engine)
            .arg("--results")
            .arg(scratch.results()),
    );
    assert!(outcome.stderr.contains("was changed after the run had begun"), "{outcome:?}");
    assert_eq!(page(&folder(&scratch, "main"))["configurations"][0]["program"].get("kept"), None);
    let outcome = run(&scratch, &engine, &["--baseline", "main", "--rerun-baseline"]);
    assert!(outcome.stderr.contains("cannot be measured again"), "{outcome:?}");
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
}

// Looking after them.

#[test]
fn baselines_are_listed_shown_and_removed() {
    let scratch = Scratch::new();
    assert!(orchestrate(&scratch, &["baseline", "list"]).stdout.starts_with("no baselines"));
    let folder = saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    edit_page(&folder, |page| page["commit"] = "abc".into());
    let listed = orchestrate(&scratch, &["baseline", "list"]).stdout;
    let version = env!("CARGO_PKG_VERSION");
    assert!(
        listed.contains("baseline `main`, ")
            && listed.contains(&format!(" old, orchestrate {version} at commit abc"))
    );
    let shown = orchestrate(&scratch, &["baseline", "show", "main"]);
    assert!(shown.stdout.contains("sha256") && shown.stdout.contains("it is a script"), "{shown:?}");
    let removed = orchestrate(&scratch, &["baseline", "remove", "main"]);
    assert_eq!((removed.code, folder.exists()), (Some(0), false));
    let again = orchestrate(&scratch, &["baseline", "remove", "main"]);
    assert_eq!(again.code, Some(2));
    assert!(again.stderr.contains("no baseline `main`\nhint: there is none yet"), "{again:?}");
}

#[test]
fn a_damaged_baseline_is_said_and_can_be_removed() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let folder = saved(&scratch, "main", &engine);
    fs::write(folder.join("baseline.json"), "{").unwrap();
    fs::remove_dir_all(scratch.results()).unwrap();
    let outcome = run(&scratch, &engine, &["--baseline", "main"]);
    assert!(outcome.stderr.ends_with("\nhint: orchestrate baseline remove main\n"), "{outcome:?}");
    assert_eq!((outcome.code, files(&scratch.results()).len()), (Some(5), 0), "{outcome:?}");
    assert!(orchestrate(&scratch, &["baseline", "list"]).stdout.contains("its page cannot be read"));
    assert_eq!(orchestrate(&scratch, &["baseline", "remove", "main"]).code, Some(0));
    assert!(!folder.exists());
}

#[test]
fn a_baseline_that_has_lost_its_page_is_listed_refused_and_can_be_removed() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let folder = saved(&scratch, "main", &engine);
    fs::remove_file(folder.join("baseline.json")).unwrap();
    fs::remove_dir_all(scratch.results()).unwrap();
    assert!(
        orchestrate(&scratch, &["baseline", "list"]).stdout.contains("its page cannot be read: it is lost")
    );
    let outcome = run(&scratch, &engine, &["--baseline", "main"]);
    assert!(outcome.stderr.ends_with("\nhint: orchestrate baseline remove main\n"), "{outcome:?}");
    assert_eq!((outcome.code, files(&scratch.results()).len()), (Some(5), 0), "{outcome:?}");
    assert_eq!(orchestrate(&scratch, &["baseline", "remove", "main"]).code, Some(0));
    assert!(!folder.exists());
}

#[test]
fn a_baseline_whose_record_is_damaged_or_cut_off_is_refused_before_measuring() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let record = saved(&scratch, "main", &engine).join("record.jsonl");
    fs::remove_dir_all(scratch.results()).unwrap();
    let whole = fs::read_to_string(&record).unwrap();
    let (first, _) = whole.split_once('\n').unwrap();
    for damaged in ["", "{", &whole[..whole.len() / 2], &format!("{first}\n{{\n{{\n")] {
        fs::write(&record, damaged).unwrap();
        let outcome = run(&scratch, &engine, &["--baseline", "main"]);
        assert_eq!((outcome.code, files(&scratch.results()).len()), (Some(5), 0), "{outcome:?}");
        assert!(outcome.stderr.ends_with("\nhint: orchestrate baseline remove main\n"), "{outcome:?}");
    }
}

// Being held against.

#[test]
fn a_baseline_that_had_stepped_aside_for_one_that_never_came_is_there_all_the_same() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let place = saved(&scratch, "main", &engine);
    // As a process leaves it that is killed between the two renames; no process has this number.
    fs::rename(&place, place.with_file_name(".main.old.4194999")).unwrap();
    let outcome = run(&scratch, &engine, &["--baseline", "main"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(place.exists());
}

#[test]
fn a_baseline_that_nobody_knows_is_refused_with_the_names_that_there_are() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    saved(&scratch, "main", &engine);
    fs::remove_dir_all(scratch.results()).unwrap();
    let outcome = run(&scratch, &engine, &["--baseline", "mian"]);
    assert_refused_before_measuring(&scratch, &outcome, &["no baseline `mian`", "hint: there are `main`"]);
}

#[test]
fn the_same_engine_passes_against_its_baseline_whose_age_and_maker_are_shown() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let folder = saved(&scratch, "main", &engine);
    edit_page(&folder, |page| page["commit"] = "abc".into());
    let outcome = run(&scratch, &engine, &["--baseline", "main"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let version = env!("CARGO_PKG_VERSION");
    assert!(outcome.stdout.contains("baseline `main`, less than a minute old"), "{outcome:?}");
    assert!(outcome.stdout.contains(&format!("orchestrate {version} at commit abc")), "{outcome:?}");
}

#[test]
fn a_slower_engine_fails_against_its_baseline_and_the_metric_is_named() {
    let scratch = Scratch::new();
    saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    let outcome = run(&scratch, &engine(&scratch, "engine", 3000), &["--baseline", "main"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stdout.contains("decode") && outcome.stdout.contains("33"), "{outcome:?}");
    assert!(outcome.stdout.contains("slower") && outcome.stdout.contains("critical"), "{outcome:?}");
    // A faster one harms nobody.
    assert_eq!(run(&scratch, &engine(&scratch, "engine", 1000), &["--baseline", "main"]).code, Some(0));
}

#[test]
fn a_change_between_the_thresholds_fails_only_where_the_user_says_so() {
    let scratch = Scratch::new();
    saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    let slower = engine(&scratch, "engine", 2300);
    let code = |words: &[&str]| run(&scratch, &slower, &[&["--baseline", "main"], words].concat()).code;
    assert_eq!(code(&[]), Some(0));
    assert_eq!(code(&["--fail-on", "warning"]), Some(1));
    assert_eq!(code(&["--critical", "12%"]), Some(1));
}

#[test]
fn an_engine_that_is_faster_and_slower_from_launch_to_launch_is_not_measurable() {
    let scratch = Scratch::new();
    saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    let outcome = run(
        &scratch,
        &unsteady(&scratch, "engine", &[1000, 3000, 1500, 4000, 2000]),
        &["--baseline", "main"],
    );
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.stdout.contains("not measurable"), "{outcome:?}");
}

#[test]
fn a_case_that_the_baseline_had_and_that_fails_now_is_a_regression() {
    let scratch = Scratch::new();
    saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    let broken = scratch.script("engine", &format!("{} --fault exits_in_load", exec_fake()));
    for words in [&["--baseline", "main"][..], &["--baseline", "main", "--rerun-baseline"]] {
        let outcome = run(&scratch, &broken, words);
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
    }
}

#[test]
fn an_old_baseline_and_one_of_another_version_are_doubted_and_used() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let folder = saved(&scratch, "main", &engine);
    edit_page(&folder, |page| {
        page["measured"] = "2020-01-01T00:00:00Z".into();
        page["orchestrate_version"] = "0.0.1".into();
    });
    let outcome = run(&scratch, &engine, &["--baseline", "main"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    for said in
        ["days old: what the machine did since passes for a change", "was measured by orchestrate 0.0.1"]
    {
        assert!(outcome.stdout.contains(said), "expected `{said}` in {}", outcome.stdout);
    }
}

#[test]
fn a_baseline_of_another_machine_is_refused_before_measuring_and_the_difference_named() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let folder = saved(&scratch, "main", &engine);
    fs::remove_dir_all(scratch.results()).unwrap();
    edit_header(&folder, |header| header["machine"]["cpu"]["model"] = "Babbage 2".into());
    let outcome = run(&scratch, &engine, &["--baseline", "main"]);
    assert_refused_before_measuring(&scratch, &outcome, &["Babbage 2", "--force", "--rerun-baseline"]);

    let forced = run(&scratch, &engine, &["--baseline", "main", "--force"]);
    assert!(forced.stdout.contains("Babbage 2"), "{forced:?}");
    assert_eq!(forced.code, Some(0), "{forced:?}");
    // Its figures do not matter where its program is measured here.
    let again = run(&scratch, &engine, &["--baseline", "main", "--rerun-baseline"]);
    assert_eq!(again.code, Some(0), "{again:?}");
}

#[test]
fn a_baseline_of_another_model_or_of_other_work_is_refused_before_measuring() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let folder = saved(&scratch, "main", &engine);
    fs::remove_dir_all(scratch.results()).unwrap();
    let outcome = run(&scratch, &engine, &["--baseline", "main", "--max-new-tokens", "9"]);
    assert_refused_before_measuring(&scratch, &outcome, &["tokens to generate", "--force"]);
    edit_header(&folder, |header| {
        header["plan"]["configurations"][0]["model"]["identity"] = "another".into()
    });
    let outcome = run(&scratch, &engine, &["--baseline", "main"]);
    assert_refused_before_measuring(&scratch, &outcome, &["weights", "another", "--force"]);
    let outcome = run(&scratch, &engine, &["--baseline", "main", "--rerun-baseline"]);
    assert_refused_before_measuring(&scratch, &outcome, &["the model `embedded` is another now", "--force"]);
}

#[test]
fn a_run_of_another_seed_is_refused_before_measuring_for_its_prompts_are_others() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    saved(&scratch, "main", &engine);
    fs::remove_dir_all(scratch.results()).unwrap();
    let outcome = run(&scratch, &engine, &["--baseline", "main", "--seed", "3"]);
    assert_refused_before_measuring(&scratch, &outcome, &["prompts of decode", "`seed 3`", "--force"]);
    // Of a prompt that is given, no seed makes another one.
    let given = ["--prompt", "Once upon a time", "--save-baseline", "given"];
    assert_eq!(run(&scratch, &engine, &given).code, Some(0));
    let outcome =
        run(&scratch, &engine, &["--prompt", "Once upon a time", "--baseline", "given", "--seed", "3"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

#[test]
fn a_baseline_without_this_engine_is_refused_before_measuring() {
    let scratch = Scratch::new();
    let (one, other) = (engine(&scratch, "one", 2000), engine(&scratch, "other", 2000));
    saved(&scratch, "main", &one);
    fs::remove_dir_all(scratch.results()).unwrap();
    let third = engine(&scratch, "third", 2000);
    for words in [&["--baseline", "main"][..], &["--baseline", "main", "--rerun-baseline"]] {
        let outcome = finished(command(&scratch, &other, words).arg("-e").arg(&third));
        assert_refused_before_measuring(&scratch, &outcome, &["one", "other"]);
    }
}

// Measuring the programs again.

#[test]
fn a_program_that_was_replaced_is_measured_again_from_its_copy() {
    let scratch = Scratch::new();
    let folder = saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    fs::remove_dir_all(scratch.results()).unwrap();
    let outcome =
        run(&scratch, &engine(&scratch, "engine", 3000), &["--baseline", "main", "--rerun-baseline"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stdout.contains("slower") && outcome.stdout.contains("critical"), "{outcome:?}");
    let record = Record::only_one_in(&scratch.results());
    let stand_in = &record.0[0]["plan"]["configurations"][record.configuration("engine (main)")];
    let kept = page(&folder)["configurations"][0]["program"]["kept"].clone();
    assert_eq!(stand_in["command"][0], json!(folder.join(kept.as_str().unwrap())));
    for label in ["engine", "engine (main)", "engine (main) (twin)"] {
        assert_eq!(record.launches_of(label).len(), 5, "`{label}` in every block");
    }
    assert!(record.warnings_of("engine")[0].contains("the copy of "), "{:?}", record.warnings_of("engine"));
}

#[test]
fn a_program_that_is_still_there_is_measured_again_where_it_lies() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    saved(&scratch, "main", &engine);
    fs::remove_dir_all(scratch.results()).unwrap();
    let outcome = run(&scratch, &engine, &["--baseline", "main", "--rerun-baseline"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let record = Record::only_one_in(&scratch.results());
    let stand_in = &record.0[0]["plan"]["configurations"][record.configuration("engine (main)")];
    assert_eq!(stand_in["command"][0], json!(engine));
    assert!(record.warnings_of("engine")[0].contains("is still the program of then"));
}

#[test]
fn a_machine_that_became_slower_is_no_regression_where_the_program_is_measured_again() {
    let scratch = Scratch::new();
    let engine = scratch.join("engine");
    fs::copy(fake_engine(), &engine).unwrap();
    let on_a_machine = |per_token_ns: u32, words: &[&str]| {
        let speed = format!(r#"{{"real_sleep": false, "per_token_ns": {per_token_ns}}}"#);
        finished(command(&scratch, &engine, words).env("FAKE_ENGINE", speed))
    };
    assert_eq!(on_a_machine(2000, &["--save-baseline", "main"]).code, Some(0));
    assert_eq!(on_a_machine(3000, &["--baseline", "main"]).code, Some(1));
    let outcome = on_a_machine(3000, &["--baseline", "main", "--rerun-baseline"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

#[test]
fn half_of_an_old_engine_is_measured_only_by_force() {
    let scratch = Scratch::new();
    let inner = engine(&scratch, "inner", 2000);
    let door = scratch.script("door", &format!("exec '{}'", inner.display()));
    saved(&scratch, "main", &door);
    fs::remove_dir_all(scratch.results()).unwrap();
    engine(&scratch, "inner", 3000);
    let outcome = run(&scratch, &door, &["--baseline", "main", "--rerun-baseline"]);
    let named = format!("`{}` is another now", inner.display());
    assert_refused_before_measuring(&scratch, &outcome, &[&named, "hint: --force"]);
    let forced = run(&scratch, &door, &["--baseline", "main", "--rerun-baseline", "--force"]);
    assert_eq!(forced.code, Some(0), "{forced:?}");
    let record = Record::only_one_in(&scratch.results());
    let warned = format!("--force: the file that it starts or reads, {named}");
    assert!(record.warnings_of("door").contains(&&*warned), "{:?}", record.warnings_of("door"));
}

#[test]
fn the_program_of_an_earlier_build_is_a_baseline_by_its_path() {
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
    let outcome = run(&scratch, &now, &["--baseline", "./before", "--rerun-baseline"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let outcome = run(&scratch, &before, &["--baseline", "./before", "--rerun-baseline"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let outcome = finished(
        command(&scratch, &now, &["--baseline", "./before", "--rerun-baseline"]).arg("-e").arg(&before),
    );
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(
        outcome.stderr.contains("is the baseline of one row, and there are `now`, `before`"),
        "{outcome:?}"
    );
}

#[test]
fn a_dry_run_shows_the_programs_that_are_measured_again() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    saved(&scratch, "main", &engine);
    let outcome = run(&scratch, &engine, &["--baseline", "main", "--rerun-baseline", "--dry-run"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("engine (main) on embedded  (the baseline's program)"), "{outcome:?}");
    assert_eq!(run(&scratch, &engine, &["--baseline", "main", "--dry-run"]).code, Some(0));
}

// All at once, and for pipes.

#[test]
fn a_baseline_is_not_replaced_by_a_run_that_did_not_pass_against_it() {
    let scratch = Scratch::new();
    let folder = saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    let before = page(&folder);
    let slower = engine(&scratch, "engine", 3000);
    let outcome = run(&scratch, &slower, &["--baseline", "main", "--save-baseline", "main"]);
    assert_eq!((outcome.code, page(&folder)), (Some(1), before), "{outcome:?}");
    assert!(outcome.stderr.contains("baseline `main` stays as it was"), "{outcome:?}");
    let outcome = run(&scratch, &slower, &["--baseline", "main", "--save-baseline", "other"]);
    assert!(outcome.code == Some(1) && self::folder(&scratch, "other").exists(), "{outcome:?}");
}

#[test]
fn what_a_program_reads_on_stdout_stays_one_document() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    saved(&scratch, "main", &engine);
    for words in [&["--json", "-"][..], &["--format", "json"]] {
        let outcome = run(&scratch, &engine, &[&["--baseline", "main"], words].concat());
        assert!(serde_json::from_str::<Value>(&outcome.stdout).is_ok(), "{outcome:?}");
        assert!(outcome.stderr.contains("baseline `main`, "), "{outcome:?}");
    }
}

#[test]
fn the_judgement_is_part_of_the_json_as_compare_gives_it() {
    let scratch = Scratch::new();
    let base = saved(&scratch, "main", &engine(&scratch, "engine", 2000)).join("record.jsonl");
    let slower = engine(&scratch, "engine", 3000);
    fs::remove_dir_all(scratch.results()).unwrap();
    let file = scratch.join("judged.json");
    let outcome = run(&scratch, &slower, &["--baseline", "main", "--json", file.to_str().unwrap()]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    // The table on stdout is for people, and has it below.
    assert!(outcome.stdout.contains("critical"), "{outcome:?}");
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
        let outcome = run(&scratch, &slower, words);
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
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
fn the_script_for_ci_prints_markdown_fills_the_summary_and_exits_with_the_judgement() {
    let scratch = Scratch::new();
    let (before, now) = (engine(&scratch, "before", 2000), engine(&scratch, "now", 3000));
    let summary = scratch.join("summary.md");
    let script = |words: &[&str]| {
        let mut command = scratch.marked(root().join("scripts/compare-in-ci"));
        command.env("ORCHESTRATE", env!("CARGO_BIN_EXE_orchestrate")).env("GITHUB_STEP_SUMMARY", &summary);
        command.args(words).args(RUN).arg("--results").arg(scratch.results()).current_dir(&scratch.path);
        finished(&mut command)
    };
    let outcome = script(&["./now", "./before"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stdout.starts_with("### `./now` against `./before`: worse"), "{outcome:?}");
    assert!(outcome.stdout.contains("| ") && outcome.stdout.contains("slower"), "{outcome:?}");
    assert_eq!(fs::read_to_string(&summary).unwrap(), outcome.stdout);

    assert_eq!(script(&["--save", "main", before.to_str().unwrap()]).code, Some(0));
    assert_eq!(script(&[now.to_str().unwrap(), "main"]).code, Some(1));
    assert_eq!(script(&[before.to_str().unwrap(), "main"]).code, Some(0));
    assert_eq!(finished(&mut scratch.marked(root().join("scripts/compare-in-ci"))).code, Some(2));
}

#[test]
fn an_interrupted_run_is_neither_judged_nor_kept_and_says_how_it_can_be_compared() {
    let scratch = Scratch::new();
    saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    let hangs = scratch.script("engine", &format!("{} --fault hangs_in_generate --at 2", exec_fake()));
    let words = &["--baseline", "main", "--save-baseline", "other", "--debug"];
    let mut running = Running::start(&mut command(&scratch, &hangs, words));
    running.wait_for("fake: hangs in generate");
    running.signal(Signal::SIGINT);
    let outcome = running.finish();
    assert_eq!(outcome.code, Some(130), "{outcome:?}");
    for said in ["not compared with baseline `main`", " compare main ", "baseline `other` is not saved"] {
        assert!(outcome.stderr.contains(said), "expected `{said}` in {}", outcome.stderr);
    }
    assert!(!folder(&scratch, "other").exists());
    scratch.assert_nothing_lives();
}
