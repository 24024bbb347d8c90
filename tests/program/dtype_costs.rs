//! The costs of narrow dtypes on a model, as the verifier measures them, and engines that compute in fewer bits than they report.

use std::process::Command;

use serde_json::Value;

use crate::support::run::{Run, store_answers_of};
use crate::support::{Scratch, fake_engine, finish, write_program};

/// A fake model on which q8_0 costs more than f16, and q4_0 more than bf16. At each position, two ids are almost equally likely.
const MODEL: &str = r#"--near-ties 1.0 --rounding '{"bf16":0.004,"f16":0.001,"q8_0":0.02,"q4_0":0.074}'"#;
/// A fake model on which q8_0 costs as much as bf16.
const MODEL_OF_EQUAL_COSTS: &str =
    r#"--near-ties 1.0 --rounding '{"bf16":0.01,"f16":0.001,"q8_0":0.01,"q4_0":0.074}'"#;
const MEASURING: &str = "measuring what narrow dtypes cost on this model, with sage";

/// A folder with the model and the verifier `sage`, a fake engine with these settings. No costs are stored.
fn with_verifier(settings: &str) -> Scratch {
    let scratch = Scratch::outside_checkout();
    let sage = "about = \"verifies\"\nbinary = \"sage-engine\"\nreference = true\n\
                [presets.default]\nabout = \"the only one\"\n";
    scratch.write_tree(&[("sage", sage)]);
    let programs = scratch.join("target/release");
    std::fs::create_dir_all(&programs).unwrap();
    let script = format!("#!/bin/sh\nexec '{}' {settings}\n", fake_engine().display());
    write_program(&programs.join("sage-engine"), &script);
    store_answers_of(&scratch, settings, &["--force"]).exits_with(0);
    std::fs::remove_file(scratch.join("model/dtype-costs.json")).unwrap();
    scratch
}

/// A run of engines in this dtype. Each has a name, and settings in addition to those of the model.
fn run(scratch: &Scratch, model: &str, dtype: &str, engines: &[(&str, &str)]) -> Run {
    let _ = std::fs::remove_dir_all(scratch.results());
    let mut command: Command = scratch.orchestrate_without_checkout();
    command.env_remove("ORCHESTRATE_VERIFIER").arg("-m").arg(scratch.join("model"));
    for (name, settings) in engines {
        command.arg("-e").arg(scratch.engine(name, &format!("{model} {settings}")));
    }
    command.args([
        "--dtype",
        dtype,
        "-s",
        "decode",
        "--depth",
        "0",
        "--blocks",
        "1",
        "--iterations",
        "20",
        "--json",
        "-",
    ]);
    Run::of(scratch, finish(command.arg("--results").arg(scratch.results())))
}

fn cost<'r>(run: &'r Run, dtype: &str) -> &'r Value {
    let costs = run.record.only("dtype_costs")["costs"].as_array().unwrap();
    costs.iter().find(|it| it["dtype"] == dtype).unwrap_or_else(|| panic!("{costs:?}"))
}

#[test]
fn the_verifier_measures_the_costs_of_dtypes_once_for_a_model() {
    let scratch = with_verifier(MODEL);
    let first = run(&scratch, MODEL, "bf16", &[("right", "")]);
    first.outcome.assert_stderr(&[MEASURING]);
    for (dtype, deviation) in [("bf16", 0.004), ("f16", 0.001), ("q8_0", 0.02), ("q4_0", 0.074)] {
        let cost = cost(&first, dtype);
        let (rms, stretch) = (cost["rms"].as_f64().unwrap(), cost["stretch_rms"].as_f64().unwrap());
        assert!((0.9..1.1).contains(&(rms / deviation)) && stretch > rms, "{cost}");
        assert_eq!(cost["positions"], 4 * 127 + 1151);
    }
    let (fine, coarse) = (cost(&first, "bf16"), cost(&first, "q4_0"));
    assert!(fine["changed"].as_u64() < coarse["changed"].as_u64(), "{fine} {coarse}");
    let gaps: Vec<f64> = coarse["gaps"].as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect();
    assert!(gaps.len() >= 16 && gaps.iter().all(|gap| (0.0..=0.2).contains(gap)), "{gaps:?}");
    let stored = std::fs::read_dir(scratch.join("home/dtype-costs")).unwrap().count();
    assert_eq!(stored, 1);
    let second = run(&scratch, MODEL, "bf16", &[("right", "")]);
    assert!(!second.outcome.stderr.contains(MEASURING), "{}", second.outcome.stderr);
    assert_eq!(second.record.only("dtype_costs")["costs"], first.record.only("dtype_costs")["costs"]);
}

