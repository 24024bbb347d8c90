//! Runs that are compared with a baseline: passes, failures, and refusals before anything is measured.

use std::fs;
use std::time::{Duration, SystemTime};

use crate::support::Scratch;
use crate::support::baselines::{
    COMPARE, RERUN, assert_refused, command, edit_description, edit_header, engine, run, save,
    unsteady_engine, with_saved_baseline,
};

#[test]
fn a_baseline_is_restored_after_a_killed_replacement() {
    let (scratch, engine, folder) = with_saved_baseline();
    // Gives the folder the name that it has if a process is killed in the middle of a replacement. No process has this number.
    fs::rename(&folder, folder.with_file_name(".main.old.4194999")).unwrap();
    run(&scratch, &engine, COMPARE).exits_with(0);
    assert!(folder.exists());
}

#[test]
fn an_unknown_baseline_is_refused_with_the_known_names() {
    let (scratch, engine, _) = with_saved_baseline();
    let refusal = ["no baseline named `nowhere`", "hint: the only one is `main`"];
    assert_refused(&scratch, &mut command(&scratch, &engine, &["--baseline", "nowhere"]), &refusal);
    let refusal = ["no baseline named `mian`", "--baseline main"];
    assert_refused(&scratch, &mut command(&scratch, &engine, &["--baseline", "mian"]), &refusal);
}

#[test]
fn an_unchanged_engine_passes_and_the_age_and_version_of_its_baseline_are_shown() {
    let (scratch, engine, folder) = with_saved_baseline();
    // The age is shown in hours, so it does not change during this test.
    let measured = SystemTime::now() - Duration::from_secs(3 * 3600 + 60);
    edit_description(&folder, |description| {
        description["commit"] = "abc".into();
        description["measured"] = humantime::format_rfc3339_seconds(measured).to_string().into();
    });
    let version = format!("orchestrate {} at commit abc", env!("CARGO_PKG_VERSION"));
    let outcome = run(&scratch, &engine, COMPARE).exits_with(0);
    outcome.assert_stdout(&["baseline `main`, 3 hours old", &version]);
}

#[test]
fn a_slower_engine_fails_against_its_baseline_with_the_metric_named() {
    let (scratch, ..) = with_saved_baseline();
    let outcome = run(&scratch, &engine(&scratch, "engine", 3000), COMPARE).exits_with(1);
    outcome.assert_stdout(&["decode", "33", "slower", "critical"]);
    // A faster program passes.
    run(&scratch, &engine(&scratch, "engine", 1000), COMPARE).exits_with(0);
}

#[test]
fn a_change_between_the_thresholds_fails_only_with_a_stricter_option() {
    let (scratch, ..) = with_saved_baseline();
    let slower = engine(&scratch, "engine", 2300);
    for (words, code) in [(&[][..], 0), (&["--fail-on", "warning"], 1), (&["--critical", "12%"], 1)] {
        run(&scratch, &slower, &[COMPARE, words].concat()).exits_with(code);
    }
}

#[test]
fn an_engine_that_varies_between_launches_is_inconclusive() {
    let (scratch, ..) = with_saved_baseline();
    let varying = unsteady_engine(&scratch, "engine", &[1000, 3000, 1500, 4000, 2000]);
    run(&scratch, &varying, COMPARE).exits_with(3).assert_stdout(&["inconclusive"]);
}

#[test]
fn a_case_that_fails_now_is_a_regression() {
    let (scratch, ..) = with_saved_baseline();
    let broken = scratch.engine("engine", "--fault exits_in_load");
    for words in [COMPARE, RERUN] {
        run(&scratch, &broken, words).exits_with(1);
    }
}

#[test]
fn old_baselines_and_other_versions_are_used_with_a_warning() {
    let (scratch, engine, folder) = with_saved_baseline();
    edit_description(&folder, |description| {
        description["measured"] = "2020-01-01T00:00:00Z".into();
        description["orchestrate_version"] = "0.0.1".into();
    });
    let outcome = run(&scratch, &engine, COMPARE).exits_with(0);
    outcome
        .assert_stdout(&["days old: changes of the machine since then", "was measured by orchestrate 0.0.1"]);
}

#[test]
fn a_baseline_of_another_machine_is_refused_with_the_difference() {
    let (scratch, engine, folder) = with_saved_baseline();
    edit_header(&folder, |header| header["machine"]["cpu"]["model"] = "Babbage 2".into());
    let refusal = ["Babbage 2", "--force", "--rerun-baseline"];
    assert_refused(&scratch, &mut command(&scratch, &engine, COMPARE), &refusal);

    let forced = run(&scratch, &engine, &[COMPARE, &["--force"]].concat()).exits_with(0);
    forced.assert_stdout(&["Babbage 2"]);
    // The baseline's values do not matter if its program is measured here.
    run(&scratch, &engine, RERUN).exits_with(0);
}

#[test]
fn a_baseline_of_another_model_or_workload_is_refused_before_measuring() {
    let (scratch, engine, folder) = with_saved_baseline();
    let refused = |words: &[&str], texts: &[&str]| {
        assert_refused(&scratch, &mut command(&scratch, &engine, words), texts);
    };
    refused(&[COMPARE, &["--max-new-tokens", "9"]].concat(), &["tokens to generate", "--force"]);
    edit_header(&folder, |header| {
        header["plan"]["configurations"][0]["model"]["identity"] = "another".into()
    });
    refused(COMPARE, &["weights", "another", "--force"]);
    refused(RERUN, &["the model `embedded` has changed", "--force"]);
}

#[test]
fn a_run_with_another_seed_is_refused_before_measuring() {
    let (scratch, engine, _) = with_saved_baseline();
    let mut other_seed = command(&scratch, &engine, &[COMPARE, &["--seed", "3"]].concat());
    assert_refused(&scratch, &mut other_seed, &["prompts of decode", "`seed 3`", "--force"]);
    // With a given prompt, the seed does not change the prompt.
    let prompt = ["--prompt", "Once upon a time"];
    run(&scratch, &engine, &[&prompt[..], &["--save-baseline", "given"]].concat()).exits_with(0);
    run(&scratch, &engine, &[&prompt[..], &["--baseline", "given", "--seed", "3"]].concat()).exits_with(0);
}

#[test]
fn a_baseline_without_this_engine_is_refused_before_measuring() {
    let scratch = Scratch::new();
    let [first, second, third] = ["one", "other", "third"].map(|name| engine(&scratch, name, 2000));
    save(&scratch, &first);
    for words in [COMPARE, RERUN] {
        let mut command = command(&scratch, &second, words);
        assert_refused(&scratch, command.arg("-e").arg(&third), &["one", "other"]);
    }
}
