//! Output checks after the last block: the reference engine checks measured tokens, and the engine gets its verification
//! status. The checks before the first block are in `proof.rs`.

use model_files::embedded;
use serde_json::Value;

use crate::support::proof::{RUN, Run, copy, run};
use crate::support::record::Record;
use crate::support::{Scratch, fake_engine, finish};

/// Tokens from 30 on are wrong, starting with the third warm-up request: after the checks before the blocks.
const WRONG_LATER: &[&str] = &["--wrong-from", "30", "--at", "2"];

// Checks after the last block.

#[test]
fn wrong_measured_tokens_are_found_and_correct_ones_pass() {
    let run = run(&[("turns", WRONG_LATER), ("honest", &[])], &[("verifier", &[])], &[]);
    // The checks before the blocks found no difference.
    assert_eq!(run.of("continued", "turns")[0]["ids"], run.of("continued", "honest")[0]["ids"]);
    let gap = |reference: &Value| {
        reference["verifier_logprob"].as_f64().unwrap() - reference["engine_logprob"].as_f64().unwrap()
    };
    let turns = run.opinions("turns");
    let (wrong, right): (Vec<&Value>, Vec<&Value>) =
        turns.into_iter().partition(|it| it["engine_token"] != it["verifier_token"]);
    assert!(
        wrong.len() >= 6 && wrong.iter().all(|it| it["position"].as_u64() >= Some(30) && gap(it) > 5.0),
        "{wrong:?}"
    );
    assert!(!right.is_empty() && right.iter().all(|it| it["position"].as_u64() < Some(30)), "{right:?}");
    let honest = run.opinions("honest");
    assert_eq!(honest.len(), 2 * 8);
    assert!(
        honest.iter().all(|it| it["engine_token"] == it["verifier_token"] && gap(it) == 0.0),
        "{honest:?}"
    );
    run.outcome.assert_stderr(&["checking the tokens of 4 samples"]);
    run.measured("turns").measured("honest");
}

#[test]
fn tokens_of_the_verifiers_own_row_are_not_checked_again() {
    let run = run(&[("one", &[]), ("turns", WRONG_LATER), ("honest", &[])], &[], &["--verifier-is", "one"]);
    assert_eq!((run.opinions("one").len(), run.opinions("honest").len()), (0, 0));
    let turns = run.opinions("turns");
    // The first position that differs is among them.
    assert!(
        turns.iter().any(|it| it["position"] == 30 && it["verifier_token"] != it["engine_token"]),
        "{turns:?}"
    );
    assert_eq!(run.record.launches_of("one").iter().filter(|it| it["for_output_checks"] == true).count(), 2);
}

#[test]
fn the_verifier_is_not_started_again_when_all_rows_agree_with_its_row() {
    let run = run(&[("one", &[]), ("honest", &[])], &[], &["--verifier-is", "one"]);
    assert_eq!(run.record.entries("reference_token"), Vec::<&Value>::new());
    assert_eq!(run.record.launches_of("one").iter().filter(|it| it["for_output_checks"] == true).count(), 1);
}

#[test]
fn a_verifier_that_exits_during_the_check_loses_no_result() {
    let dies = &["--fault", "exits_at_sample", "--at", "1"];
    let run = run(&[("turns", WRONG_LATER)], &[("verifier", dies)], &[]);
    assert_eq!((run.outcome.code, run.record.end()), (Some(0), Some("finished")), "{:?}", run.outcome);
    let [not_checked] = run.record.entries("not_checked")[..] else { panic!("{:?}", run.record) };
    let reason = not_checked["reason"].as_str().unwrap();
    assert!(reason.contains("verifier (verifier): exited: ended with exit code 3"), "{reason}");
    run.measured("turns");
}

#[test]
fn a_silent_verifier_is_stopped_and_recorded_at_the_end_of_the_budget() {
    let hangs = &["--fault", "hangs_in_generate", "--at", "1"];
    let run = run(&[("turns", WRONG_LATER)], &[("verifier", hangs)], &["--budget", "15s"]);
    assert_eq!(run.record.end(), Some("finished"));
    let [not_checked] = run.record.entries("not_checked")[..] else { panic!("{:?}", run.record) };
    let reason = not_checked["reason"].as_str().unwrap();
    // The budget ended the checks, not a deadline of the reference engine.
    assert!(reason.starts_with("the tokens of 1 of 2 samples were not checked: the check had "), "{reason}");
    assert_eq!(not_checked["hint"], "a longer `--budget`");
    // The answers before that count.
    assert_eq!((run.opinions("turns").len(), run.status("turns")), (1, "wrong"));
    run.measured("turns");
}

