//! Output checks before the first block: the engines' log-probabilities of held-out text. Tests of the verifier's checks of
//! measured tokens are in `measured_tokens.rs`.

use std::path::Path;

use model_files::embedded;
use serde_json::Value;

use crate::support::record::Record;
use crate::support::run::{RUN, Run, Verifier, run, run_with_verifier, store_answers};
use crate::support::{Scratch, finish};

/// The number of windows of the embedded model's held-out text.
const WINDOWS: usize = 5;
/// The number of tokens that continue the prompt.
const CONTINUED: usize = 48;

/// The numbers of windows that an engine scored, and of prompts that it continued.
fn counts(run: &Run, label: &str) -> (usize, usize) {
    (run.record.entries_of("scored", label).len(), run.record.entries_of("continued", label).len())
}

#[test]
fn each_engine_scores_text_and_continues_a_prompt_before_the_first_block() {
    let run = run_with_verifier(&[("one", ""), ("other", "--score-noise 0.01")]);
    let held_out = run.record.only("held_out")["sequences"].as_array().unwrap();
    let lengths: Vec<_> = held_out.iter().map(|it| it.as_array().unwrap().len()).collect();
    assert_eq!(lengths, [128, 128, 128, 128, 1152]);
    for label in ["one", "other", "verifier (verifier)"] {
        assert_eq!(counts(&run, label), (WINDOWS, 1));
        for (index, scored) in run.record.entries_of("scored", label).into_iter().enumerate() {
            assert_eq!(scored["sequence"], index);
            assert_eq!(scored["logprobs"].as_array().unwrap().len(), lengths[index] - 1);
            assert!(scored["elapsed_ns"].as_u64().unwrap() > 0);
        }
        let continued = run.record.entries_of("continued", label)[0];
        assert_eq!(continued["ids"].as_array().unwrap().len(), CONTINUED);
    }
    let answers = |label| (run.logprobs(label), &run.record.entries_of("continued", label)[0]["ids"]);
    assert_eq!(answers("one"), answers("verifier (verifier)"));
    let (noisy, exact) = (run.logprobs("other"), run.logprobs("one"));
    let squares = noisy.iter().zip(&exact).map(|(a, b)| (a - b) * (a - b));
    let rms = (squares.sum::<f64>() / noisy.len() as f64).sqrt();
    assert!((rms - 0.01).abs() < 0.001, "{rms}");
    assert_eq!(run.record.entries("not_checked"), Vec::<&Value>::new());
    let first = |kind: &str| run.record.0.iter().position(|it| it["entry"] == kind).unwrap();
    let last_scored = run.record.0.iter().rposition(|it| it["entry"] == "scored").unwrap();
    assert!(first("held_out") < first("scored") && last_scored < first("sample"));
    run.outcome.assert_stderr(&["output checks of 3 engines\n"]);
}

#[test]
fn launches_for_output_checks_are_in_no_result() {
    let engines = &[("one", ""), ("other", "")];
    let (with, without) = (run_with_verifier(engines), run(engines, Verifier::None, &[]));
    assert_eq!(without.record.entries("held_out").len() + without.record.entries("not_checked").len(), 0);
    for label in ["one", "other"] {
        let mut launches = with.record.launches_of(label);
        launches.retain(|it| it["for_output_checks"] == true);
        let [launch] = launches[..] else { panic!("{launches:?}") };
        let samples = with.record.entries("sample").into_iter();
        assert_eq!(samples.filter(|it| it["launch"] == launch["launch"]).count(), 0);
        for run in [&with, &without] {
            assert_eq!(run.assert_measured(label).case_of(label)["launches"], 1);
        }
    }
    // The verifier has no rows.
    assert_eq!(with.report["cases"].as_array().unwrap().len(), 2);
}

