//! Output checks after the last block: the verifier checks measured tokens, and the engine gets its verification status.
//! Tests of the checks before the first block are in `output_checks.rs`.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::run::{RUN, Run, Verifier, run, run_default_suite, run_with_verifier, store_answers};
use crate::support::{Scratch, finish};

/// An engine with wrong tokens from position 30 on, beginning with the third warm-up request. Earlier checks find no fault.
const LATER_WRONG: (&str, &str) = ("later-wrong", "--wrong-from 30 --at 2");
const RIGHT: (&str, &str) = ("right", "");

/// Whether the engine and the verifier have the same token.
fn agrees(token: &Value) -> bool {
    token["engine_token"] == token["verifier_token"]
}

/// The number of an engine's launches for output checks.
fn launches_for_checks(run: &Run, label: &str) -> usize {
    run.record.launches_of(label).iter().filter(|it| it["for_output_checks"] == true).count()
}

#[test]
fn wrong_measured_tokens_are_found_and_correct_ones_pass() {
    // The second verifier is asked for one token at a time.
    for verifier in ["", "--most-likely false"] {
        check_later_wrong_and_right(run(&[LATER_WRONG, RIGHT], Verifier::Engine(verifier), &[]));
    }
}

fn check_later_wrong_and_right(run: Run) {
    // The checks before the blocks found no difference.
    let ids = |label| &run.record.entries_of("continued", label)[0]["ids"];
    assert_eq!(ids("later-wrong"), ids("right"));
    let gap = |it: &Value| it["verifier_logprob"].as_f64().unwrap() - it["engine_logprob"].as_f64().unwrap();
    let (equal, different): (Vec<&Value>, Vec<&Value>) =
        run.reference_tokens("later-wrong").into_iter().partition(|it| agrees(it));
    let is_late = |it: &Value| it["position"].as_u64() >= Some(30);
    assert!(different.len() >= 6 && different.iter().all(|it| is_late(it) && gap(it) > 5.0), "{different:?}");
    assert!(!equal.is_empty() && !equal.iter().any(|it| is_late(it)), "{equal:?}");
    let right = run.reference_tokens("right");
    assert_eq!(right.len(), 2 * 8, "8 positions of each of 2 samples");
    assert!(right.iter().all(|it| agrees(it) && gap(it) == 0.0), "{right:?}");
    run.outcome.assert_stderr(&["checking the tokens of 4 samples"]);
    run.assert_measured("later-wrong").assert_measured("right");
}

#[test]
fn tokens_of_the_verifiers_own_row_are_not_checked_again() {
    let run = run(&[("one", ""), LATER_WRONG, RIGHT], Verifier::Row("one"), &[]);
    assert_eq!((run.reference_tokens("one").len(), run.reference_tokens("right").len()), (0, 0));
    let tokens = run.reference_tokens("later-wrong");
    // The checked tokens include the first position that differs.
    assert!(tokens.iter().any(|it| it["position"] == 30 && !agrees(it)), "{tokens:?}");
    assert_eq!(launches_for_checks(&run, "one"), 2);
}

#[test]
fn the_verifier_is_not_started_again_when_all_rows_agree_with_its_row() {
    let run = run(&[("one", ""), RIGHT], Verifier::Row("one"), &[]);
    assert_eq!(run.record.entries("reference_token"), Vec::<&Value>::new());
    assert_eq!(launches_for_checks(&run, "one"), 1);
}

#[test]
fn a_run_keeps_its_results_when_the_verifier_exits() {
    for (fault, reason) in [
        ("--fault exits_at_sample --at 1", "verifier (verifier): exited: ended with exit code 3"),
        ("--fault exits_in_load", "verifier (verifier): exited at load"),
    ] {
        let run = run(&[LATER_WRONG], Verifier::Engine(&format!("{fault} --most-likely false")), &[]);
        assert_eq!(run.outcome.code, Some(0), "{:?}", run.outcome);
        assert_eq!(run.record.entries("failure"), Vec::<&Value>::new());
        let unchecked = run.record.only("not_checked");
        assert!(unchecked["reason"].as_str().unwrap().contains(reason), "{unchecked}");
        run.assert_measured("later-wrong");
    }
}

