//! Output checks in a record: the engines' log-probabilities of held-out text before the first block. The reference
//! engine's check of measured tokens is in `measured_tokens.rs`.

use model_files::embedded;
use serde_json::Value;

use crate::support::proof::{RUN, Run, copy, run};
use crate::support::record::Record;
use crate::support::{Scratch, fake_engine, finish};

/// Windows of the held-out text of the embedded model.
const WINDOWS: usize = 5;

#[test]
fn each_engine_scores_text_and_continues_a_prompt_before_the_first_block() {
    let run = run(&[("one", &[]), ("other", &["--score-noise", "0.01"])], &[("verifier", &[])], &[]);
    let [held_out] = run.record.entries("held_out")[..] else { panic!("{:?}", run.record) };
    let lengths: Vec<_> =
        held_out["sequences"].as_array().unwrap().iter().map(|it| it.as_array().unwrap().len()).collect();
    assert_eq!(lengths, [128, 128, 128, 128, 1152]);
    for label in ["one", "other", "verifier (verifier)"] {
        let scored = run.of("scored", label);
        let sequences: Vec<_> = scored.iter().map(|it| it["sequence"].as_u64().unwrap() as usize).collect();
        assert_eq!(sequences, (0..WINDOWS).collect::<Vec<_>>());
        for (scored, length) in scored.iter().zip(&lengths) {
            assert_eq!(scored["logprobs"].as_array().unwrap().len(), length - 1);
            assert!(scored["elapsed_ns"].as_u64().unwrap() > 0);
        }
        let [continued] = run.of("continued", label)[..] else { panic!("{label}: {:?}", run.record) };
        assert_eq!(continued["ids"].as_array().unwrap().len(), 48);
    }
    let said = |label| (run.logprobs(label), &run.of("continued", label)[0]["ids"]);
    assert_eq!(said("one"), said("verifier (verifier)"));
    let (theirs, honest) = (run.logprobs("other"), run.logprobs("one"));
    let squares = theirs.iter().zip(&honest).map(|(one, other)| (one - other) * (one - other));
    let rms = (squares.sum::<f64>() / theirs.len() as f64).sqrt();
    assert!((rms - 0.01).abs() < 0.001, "{rms}");
    assert_eq!(run.record.entries("not_checked"), Vec::<&Value>::new());
    let first = |kind: &str| run.record.0.iter().position(|it| it["entry"] == kind).unwrap();
    let last_proof = run.record.0.iter().rposition(|it| it["entry"] == "scored").unwrap();
    assert!(first("held_out") < first("scored") && last_proof < first("sample"));
    run.outcome.assert_stderr(&["checking the output of one\n"]);
}

#[test]
fn launches_for_output_checks_are_in_no_result() {
    let proved = run(&[("one", &[]), ("other", &[])], &[("verifier", &[])], &[]);
    let not_checked = run(&[("one", &[]), ("other", &[])], &[], &["--verifier", "none"]);
    assert_eq!(
        not_checked.record.entries("held_out").len() + not_checked.record.entries("not_checked").len(),
        0
    );
    for label in ["one", "other"] {
        let proofs =
            proved.record.launches_of(label).into_iter().filter(|it| it["for_output_checks"] == true);
        let numbers: Vec<_> = proofs.map(|it| &it["launch"]).collect();
        assert_eq!(numbers.len(), 1);
        let in_them =
            proved.record.entries("sample").into_iter().filter(|it| numbers.contains(&&it["launch"]));
        assert_eq!(in_them.count(), 0);
        assert_eq!(proved.record.samples_of(label).len(), 2);
        let counts = |run: &Run| {
            let case = run.case_of(label);
            (case["samples"].clone(), case["launches"].clone(), case["failure"].clone())
        };
        assert_eq!(counts(&proved), counts(&not_checked));
        assert_eq!(counts(&proved).1, 1);
    }
    // The reference engine for output checks has no rows.
    assert_eq!(proved.report["cases"].as_array().unwrap().len(), 2);
}