#[test]
fn an_engine_that_cannot_be_checked_in_full_is_measured_and_unverified() {
    let window = "a held-out text of 1152 tokens exceeds its context of 1000; 512 tokens were scored";
    let engines = [
        ("mute", r#"--capabilities '{"score":false}'"#, (0, 1), "does not support `score`"),
        ("minimal", "--fault says_bad_request_to_hello", (0, 0), "supports only `generate`, not `score`"),
        ("narrow", "--context-tokens 1000", (WINDOWS - 1, 1), window),
        ("right", "", (WINDOWS, 1), ""),
    ];
    let run = run_with_verifier(&engines.map(|(name, settings, ..)| (name, settings)));
    for (name, _, checks, reason) in engines {
        assert_eq!(counts(run.assert_measured(name), name), checks, "{name}");
        assert_eq!(run.unchecked_reasons(name).first().copied().unwrap_or_default(), reason, "{name}");
        assert!(
            run.unchecked_reasons(name).len() < 2 || name == "minimal",
            "{:?}",
            run.unchecked_reasons(name)
        );
    }
    let narrow = (run.status("narrow"), run.status_reasons("narrow"));
    assert_eq!(narrow, ("unverified", run.unchecked_reasons("narrow")));
    assert_eq!(run.status("right"), "exact", "{}", run.report["outputs"]);
    let ids = |label| &run.record.entries_of("continued", label)[0]["ids"];
    assert_eq!(ids("mute"), ids("verifier (verifier)"));
    assert!(run.record.launches_of("minimal").iter().all(|it| it["for_output_checks"] != true));
}

#[test]
fn an_engine_that_fails_in_its_output_check_is_a_row_beside_the_others() {
    let run = run_with_verifier(&[
        ("short", "--fault wrong_scores"),
        ("eager", "--score-offset 9.5"),
        ("broken", "--fault fails_in_load"),
        ("brittle", "--fault exits_at_sample"),
        ("lost", "--fault exits_after_failed_score"),
        ("sound", ""),
    ]);
    let short = run.assert_failed("short", "protocol", "output check");
    assert_eq!(short["message"], "expected 127 `logprobs` for a sequence, got 126");
    let eager = run.assert_failed("eager", "protocol", "output check");
    assert!(eager["message"].as_str().unwrap().ends_with("is not a number up to 0"), "{eager}");
    run.assert_samples("short", 0).assert_failed("broken", "model", "load");
    assert_eq!(run.record.launches_of("broken").len(), 1);
    // An engine that exits in the check is launched again for the measurement.
    assert_eq!(
        run.unchecked_reasons("brittle"),
        ["exited at output check: ended with exit code 3 before it answered"]
    );
    run.assert_failed("brittle", "exited", "warm-up 1");
    let reasons = run.unchecked_reasons("lost");
    assert!(reasons.iter().any(|it| it.ends_with("ended with exit code 3 after `failed`")), "{reasons:?}");
    run.assert_measured("sound");
}

#[test]
fn one_shot_engines_are_checked_in_a_separate_process() {
    let run = run(&[("cold", "")], Verifier::Engine(""), &["--mode", "one-shot"]);
    assert_eq!(counts(run.assert_measured("cold"), "cold"), (WINDOWS, 1));
    assert!(
        run.unchecked_reasons("cold")[0].starts_with("its prompts were sent as text"),
        "{:?}",
        run.record
    );
    let why = run.status_reasons("cold");
    assert!(why[0].ends_with("; hint: leave out `--mode one-shot`"), "{why:?}");
}

#[test]
fn stored_reference_answers_replace_a_verifier_that_cannot_run() {
    let run = run(&[("one", "")], Verifier::Default, &[]);
    let (stored, held_out) = (run.record.only("reference_answers"), run.record.entries("held_out")[0]);
    assert_eq!(stored["model"], held_out["model"]);
    assert_eq!(stored["logprobs"].as_array().unwrap().len(), WINDOWS);
    assert_eq!(stored["continued"].as_array().unwrap().len(), CONTINUED);
    assert_eq!(counts(run.assert_measured("one"), "one").0, WINDOWS);
    // Stored answers cannot check measured tokens.
    let unchecked = run.record.only("not_checked");
    assert_eq!(unchecked["model"], held_out["model"]);
    assert!(unchecked["reason"].as_str().unwrap().starts_with("the measured tokens were not checked"));
    assert!(unchecked["hint"].as_str().unwrap().contains(" setup "), "{unchecked}");
}

#[test]
fn stored_reference_answers_are_used_for_exactly_their_weights() {
    let scratch = Scratch::new();
    // The copy of the embedded model has reference answers, which only --force replaces.
    store_answers(&scratch, &[]).exits_with(2).assert_stderr(&["exists\nhint: ", " --force"]);
    let outcome = store_answers(&scratch, &["--force"]).exits_with(0);
    let model = scratch.join("model");
    let path = model.join("reference-answers.json");
    assert!(outcome.stdout.starts_with(&format!("{}\n", path.display())), "{}", outcome.stdout);
    let stored: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let continued = stored["continued"].as_array().unwrap();
    assert_eq!((&stored["by"], continued.len()), (&"sage 1.2.3".into(), CONTINUED));
    let files = |folder: &Path| std::fs::read_dir(folder).unwrap().count();
    assert_eq!(files(&model), files(&embedded::folder().unwrap()));

    let run = |name: &str| {
        let results = scratch.join(name);
        let mut command = scratch.orchestrate();
        command.env_remove("ORCHESTRATE_VERIFIER").arg("-e").arg(scratch.join("sage")).args(RUN);
        finish(command.arg("-m").arg(&model).arg("--results").arg(&results)).exits_with(0);
        Record::only_one_in(&results)
    };
    let with = run("with");
    assert_eq!(with.only("reference_answers")["by"], "sage 1.2.3");
    assert_eq!(with.entries("continued")[0]["ids"], with.only("reference_answers")["continued"]);
    // The file name of earlier versions is accepted too.
    let old = model.join("witness.json");
    std::fs::rename(&path, &old).unwrap();
    assert_eq!(run("old-name").only("reference_answers")["by"], "sage 1.2.3");
    std::fs::rename(&old, &path).unwrap();
    // With one changed bit in the last weight, the reference answers are not used.
    let weights = model.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let changed = run("changed");
    assert_eq!((changed.entries("reference_answers").len(), changed.entries("held_out").len()), (0, 1));
}

/// The deadline of a request in seconds, from the message.
fn deadline(reason: &str) -> Option<f64> {
    let (_, rest) = reason.split_once("no answer within ")?;
    rest.split(' ').next().unwrap().parse().ok()
}

/// Without a budget, a request of an output check may take minutes.
#[test]
fn a_budget_limits_each_request_of_an_output_check() {
    for fault in ["hangs_in_score", "hangs_in_generate"] {
        // The longest time of a request applies only to requests of a block.
        let options = &["--budget", "12s", "--max-request-time", "1s"];
        let run = run(&[("silent", &format!("--fault {fault}"))], Verifier::Default, options);
        let reasons = run.unchecked_reasons("silent");
        // The checks get half of the budget. A busy machine may spend all of it before the request.
        let too_late = |reason: &str| reason.contains("is too short for") && deadline(reason).is_none();
        let bounded = |reason: &str| deadline(reason).is_some_and(|seconds| seconds <= 6.0);
        assert!(reasons.iter().any(|reason| bounded(reason) || too_late(reason)), "{reasons:?}");
        assert!(reasons.iter().all(|reason| bounded(reason) || deadline(reason).is_none()), "{reasons:?}");
        assert_eq!(run.report["cases"].as_array().unwrap().len(), 1, "{}", run.report);
    }
}

#[test]
fn a_launch_for_an_output_check_ends_with_the_budget() {
    // Without a budget, the launch would have the deadline of a block's load.
    let options = &["--budget", "8s", "--timeout", "60"];
    let run = run(&[("stuck", "--fault hangs_in_load")], Verifier::Default, options);
    assert_eq!(
        run.unchecked_reasons("stuck"),
        ["--budget 8s is too short for an output check, which ended while the engine was loaded"]
    );
    let failure = run.assert_samples("stuck", 0).record.failure_of("stuck");
    let proposed = &run.record.only("end")["needs_budget"];
    assert_eq!((&failure["kind"], proposed), (&"no_time".into(), &"32s".into()));
    assert_eq!(run.assert_failed("stuck", "no_time", "")["hint"], "--budget 32s");
}

/// The loss of all tokens is computed again from the record, with the number of bytes that the record has.
#[test]
fn the_perplexity_of_each_engine_is_that_of_its_log_probabilities() {
    let run = run(&[("plain", ""), ("noisy", "--score-noise 0.02")], Verifier::Engine(""), &[]);
    let outputs = run.report["outputs"].as_array().unwrap();
    for label in ["plain", "noisy"] {
        let scored = run.record.entries_of("scored", label);
        let logprobs: Vec<f64> = scored
            .iter()
            .flat_map(|it| it["logprobs"].as_array().unwrap().iter().map(|it| it.as_f64().unwrap()))
            .collect();
        let nats = -logprobs.iter().sum::<f64>();
        let bytes: u64 = run.record.only("held_out")["text_bytes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it.as_u64().unwrap())
            .sum();
        let output = outputs.iter().find(|it| it["engine"] == label).unwrap();
        let value = |name: &str| output["prediction"][name].as_f64().unwrap();
        assert_eq!(value("tokens") as usize, logprobs.len());
        assert!((value("perplexity") - (nats / logprobs.len() as f64).exp()).abs() < 1e-9, "{output}");
        let bits = nats / std::f64::consts::LN_2 / bytes as f64;
        assert!((value("bits_per_byte") - bits).abs() < 1e-9, "{output}");
    }
    let perplexity = |label: &str, name: &str| {
        let output = outputs.iter().find(|it| it["engine"] == label).unwrap();
        output["prediction"][name].as_f64().unwrap()
    };
    // The verifier gives the values of `plain`.
    assert!((perplexity("plain", "perplexity") - perplexity("noisy", "verifier_perplexity")).abs() < 1e-9);
    assert!(perplexity("noisy", "perplexity") != perplexity("plain", "perplexity"));
}
