//! Runs against a baseline: passes, failures, and refusals before anything is measured.

use std::fs;
use std::time::{Duration, SystemTime};

use crate::support::Scratch;
use crate::support::baselines::{
    assert_refused_before_measuring, command, edit_header, edit_page, engine, exec_fake, finished, run,
    saved, unsteady,
};

// Comparison with a baseline.

#[test]
fn a_baseline_is_restored_after_a_killed_replacement() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let place = saved(&scratch, "main", &engine);
    // The state after a process was killed between the two renames; no process has this number.
    fs::rename(&place, place.with_file_name(".main.old.4194999")).unwrap();
    run(&scratch, &engine, &["--baseline", "main"]).exits_with(0);
    assert!(place.exists());
}

#[test]
fn an_unknown_baseline_is_refused_with_the_known_names() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    saved(&scratch, "main", &engine);
    fs::remove_dir_all(scratch.results()).unwrap();
    let outcome = run(&scratch, &engine, &["--baseline", "mian"]);
    assert_refused_before_measuring(
        &scratch,
        &outcome,
        &["no baseline `mian`", "hint: the baselines are `main`"],
    );
}

#[test]
fn an_unchanged_engine_passes_and_the_baselines_age_and_version_are_shown() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let folder = saved(&scratch, "main", &engine);
    // An age that stays the same for the next half hour.
    let then = SystemTime::now() - Duration::from_secs(3 * 3600 + 60);
    edit_page(&folder, |page| {
        page["commit"] = "abc".into();
        page["measured"] = humantime::format_rfc3339_seconds(then).to_string().into();
    });
    let outcome = run(&scratch, &engine, &["--baseline", "main"]).exits_with(0);
    let version = env!("CARGO_PKG_VERSION");
    outcome.assert_stdout(&["baseline `main`, 3 hours old", &format!("orchestrate {version} at commit abc")]);
}

#[test]
fn a_slower_engine_fails_against_its_baseline_with_the_metric_named() {
    let scratch = Scratch::new();
    saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    let outcome = run(&scratch, &engine(&scratch, "engine", 3000), &["--baseline", "main"]).exits_with(1);
    outcome.assert_stdout(&["decode", "33", "slower", "critical"]);
    // A faster program passes.
    assert_eq!(run(&scratch, &engine(&scratch, "engine", 1000), &["--baseline", "main"]).code, Some(0));
}

#[test]
fn a_change_between_the_thresholds_fails_only_with_fail_on() {
    let scratch = Scratch::new();
    saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    let slower = engine(&scratch, "engine", 2300);
    let code = |words: &[&str]| run(&scratch, &slower, &[&["--baseline", "main"], words].concat()).code;
    assert_eq!(code(&[]), Some(0));
    assert_eq!(code(&["--fail-on", "warning"]), Some(1));
    assert_eq!(code(&["--critical", "12%"]), Some(1));
}

#[test]
fn an_engine_that_varies_between_launches_is_inconclusive() {
    let scratch = Scratch::new();
    saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    let outcome = run(
        &scratch,
        &unsteady(&scratch, "engine", &[1000, 3000, 1500, 4000, 2000]),
        &["--baseline", "main"],
    )
    .exits_with(3);
    outcome.assert_stdout(&["inconclusive"]);
}

#[test]
fn a_case_that_fails_now_is_a_regression() {
    let scratch = Scratch::new();
    saved(&scratch, "main", &engine(&scratch, "engine", 2000));
    let broken = scratch.script("engine", &format!("{} --fault exits_in_load", exec_fake()));
    for words in [&["--baseline", "main"][..], &["--baseline", "main", "--rerun-baseline"]] {
        run(&scratch, &broken, words).exits_with(1);
    }
}

#[test]
fn old_baselines_and_other_versions_are_used_with_a_warning() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let folder = saved(&scratch, "main", &engine);
    edit_page(&folder, |page| {
        page["measured"] = "2020-01-01T00:00:00Z".into();
        page["orchestrate_version"] = "0.0.1".into();
    });
    let outcome = run(&scratch, &engine, &["--baseline", "main"]).exits_with(0);
    outcome
        .assert_stdout(&["days old: changes of the machine since then", "was measured by orchestrate 0.0.1"]);
}

#[test]
fn a_baseline_of_another_machine_is_refused_with_the_difference() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    let folder = saved(&scratch, "main", &engine);
    fs::remove_dir_all(scratch.results()).unwrap();
    edit_header(&folder, |header| header["machine"]["cpu"]["model"] = "Babbage 2".into());
    let outcome = run(&scratch, &engine, &["--baseline", "main"]);
    assert_refused_before_measuring(&scratch, &outcome, &["Babbage 2", "--force", "--rerun-baseline"]);

    let forced = run(&scratch, &engine, &["--baseline", "main", "--force"]);
    forced.assert_stdout(&["Babbage 2"]);
    assert_eq!(forced.code, Some(0), "{forced:?}");
    // Old values do not matter when the baseline's program is measured here.
    run(&scratch, &engine, &["--baseline", "main", "--rerun-baseline"]).exits_with(0);
}

#[test]
fn a_baseline_of_another_model_or_workload_is_refused_before_measuring() {
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
    assert_refused_before_measuring(&scratch, &outcome, &["the model `embedded` has changed", "--force"]);
}

#[test]
fn a_run_with_another_seed_is_refused_before_measuring() {
    let scratch = Scratch::new();
    let engine = engine(&scratch, "engine", 2000);
    saved(&scratch, "main", &engine);
    fs::remove_dir_all(scratch.results()).unwrap();
    let outcome = run(&scratch, &engine, &["--baseline", "main", "--seed", "3"]);
    assert_refused_before_measuring(&scratch, &outcome, &["prompts of decode", "`seed 3`", "--force"]);
    // With a given prompt, the seed does not change the prompt.
    let given = ["--prompt", "Once upon a time", "--save-baseline", "given"];
    assert_eq!(run(&scratch, &engine, &given).code, Some(0));
    run(&scratch, &engine, &["--prompt", "Once upon a time", "--baseline", "given", "--seed", "3"])
        .exits_with(0);
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