#[test]
fn an_engine_that_computes_in_4_bits_and_reports_bf16_is_wrong() {
    let scratch = with_verifier(MODEL);
    let run = run(&scratch, MODEL, "bf16", &[("right", ""), ("four", "--computes-in q4_0")]);
    assert_eq!((run.status("four"), run.status("right")), ("wrong", "agrees"), "{}", run.report["outputs"]);
    let reasons = run.status_reasons("four");
    assert!(reasons[0].contains("the bound for 16 bits is 0.020: bf16 costs 0.00"), "{reasons:?}");
    assert!(reasons[0].ends_with("nats on this model"), "{reasons:?}");
}

#[test]
fn an_engine_that_scores_in_f16_and_generates_in_8_bits_is_wrong() {
    let scratch = with_verifier(MODEL);
    let run = run(&scratch, MODEL, "f16", &[("right", ""), ("eight", "--generates-in q8_0")]);
    assert_eq!(run.logprobs("eight"), run.logprobs("right"));
    assert_eq!((run.status("eight"), run.status("right")), ("wrong", "agrees"), "{}", run.report["outputs"]);
    let reasons = run.status_reasons("eight");
    assert!(reasons[0].contains("generated tokens differ from those of the verifier"), "{reasons:?}");
    assert!(reasons[0].contains("nats less likely; the bound for f16 on this model is"), "{reasons:?}");
}

/// A limit of the check: if 8 bits cost as much as bf16, the tokens of both engines are less likely than the verifier's by
/// about as much.
#[test]
fn an_engine_that_generates_in_8_bits_is_not_found_if_the_reported_bf16_costs_as_much() {
    let scratch = with_verifier(MODEL_OF_EQUAL_COSTS);
    let engines = [("right", ""), ("eight", "--generates-in q8_0")];
    let run = run(&scratch, MODEL_OF_EQUAL_COSTS, "bf16", &engines);
    assert_eq!((run.status("eight"), run.status("right")), ("agrees", "agrees"), "{}", run.report["outputs"]);
    let losses = ["eight", "right"].map(|engine| {
        let outputs = run.report["outputs"].as_array().unwrap();
        let output = outputs.iter().find(|it| it["engine"] == engine).unwrap();
        let loss = |field: &str| output["token_loss"][field].as_f64().unwrap();
        assert!(loss("positions") > 500.0 && loss("nats") < loss("bound"), "{output}");
        loss("nats")
    });
    assert!((0.2..5.0).contains(&(losses[0] / losses[1])), "{losses:?}");
}

#[test]
fn a_dtype_in_which_the_verifier_cannot_compute_is_recorded_with_the_reason_and_has_the_default_bounds() {
    let scratch = with_verifier(&format!(r#"{MODEL} --capabilities '{{"dtypes":["f32"]}}'"#));
    let run = run(&scratch, MODEL, "bf16", &[("four", "--computes-in q4_0")]);
    let unmeasured = run.record.only("dtype_costs")["unmeasured"].as_array().unwrap().clone();
    let dtypes: Vec<&Value> = unmeasured.iter().map(|it| &it["dtype"]).collect();
    assert_eq!(dtypes, ["bf16", "f16"], "{unmeasured:?}");
    assert_eq!(unmeasured[0]["reason"], "`hello` does not list the dtype `bf16`");
    assert_eq!(run.status("four"), "drifts", "{}", run.report["outputs"]);
    let mut explain = scratch.orchestrate_without_checkout();
    explain.args(["explain", "four", "--full"]).env("ORCHESTRATE_RESULTS", scratch.results());
    let explained = finish(&mut explain).exits_with(0);
    assert!(explained.stdout.replace('\n', " ").contains("was not measured"), "{}", explained.stdout);
}