#[test]
fn a_silent_verifier_is_stopped_and_recorded_at_the_end_of_the_budget() {
    let silent = Verifier::Engine("--fault hangs_in_generate --at 1 --most-likely false");
    let run = run(&[LATER_WRONG], silent, &["--budget", "15s"]);
    let unchecked = run.record.only("not_checked");
    let reason = unchecked["reason"].as_str().unwrap();
    // The end of the budget stopped the checks, not the deadline of a request.
    assert!(
        reason.starts_with("the tokens of 1 of 2 samples were not checked: the check was limited to "),
        "{reason}"
    );
    // The check took almost the whole budget for half of the samples.
    let proposed = run.record.only("end")["needs_budget"].as_str().unwrap();
    let seconds: u32 = proposed.trim_end_matches('s').parse().unwrap();
    assert!(unchecked["needs_time"] == true && seconds >= 40, "{proposed}");
    // The answers before the end of the budget count.
    assert_eq!((run.reference_tokens("later-wrong").len(), run.status("later-wrong")), (1, "wrong"));
    run.assert_measured("later-wrong");
}

#[test]
fn a_verifier_without_score_gives_its_own_tokens() {
    let run = run(&[LATER_WRONG], Verifier::Engine(r#"--capabilities '{"score":false}'"#), &[]);
    let tokens = run.reference_tokens("later-wrong");
    assert!(tokens.iter().any(|it| !agrees(it)), "{tokens:?}");
    assert!(tokens.iter().all(|it| it["verifier_logprob"].is_null() && it["engine_logprob"].is_null()));
}

#[test]
fn an_engine_that_masks_eos_may_give_another_token_in_its_place() {
    // From position 40 on, the engine's token differs, and the verifier gives EOS. An engine that masks EOS cannot give it.
    let masked = r#"--wrong-from 40 --capabilities '{"ignore_eos":"masked"}'"#;
    let run = run(&[("masks", masked)], Verifier::Engine("--eos-at 0 --most-likely false"), &[]);
    let tokens = run.reference_tokens("masks");
    assert!(tokens.len() > 4 && tokens.iter().all(|it| agrees(it)), "{tokens:?}");
}

// The verification status.

/// Adds a second scenario, whose requests generate one token.
const WITH_TTFT: &[&str] = &["--scenario", "ttft"];

#[test]
fn wrong_tokens_in_one_token_requests_are_found_and_correct_ones_pass() {
    // `sed` replaces the id in every output of one token by 77, and 77 itself by 78. The second command doesn't match the space.
    let replace_id = r#"| sed -u -e 's/"output_ids":\[77\]/"output_ids":[ 78]/' -e 's/"output_ids":\[[0-9]*\]/"output_ids":[77]/'"#;
    let run = run(&[("garbles", replace_id), RIGHT], Verifier::Engine(""), WITH_TTFT);
    let outputs = |label: &str| -> Vec<Value> {
        let samples = run.record.samples_of(label).into_iter();
        samples.map(|it| it["iteration"]["sequences"][0]["output_ids"].clone()).collect()
    };
    for (garbled, right) in outputs("garbles").iter().zip(&outputs("right")) {
        assert_eq!(garbled == right, right.as_array().unwrap().len() > 1, "{garbled} {right}");
    }
    assert_eq!((run.status("garbles"), run.status("right")), ("wrong", "exact"), "{}", run.report["outputs"]);
    assert_eq!(run.outcome.code, Some(4));
}

#[test]
fn every_workload_is_checked_when_the_verifier_is_not_measured() {
    let run = run(&[RIGHT], Verifier::Engine(""), WITH_TTFT);
    let cases = |entries: Vec<&Value>| -> BTreeSet<u64> {
        entries.iter().map(|it| it["case"].as_u64().unwrap()).collect()
    };
    let measured = cases(run.record.samples_of("right"));
    assert!(measured.len() > 1, "{measured:?}");
    assert_eq!(cases(run.record.entries("reference_token")), measured);
    assert_eq!(run.status("right"), "exact", "{}", run.report["outputs"]);
}

#[test]
fn all_outputs_are_unverified_with_a_note_when_no_verifier_can_run() {
    let scratch = Scratch::new();
    store_answers(&scratch, &["--force"]).exits_with(0);
    let mut command = scratch.orchestrate();
    command.env_remove("ORCHESTRATE_VERIFIER").arg("-m").arg(scratch.join("model")).args(RUN);
    for (name, settings) in [LATER_WRONG, RIGHT] {
        command.arg("-e").arg(scratch.engine(name, &format!("--engine {name} {settings}")));
    }
    let run = Run::of(&scratch, finish(command.arg("--results").arg(scratch.results())));
    assert_eq!(run.record.entries("reference_answers")[0]["by"], "sage 1.2.3");
    for label in ["later-wrong", "right"] {
        let [reason] = run.status_reasons(label)[..] else { panic!("{}", run.report["outputs"]) };
        assert_eq!(run.assert_measured(label).status(label), "unverified");
        let expected = "the measured tokens were not checked: no verifier can run here";
        assert!(reason.starts_with(expected), "{reason}");
        assert!(reason.contains("; hint: ") && reason.contains(" setup "), "{reason}");
    }
    assert!(run.report["notes"].to_string().contains("were not checked"), "{}", run.report["notes"]);
}

#[test]
fn sampled_tokens_and_tokens_after_a_text_prompt_are_unverified() {
    let sampled = run(&[RIGHT], Verifier::Engine(""), &["--temperature", "0.8"]);
    assert_eq!(sampled.record.entries("reference_token"), Vec::<&Value>::new());
    assert_eq!(sampled.assert_measured("right").status("right"), "unverified");
    assert_eq!(
        sampled.status_reasons("right"),
        ["sampled tokens cannot be checked; hint: `--temperature 0`"]
    );
    let reads = run_with_verifier(&[("reads", r#"--capabilities '{"prompt_ids":false}' --wrong-from 0"#)]);
    assert_eq!(reads.status("reads"), "unverified");
    let reasons = reads.status_reasons("reads");
    assert!(reasons[0].starts_with("takes text, so its prompt ids"), "{reasons:?}");
}

#[test]
fn an_unrequested_2_bit_kv_cache_does_not_widen_the_bound() {
    let settings = r#"--loaded '{"kv_dtype":"q2_k"}' --score-noise 0.5"#;
    let run = run_with_verifier(&[("claims", settings), RIGHT]);
    assert_eq!((run.status("claims"), run.status("right")), ("wrong", "exact"));
    let reasons = run.status_reasons("claims");
    assert!(reasons[0].ends_with("the bound for 16 bits is 0.10"), "{reasons:?}");
}

#[test]
fn outputs_are_unverified_when_the_verifier_cannot_check_the_tokens() {
    let silent = Verifier::Engine("--fault hangs_in_generate --at 1 --most-likely false");
    let run = run(&[LATER_WRONG], silent, &["--timeout", "10"]);
    assert_eq!(run.assert_measured("later-wrong").status("later-wrong"), "unverified");
    let reasons = run.status_reasons("later-wrong");
    let expected = "the tokens in `decode` were not checked: verifier (verifier): timeout";
    assert!(reasons[0].starts_with(expected), "{reasons:?}");
}

#[test]
fn output_that_becomes_wrong_late_in_a_launch_is_found_in_the_default_suite() {
    // The first launch makes more requests than the others, because it needs more warm-up requests.
    let run = run_default_suite(&[("late", "--wrong-from 0 --at 60"), RIGHT], &[]);
    assert_eq!((run.status("late"), run.status("right")), ("wrong", "exact"), "{}", run.report["outputs"]);
    // The last sample of each of the five workloads in each of the five blocks is checked.
    let samples = |label: &str| -> BTreeSet<String> {
        let tokens = run.reference_tokens(label).into_iter();
        tokens.map(|it| format!("{} {} {}", it["launch"], it["case"], it["index"])).collect()
    };
    assert!(samples("right").len() >= 25, "{:?}", samples("right"));
}