#[test]
fn an_engine_without_score_still_continues_the_prompt() {
    let run = run(&[("mute", &["--capabilities", r#"{"score":false}"#])], &[("verifier", &[])], &[]);
    assert_eq!(run.of("scored", "mute").len(), 0);
    assert_eq!(run.of("continued", "mute")[0]["ids"], run.of("continued", "verifier (verifier)")[0]["ids"]);
    assert_eq!(run.reasons("mute"), ["does not support `score`"]);
    run.measured("mute");
}

#[test]
fn an_engine_with_text_output_is_checked_by_scores_alone() {
    let settings = &["--output", "text", "--capabilities", r#"{"stream":false}"#];
    let run = run(&[("talker", settings)], &[("verifier", &[])], &[]);
    assert_eq!(run.of("scored", "talker").len(), WINDOWS);
    assert_eq!(run.of("continued", "talker").len(), 0);
    assert_eq!(run.reasons("talker"), ["gives text, not ids"]);
    run.measured("talker");
}

#[test]
fn an_engine_with_generate_alone_is_measured_and_unverified() {
    let run = run(&[("small", &["--fault", "says_bad_request_to_hello"])], &[("verifier", &[])], &[]);
    assert_eq!(run.of("scored", "small").len() + run.of("continued", "small").len(), 0);
    assert!(run.record.launches_of("small").iter().all(|it| it["for_output_checks"] != true));
    assert_eq!(run.reasons("small")[0], "supports only `generate`, not `score`");
    run.measured("small");
}

#[test]
fn too_few_log_probabilities_break_the_protocol() {
    let run = run(&[("short", &["--fault", "wrong_scores"]), ("sound", &[])], &[("verifier", &[])], &[]);
    assert_eq!(run.outcome.code, Some(4), "{}", run.outcome.stderr);
    let [failure] = run.record.failures_of("short")[..] else { panic!("{:?}", run.record) };
    assert_eq!((&failure["kind"], &failure["when"]), (&"protocol".into(), &"output check".into()));
    assert_eq!(failure["message"], "expected 127 `logprobs` for a sequence, got 126");
    assert_eq!(run.record.samples_of("short").len(), 0);
    run.measured("sound");
}

#[test]
fn a_probability_above_one_breaks_the_protocol() {
    let run = run(&[("eager", &["--score-offset", "9.5"]), ("sound", &[])], &[("verifier", &[])], &[]);
    let [failure] = run.record.failures_of("eager")[..] else { panic!("{:?}", run.record) };
    assert_eq!((&failure["kind"], &failure["when"]), (&"protocol".into(), &"output check".into()));
    assert!(failure["message"].as_str().unwrap().ends_with("a probability above 1"), "{failure}");
    run.measured("sound");
}

#[test]
fn an_engine_that_exits_in_its_output_check_is_unverified_and_still_measured() {
    let run = run(&[("brittle", &["--fault", "exits_at_sample"]), ("sound", &[])], &[("verifier", &[])], &[]);
    assert_eq!(run.reasons("brittle"), ["exited at output check: ended with exit code 3 before it answered"]);
    let [failure] = run.record.failures_of("brittle")[..] else { panic!("{:?}", run.record) };
    assert_eq!(failure["when"], "warm-up 1");
    run.measured("sound");
}

#[test]
fn a_model_that_cannot_be_loaded_fails_once() {
    let run = run(&[("broken", &["--fault", "fails_in_load"]), ("sound", &[])], &[("verifier", &[])], &[]);
    let [failure] = run.record.failures_of("broken")[..] else { panic!("{:?}", run.record) };
    assert_eq!((&failure["kind"], &failure["when"]), (&"model".into(), &"load".into()));
    assert_eq!(run.record.launches_of("broken").len(), 1);
    run.measured("sound");
}

#[test]
fn a_small_context_omits_the_long_window_with_a_note() {
    let run = run(&[("narrow", &["--context-tokens", "1000"])], &[("verifier", &[])], &[]);
    assert_eq!(run.of("scored", "narrow").len(), WINDOWS - 1);
    let reason = "a window of 1152 tokens exceeds its context of 1000; 512 tokens were scored";
    assert_eq!(run.reasons("narrow"), [reason]);
}

#[test]
fn one_shot_engines_are_checked_in_a_separate_process() {
    let run = run(&[("cold", &[])], &[("verifier", &[])], &["--mode", "one-shot"]);
    assert_eq!(run.of("scored", "cold").len(), WINDOWS);
    assert_eq!(run.of("continued", "cold").len(), 1);
    assert!(run.reasons("cold")[0].starts_with("its prompts were sent as text"), "{:?}", run.record);
    run.measured("cold");
}

#[test]
fn stored_reference_answers_replace_a_verifier_that_cannot_run() {
    let run = run(&[("one", &[])], &[], &[]);
    let [kept] = run.record.entries("stored_answers")[..] else { panic!("{:?}", run.record) };
    let held_out = run.record.entries("held_out")[0];
    assert_eq!(kept["model"], held_out["model"]);
    assert_eq!(kept["logprobs"].as_array().unwrap().len(), WINDOWS);
    assert_eq!(kept["continued"].as_array().unwrap().len(), 48);
    assert_eq!(run.of("scored", "one").len(), WINDOWS);
    // It cannot check anything else.
    let [not_checked] = run.record.entries("not_checked")[..] else { panic!("{:?}", run.record) };
    assert_eq!(not_checked["model"], held_out["model"]);
    assert!(not_checked["reason"].as_str().unwrap().starts_with("its measured tokens were not checked"));
    assert!(not_checked["hint"].as_str().unwrap().contains(" setup "), "{not_checked}");
    run.measured("one");
}

#[test]
fn stored_reference_answers_are_used_for_exactly_their_weights() {
    let scratch = Scratch::new();
    let model = scratch.join("model");
    copy(&embedded::folder().unwrap(), &model);
    let verifier = scratch.script("sage", &format!("exec '{}' --engine sage", fake_engine().display()));
    let make = |more: &[&str]| {
        let mut command = scratch.orchestrate();
        command.args(["model", "reference-answers"]).arg(&model).arg("--verifier").arg(&verifier).args(more);
        finish(command.env("ORCHESTRATE_VERIFIER", "none"))
    };
    // The answers of another engine to the same requests.
    let refused = make(&[]).exits_with(2);
    refused.assert_stderr(&["exists\nhint: --force"]);
    let made = make(&["--force"]).exits_with(0);
    let path = model.join("reference-answers.json");
    assert_eq!(made.stdout, format!("{}\n", path.display()));
    let kept: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((&kept["by"], kept["continued"].as_array().unwrap().len()), (&"sage 1.2.3".into(), 48));
    let left = std::fs::read_dir(&model).unwrap().count();
    assert_eq!(left, std::fs::read_dir(embedded::folder().unwrap()).unwrap().count());

    let run = |name: &str| {
        let results = scratch.join(name);
        let mut command = scratch.orchestrate();
        command.env_remove("ORCHESTRATE_VERIFIER").arg("-e").arg(&verifier).arg("-m").arg(&model).args(RUN);
        finish(command.arg("--results").arg(&results)).exits_with(0);
        Record::only_one_in(&results)
    };
    let with = run("with");
    assert_eq!(with.entries("stored_answers")[0]["by"], "sage 1.2.3");
    assert_eq!(with.entries("continued")[0]["ids"], with.entries("stored_answers")[0]["continued"]);
    // The file's name in earlier versions.
    let old = model.join("witness.json");
    std::fs::rename(&path, &old).unwrap();
    assert_eq!(run("old-name").entries("stored_answers")[0]["by"], "sage 1.2.3");
    std::fs::rename(&old, &path).unwrap();
    // One bit of the last weight.
    let weights = model.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let other = run("other");
    assert_eq!((other.entries("stored_answers").len(), other.entries("held_out").len()), (0, 1));
}

/// The deadline of a request in seconds, from the message.
fn given(reason: &str) -> Option<f64> {
    let (_, rest) = reason.split_once("no answer within ")?;
    rest.split(' ').next().unwrap().parse().ok()
}

/// Without a budget a request of the check may take minutes.
#[test]
fn a_budget_limits_each_request_of_an_output_check() {
    for fault in ["hangs_in_score", "hangs_in_generate"] {
        // Requests of a block have a cap of their own.
        let options = &["--budget", "12s", "--case-cap", "1s"];
        let run = run(&[("silent", &["--fault", fault])], &[], options);
        assert_eq!(run.record.end(), Some("finished"), "{:?}", run.outcome);
        let reasons = run.reasons("silent");
        // The checks get a quarter of the budget. A busy machine may spend all of it before the request.
        let too_late = |reason: &str| reason.starts_with("the budget") && given(reason).is_none();
        let bounded = |reason: &str| given(reason).is_some_and(|given| given <= 3.0);
        assert!(reasons.iter().any(|reason| bounded(reason) || too_late(reason)), "{reasons:?}");
        assert!(reasons.iter().all(|reason| bounded(reason) || given(reason).is_none()), "{reasons:?}");
        assert_eq!(run.report["cases"].as_array().unwrap().len(), 1, "{}", run.report);
    }
}

#[test]
fn a_launch_for_an_output_check_ends_with_the_budget() {
    // Without a budget it would have the deadline of a block's load.
    let options = &["--budget", "8s", "--timeout", "60"];
    let run = run(&[("stuck", &["--fault", "hangs_in_load"])], &[], options);
    assert_eq!(run.record.end(), Some("finished"), "{:?}", run.outcome);
    assert_eq!(run.reasons("stuck"), ["the budget ended while the engine was loaded for an output check"]);
    let [failure] = run.record.failures_of("stuck")[..] else { panic!("{:?}", run.record) };
    assert_eq!((&failure["kind"], &failure["hint"]), (&"no_time".into(), &"--budget 32s".into()));
    assert_eq!(run.record.samples_of("stuck").len(), 0);
}
