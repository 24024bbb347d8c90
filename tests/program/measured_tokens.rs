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
fn tokens_that_turn_wrong_while_they_are_measured_are_found_and_honest_ones_are_not() {
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
    assert!(run.outcome.stderr.contains("about the tokens of 4 samples"), "{}", run.outcome.stderr);
    run.measured("turns").measured("honest");
}

#[test]
fn what_the_verifiers_own_row_gave_needs_no_opinion() {
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
fn where_all_agree_with_the_verifiers_row_it_is_not_started_again() {
    let run = run(&[("one", &[]), ("honest", &[])], &[], &["--verifier-is", "one"]);
    assert_eq!(run.record.entries("reference_token"), Vec::<&Value>::new());
    assert_eq!(run.record.launches_of("one").iter().filter(|it| it["for_output_checks"] == true).count(), 1);
}

#[test]
fn a_verifier_that_dies_when_it_is_asked_loses_no_result() {
    let dies = &["--fault", "exits_at_sample", "--at", "1"];
    let run = run(&[("turns", WRONG_LATER)], &[("verifier", dies)], &[]);
    assert_eq!((run.outcome.code, run.record.end()), (Some(0), Some("finished")), "{:?}", run.outcome);
    let [not_checked] = run.record.entries("not_checked")[..] else { panic!("{:?}", run.record) };
    let reason = not_checked["reason"].as_str().unwrap();
    assert!(reason.contains("verifier (verifier): exited: ended with exit code 3"), "{reason}");
    run.measured("turns");
}

#[test]
fn a_verifier_that_does_not_answer_has_no_more_time_than_the_budget_leaves_and_that_is_recorded() {
    let hangs = &["--fault", "hangs_in_generate", "--at", "1"];
    let run = run(&[("turns", WRONG_LATER)], &[("verifier", hangs)], &["--budget", "15s"]);
    assert_eq!(run.record.end(), Some("finished"));
    let [not_checked] = run.record.entries("not_checked")[..] else { panic!("{:?}", run.record) };
    let reason = not_checked["reason"].as_str().unwrap();
    // The budget ended the checks, not a deadline of the reference engine.
    assert!(reason.starts_with("the tokens of 1 of 2 samples were not looked at: there were "), "{reason}");
    assert_eq!(not_checked["hint"], "a longer `--budget`");
    // The answers before that count.
    assert_eq!((run.opinions("turns").len(), run.status("turns")), (1, "wrong"));
    run.measured("turns");
}

#[test]
fn a_verifier_that_cannot_be_loaded_is_no_failure_of_the_run() {
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
fn a_verifier_without_score_says_what_it_would_have_taken() {
    let silent = &["--capabilities", r#"{"score":false}"#];
    let run = run(&[("turns", WRONG_LATER)], &[("verifier", silent)], &[]);
    let turns = run.opinions("turns");
    assert!(turns.iter().any(|it| it["verifier_token"] != it["engine_token"]), "{turns:?}");
    assert!(turns.iter().all(|it| it["verifier_logprob"].is_null() && it["engine_logprob"].is_null()));
}

#[test]
fn where_an_engine_masks_eos_it_is_not_blamed_for_going_round_it() {
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
fn sampled_tokens_are_not_held_against_greedy_ones() {
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
fn garbage_in_requests_of_one_token_alone_is_called_wrong_and_an_honest_engine_beside_it_is_not() {
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
fn every_workload_is_judged_where_the_verifier_is_no_row() {
    let run = run(&[("honest", &[])], &[("verifier", &[])], AND_ONE_TOKEN);
    let cases: std::collections::BTreeSet<u64> =
        run.record.entries("reference_token").iter().map(|it| it["case"].as_u64().unwrap()).collect();
    let measured: std::collections::BTreeSet<u64> =
        run.record.samples_of("honest").iter().map(|it| it["case"].as_u64().unwrap()).collect();
    assert!(measured.len() > 1 && cases == measured, "{cases:?} {measured:?}");
    assert_eq!(run.status("honest"), "exact", "{}", run.report["outputs"]);
}

#[test]
fn where_no_verifier_can_run_nothing_good_is_said_of_anybody_and_a_note_says_why() {
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
        assert!(
            why.starts_with("its measured tokens were shown to nobody: no verifier can run here"),
            "{why}"
        );
        assert!(why.contains("(hint: ") && why.contains(" setup "), "{why}");
    }
    assert!(run.report["notes"].to_string().contains("were shown to nobody"), "{}", run.report["notes"]);
    run.measured("turns").measured("honest");
}

#[test]
fn text_and_samples_are_unverified_and_honest_ids_beside_them_are_exact() {
    let talks = &["--output", "text", "--capabilities", r#"{"stream":false}"#];
    let reads = &["--capabilities", r#"{"prompt_ids":false}"#, "--wrong-from", "0"];
    let engines: &[(&str, &[&str])] = &[("talks", talks), ("reads", reads), ("honest", &[])];
    let greedy = run(engines, &[("verifier", &[])], &[]);
    assert_eq!((greedy.status("talks"), greedy.status("reads")), ("unverified", "unverified"));
    assert_eq!(greedy.why("talks"), ["gives text, not ids"]);
    assert!(greedy.why("reads")[0].starts_with("takes text, so its ids"), "{:?}", greedy.why("reads"));
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
        ["a window of 1152 tokens passes its context of 1000; 512 tokens were scored"]
    );
    assert_eq!(run.status("honest"), "exact", "{}", run.report["outputs"]);
}

#[test]
fn a_cache_in_2_bits_that_nobody_asked_for_excuses_no_scores() {
    let claims = &["--loaded", r#"{"kv_dtype":"q2_k"}"#, "--score-noise", "0.5"];
    let run = run(&[("claims", claims), ("honest", &[])], &[("verifier", &[])], &[]);
    assert_eq!((run.status("claims"), run.status("honest")), ("wrong", "exact"));
    assert!(run.why("claims")[0].ends_with("16 bits explain 0.10"), "{:?}", run.why("claims"));
}

#[test]
fn where_the_verifier_does_not_come_to_judge_its_kindest_word_is_unverified() {
    let hangs = &["--fault", "hangs_in_generate", "--at", "1"];
    let run = run(&[("turns", WRONG_LATER)], &[("verifier", hangs)], &["--timeout", "10"]);
    assert_eq!(run.status("turns"), "unverified", "{}", run.report["outputs"]);
    let why = run.why("turns");
    assert_eq!(why[0], "its tokens in `decode` were shown to nobody");
    assert!(why[1].contains("verifier (verifier): timeout"), "{why:?}");
    run.measured("turns");
}
