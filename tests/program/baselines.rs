//! Baselines for a user: saving, listing, removing. The fake engine states its times without waiting, so all differences
//! are planted.

use std::fs;

use serde_json::json;

use crate::support::baselines::{
    assert_refused_before_measuring, command, edit_page, engine, exec_fake, finished, folder, orchestrate,
    page, run, saved, unsteady,
};
use crate::support::record::files;
use crate::support::{Scratch, copy_program, fake_engine, finish};

// Saving.

#[test]
fn a_baseline_has_the_record_the_programs_and_a_description() {
    let scratch = Scratch::new();
    let engine = scratch.join("engine");
    copy_program(fake_engine(), &engine);
    let mut command = command(&scratch, &engine, &["--save-baseline", "main"]);
    let outcome = finished(command.env("FAKE_ENGINE", r#"{"real_sleep": false}"#)).exits_with(0);
    outcome.assert_stderr(&["baseline `main` is saved: 1 row, in `"]);

    let (folder, records) = (folder(&scratch, "main"), files(&scratch.results()));
    assert_eq!(fs::read(folder.join("record.jsonl")).unwrap(), fs::read(&records[0]).unwrap());
    let page = page(&folder);
    let kept = &page["configurations"][0];
    assert_eq!((&kept["label"], &kept["program"]["path"]), (&json!("engine"), &json!(engine)));
    let copy = folder.join(kept["program"]["kept"].as_str().unwrap());
    // Under its own name, because a program may read it.
    assert_eq!(copy.file_name().unwrap(), "engine");
    assert_eq!(fs::read(&copy).unwrap(), fs::read(&engine).unwrap());
    let sum = finish(scratch.marked("sha256sum").arg(&engine)).stdout;
    assert!(sum.starts_with(kept["program"]["digest"].as_str().unwrap()), "{sum} {kept}");
    assert!(!outcome.stderr.contains("is incomplete"), "{outcome:?}");
    assert_eq!(files(&scratch.join("home/baselines")), [folder], "nothing else is left there");
}

#[test]
fn a_script_is_stored_with_a_warning_about_its_dependencies() {
    let scratch = Scratch::new();
    let outcome = run(&scratch, &engine(&scratch, "door", 2000), &["--save-baseline", "main"]);
    let warned = format!("it is a script; not stored: the file `{}`", fake_engine().display());
    outcome.assert_stderr(&[&warned]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

#[test]
fn saving_replaces_a_baseline_and_reports_its_age() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let folder = saved(&scratch, "main", &engine);
    edit_page(&folder, |page| page["measured"] = "2020-01-01T00:00:00Z".into());
    let outcome = run(&scratch, &engine, &["--save-baseline", "main"]);
    outcome.assert_stderr(&["baseline `main` is saved, replacing one that was "]);
    assert_ne!(page(&folder)["measured"], "2020-01-01T00:00:00Z");
    assert_eq!(files(&scratch.join("home/baselines")), [folder], "nothing else is left there");
}

#[test]
fn a_run_without_agreeing_blocks_is_recorded_and_not_saved_as_baseline() {
    let scratch = Scratch::new();
    let engine = unsteady(&scratch, "engine", &[1000, 2000, 1000, 2000, 1000]);
    let outcome = run(&scratch, &engine, &["--save-baseline", "main"]).exits_with(3);
    for said in [
        "baseline `main` is not saved, and the run is in `",
        "`engine` `decode`",
        "100 % apart",
        // More blocks than the run had.
        "hint: --blocks 8",
    ] {
        outcome.assert_stderr(&[said]);
    }
    assert_eq!(files(&scratch.results()).len(), 1);
    assert!(!folder(&scratch, "main").exists());
}

#[test]
fn a_refused_baseline_leaves_the_old_one_unchanged() {
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
fn a_failed_case_is_left_out_of_the_baseline_with_a_warning() {
    let scratch = Scratch::new();
    let broken = scratch.faulty("exits_in_load", &[]);
    let engine = engine(&scratch, "engine", 2000);
    let outcome = finished(command(&scratch, &engine, &["--save-baseline", "main"]).arg("-e").arg(broken))
        .exits_with(4);
    outcome.assert_stderr(&["`exits_in_load` `decode`: not in the baseline, because it failed"]);
    assert_eq!(page(&folder(&scratch, "main"))["configurations"].as_array().unwrap().len(), 1);
}

#[test]
fn a_run_that_cannot_be_a_baseline_is_refused_before_measuring() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let outcome = run(&scratch, &engine, &["--save-baseline", "../main"]);
    assert_refused_before_measuring(
        &scratch,
        &outcome,
        &["invalid baseline name `../main`", "hint: letters"],
    );
    let mut quick = scratch.orchestrate();
    quick.args(["-s", "decode", "--quick", "--save-baseline", "main", "-e"]).arg(&engine);
    let outcome = finished(quick.arg("--results").arg(scratch.results()));
    assert_refused_before_measuring(&scratch, &outcome, &["two blocks that agree", "hint: --blocks 5"]);
}

#[test]
fn a_program_changed_during_the_run_is_not_stored() {
    let scratch = Scratch::new();
    // The engine touches itself, as a build during the run does.
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
    outcome.assert_stderr(&["changed after the start of the run"]);
    assert_eq!(page(&folder(&scratch, "main"))["configurations"][0]["program"].get("kept"), None);
    let outcome = run(&scratch, &engine, &["--baseline", "main", "--rerun-baseline"]);
    outcome.assert_stderr(&["cannot be measured again"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
}

// Listing and removing.

#[test]
fn baseline_list_show_and_remove_work() {
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
    shown.assert_stdout(&["sha256", "it is a script"]);
    let removed = orchestrate(&scratch, &["baseline", "remove", "main"]);
    assert_eq!((removed.code, folder.exists()), (Some(0), false));
    let again = orchestrate(&scratch, &["baseline", "remove", "main"]).exits_with(2);
    again.assert_stderr(&["no baseline `main`\nhint: --save-baseline main"]);
}

#[test]
fn a_damaged_baseline_is_reported_and_can_be_removed() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let folder = saved(&scratch, "main", &engine);
    fs::write(folder.join("baseline.json"), "{").unwrap();
    fs::remove_dir_all(scratch.results()).unwrap();
    let outcome = run(&scratch, &engine, &["--baseline", "main"]);
    assert!(outcome.stderr.ends_with("\nhint: orchestrate baseline remove main\n"), "{outcome:?}");
    assert_eq!((outcome.code, files(&scratch.results()).len()), (Some(5), 0), "{outcome:?}");
    assert!(orchestrate(&scratch, &["baseline", "list"]).stdout.contains("its description cannot be read"));
    assert_eq!(orchestrate(&scratch, &["baseline", "remove", "main"]).code, Some(0));
    assert!(!folder.exists());
}

#[test]
fn a_baseline_without_description_is_listed_refused_and_removable() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let folder = saved(&scratch, "main", &engine);
    fs::remove_file(folder.join("baseline.json")).unwrap();
    fs::remove_dir_all(scratch.results()).unwrap();
    assert!(
        orchestrate(&scratch, &["baseline", "list"])
            .stdout
            .contains("its description cannot be read: the file is missing")
    );
    let outcome = run(&scratch, &engine, &["--baseline", "main"]);
    assert!(outcome.stderr.ends_with("\nhint: orchestrate baseline remove main\n"), "{outcome:?}");
    assert_eq!((outcome.code, files(&scratch.results()).len()), (Some(5), 0), "{outcome:?}");
    assert_eq!(orchestrate(&scratch, &["baseline", "remove", "main"]).code, Some(0));
    assert!(!folder.exists());
}

#[test]
fn a_baseline_with_a_damaged_record_is_refused_before_measuring() {
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