#[test]
fn a_run_succeeds_when_its_verifier_cannot_be_loaded() {
    let run = run(&[("one", &[])], &[("verifier", &["--fault", "exits_in_load"])], &[]);
    assert_eq!(run.outcome.code, Some(0), "{:?}", run.outcome);
    let [not_checked] = run.record.entries("not_checked")[..] else { panic!("{:?}", run.record) };
    assert!(
        not_checked["reason"].as_str().unwrap().starts_with("verifier (verifier): exited at load"),
        "{not_checked}"
    );
    assert_eq!(run.record.entries("failure"), Vec::<&Value>::new());
    run.measured("one");
}

#[test]
fn a_verifier_without_score_gives_its_own_tokens() {
    let silent = &["--capabilities", r#"{"score":false}"#];
    let run = run(&[("turns", WRONG_LATER)], &[("verifier", silent)], &[]);
    let turns = run.opinions("turns");
    assert!(turns.iter().any(|it| it["verifier_token"] != it["engine_token"]), "{turns:?}");
    assert!(turns.iter().all(|it| it["verifier_logprob"].is_null() && it["engine_logprob"].is_null()));
}

#[test]
fn an_engine_that_masks_eos_may_give_another_token_in_its_place() {
    // The reference engine would end after position 40; a masked engine takes the next best token.
    let masked = &["--wrong-from", "40", "--capabilities", r#"{"ignore_eos":"masked"}"#];
    let ends = &["--eos-at", "0"];
    let run = run(&[("masks", masked)], &[("verifier", ends)], &[]);
    assert!(run.opinions("masks").len() > 4);
    assert!(
        run.opinions("masks").iter().all(|it| it["verifier_token"] == it["engine_token"]),
        "{:?}",
        run.opinions("masks")
    );
}

#[test]
fn sampled_tokens_are_not_compared_with_greedy_ones() {
    let run = run(&[("one", &[])], &[("verifier", &[])], &["--temperature", "0.8"]);
    assert_eq!(run.record.entries("reference_token"), Vec::<&Value>::new());
    run.measured("one");
}

// The verification status.

/// A second scenario beside `decode`.
const AND_ONE_TOKEN: &[&str] = &["--scenario", "ttft"];

/// Replaces an output of one token.
const GARBLES_ONE_TOKEN: &[&str] = &["|", "sed", "-u", r#"s/"output_ids":\[[0-9]*\]/"output_ids":[77]/"#];

#[test]
fn wrong_tokens_in_one_token_requests_are_found_and_correct_ones_pass() {
    let run = run(&[("liar", GARBLES_ONE_TOKEN), ("honest", &[])], &[("verifier", &[])], AND_ONE_TOKEN);
    let given = |label: &str| -> Vec<(usize, Value)> {
        let outputs =
            run.record.samples_of(label).into_iter().map(|it| &it["iteration"]["sequences"][0]["output_ids"]);
        outputs.map(|ids| (ids.as_array().unwrap().len(), ids.clone())).collect()
    };
    for (theirs, honest) in given("liar").iter().zip(&given("honest")) {
        assert_eq!(theirs == honest, theirs.0 > 1, "{theirs:?} {honest:?}");
    }
    assert_eq!(run.status("liar"), "wrong", "{}", run.report["outputs"]);
    assert_eq!(run.status("honest"), "exact", "{}", run.report["outputs"]);
    assert_eq!(run.outcome.code, Some(4));
}

#[test]
fn every_workload_is_checked_when_the_verifier_is_no_row() {
    let run = run(&[("honest", &[])], &[("verifier", &[])], AND_ONE_TOKEN);
    let cases: std::collections::BTreeSet<u64> =
        run.record.entries("reference_token").iter().map(|it| it["case"].as_u64().unwrap()).collect();
    let measured: std::collections::BTreeSet<u64> =
        run.record.samples_of("honest").iter().map(|it| it["case"].as_u64().unwrap()).collect();
    assert!(measured.len() > 1 && cases == measured, "{cases:?} {measured:?}");
    assert_eq!(run.status("honest"), "exact", "{}", run.report["outputs"]);
}

#[test]
fn all_outputs_are_unverified_with_a_note_when_no_verifier_can_run() {
    let scratch = Scratch::new();
    let model = scratch.join("model");
    copy(&embedded::folder().unwrap(), &model);
    let fake = fake_engine();
    let engine = |name: &str, settings: &str| {
        scratch.script(name, &format!("exec '{}' --engine {name} {settings}", fake.display()))
    };
    let mut command = scratch.orchestrate();
    command
        .args(["model", "reference-answers", "--force"])
        .arg(&model)
        .arg("--verifier")
        .arg(engine("sage", ""));
    assert_eq!(finish(command.env("ORCHESTRATE_VERIFIER", "none")).code, Some(0));
    let mut command = scratch.orchestrate();
    command.env_remove("ORCHESTRATE_VERIFIER").arg("-m").arg(&model).args(RUN);
    command.arg("-e").arg(engine("turns", &WRONG_LATER.join(" "))).arg("-e").arg(engine("honest", ""));
    let outcome = finish(command.arg("--results").arg(scratch.results()));
    let report = serde_json::from_str(&outcome.stdout).unwrap();
    let run = Run { record: Record::only_one_in(&scratch.results()), report, outcome };
    assert_eq!(run.record.entries("stored_answers")[0]["by"], "sage 1.2.3");
    for label in ["turns", "honest"] {
        assert_eq!((run.status(label), run.why(label).len()), ("unverified", 1));
        let why = run.why(label)[0];
        assert!(why.starts_with("its measured tokens were not checked: no verifier can run here"), "{why}");
        assert!(why.contains("(hint: ") && why.contains(" setup "), "{why}");
    }
    assert!(run.report["notes"].to_string().contains("were not checked"), "{}", run.report["notes"]);
    run.measured("turns").measured("honest");
}

#[test]
fn text_and_sampled_output_is_unverified_and_correct_ids_are_exact() {
    let talks = &["--output", "text", "--capabilities", r#"{"stream":false}"#];
    let reads = &["--capabilities", r#"{"prompt_ids":false}"#, "--wrong-from", "0"];
    let engines: &[(&str, &[&str])] = &[("talks", talks), ("reads", reads), ("honest", &[])];
    let greedy = run(engines, &[("verifier", &[])], &[]);
    assert_eq!((greedy.status("talks"), greedy.status("reads")), ("unverified", "unverified"));
    assert_eq!(greedy.why("talks"), ["gives text, not ids"]);
    assert!(greedy.why("reads")[0].starts_with("takes text, so its prompt ids"), "{:?}", greedy.why("reads"));
    assert_eq!(greedy.status("honest"), "exact", "{}", greedy.report["outputs"]);
    let sampled = run(&[("honest", &[])], &[("verifier", &[])], &["--temperature", "0.8"]);
    assert_eq!(sampled.status("honest"), "unverified");
    assert_eq!(sampled.why("honest"), ["sampled tokens are not compared"]);
}

#[test]
fn without_the_long_window_an_engine_is_unverified() {
    let run = run(&[("narrow", &["--context-tokens", "1000"]), ("honest", &[])], &[("verifier", &[])], &[]);
    assert_eq!(run.status("narrow"), "unverified");
    assert_eq!(
        run.why("narrow"),
        ["a window of 1152 tokens exceeds its context of 1000; 512 tokens were scored"]
    );
    assert_eq!(run.status("honest"), "exact", "{}", run.report["outputs"]);
}

#[test]
fn an_unrequested_2_bit_cache_excuses_no_scores() {
    let claims = &["--loaded", r#"{"kv_dtype":"q2_k"}"#, "--score-noise", "0.5"];
    let run = run(&[("claims", claims), ("honest", &[])], &[("verifier", &[])], &[]);
    assert_eq!((run.status("claims"), run.status("honest")), ("wrong", "exact"));
    assert!(run.why("claims")[0].ends_with("the bound for 16 bits is 0.10"), "{:?}", run.why("claims"));
}

#[test]
fn outputs_are_unverified_when_the_verifier_cannot_check_the_tokens() {
    let hangs = &["--fault", "hangs_in_generate", "--at", "1"];
    let run = run(&[("turns", WRONG_LATER)], &[("verifier", hangs)], &["--timeout", "10"]);
    assert_eq!(run.status("turns"), "unverified", "{}", run.report["outputs"]);
    let why = run.why("turns");
    assert_eq!(why[0], "its tokens in `decode` were not checked");
    assert!(why[1].contains("verifier (verifier): timeout"), "{why:?}");
    run.measured("turns");
}
